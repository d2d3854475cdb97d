"""Seeing which codecs stand before and behind another one, for a warning.

zarr-python tells a codec the array and the chunk, never the list that it stands in. The list is found where zarr-python asks its codecs to validate and to
evolve: in the frames of these calls. Where it is not found, nothing happens: what is stored and read never depends on it.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

from wkwdask.errors import HeaderWarning

if TYPE_CHECKING:
    from types import FrameType

_HARMLESS = frozenset({"crc32c", "offset", "pad"})  # what these add leaves the bytes where they are, or is itself meant to stand outside
_FRAMES = 4
_LISTS = ("codecs_parsed_partial", "codecs_parsed", "codecs")


def warn_of_order(codec: Any) -> None:
    """Warn where a compressor follows a codec that puts a header before chunks: files then begin with what the compressor writes."""
    behind = [one for one in map(_name_of, _around(codec)[1]) if one not in _HARMLESS]
    if behind:
        warnings.warn(
            f"the codec {codec.name!r} stands before {behind[0]!r}, which then compresses its bytes too: what is stored begins with those of {behind[0]!r}; "
            f"put {codec.name!r} last",
            HeaderWarning,
            stacklevel=3,
        )


def warn_of_byteorder(codec: Any, dtype: Any) -> None:
    """Warn where a TIFF header says another byte order than the codec ``bytes`` gives the chunks: the pixels of the TIFF files would be others."""
    if codec.header is None or codec.header.name != "tiff" or dtype.to_native_dtype().itemsize == 1:
        return
    said = codec.header.options.get("byteorder", "little")
    for found in map(_endian_of, _around(codec)[0]):
        if found not in (None, said):
            warnings.warn(
                f"the codec 'bytes' stores chunks {found}-endian, and the header 'tiff' of the codec {codec.name!r} says {said!r}: "
                f"TIFF readers see other values; give header_options={{'byteorder': {found!r}}}",
                HeaderWarning,
                stacklevel=3,
            )


def _around(codec: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Give the codecs before and behind one."""
    for codecs in _lists(sys._getframe(3)):
        for n, one in enumerate(codecs):
            if one is codec:
                return tuple(codecs[:n]), tuple(codecs[n + 1 :])
    return (), ()


def _endian_of(codec: Any) -> Any:
    """Give the byte order of the codec ``bytes``, None for others."""
    endian = getattr(codec, "endian", None) if _name_of(codec) == "bytes" else None
    return getattr(endian, "value", endian)


def _lists(frame: FrameType | None) -> Any:
    """Give the lists of codecs that the next frames know."""
    for _ in range(_FRAMES):
        if frame is None:
            return
        values = frame.f_locals
        owner = values.get("self")
        for found in (getattr(owner, "codecs", None), *(values.get(name) for name in _LISTS)):
            if isinstance(found, (tuple, list)):
                yield found
        frame = frame.f_back


def _name_of(codec: Any) -> str:
    try:
        return str(codec.to_dict()["name"])
    except Exception:  # a codec of somebody else that cannot say: its class then
        return type(codec).__name__
