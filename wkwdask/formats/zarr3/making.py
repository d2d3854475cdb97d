"""The functions that make codecs for ``zarr.create_array``. They import zarr when they are called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wkwdask.formats.extras import need
from wkwdask.formats.zarr3.headers import Header

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from wkwdask.formats.zarr3.offset import OffsetCodec
    from wkwdask.formats.zarr3.pad import PadCodec

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
    UnsupportedError
        Nobody in this process knows the name of the header.
    ModuleNotFoundError
        zarr is not installed.
    """
    need("zarr", "offset_codec", "zarr")
    from wkwdask.formats.zarr3.offset import OffsetCodec

    return OffsetCodec(**_arguments("offset", "prefix", offset, prefix, prefix_func, header, header_options, strict))


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
    UnsupportedError
        Nobody in this process knows the name of the header.
    ModuleNotFoundError
        zarr is not installed.
    """
    need("zarr", "pad_codec", "zarr")
    from wkwdask.formats.zarr3.pad import PadCodec

    return PadCodec(location=location, **_arguments("nbytes", "padding", nbytes, padding, padding_func, header, header_options, strict))


def _arguments(
    size_key: str,
    literal_key: str,
    nbytes: int | None,
    literal: bytes | str | None,
    function: Callable[..., bytes] | None,
    name: str | None,
    options: Mapping[str, Any] | None,
    strict: bool,
) -> dict[str, Any]:
    """Check what both functions take."""
    from wkwdask.formats.zarr3.fixed_bytes import decode_base64

    given = [key for key, value in ((literal_key, literal), (f"{literal_key}_func", function), ("header", name)) if value is not None]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} are given, expected one of them")
    if options is not None and name is None and function is None:
        raise ValueError("header_options= without a header")
    literal = decode_base64(literal, literal_key) if isinstance(literal, str) else None if literal is None else bytes(literal)
    header = None if name is None else Header.named(name, options)
    if header is not None:
        header.require()
    if function is not None:
        header = Header.of_function(function, options)
    if nbytes is None:
        nbytes = len(literal) if literal is not None else TIFF_NBYTES if name == "tiff" else None
    if nbytes is None:
        raise ValueError(f"no {size_key}: give the length of the bytes")
    return {"nbytes": nbytes, "literal": literal, "header": header, "strict": strict}
