"""Bounded decompression of bzip2, xz, zlib and gzip streams: broken or malicious data cannot
produce more bytes than expected. Opens no file."""

from __future__ import annotations

import bz2
import lzma
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from wkwdask.errors import CorruptError, TruncatedError

if TYPE_CHECKING:
    from collections.abc import Callable

XZ_MEMORY_NBYTES = 256 << 20


class Stream(NamedTuple):
    """One kind of compressed stream."""

    name: str
    start: Callable[[], Any]
    """Creates a decompressor."""
    errors: Any
    """Exceptions that the decompressor raises for broken streams."""


BZIP2 = Stream("bzip2", bz2.BZ2Decompressor, (OSError, ValueError))
XZ = Stream("xz", lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, XZ_MEMORY_NBYTES), lzma.LZMAError)
ZLIB = Stream("zlib", zlib.decompressobj, zlib.error)
GZIP = Stream("gzip", lambda: zlib.decompressobj(31), zlib.error)


def decompress_streams(
    kind: Stream, data: bytes | memoryview, nbytes: int, source: str, offset: int
) -> bytes:
    """Decompress concatenated streams, up to ``nbytes + 1`` bytes: by the extra byte the caller
    detects that the data are too long."""
    parts: list[bytes] = []
    rest, room = data, nbytes + 1
    while room and (len(rest) or not parts):
        stream = kind.start()
        try:
            parts.append(stream.decompress(rest, room))
        except kind.errors as error:
            if parts:
                break
            raise CorruptError(
                f"{source}: byte {offset}: expected a {kind.name} stream of {len(data)} bytes: "
                f"{error}"
            ) from None
        room -= len(parts[-1])
        if not stream.eof and room:
            raise TruncatedError(
                f"{source}: byte {offset}: a {kind.name} stream of {len(data)} bytes is cut off"
            )
        rest = stream.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)
