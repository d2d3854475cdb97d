"""The functions that make codecs for ``zarr.create_array``. They import zarr when they are called."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from wkwdask.formats.zarr.codecs.headers import Header
from wkwdask.model.extras import need

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wkwdask.formats.zarr.codecs.offset import OffsetCodec
    from wkwdask.formats.zarr.codecs.pad import PadCodec
    from wkwdask.formats.zarr.codecs.tiff_shard import TiffShardCodec

TIFF_NBYTES = 512
"""Length of a dynamic TIFF header where none is given [bytes]: room for a page of any type."""


def offset_codec(
    offset: int | None = None,
    *,
    prefix: bytes | str | None = None,
    prefix_func: Callable[..., bytes] | None = None,
    header: str | None = None,
    header_options: Mapping[str, Any] | None = None,
    strict: bool = False,
) -> OffsetCodec:
    """Make a codec for zarr-python that puts a header of fixed length before each chunk; the last one of ``compressors=``.

    Parameters
    ----------
    offset : int, optional
        Length of the header [bytes]. Default: that of ``prefix``; 512 for ``header="tiff"``.
    prefix : bytes or str, optional
        The header, as bytes or as base64. Zeros where none of these three is given.
    prefix_func : callable, optional
        Makes the header of each chunk from its encoded bytes. Where it was registered (:func:`register_header`) its name is stored; else arrays that are opened
        again can be read, and writing to them is an error.
    header : str, optional
        Name of a header that is made for each chunk: ``"tiff"``, ``"n5"``, or one that was registered.
    header_options : mapping, optional
        Its keyword arguments, stored with the name; for ``"tiff"`` ``compression``, ``byteorder``, ``axes``, ``stack``.
    strict : bool
        Check, whenever a chunk is read, that its stored header is the one that would be written.

    Returns
    -------
    OffsetCodec

    Raises
    ------
    ValueError
        A length is negative or not that of the prefix, the base64 is none, or two kinds of header are given.
    TypeError
        The prefix is neither bytes nor text, or the function is none.
    UnsupportedError
        Nobody in this process knows the name of the header.
    ModuleNotFoundError
        zarr is not installed.
    """
    need("zarr", "offset_codec", "zarr")
    from wkwdask.formats.zarr.codecs.offset import OffsetCodec

    made = _header("prefix", prefix, prefix_func, header, header_options)
    return OffsetCodec(**_arguments("offset", offset, _literal("prefix", prefix), made, strict=strict))


def pad_codec(
    nbytes: int | None = None,
    location: str = "start",
    *,
    padding: bytes | str | None = None,
    padding_func: Callable[..., bytes] | None = None,
    header: str | None = None,
    header_options: Mapping[str, Any] | None = None,
    strict: bool = False,
) -> PadCodec:
    """Make a codec for zarr-python that puts bytes of fixed length before or after each chunk.

    Parameters
    ----------
    nbytes : int, optional
        Length of the padding [bytes]. Default: that of ``padding``; 512 for ``header="tiff"``.
    location : str
        ``"start"`` or ``"end"`` of the chunk.
    padding : bytes or str, optional
        The padding, as bytes or as base64. Zeros where none of these three is given.
    padding_func : callable, optional
        Makes the padding of each chunk from its encoded bytes, as ``prefix_func`` of :func:`offset_codec`.
    header : str, optional
        Name of a header that is made for each chunk.
    header_options : mapping, optional
        Its keyword arguments.
    strict : bool
        Check, whenever a chunk is read, that its stored padding is the one that would be written.

    Returns
    -------
    PadCodec

    Raises
    ------
    ValueError
        As in :func:`offset_codec`, or no such location.
    TypeError
        The padding is neither bytes nor text, or the function is none.
    UnsupportedError
        Nobody in this process knows the name of the header.
    ModuleNotFoundError
        zarr is not installed.
    """
    need("zarr", "pad_codec", "zarr")
    from wkwdask.formats.zarr.codecs.pad import PadCodec

    made = _header("padding", padding, padding_func, header, header_options)
    return PadCodec(location=location, **_arguments("nbytes", nbytes, _literal("padding", padding), made, strict=strict))


def tiff_shard_codec(
    chunk_shape: Sequence[int], *, compression: str = "none", level: int | None = None, byteorder: str = "little", axes: str | None = None
) -> TiffShardCodec:
    """Make a codec for zarr-python that writes each shard as a TIFF file, which every Zarr v3 reader reads; the ``serializer=`` of an array.

    The metadata of the array are those of standard shards with their index at the end. That their files are TIFF is not in them: what an array that is opened
    again writes are standard shards without a TIFF header. Write such arrays in one go, by the array that was created.

    Parameters
    ----------
    chunk_shape : sequence of int
        Inner chunks: the whole shard, or tiles of it whose lengths along y and x are multiples of 16, one plane deep.
    compression : str
        ``"none"``; ``"zstd"``, which Zarr readers know and not all TIFF readers; ``"zlib"``, the other way round.
    level : int, optional
        Of the compression.
    byteorder : str
        ``"little"`` or ``"big"``.
    axes : str, optional
        A letter per axis, as in :func:`tiff_prefix`.

    Returns
    -------
    TiffShardCodec

    Raises
    ------
    ValueError
        There is no such compression or byte order.
    ModuleNotFoundError
        zarr is not installed.
    """
    need("zarr", "tiff_shard_codec", "zarr")
    from wkwdask.formats.zarr.codecs.tiff_shard import SHARD_COMPRESSIONS, TiffShardCodec

    if compression not in SHARD_COMPRESSIONS:
        raise ValueError(f"compression {compression!r}, expected one of {', '.join(SHARD_COMPRESSIONS)}")
    if byteorder not in ("little", "big"):
        raise ValueError(f"byteorder {byteorder!r}, expected 'little' or 'big'")
    return TiffShardCodec(chunk_shape=tuple(int(n) for n in chunk_shape), compression=compression, level=level, byteorder=byteorder, axes=axes)


def _header(
    literal_key: str, literal: bytes | str | None, function: Callable[..., bytes] | None, name: str | None, options: Mapping[str, Any] | None
) -> Header | None:
    """Make the header that is made for each chunk, None where there is none."""
    given = [key for key, value in ((literal_key, literal), (f"{literal_key}_func", function), ("header", name)) if value is not None]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} are given, expected one of them")
    if options is not None and name is None and function is None:
        raise ValueError("header_options= without a header")
    if function is not None:
        return Header.of_function(function, options)
    header = None if name is None else Header.named(name, options)
    if header is not None:
        header.resolve()
    return header


def _literal(key: str, literal: bytes | str | None) -> bytes | None:
    """Give the bytes that are the same for all chunks."""
    from wkwdask.formats.zarr.codecs.offset import decode_base64

    if literal is not None and not isinstance(literal, (str, bytes, bytearray, memoryview)):
        raise TypeError(f"{key} is {literal!r}, expected bytes, or base64 text")
    return decode_base64(literal, key) if isinstance(literal, str) else None if literal is None else bytes(literal)


def _arguments(size_key: str, nbytes: int | None, literal: bytes | None, header: Header | None, *, strict: bool) -> dict[str, Any]:
    """Check what both functions take."""
    if nbytes is None:
        nbytes = len(literal) if literal is not None else TIFF_NBYTES if header is not None and header.name == "tiff" else None
    if nbytes is None:
        raise ValueError(f"no {size_key}: give the length of the bytes")
    return {"nbytes": operator.index(nbytes), "literal": literal, "header": header, "strict": strict}
