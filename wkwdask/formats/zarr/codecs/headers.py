"""Header functions for the codecs ``offset`` and ``pad``, and the names by which ``zarr.json``
refers to them.

A header function gets the encoded bytes of a chunk and returns a header of exactly the promised
length. ``zarr.json`` stores its name only. The name is looked up among the headers of wkwdask,
those registered in this process, and the entry points ``wkwdask.headers`` of installed packages. An
unknown name is an error when a chunk is written, never a header of zeros. No text of a
``zarr.json`` is ever imported or executed. Does not import zarr.
"""

from __future__ import annotations

import inspect
import struct
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

ENTRY_POINTS = "wkwdask.headers"
# prefix of the stored name of a function that was never registered; no later process can find it
_SESSION = "session:"
_BUILT_IN = {"n5": f"{__name__}:n5_header", "tiff": "wkwdask.formats.zarr.codecs.tiff:tiff_header"}
_registered: dict[str, Callable[..., bytes]] = {}


@dataclass(frozen=True, slots=True)
class ChunkLayout:
    """Properties of a chunk on which a header may depend, besides its encoded bytes."""

    shape: tuple[int, ...]
    """Shape of the chunk as stored, after a ``transpose``."""
    dtype: np.dtype[Any]
    """Type of an element; its stored byte order is that of the codec ``bytes``, which is unknown
    here."""
    header_nbytes: int
    """Required length of the header in bytes."""


def register_header(name: str, function: Callable[..., bytes]) -> Callable[..., bytes]:
    """Register a function that makes chunk headers under a name.

    The metadata of an array store the name (``offset_codec(offset, header=name)``), not the
    function. Each process that writes such an array must register the function again, or find it as
    an entry point ``wkwdask.headers`` of an installed package. Reading needs neither.

    Parameters
    ----------
    name : str
        Name in ``zarr.json``. Registering a name again replaces its function. ``"tiff"`` and
        ``"n5"`` are reserved.
    function : callable
        Called with the encoded bytes of a chunk, or with the bytes and a record with ``shape``,
        ``dtype`` and ``header_nbytes``, and with ``header_options=`` as keyword arguments. Must
        return exactly as many bytes as the offset of the codec.

    Returns
    -------
    callable
        ``function``, unchanged.

    Raises
    ------
    ValueError
        The name is empty or reserved.
    TypeError
        ``function`` is not callable.

    Examples
    --------
    >>> register_header("length", lambda encoded: len(encoded).to_bytes(8, "little"))(b"1234")
    b'\\x04\\x00\\x00\\x00\\x00\\x00\\x00\\x00'
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"the name of a header must be a non-empty text, got {name!r}")
    if name in _BUILT_IN:
        raise ValueError(
            f"the header {name!r} is built into wkwdask ({', '.join(sorted(_BUILT_IN))}): choose "
            "another name"
        )
    if not callable(function):
        raise TypeError(
            f"the header {name!r} must be a function of the encoded bytes, got {function!r}"
        )
    _registered[name] = function
    return function


def find_header(name: str) -> Callable[..., bytes] | None:
    """Return the function of a name: built in, registered in this process, or of an installed
    package; None if there is none."""
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        return getattr(import_module(module), attribute)  # type: ignore[no-any-return]
    if name in _registered:
        return _registered[name]
    for entry_point in entry_points(group=ENTRY_POINTS, name=name):
        return _registered.setdefault(name, entry_point.load())
    return None


@dataclass(frozen=True, slots=True)
class Header:
    """Header that is computed for each chunk, as the metadata of an array refer to it."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Keyword arguments of the function, JSON values only."""
    function: Callable[..., bytes] | None = field(default=None, compare=False, repr=False)
    """Function that is pickled with the array, to workers that never registered it; None for
    built-in ones."""

    @classmethod
    def named(cls, name: str, options: Mapping[str, Any] | None = None) -> Header:
        """Return the header of a name, with its function if this process has registered it."""
        return cls(name, dict(options or {}), _registered.get(name))

    @classmethod
    def of_function(
        cls, function: Callable[..., bytes], options: Mapping[str, Any] | None = None
    ) -> Header:
        """Return the header of a function, under its registered name; an array with an unregistered
        one can be written in this session only."""
        if not callable(function):
            raise TypeError(f"a header must be a function of the encoded bytes, got {function!r}")
        names = [name for name, known in _registered.items() if known is function]
        called = getattr(function, "__qualname__", type(function).__qualname__)
        return cls(names[0] if names else f"{_SESSION}{called}", dict(options or {}), function)

    @classmethod
    def from_json(cls, value: Any) -> Header:
        """Parse a name, or an object with a name and options."""
        is_object = (
            isinstance(value, dict)
            and set(value) <= {"name", "options"}
            and isinstance(value.get("options", {}), dict)
        )
        name = value.get("name") if is_object else value
        if not isinstance(name, str) or not name:
            raise CorruptError(
                f"'header' is {value!r}, expected a name, or an object with 'name' and 'options'"
            )
        return cls.named(name, value.get("options") if is_object else None)

    def to_json(self) -> str | dict[str, Any]:
        return {"name": self.name, "options": dict(self.options)} if self.options else self.name

    def resolve(self) -> Callable[..., bytes]:
        """Return the function; raises UnsupportedError if it is unknown in this process."""
        function = self.function or find_header(self.name)
        if function is None:
            hint = (
                " (a function without a name when the array was created)"
                if self.name.startswith(_SESSION)
                else ""
            )
            raise UnsupportedError(
                f"chunks of this array begin with the header {self.name!r}{hint}, which is not "
                "registered in this process; "
                f"before writing, call wkwdask.register_header({self.name!r}, function)"
            )
        return function

    def make(self, encoded: bytes, layout: ChunkLayout) -> bytes:
        function = self.resolve()
        header = (
            function(encoded, layout, **self.options)
            if _takes_layout(function)
            else function(encoded, **self.options)
        )
        if not isinstance(header, (bytes, bytearray, memoryview)):
            raise TypeError(
                f"the header {self.name!r} returned {type(header).__name__}, expected bytes"
            )
        if len(header) != layout.header_nbytes:
            raise ValueError(
                f"the header {self.name!r} returned {len(header)} bytes, expected "
                f"{layout.header_nbytes} according to the metadata of the array"
            )
        return bytes(header)


def _takes_layout(function: Callable[..., bytes]) -> bool:
    """Return whether a function has a second required positional parameter, the layout."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return (
        sum(
            parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
            and parameter.default is parameter.empty
            for parameter in parameters
        )
        > 1
    )


def n5_header(encoded: bytes, layout: ChunkLayout) -> bytes:
    """Return the header of an N5 block in default mode: the header function ``"n5"``."""
    # N5 README, "File-system specification", rule 9: mode 0, number of dimensions, and the block
    # size with the fastest axis first, all big-endian. Zarr stores the last axis fastest, so the
    # shape is reversed. An array with the axis order of N5 has a transpose before bytes, and its
    # shape arrives here already transposed.
    count = len(layout.shape)
    if layout.header_nbytes != 4 + 4 * count:
        raise ValueError(
            f"the header of an N5 block of {count} dimensions has {4 + 4 * count} bytes, expected "
            f"{layout.header_nbytes}: change the offset"
        )
    return struct.pack(f">HH{count}I", 0, count, *reversed(layout.shape))
