"""Storage options of a format, declared once: documentation, range and default of each.

The options of a format are a frozen dataclass. Checks, help texts, docstrings and the reference are
generated from its fields. None means not given: then the value is that of the source if there is
one, else the default. Opens no file.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar

from wkwdask.geometry.mag import vec3

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np

    from wkwdask.geometry.mag import Vec3

Record = TypeVar("Record", bound="StorageOptions")
SHAPE_WORDS = {"auto": True, "none": False}
"""Words for True and False as a shape."""


@dataclass(frozen=True, slots=True)
class Option:
    """Declaration of one option."""

    doc: str
    """One or two sentences; ``{auto}`` and ``{none}`` are placeholders for True and False."""
    kind: Literal["shape", "choice", "number", "flag"]
    """Type of the value; a shape is three lengths along x, y, z, or the edge of a cube."""
    default: Any = None
    """Value for a new array, None if it depends on the data."""
    default_doc: str = ""
    """Description of a default that depends on the data."""
    choices: tuple[str, ...] = ()
    """Valid names of a choice."""
    bounds: tuple[int, int] | None = None
    """Smallest and largest valid number."""
    accepts_bool: bool = False
    """Whether a shape can also be True or False."""
    words: tuple[str, ...] = ()
    """Words that a number can also be."""

    def checked(self, value: Any, option: str, format_title: str) -> Any:
        """Return a valid value in its canonical type; raises ValueError."""
        if self.kind == "choice" and value not in self.choices:
            raise ValueError(
                f"{option} of {format_title} must be one of {', '.join(self.choices)}, got "
                f"{value!r}"
            )
        if self.kind == "number" and value not in self.words:
            words = "".join(f' or "{word}"' for word in self.words)
            number = _whole(value, option, words)
            if self.bounds is not None and not self.bounds[0] <= number <= self.bounds[1]:
                raise ValueError(
                    f"{option} must be in {self.bounds[0]}..{self.bounds[1]}{words}, got {value!r}"
                )
            return number
        if self.accepts_bool and (isinstance(value, str) or not hasattr(value, "__len__")):
            if isinstance(value, str) and value in SHAPE_WORDS:
                return SHAPE_WORDS[value]
            if value in (True, False):
                return bool(value)
            if isinstance(value, (float, str)):
                raise ValueError(
                    f'{option} must be one length, three lengths, True (or "auto") or False (or '
                    f'"none"), got {value!r}'
                )
            if not hasattr(value, "__index__"):
                return value  # an object that the format checks, such as a Sharding
        if self.kind == "shape":
            lengths = _lengths(value, option)
            if min(lengths) < 1:
                raise ValueError(f"{option} must be positive, got {lengths}")
            return lengths
        return value

    @property
    def type_doc(self) -> str:
        """Type in numpydoc notation."""
        if self.kind == "choice":
            return "{" + ", ".join(f'"{name}"' for name in self.choices) + "}, optional"
        if self.kind == "shape":
            return f"int or sequence of 3 int{' or bool' if self.accepts_bool else ''}, optional"
        return (
            "bool"
            if self.kind == "flag"
            else "int" + "".join(f' or "{word}"' for word in self.words) + ", optional"
        )

    @property
    def default_text(self) -> str:
        """Default for a new array as text."""
        if self.default_doc or self.default is None:
            return self.default_doc
        return ",".join(map(str, self.default)) if self.kind == "shape" else str(self.default)

    def text(self, auto: str = "True", none: str = "False", *, with_default: bool = True) -> str:
        """Return the documentation, with the default for a new array."""
        default = f" Default: {self.default_text}." if with_default and self.default_text else ""
        return f"{self.doc}{default}".replace("{auto}", auto).replace("{none}", none)


def _lengths(value: Any, option: str) -> Vec3:
    """Return three lengths; one length is the edge of a cube."""
    if hasattr(value, "__len__"):
        return vec3(value, option)
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError(f"{option} must be one or three whole numbers (x, y, z), got {value!r}")
    return (operator.index(value),) * 3


def _whole(value: Any, option: str, words: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{option} must be a whole number{words}, got {value!r}") from None


def shape(
    doc: str, default: Any = None, default_doc: str = "", *, accepts_bool: bool = False
) -> Any:
    """Declare an option that is a shape."""
    return _declared(Option(doc, "shape", default, default_doc, accepts_bool=accepts_bool))


def choice(
    doc: str, choices: Sequence[str], default: str | None = None, default_doc: str = ""
) -> Any:
    """Declare an option with a fixed set of names."""
    return _declared(Option(doc, "choice", default, default_doc, tuple(choices)))


def number(
    doc: str,
    bounds: tuple[int, int] | None = None,
    default: int | str | None = None,
    default_doc: str = "",
    *,
    words: Sequence[str] = (),
) -> Any:
    """Declare an option that is an integer, or one of some words."""
    return _declared(Option(doc, "number", default, default_doc, bounds=bounds, words=tuple(words)))


def flag(doc: str) -> Any:
    """Declare a boolean option."""
    return field(default=False, metadata={"option": Option(doc, "flag")})


def _declared(option: Option) -> Any:
    return field(default=None, metadata={"option": option})


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Base class of the storage options of a format."""

    name: ClassVar[str] = ""
    """Name of the format in messages."""
    title: ClassVar[str] = ""
    """Name of the format in headings."""
    writes_level: ClassVar[bool] = False
    """Whether a write to a part of an existing array can choose the compression level."""
    stores_any_type: ClassVar[bool] = False
    """Whether new levels store bool and half-float voxels; if not, they become a wider type."""
    unsupported: ClassVar[tuple[str, ...]] = ()
    """Options that a conversion into the format rejects: ``category``, ``pyramid``."""
    compressor: ClassVar[str] = ""
    """Compression that ``compress`` chooses if none is given, empty if an option must be given."""
    levels: ClassVar[Mapping[str, tuple[int, int, int]]] = {}
    """Default, smallest and largest level of each compression that has levels."""

    def __post_init__(self) -> None:
        for name, option in options_of(type(self)):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, option.checked(value, name, self.title))
        if self.levels and getattr(self, "compression", None) is not None:
            self.level_of(getattr(self, "compression", ""))

    @classmethod
    def stored_dtype(cls, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the type in which new levels store voxels of a type: the same, or a wider one
        where the format lacks it."""
        # Options are declared without NumPy, so that the command line starts quickly.
        from wkwdask.model.voxel_type import common_dtype

        return dtype.newbyteorder("=") if cls.stores_any_type else common_dtype(dtype)

    def explicit(self) -> dict[str, Any]:
        """Return the options that were given, by name."""
        return {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if getattr(self, each.name) != each.default
        }

    def with_defaults(self) -> Self:
        """Return the options with the defaults of a new array."""
        missing = {
            name: option.default
            for name, option in options_of(type(self))
            if getattr(self, name) is None
        }
        return replace(
            self, **{name: default for name, default in missing.items() if default is not None}
        )

    def level_of(self, compression: str) -> int:
        """Return the level of a compression."""
        usual, least, greatest = self.levels.get(compression, (0, 0, 0))
        level: int | None = getattr(self, "level", None)
        if level is not None and compression not in self.levels:
            raise ValueError(
                f"compression {compression} of {self.title} has no level, got level={level}"
            )
        if level is not None and not least <= level <= greatest:
            raise ValueError(f"level of {compression} must be in {least}..{greatest}, got {level}")
        return usual if level is None else level


def options_of(record: type[StorageOptions]) -> Iterator[tuple[str, Option]]:
    """Iterate over names and declarations of the options of a class."""
    return ((each.name, each.metadata["option"]) for each in fields(record))


def make_options(record: type[Record], **given: Any) -> Record:
    """Create options from keyword arguments; None means not given."""
    names = [name for name, _ in options_of(record)]
    values = {name: value for name, value in given.items() if value is not None}
    unknown = [name for name in values if name not in names]
    if unknown:
        has = f"it has: {', '.join(names)}" if names else "it has none"
        raise ValueError(
            f"{record.name} has no option{'s' if len(unknown) > 1 else ''} {', '.join(unknown)}; "
            f"{has}"
        )
    return record(**values)


def parameter_docs(record: type[StorageOptions]) -> str:
    """Return the numpydoc parameter list of the options."""
    lines = []
    for name, option in options_of(record):
        lines += [f"{name} : {option.type_doc}", f"    {option.text()}"]
    return "\n".join(f"    {line}" for line in lines)
