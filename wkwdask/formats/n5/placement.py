"""Voxel size, mag and position of N5 datasets, as their attributes state them. Does no I/O.

The N5 specification has none of them. Other software stores them by several conventions, in the
order in which they are tried here; malformed attributes are ignored.

1. ``transform``, also in ``multiscales``: voxel size and center of the first voxel of one array
   (Janelia COSEM, WEBKNOSSOS).
2. ``pixelResolution``, ``downsamplingFactors`` and ``scales``: voxel size of the full resolution,
   and factors of each level (n5-viewer, BigDataViewer).
3. ``resolution``, ``units`` and ``offset``: beside factors the voxel size of the full resolution
   (Neuroglancer, Paintera), else that of one array (tensorstore); without ``units`` in nm, but in a
   time point of BigDataViewer, whose XML states the unit. ``offset`` is the position of the first
   voxel in the unit of ``resolution``, which is 1 if it is missing (Paintera, ``N5Helpers``).
4. ``pixelWidth``, ``pixelHeight``, ``pixelDepth`` and ``pixelUnit``: voxel size of one array
   (n5-ij, ``N5ImagePlusMetadata``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wkwdask.errors import UnsupportedError
from wkwdask.formats.array_images import (
    ArrayGeometry,
    guess_ratio,
    nm_per_unit,
    place_fault,
    xyz_values,
)
from wkwdask.formats.n5.attributes import dataset_axes, group_factors, level_number, names_of_axes
from wkwdask.model.levels import (
    base_level,
    factors_by_shapes,
    mag_from_ratio,
    offset_from_center,
    ratio_of,
    scale_lengths,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from wkwdask.formats.n5.attributes import N5Dataset
    from wkwdask.model.levels import Lengths

IMAGEJ_LENGTHS, IMAGEJ_UNIT = ("pixelWidth", "pixelHeight", "pixelDepth"), "pixelUnit"
_ONE = (1.0, 1.0, 1.0)
_ROUNDING = 1e-6  # of a voxel


class Placement(NamedTuple):
    """Voxel size and center of the first voxel, along x, y, z."""

    scale: Lengths
    center: Lengths
    is_nm: bool
    """Whether both are nanometers; else their unit is unknown, and only their ratio counts."""

    def is_close(self, other: Placement) -> bool:
        """Return whether both place voxels alike."""
        return (
            self.is_nm == other.is_nm
            and np.allclose(self.scale, other.scale, rtol=1e-6, atol=0)
            and np.allclose(self.center, other.center, rtol=0, atol=1e-6 * min(other.scale))
        )


def _xyz_values(values: Any, letters: Sequence[str], default: float = 1.0) -> Lengths | None:
    """Return the values of x, y, z from a list with one number per axis, or with just these
    three."""
    has_xyz_only = isinstance(values, (list, tuple)) and len(values) == 3 != len(letters)
    return xyz_values(values, "xyz" if has_xyz_only else letters, default)


def _units(units: Any, letters: Sequence[str]) -> Lengths | None:
    """Return the nanometers per unit along x, y, z from a list with one unit per axis, or None."""
    is_valid = isinstance(units, list) and len(units) == len(letters)
    return nm_per_unit(dict(zip(letters, units, strict=True)), "nm") if is_valid else None


def parse_transform(transform: Any) -> Placement | None:
    """Return the placement that a ``transform`` states, or None."""
    if not isinstance(transform, dict) or not isinstance(transform.get("axes"), list):
        return None
    letters = [str(name).lower() for name in transform["axes"]]
    scale = _xyz_values(transform.get("scale"), letters)
    center = _xyz_values(transform.get("translate", [0.0] * len(letters)), letters, 0.0)
    if scale is None or center is None or min(scale) <= 0:
        return None
    per_unit = _units(transform.get("units"), letters)
    if per_unit is None:
        return Placement(scale, center, is_nm=False)
    return Placement(scale_lengths(scale, per_unit), scale_lengths(center, per_unit), is_nm=True)


class _Resolution(NamedTuple):
    """Voxel size along x, y, z in some unit."""

    lengths: Lengths
    per_unit: Lengths | None
    """Nanometers per unit, None if it is no length."""


def _parse_resolution(attributes: Mapping[str, Any], letters: str) -> _Resolution | None:
    """Return the voxel size of ``pixelResolution``, ``resolution`` or ImageJ, or None."""
    resolution = attributes.get("pixelResolution")
    if isinstance(resolution, dict):
        lengths, units = (
            _xyz_values(resolution.get("dimensions"), letters),
            [resolution.get("unit")] * len(letters),
        )
    elif states_imagej_size(attributes):
        lengths, units = (
            xyz_values([attributes.get(name) for name in IMAGEJ_LENGTHS], "xyz", 1.0),
            [attributes.get(IMAGEJ_UNIT)] * len(letters),
        )
    else:
        lengths, units = (
            _xyz_values(attributes.get("resolution"), letters),
            attributes.get("units", ["nm"] * len(letters)),
        )
    return (
        None
        if lengths is None or min(lengths) <= 0
        else _Resolution(lengths, _units(units, letters))
    )


def states_imagej_size(attributes: Mapping[str, Any]) -> bool:
    """Return whether attributes state the voxel size of an array as ImageJ does, and in no other
    way."""
    others = {"pixelResolution", "resolution"}
    return not others & attributes.keys() and attributes.keys() >= set(IMAGEJ_LENGTHS)


def stated_lengths_nm(attributes: Mapping[str, Any], letters: str) -> Lengths | None:
    """Return the voxel size [nm] of ``pixelResolution``, ``resolution`` or ImageJ, or None."""
    return _in_nm(_parse_resolution(attributes, letters))


def _in_nm(resolution: _Resolution | None) -> Lengths | None:
    return (
        None
        if resolution is None or resolution.per_unit is None
        else scale_lengths(resolution.lengths, resolution.per_unit)
    )


def level_factors(
    own: Mapping[str, Any], group: Mapping[str, Any], name: str, letters: str
) -> Lengths | None:
    """Return the downsampling factors of a level along x, y, z, or None if they are not stated."""
    stated = own.get("downsamplingFactors")
    number = level_number(name)
    if stated is None and number is not None:
        by_number = group_factors(group)
        stated = by_number[number] if number < len(by_number) else None
    factors = _xyz_values(stated, letters)
    return factors if factors is not None and min(factors) > 0 else None


def place_levels(
    levels: Sequence[tuple[str, N5Dataset | None, Mapping[str, Any]]],
    group: Mapping[str, Any],
    source: str,
) -> list[ArrayGeometry | UnsupportedError]:
    """Return the geometry of each level; an error for a level with unsupported axes.

    A dataset is None if it cannot be read. Mags count from the finest level, readable or not.
    """
    errors: dict[int, UnsupportedError] = {}
    parsed = []
    for n, (name, dataset, attributes) in enumerate(levels):
        try:
            parsed.append(LevelMetadata.of(name, dataset, attributes, group, source))
        except UnsupportedError as error:
            errors[n] = error
            parsed.append(LevelMetadata.of(name, None, attributes, group, source))
    base = parsed[base_level(level_sizes(parsed), [level.dataset is not None for level in parsed])]
    return [
        errors[n] if n in errors else level.geometry(base, ratio)
        for n, (level, ratio) in enumerate(zip(parsed, ratios_to(base, parsed), strict=True))
    ]


def ratios_to(base: LevelMetadata, levels: Sequence[LevelMetadata]) -> list[Lengths | None]:
    """Return the size of a voxel of each level relative to the finest level, None if it is not
    known."""
    stated = {n: ratio for n, level in enumerate(levels) if (ratio := level.ratio_to(base))}
    found = factors_by_shapes(list(stated.values()), base.size, [levels[n].size for n in stated])
    by_number = dict(zip(stated, found, strict=True))
    return [by_number.get(n) for n in range(len(levels))]


def level_sizes(levels: Sequence[LevelMetadata]) -> list[Lengths | None]:
    """Return comparable voxel sizes of levels by what all state: their transforms, else their
    factors, else their shapes."""
    transforms = [level.transform for level in levels if level.transform is not None]
    if len(transforms) == len(levels) and len({transform.is_nm for transform in transforms}) == 1:
        return [transform.scale for transform in transforms]
    if any(level.factors for level in levels):
        return [level.factors or _ONE for level in levels]
    return [level.relative_size for level in levels]


@dataclass(frozen=True, slots=True)
class LevelMetadata:
    """Size and place of a level, as its attributes state them."""

    dataset: N5Dataset | None
    """None if it cannot be read."""
    names: tuple[str, ...]
    """Axis names, x first."""
    letters: str
    factors: Lengths | None
    transform: Placement | None
    resolution: _Resolution | None
    """Voxel size of the full resolution, or of this array if it has no factors and states the size
    itself."""
    offset: Lengths | None
    """Position of the first voxel, in the unit of the resolution."""

    @classmethod
    def of(
        cls,
        name: str,
        dataset: N5Dataset | None,
        attributes: Mapping[str, Any],
        group: Mapping[str, Any],
        source: str,
    ) -> LevelMetadata:
        """Parse the attributes of a level and its group; raises UnsupportedError for other axes."""
        letters = (
            "xyz"
            if dataset is None
            else dataset_axes(dataset, attributes, f"{source}/{name}" if name else source)
        )
        names = tuple(letters if dataset is None else names_of_axes(dataset, attributes, letters))
        factors = level_factors({} if dataset is None else dataset.document, group, name, letters)
        transform, offset = (
            parse_transform(attributes.get("transform")),
            _xyz_values(attributes.get("offset"), letters, 0.0),
        )
        return cls(
            dataset,
            names,
            letters,
            factors,
            transform,
            _parse_resolution(attributes, letters),
            offset,
        )

    @property
    def size(self) -> tuple[int, int, int] | None:
        """Voxels along x, y, z; None if the dataset cannot be read."""
        if self.dataset is None:
            return None
        x, y, z = (
            self.dataset.dimensions[self.letters.index(letter)] if letter in self.letters else 1
            for letter in "xyz"
        )
        return x, y, z

    @property
    def relative_size(self) -> Lengths | None:
        """Voxel size in relation to the other levels, by the shape."""
        if self.size is None:
            return None
        x, y, z = (1 / max(1, n) for n in self.size)
        return x, y, z

    @property
    def lengths_nm(self) -> Lengths | None:
        """Edge lengths of a voxel [nm], None if they are not stated."""
        if self.transform is not None and self.transform.is_nm:
            return self.transform.scale
        lengths = _in_nm(self.resolution)
        return None if lengths is None else scale_lengths(lengths, self.factors or _ONE)

    def origin_in(self, lengths_nm: Lengths | None) -> Lengths:
        """Return the center of voxel 0 [nm, or voxels without a voxel size]."""
        base = lengths_nm or _ONE
        if self.transform is not None and self.transform.is_nm == (lengths_nm is not None):
            first = self._first_voxel(self, _ONE)
            shift = [
                (place - length * n) / length
                for place, length, n in zip(
                    self.transform.center, self.transform.scale, first, strict=True
                )
            ]
        else:
            # factors count from the corner of the full resolution, whose voxel 0 has its center at
            # 0
            shift = [(1 - 1 / factor) / 2 for factor in self.factors or _ONE]
        return scale_lengths(base, [part if abs(part) > _ROUNDING else 0.0 for part in shift])

    @property
    def states_own_size(self) -> bool:
        """Whether the dataset states a resolution and no factors, as tensorstore writes it."""
        document = {} if self.dataset is None else self.dataset.document
        return (
            self.factors is None
            and isinstance(document.get("resolution"), list)
            and self.resolution is not None
        )

    def _has_other_size(self, base: LevelMetadata) -> bool:
        """Return whether the resolution is that of this array, since the finest level states
        another one."""
        return self.states_own_size and base.states_own_size and self.lengths_nm != base.lengths_nm

    def _transforms(self, base: LevelMetadata) -> tuple[Placement, Placement] | None:
        """Return the placements of this level and the finest one, None if they are not stated in
        one unit."""
        if self.transform is None:
            return None
        stated = base.transform
        if stated is None:
            lengths = base.lengths_nm or _ONE
            stated = Placement(
                lengths,
                scale_lengths(lengths, base._first_voxel(base, _ONE)),
                base.lengths_nm is not None,
            )
        return (self.transform, stated) if self.transform.is_nm == stated.is_nm else None

    def ratio_to(self, base: LevelMetadata) -> Lengths | None:
        """Return the size of a voxel relative to the finest level: by transforms, factors or voxel
        sizes, or guessed from the shapes."""
        transforms = self._transforms(base)
        if transforms is not None:
            return ratio_of(transforms[0].scale, transforms[1].scale)
        if self.factors is not None:
            return ratio_of(self.factors, base.factors or _ONE)
        own, its = self.lengths_nm, base.lengths_nm
        if own is not None and its is not None and self._has_other_size(base):
            return ratio_of(own, its)
        if base.size is None or self.size is None:
            return None
        guess = guess_ratio(base.size, self.size)
        return guess if min(guess) >= 1 else None

    def place_faults(self, base: LevelMetadata) -> Iterator[tuple[str, str, str]]:
        """Yield kind, found and expected values where the level does not cover the voxels of the
        finest one."""
        transforms, sizes = self._transforms(base), (self.size, base.size)
        if transforms is not None:
            placements: tuple[Placement, ...] = transforms
        elif self.factors is not None:  # factors state no position
            placements = tuple(
                Placement(scale, scale_lengths(scale, (0.5, 0.5, 0.5)), is_nm=False)
                for scale in (self.factors, base.factors or _ONE)
            )
        else:
            return
        if None in sizes:
            return
        for n, axis in enumerate("xyz"):
            own, its = (
                (size[n], place.scale[n], place.center[n])
                for size, place in zip(sizes, placements, strict=True)
                if size is not None
            )
            fault = place_fault(its, own)
            if fault is not None and axis in self.letters:
                kind, found, expected = fault
                yield kind, f"{found} along {axis}", expected

    def geometry(self, base: LevelMetadata, ratio: Lengths | None) -> ArrayGeometry:
        """Return the geometry relative to the finest level, whose voxels are smaller by a ratio."""
        # the voxel size of the finest level times the ratio, so that mags and voxel sizes agree
        lengths = (
            None
            if base.lengths_nm is None or ratio is None
            else scale_lengths(base.lengths_nm, ratio)
        )
        return ArrayGeometry(
            self.letters,
            mag_from_ratio(ratio),
            lengths,
            (0, 0, 0) if ratio is None else self._first_voxel(base, ratio),
        )

    def _first_voxel(self, base: LevelMetadata, ratio: Lengths) -> tuple[int, int, int]:
        """Return the absolute first voxel [voxels of the level]."""
        if self.transform is not None:
            transforms = self._transforms(base) if base.transform is not None else None
            return offset_from_center(
                self.transform.center,
                ratio_of(self.transform.scale, ratio)
                if transforms is None
                else transforms[1].scale,
                ratio,
            )
        if self.offset is None:
            return 0, 0, 0
        lengths = _ONE if self.resolution is None else self.resolution.lengths
        if not self._has_other_size(base):
            lengths = scale_lengths(
                lengths, self.factors or scale_lengths(ratio, base.factors or _ONE)
            )
        # the offset is the center of the first voxel of the finest level
        center = [
            place + (length - length / step) / 2
            for place, length, step in zip(self.offset, lengths, ratio, strict=True)
        ]
        return offset_from_center(center, ratio_of(lengths, ratio), ratio)
