"""Units of length, as WEBKNOSSOS and OME-NGFF name them."""

from __future__ import annotations

_NM_PER_UNIT = {
    "yoctometer": 1e-15, "zeptometer": 1e-12, "attometer": 1e-9, "femtometer": 1e-6, "picometer": 1e-3, "nanometer": 1.0,
    "micrometer": 1e3, "millimeter": 1e6, "centimeter": 1e7, "decimeter": 1e8, "meter": 1e9, "decameter": 1e10, "hectometer": 1e11,
    "kilometer": 1e12, "megameter": 1e15, "gigameter": 1e18, "terameter": 1e21, "petameter": 1e24, "exameter": 1e27,
    "zettameter": 1e30, "yottameter": 1e33,
    "angstrom": 0.1, "inch": 2.54e7, "foot": 3.048e8, "yard": 9.144e8, "mile": 1.609344e12, "parsec": 3.0856775814913673e25,
}  # fmt: skip
_SHORT_UNITS = {
    "nm": "nanometer",
    "um": "micrometer",
    "µm": "micrometer",
    "μm": "micrometer",
    "mm": "millimeter",
    "cm": "centimeter",
    "m": "meter",
    "pm": "picometer",
    "Å": "angstrom",
}


def length_nm(length: float, unit: str) -> float:
    """Turn a length into nanometers.

    Examples
    --------
    >>> length_nm(0.25, "um")
    250.0
    """
    per_unit = _NM_PER_UNIT.get(unit_name(unit))
    if per_unit is None:
        raise ValueError(f"unit must be a unit of length such as {', '.join(_SHORT_UNITS)}, got {unit!r}")
    return float(f"{length * per_unit:.12g}")  # 0.00404 micrometers are 4.04 nanometers, and not 4.0399999999999997


def nm_per_unit(unit: str) -> float | None:
    """Give the length of a unit [nm], None where it is no unit of length."""
    return _NM_PER_UNIT.get(unit_name(unit))


def unit_name(unit: str) -> str:
    """Give the long name of a unit, which is the one that WEBKNOSSOS writes.

    Examples
    --------
    >>> unit_name("um")
    'micrometer'
    """
    return _SHORT_UNITS.get(unit, unit)
