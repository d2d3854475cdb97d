"""Streams of gzip: whole files of chunks, and what is stored in shards. Opens nothing."""

from __future__ import annotations

import contextlib
import zlib
from functools import cache
from typing import Any

from wkwdask.errors import CorruptError
from wkwdask.formats.bounded_streams import GZIP, decompress_streams

GZIP_MAGIC = b"\x1f\x8b"
_SHORTEST = 18
_MEMBER = b"\x1f\x8b\x08"  # so does each further stream of a file begin
_IMAGE_LEVEL = 1
_ISAL_LEVEL = 3
_LITTLE = 3  # what was compressed to more than a third isal decompresses faster than libdeflate, and the rest slower


def compress_gzip(data: bytes, level: int = 6, *, is_image: bool = False) -> bytes:
    """Compress to one gzip stream that says nothing of the time."""
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
    """Give the compressor that is four times as fast as libdeflate on images, None where it is not installed."""
    try:
        from isal import isal_zlib
    except ImportError:
        return None
    return isal_zlib


@cache
def _imagecodecs() -> Any:
    """Give the package whose gzip, by libdeflate, is two to three times as fast as zlib, None where it is not installed."""
    try:
        import imagecodecs
    except ImportError:
        return None
    return imagecodecs if imagecodecs.GZIP.available else None


def decompress_gzip(data: bytes, largest: int, source: str, offset: int) -> bytes:
    """Decompress a gzip stream, and streams that follow it."""
    isal, imagecodecs, said = _isal(), _imagecodecs(), int.from_bytes(data[-4:], "little")  # a stream ends with the length of what was compressed
    if len(data) >= _SHORTEST and said <= largest and data.find(_MEMBER, 1) < 0:  # where these fail, zlib says what is wrong
        if isal is not None and said < _LITTLE * len(data):
            stream = isal.decompressobj(31)
            with contextlib.suppress(isal.IsalError):
                out: bytes = stream.decompress(data, said + 1)
                if stream.eof and len(out) == said:
                    return out
        elif imagecodecs is not None:
            with contextlib.suppress(imagecodecs.GzipError, ValueError):
                out = imagecodecs.gzip_decode(data, out=said)
                if len(out) == said:
                    return out
    out = decompress_streams(GZIP, data, largest, source, offset)
    if len(out) > largest:
        raise CorruptError(f"{source}: byte {offset}: a gzip stream of {len(data)} bytes gives more bytes, expected at most {largest}")
    return out
