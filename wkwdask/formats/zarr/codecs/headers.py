"""Headers of chunks that depend on the encoded bytes: functions, and the names under which ``zarr.json`` mentions them.

In: the encoded bytes of a chunk and its layout. Out: a header of exactly the promised length. A name is looked up among the headers of this package, those that
were registered in this process, and the entry points ``wkwdask.headers`` of what is installed; a name that nobody knows is an error when a chunk is written,
never a header of zeros. Nothing that stands in a ``zarr.json`` is ever imported or run. Does not know zarr.
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
_SESSION = "session:"  # a function without a name of its own is stored as this and what it was called
_BUILT_IN = {"n5": f"{__name__}:n5_header", "tiff": "wkwdask.formats.zarr.codecs.tiff:tiff_header"}
_registered: dict[str, Callable[..., bytes]] = {}


@dataclass(frozen=True, slots=True)
class ChunkLayout:
    """What a header may depend on besides the encoded bytes."""

    shape: tuple[int, ...]
    """Elements of the chunk along each axis, as they are stored: after a ``transpose``."""
    dtype: np.dtype[Any]
    """Type of an element; the byte order is that of the codec ``bytes``, which is not known here."""
    header_nbytes: int
    """How long the header is to be [bytes]."""


def register_header(name: str, function: Callable[..., bytes]) -> Callable[..., bytes]:
    """Give a name to a function that makes the headers of chunks, so that arrays which were written with it can be written again later.

    The name is stored in the metadata of an array (``offset_codec(offset, header=name)``), the function is not: each process that writes such an array
    registers it, or finds it as an entry point ``wkwdask.headers`` of an installed package. Reading needs neither.

    Parameters
    ----------
    name : str
        What ``zarr.json`` says. A name that was registered before gets the new function; ``"tiff"`` and ``"n5"`` are taken.
    function : callable
        Takes the encoded bytes of a chunk, or these and a record with ``shape``, ``dtype`` and ``header_nbytes``; keyword arguments are those of
        ``header_options=``. Gives exactly as many bytes as the codec's offset.

    Returns
    -------
    callable
        The function.

    Raises
    ------
    ValueError
        The name is empty or taken.
    TypeError
        The function is none.

    Examples
    --------
    >>> register_header("length", lambda encoded: len(encoded).to_bytes(8, "little"))(b"1234")
    b'\\x04\\x00\\x00\\x00\\x00\\x00\\x00\\x00'
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"a header's name is some text, got {name!r}")
    if name in _BUILT_IN:
        raise ValueError(f"the header {name!r} is one of wkwdask's own ({', '.join(sorted(_BUILT_IN))}): take another name")
    if not callable(function):
        raise TypeError(f"the header {name!r} is to be a function of the encoded bytes, got {function!r}")
    _registered[name] = function
    return function


def find_header(name: str) -> Callable[..., bytes] | None:
    """Look for the function of a name: wkwdask's own, those of this process, those of installed packages."""
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        return getattr(import_module(module), attribute)  # type: ignore[no-any-return]
    if name in _registered:
        return _registered[name]
    for found in entry_points(group=ENTRY_POINTS, name=name):
        return _registered.setdefault(name, found.load())
    return None


@dataclass(frozen=True, slots=True)
class Header:
    """A header that is made anew for each chunk, as the metadata of an array mention it."""

    name: str
    """Registered name."""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Keyword arguments of the function, all of them JSON."""
    function: Callable[..., bytes] | None = field(default=None, compare=False, repr=False)
    """The function where it travels with the array: none for wkwdask's own."""

    @classmethod
    def named(cls, name: str, options: Mapping[str, Any] | None = None) -> Header:
        """Refer to a header by its name, with its function where this process has registered one."""
        return cls(name, dict(options or {}), _registered.get(name))

    @classmethod
    def of_function(cls, function: Callable[..., bytes], options: Mapping[str, Any] | None = None) -> Header:
        """Refer to a function: by its registered name, else by a name that can be read, and written with in this session only."""
        if not callable(function):
            raise TypeError(f"a header is to be a function of the encoded bytes, got {function!r}")
        names = [name for name, known in _registered.items() if known is function]
        called = getattr(function, "__qualname__", type(function).__qualname__)
        return cls(names[0] if names else f"{_SESSION}{called}", dict(options or {}), function)

    @classmethod
    def from_json(cls, value: Any) -> Header:
        """Read a name, or an object with a name and options."""
        known = isinstance(value, dict) and set(value) <= {"name", "options"} and isinstance(value.get("options", {}), dict)
        name = value.get("name") if known else value
        if not isinstance(name, str) or not name:
            raise CorruptError(f"'header' is {value!r}, expected a name, or an object with 'name' and 'options'")
        return cls.named(name, value.get("options") if known else None)

    def to_json(self) -> str | dict[str, Any]:
        """Give what :meth:`from_json` reads."""
        return {"name": self.name, "options": dict(self.options)} if self.options else self.name

    def resolve(self) -> Callable[..., bytes]:
        """Give the function."""
        function = self.function or find_header(self.name)
        if function is None:
            hint = " (a function that had no name when the array was made)" if self.name.startswith(_SESSION) else ""
            raise UnsupportedError(
                f"chunks of this array begin with the header {self.name!r}{hint}, which this process does not know; "
                f"before it writes, say wkwdask.register_header({self.name!r}, function)"
            )
        return function

    def make(self, encoded: bytes, layout: ChunkLayout) -> bytes:
        """Make the header of a chunk."""
        function = self.resolve()
        made = function(encoded, layout, **self.options) if _takes_layout(function) else function(encoded, **self.options)
        if not isinstance(made, (bytes, bytearray, memoryview)):
            raise TypeError(f"the header {self.name!r} gave {type(made).__name__}, expected bytes")
        if len(made) != layout.header_nbytes:
            raise ValueError(f"the header {self.name!r} gave {len(made)} bytes, expected {layout.header_nbytes}, the length that the array's metadata promise")
        return bytes(made)


def _takes_layout(function: Callable[..., bytes]) -> bool:
    """Tell whether a function has a second positional parameter that must be given."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return sum(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) and one.default is one.empty for one in parameters) > 1


def n5_header(encoded: bytes, layout: ChunkLayout) -> bytes:
    """Make the header of an N5 block in default mode: mode 0, number of dimensions, and the block's size with x first, all big-endian.

    Chunks are stored with their last axis fastest, and N5 names the fastest dimension first; a zarr array whose axes are N5's own order has a ``transpose``
    before ``bytes``, and its chunks come here turned already.

    Notes
    -----
    N5 README, "File-system specification", default mode.
    """
    count = len(layout.shape)
    if layout.header_nbytes != 4 + 4 * count:
        raise ValueError(f"the header of an N5 block of {count} dimensions has {4 + 4 * count} bytes, expected is one of {layout.header_nbytes}")
    return struct.pack(f">HH{count}I", 0, count, *reversed(layout.shape))
