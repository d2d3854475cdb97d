"""Streams of bzip2, xz, zlib and gzip: bounded decompression, so that broken or malicious data
cannot produce more bytes than expected, and compression to gzip. Opens no file.

Gzip is written and read by the fastest installed library: isal, imagecodecs (libdeflate), or zlib
of the standard library.
"""

from __future__ import annotations

import bz2
import contextlib
import lzma
import zlib
from functools import cache
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


GZIP_MAGIC = b"\x1f\x8b"
_MIN_NBYTES = 18  # RFC 1952, section 2.3: a header of 10 bytes and a trailer of 8
_MEMBER = b"\x1f\x8b\x08"  # start of each member: a file may hold several, one after the other
_IMAGE_LEVEL = 1
_ISAL_LEVEL = 3
# isal decompresses faster than libdeflate below this compression ratio, and slower above it
_ISAL_MAX_RATIO = 3


def compress_gzip(data: bytes, level: int = 6, *, is_image: bool = False) -> bytes:
    """Compress to one gzip stream without a timestamp, so that equal voxels make equal files."""
    stream: bytes
    isal, imagecodecs = _isal() if is_image else None, _imagecodecs()
    if isal is not None:
        stream = isal.compress(data, _ISAL_LEVEL, 31)
        return stream
    level = _IMAGE_LEVEL if is_image else level
    if imagecodecs is not None:
        stream = imagecodecs.gzip_encode(data, level)
        return stream
    compressor = zlib.compressobj(level, zlib.DEFLATED, 31)
    return compressor.compress(data) + compressor.flush()


@cache
def _isal() -> Any:
    """Return isal's zlib, which compresses images four times as fast as libdeflate, or None if it
    is not installed."""
    try:
        from isal import isal_zlib
    except ImportError:
        return None
    return isal_zlib


@cache
def _imagecodecs() -> Any:
    """Return imagecodecs, whose libdeflate is two to three times as fast as zlib, or None if it is
    not installed or has no gzip."""
    try:
        import imagecodecs
    except ImportError:
        return None
    return imagecodecs if imagecodecs.GZIP.available else None


def decompress_gzip(data: bytes, largest: int, source: str, offset: int) -> bytes:
    """Decompress one gzip stream, or several that follow each other, to at most ``largest``
    bytes."""
    isal, imagecodecs = _isal(), _imagecodecs()
    # RFC 1952: a member ends with the length of its content, modulo 2^32
    stated = int.from_bytes(data[-4:], "little")
    # Fast path for a single member whose stated length is credible. On any failure zlib starts
    # over, and its error names the fault.
    if len(data) >= _MIN_NBYTES and stated <= largest and data.find(_MEMBER, 1) < 0:
        if isal is not None and stated < _ISAL_MAX_RATIO * len(data):
            stream = isal.decompressobj(31)
            with contextlib.suppress(isal.IsalError):
                out: bytes = stream.decompress(data, stated + 1)
                if stream.eof and len(out) == stated:
                    return out
        elif imagecodecs is not None:
            with contextlib.suppress(imagecodecs.GzipError, ValueError):
                out = imagecodecs.gzip_decode(data, out=stated)
                if len(out) == stated:
                    return out
    out = decompress_streams(GZIP, data, largest, source, offset)
    if len(out) > largest:
        raise CorruptError(
            f"{source}: byte {offset}: a gzip stream of {len(data)} bytes decompresses to more, "
            f"expected at most {largest}"
        )
    return out
