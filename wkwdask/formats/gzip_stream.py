"""Gzip streams of chunk files, sharded chunks and minishard indices. Opens no file.

Each stream is written and read by the fastest installed library: isal, imagecodecs (libdeflate), or
zlib of the standard library.
"""

from __future__ import annotations

import contextlib
import zlib
from functools import cache
from typing import Any

from wkwdask.errors import CorruptError
from wkwdask.formats.bounded_streams import GZIP, decompress_streams

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
