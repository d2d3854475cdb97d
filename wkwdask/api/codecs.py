"""Codecs for ``zarr.create_array``. The functions import zarr when they are called."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from wkwdask.formats.zarr.codecs.headers import Header
from wkwdask.model.extras import import_extra

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wkwdask.formats.zarr.codecs.offset import OffsetCodec
    from wkwdask.formats.zarr.codecs.pad import PadCodec
    from wkwdask.formats.zarr.codecs.tiff_shard import TiffShardCodec

TIFF_NBYTES = 512
"""Default length of a TIFF header that is computed for each chunk [bytes]; a page of any type
fits."""


def offset_codec(
    offset: int | None = None,
    *,
    prefix: bytes | str | None = None,
    prefix_func: Callable[..., bytes] | None = None,
    header: str | None = None,
    header_options: Mapping[str, Any] | None = None,
    strict: bool = False,
) -> OffsetCodec:
    """Return a codec for zarr-python that puts a header of fixed length before each chunk.

    Pass it as the last one of ``compressors=``.

    Parameters
    ----------
    offset : int, optional
        Length of the header [bytes]; by default the length of ``prefix``, or 512 for
        ``header="tiff"``.
    prefix : bytes or str, optional
        Constant header, as bytes or as base64. Without ``prefix``, ``prefix_func`` and ``header``,
        the header is zeros.
    prefix_func : callable, optional
        Function that computes the header of each chunk from its encoded bytes. The metadata store
        the name of a registered function (:func:`register_header`). Without a name, an array that
        is opened again can be read but not written.
    header : str, optional
        Name of a header that is computed for each chunk: ``"tiff"``, ``"n5"``, or a registered
        name.
    header_options : mapping, optional
        Keyword arguments of the header, stored with its name; for ``"tiff"``: ``compression``,
        ``byteorder``, ``axes``, ``stack``.
    strict : bool
        Check on each read that the stored header is the one that would be written.

    Returns
    -------
    OffsetCodec

    Raises
    ------
    ValueError
        A length is negative or differs from that of the prefix, the base64 is invalid, or two kinds
        of header are given.
    TypeError
        The prefix is neither bytes nor text, or the function is not callable.
    UnsupportedError
        The name of the header is not registered in this process.
    ModuleNotFoundError
        zarr is not installed.

    Examples
    --------
    >>> import wkwdask
    >>> wkwdask.offset_codec(prefix=b"HEAD").to_dict()  # doctest: +SKIP
    {'name': 'offset', 'configuration': {'offset': 4, 'prefix': 'SEVBRA=='}}
    """
    import_extra("zarr", "offset_codec", "zarr")
    from wkwdask.formats.zarr.codecs.offset import OffsetCodec

    computed = _header("prefix", prefix, prefix_func, header, header_options)
    return OffsetCodec(
        **_arguments("offset", offset, _literal("prefix", prefix), computed, strict=strict)
    )


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
    """Return a codec for zarr-python that pads each chunk with a fixed number of bytes.

    Parameters
    ----------
    nbytes : int, optional
        Length of the padding [bytes]; by default the length of ``padding``, or 512 for
        ``header="tiff"``.
    location : {"start", "end"}
        Side of the chunk that is padded.
    padding : bytes or str, optional
        Constant padding, as bytes or as base64. Without ``padding``, ``padding_func`` and
        ``header``, the padding is zeros.
    padding_func : callable, optional
        Function that computes the padding of each chunk from its encoded bytes, like
        ``prefix_func`` of :func:`offset_codec`.
    header : str, optional
        Name of a header that is computed for each chunk.
    header_options : mapping, optional
        Keyword arguments of the header.
    strict : bool
        Check on each read that the stored padding is the one that would be written.

    Returns
    -------
    PadCodec

    Raises
    ------
    ValueError
        As in :func:`offset_codec`, or the location is unknown.
    TypeError
        The padding is neither bytes nor text, or the function is not callable.
    UnsupportedError
        The name of the header is not registered in this process.
    ModuleNotFoundError
        zarr is not installed.

    Examples
    --------
    >>> import wkwdask
    >>> wkwdask.pad_codec(padding=b"TAIL", location="end").to_dict()  # doctest: +SKIP
    {'name': 'pad', 'configuration': {'location': 'end', 'nbytes': 4, 'padding': 'VEFJTA=='}}
    """
    import_extra("zarr", "pad_codec", "zarr")
    from wkwdask.formats.zarr.codecs.pad import PadCodec

    computed = _header("padding", padding, padding_func, header, header_options)
    return PadCodec(
        location=location,
        **_arguments("nbytes", nbytes, _literal("padding", padding), computed, strict=strict),
    )


def tiff_shard_codec(
    chunk_shape: Sequence[int],
    *,
    compression: str = "none",
    level: int | None = None,
    byteorder: str = "little",
    axes: str | None = None,
) -> TiffShardCodec:
    """Return a codec for zarr-python that writes each shard as a TIFF file.

    Pass it as the ``serializer=`` of an array. Every Zarr v3 reader can read the shards: the
    metadata describe standard shards with the index at the end. The metadata do not mention TIFF,
    so an array that is opened again writes standard shards without a TIFF header. Write the whole
    array through the object that created it.

    Parameters
    ----------
    chunk_shape : sequence of int
        Shape of the inner chunks: the whole shard, or tiles of one plane whose lengths along y and
        x are multiples of 16.
    compression : {"none", "zstd", "zlib"}
        Compression of inner chunks. Zarr readers support ``"zstd"``, but not all TIFF readers do;
        for ``"zlib"`` it is the other way round.
    level : int, optional
        Compression level.
    byteorder : {"little", "big"}
        Byte order of the values.
    axes : str, optional
        One letter per axis, as in :func:`tiff_prefix`.

    Returns
    -------
    TiffShardCodec

    Raises
    ------
    ValueError
        The compression or byte order is unknown.
    ModuleNotFoundError
        zarr is not installed.

    Examples
    --------
    >>> import wkwdask
    >>> wkwdask.tiff_shard_codec((64, 256, 256)).chunk_shape  # doctest: +SKIP
    (64, 256, 256)
    """
    import_extra("zarr", "tiff_shard_codec", "zarr")
    from wkwdask.formats.zarr.codecs.tiff_shard import SHARD_COMPRESSIONS, TiffShardCodec

    if compression not in SHARD_COMPRESSIONS:
        raise ValueError(
            f"compression {compression!r}, expected one of {', '.join(SHARD_COMPRESSIONS)}"
        )
    if byteorder not in ("little", "big"):
        raise ValueError(f"byteorder {byteorder!r}, expected 'little' or 'big'")
    return TiffShardCodec(
        chunk_shape=tuple(int(n) for n in chunk_shape),
        compression=compression,
        level=level,
        byteorder=byteorder,
        axes=axes,
    )


def _header(
    literal_key: str,
    literal: bytes | str | None,
    function: Callable[..., bytes] | None,
    name: str | None,
    options: Mapping[str, Any] | None,
) -> Header | None:
    """Return the header that is computed for each chunk, None if it is constant."""
    kinds = [
        key
        for key, value in (
            (literal_key, literal),
            (f"{literal_key}_func", function),
            ("header", name),
        )
        if value is not None
    ]
    if len(kinds) > 1:
        raise ValueError(f"got {' and '.join(kinds)}, expected one of them")
    if options is not None and name is None and function is None:
        raise ValueError("header_options= without a header")
    if function is not None:
        return Header.of_function(function, options)
    header = None if name is None else Header.named(name, options)
    if header is not None:
        header.resolve()
    return header


def _literal(key: str, literal: bytes | str | None) -> bytes | None:
    """Return the constant bytes of a codec."""
    from wkwdask.formats.zarr.codecs.offset import decode_base64

    if literal is not None and not isinstance(literal, (str, bytes, bytearray, memoryview)):
        raise TypeError(f"{key} is {literal!r}, expected bytes or base64 text")
    return (
        decode_base64(literal, key)
        if isinstance(literal, str)
        else None
        if literal is None
        else bytes(literal)
    )


def _arguments(
    size_key: str, nbytes: int | None, literal: bytes | None, header: Header | None, *, strict: bool
) -> dict[str, Any]:
    """Check the arguments that both codecs share."""
    if nbytes is None:
        nbytes = (
            len(literal)
            if literal is not None
            else TIFF_NBYTES
            if header is not None and header.name == "tiff"
            else None
        )
    if nbytes is None:
        raise ValueError(f"{size_key} is missing, expected the length of the header in bytes")
    return {
        "nbytes": operator.index(nbytes),
        "literal": literal,
        "header": header,
        "strict": strict,
    }
