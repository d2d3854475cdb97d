"""Streams of the standard library, of which no more comes out than is expected, whatever they claim. Opens nothing."""

from __future__ import annotations

import bz2
import lzma
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError, TruncatedError

if TYPE_CHECKING:
    from collections.abc import Callable

_XZ_MEMORY_NBYTES = 256 << 20


def decompress_bzip2(data: bytes | memoryview, nbytes: int, source: str, offset: int) -> bytes:
    """Decompress one bzip2 stream, see :func:`to_end`."""
    stream = bz2.BZ2Decompressor()
    return to_end(stream, lambda: stream.decompress(data, nbytes + 1), (OSError, ValueError), "bzip2", data, nbytes, source, offset)


def decompress_xz(data: bytes | memoryview, nbytes: int, source: str, offset: int) -> bytes:
    """Decompress one xz stream, see :func:`to_end`."""
    stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY_NBYTES)
    return to_end(stream, lambda: stream.decompress(data, nbytes + 1), lzma.LZMAError, "xz", data, nbytes, source, offset)


def to_end(
    stream: Any, decompress: Callable[[], bytes], errors: Any, name: str, data: bytes | memoryview, nbytes: int, source: str, offset: int
) -> bytes:  # fmt: skip
    """Take all that a stream gives, up to one byte more than expected.

    Parameters
    ----------
    stream : object
        A decompressor with ``eof``.
    decompress : callable
        Lets it decompress up to ``nbytes + 1`` bytes.
    errors : type or tuple of type
        What it raises of broken data.
    name : str
        What kind of stream it is.
    data : bytes or memoryview
        The stream.
    nbytes : int
        How many bytes are expected, at most.
    source : str
        The file, for errors.
    offset : int
        Byte of the file at which the stream starts, for errors.

    Returns
    -------
    bytes
        ``nbytes + 1`` of them where there are more.

    Raises
    ------
    CorruptError
        It is no such stream.
    TruncatedError
        It ends too early.
    """
    try:
        out = decompress()
    except errors as error:
        raise CorruptError(f"{source}: byte {offset}: expected a {name} stream of {len(data)} bytes: {error}") from None
    if not stream.eof and len(out) <= nbytes:
        raise TruncatedError(f"{source}: byte {offset}: a {name} stream of {len(data)} bytes is cut off")
    return out
