"""Streams of the standard library, of which no more comes out than is expected, whatever they claim. Opens nothing."""

from __future__ import annotations

import bz2
import lzma
import zlib
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError, TruncatedError

if TYPE_CHECKING:
    from collections.abc import Callable

_XZ_MEMORY_NBYTES = 256 << 20


def decompress_bzip2(data: bytes | memoryview, nbytes: int, source: str, offset: int) -> bytes:
    """Decompress bzip2, see :func:`decompress_streams`."""
    return decompress_streams(bz2.BZ2Decompressor, (OSError, ValueError), "bzip2", data, nbytes, source, offset)


def decompress_xz(data: bytes | memoryview, nbytes: int, source: str, offset: int) -> bytes:
    """Decompress xz, see :func:`decompress_streams`."""
    return decompress_streams(lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY_NBYTES), lzma.LZMAError, "xz", data, nbytes, source, offset)


def decompress_zlib(data: bytes | memoryview, nbytes: int, source: str, offset: int) -> bytes:
    """Decompress zlib, see :func:`decompress_streams`."""
    return decompress_streams(zlib.decompressobj, zlib.error, "zlib", data, nbytes, source, offset)


def decompress_streams(
    start: Callable[[], Any], errors: Any, name: str, data: bytes | memoryview, nbytes: int, source: str, offset: int
) -> bytes:  # fmt: skip
    """Take all that a stream gives, and streams that follow it, up to one byte more than expected."""
    parts: list[bytes] = []
    rest, room = data, nbytes + 1
    while room and (len(rest) or not parts):
        stream = start()
        try:
            parts.append(stream.decompress(rest, room))
        except errors as error:
            if parts:
                break
            raise CorruptError(f"{source}: byte {offset}: expected a {name} stream of {len(data)} bytes: {error}") from None
        room -= len(parts[-1])
        if not stream.eof and room:
            raise TruncatedError(f"{source}: byte {offset}: a {name} stream of {len(data)} bytes is cut off")
        rest = stream.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)
