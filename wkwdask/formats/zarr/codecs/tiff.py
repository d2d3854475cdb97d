"""Headers that make TIFF files of chunks: a header, one image file directory per page, and the voxels right behind them.

In: shape, type and byte order of a chunk. Out: the bytes before its data. Classic TIFF, one strip per page, so that a chunk of zarr's codec ``bytes`` is the
image as it is. A compressed chunk is one strip too: TIFF's Deflate is a zlib stream, its Zstandard a zstd frame, its LZMA an xz stream; gzip is none of them.

Source: TIFF 6.0 (Adobe, 1992), sections 2 to 4, 14, 19; compression numbers 8, 34925 and 50000 as libtiff's ``tiff.h`` has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wkwdask.formats.zarr.codecs.tiff_directory import TiffImage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.formats.zarr.codecs.headers import ChunkLayout

COMPRESSIONS = {"none": (1, b""), "zlib": (8, b""), "lzma": (34925, b"\xfd7zXZ\x00"), "zstd": (50000, b"\x28\xb5\x2f\xfd")}  # number, first bytes
_GZIP_MAGIC = b"\x1f\x8b"


def tiff_prefix(shape: Sequence[int], dtype: Any, byteorder: str = "little", *, axes: str | None = None, stack: str = "pages") -> bytes:
    """Make the bytes that turn an uncompressed chunk into a TIFF file, for ``offset_codec(prefix=...)``.

    Parameters
    ----------
    shape : sequence of int
        Elements of a chunk along its axes, the last one fastest: (y, x), (z, y, x), (y, x, 3).
    dtype : dtype_like
        Type of an element: signed or unsigned integers of 8 to 64 bits, floats of 16 to 64, complex numbers of two floats.
    byteorder : str
        ``"little"`` or ``"big"``, as the codec ``bytes`` before it has it.
    axes : str, optional
        A letter per axis: ``y`` and ``x``, behind them ``s`` for samples of a pixel (3 are RGB, 4 RGBA), before them any of ``t``, ``z``, ``c`` for planes.
        Default: ``"yx"`` or ``"zyx"``.
    stack : str
        How planes are told: ``"pages"``, a directory each, as every reader knows it; ``"imagej"``, one directory and ImageJ's description (uint8, uint16,
        float32), a short header for many planes; ``"tall"``, one image of all planes below each other.

    Returns
    -------
    bytes
        The header; the data follow at once.

    Raises
    ------
    TypeError
        TIFF has no such type.
    ValueError
        The axes do not fit the shape, or an option is none.
    UnsupportedError
        File or planes are too large for classic TIFF.

    Examples
    --------
    >>> prefix = tiff_prefix((256, 256), "uint16")
    >>> len(prefix), prefix[:4]
    (110, b'II*\\x00')
    """
    image = TiffImage.of(shape, dtype, byteorder, axes, stack)
    return image.header(image.nbytes)


def tiff_header(
    encoded: bytes, layout: ChunkLayout, *, compression: str = "none", byteorder: str = "little", axes: str | None = None, stack: str | None = None
) -> bytes:
    """Make the header of one chunk, compressed or not: the header ``"tiff"``."""
    if compression not in COMPRESSIONS:
        raise ValueError(f"compression {compression!r}, expected one of {', '.join(COMPRESSIONS)}")
    stack = stack or ("pages" if compression == "none" else "tall")
    image = TiffImage.of(layout.shape, layout.dtype, byteorder, axes, stack)
    check_strip(encoded, compression, image.nbytes)
    if compression != "none" and image.planes > 1 and stack != "tall":
        raise ValueError(f"stack {stack!r} of a compressed chunk of {image.planes} planes, expected 'tall': its planes are one stream")
    header = image.header(len(encoded), COMPRESSIONS[compression][0], layout.header_nbytes)
    if len(header) > layout.header_nbytes:
        raise ValueError(f"a TIFF header of this chunk has {len(header)} bytes, expected at most {layout.header_nbytes}: give a larger offset")
    return header + bytes(layout.header_nbytes - len(header))


def check_strip(encoded: bytes, compression: str, nbytes: int) -> None:
    """Check that bytes are what TIFF means by a compression."""
    magic = COMPRESSIONS[compression][1]
    if compression == "none" and len(encoded) != nbytes:
        raise ValueError(f"a chunk has {len(encoded)} encoded bytes, expected {nbytes}: a compressor stands before, say which one with compression=")
    if compression == "zlib" and not _is_zlib(encoded):
        hint = ": these are gzip's; TIFF's Deflate is a zlib stream, which the codec numcodecs.zlib makes" if encoded[:2] == _GZIP_MAGIC else ""
        raise ValueError(f"a chunk begins with {encoded[:4].hex(' ')}, expected a zlib stream{hint}")
    if not encoded.startswith(magic):
        hint = ", as numcodecs.lzma makes with format 1 (xz)" if compression == "lzma" else ""
        raise ValueError(f"a chunk begins with {encoded[: len(magic)].hex(' ')}, expected {magic.hex(' ')} of {compression}{hint}")


def _is_zlib(data: bytes) -> bool:
    """RFC 1950, section 2.2: method 8, a check over the first two bytes, no dictionary."""
    return len(data) > 2 and data[0] & 15 == 8 and (data[0] << 8 | data[1]) % 31 == 0 and not data[1] & 32


def tiff_segments_header(
    shape: Sequence[int], dtype: Any, tile: Sequence[int], lengths: Sequence[int], compression: str, byteorder: str, axes: str | None
) -> bytes:
    """Make the header of a TIFF file whose strips or tiles are parts of a chunk, behind each other with the last axis fastest."""
    image = TiffImage.of(shape, dtype, byteorder, axes, "pages")
    axes = image.axes
    along = dict(zip(axes, zip(shape, tile, strict=True), strict=True))
    cut = [axis for axis in axes if along[axis][0] != along[axis][1]]
    planes = [axis for axis in axes if axis in "tzc"]
    number = COMPRESSIONS[compression][0]
    if not cut and (compression == "none" or image.planes == 1):  # the planes of an uncompressed whole are its strips
        return image.header(sum(lengths), number)
    if any(along[axis][1] != 1 for axis in planes) or "s" in cut:
        told = ", ".join(f"{axis} {part} of {whole}" for axis, (whole, part) in along.items())
        raise ValueError(f"inner chunks with {told}, expected 1 along planes and all samples: a tile of TIFF lies in one plane")
    if not set(cut) & {"y", "x"}:
        return image.segmented(lengths, number)
    height, width = along["y"][1], along["x"][1]
    if height % 16 or width % 16:
        raise ValueError(f"tiles of {height} x {width} pixels, expected multiples of 16, as TIFF has them (TIFF 6.0, section 15)")
    return image.segmented(lengths, number, (height, width))
