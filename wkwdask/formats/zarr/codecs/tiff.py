"""Headers that turn chunks into classic TIFF files. Does no I/O.

Each page is one strip, so an uncompressed chunk of zarr's codec ``bytes`` is the image data
unchanged. A compressed chunk is one strip too: TIFF's Deflate is a zlib stream, its Zstandard a
zstd frame, its LZMA an xz stream. TIFF has no gzip.

Source: TIFF 6.0 (Adobe, 1992), sections 2 to 4, 14, 19; compression numbers 8, 34925 and 50000 from
libtiff's ``tiff.h``.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.formats.zarr.codecs.headers import ChunkLayout

STACKS = ("pages", "imagej", "tall")
_ORDERS = {"little": (b"II", "<"), "big": (b"MM", ">")}
# TIFF 6.0 section 19; 6 from libtiff's tiff.h
_SAMPLE_FORMATS = {
    "u": (1, (1, 2, 4, 8)),
    "i": (2, (1, 2, 4, 8)),
    "f": (3, (2, 4, 8)),
    "c": (6, (8, 16)),
}
_AXES = {2: "yx", 3: "zyx"}
_IMAGEJ_DTYPES = ("uint8", "uint16", "float32")
_IMAGEJ_COUNTS = {"c": "channels", "z": "slices", "t": "frames"}
_LIMIT = 1 << 32  # offsets and counts of classic TIFF are 32-bit numbers
_SHORT, _LONG, _ASCII = 3, 4, 2  # field types, TIFF 6.0 section 2
_FORMATS = {_SHORT: "H", _LONG: "I"}


@dataclass(frozen=True, slots=True)
class TiffImage:
    planes: int
    height: int
    width: int
    samples: int
    dtype: np.dtype[Any]
    byteorder: str
    stack: str
    description: str
    """ImageDescription of ImageJ, or empty."""
    axes: str

    @classmethod
    def of(
        cls, shape: Sequence[int], dtype: Any, byteorder: str, axes: str | None, stack: str
    ) -> TiffImage:
        """Return the image of a chunk; raises an error if TIFF cannot store it."""
        shape = tuple(int(n) for n in shape)
        dtype = _checked_dtype(dtype)
        if byteorder not in _ORDERS:
            raise ValueError(f"byteorder {byteorder!r}, expected 'little' or 'big'")
        if stack not in STACKS:
            raise ValueError(f"stack {stack!r}, expected one of {', '.join(STACKS)}")
        axes = _checked_axes(shape, axes)
        samples = shape[-1] if axes.endswith("s") else 1
        height, width = shape[axes.index("y")], shape[axes.index("x")]
        planes = math.prod(shape[: axes.index("y")])
        description = (
            ""
            if planes == 1
            else _imagej_description(shape, axes, dtype)
            if stack == "imagej"
            else ""
        )
        if stack == "tall":
            planes, height = 1, height * planes
        if max(height, width) >= _LIMIT or samples > 0xFFFF:
            raise UnsupportedError(
                f"an image of {height} x {width} pixels and {samples} samples: too large for TIFF"
            )
        return cls(planes, height, width, samples, dtype, byteorder, stack, description, axes)

    @property
    def nbytes(self) -> int:
        return self.planes * self.plane_nbytes

    @property
    def plane_nbytes(self) -> int:
        return self.height * self.width * self.samples * self.dtype.itemsize

    def header(self, data_nbytes: int, compression: int = 1, start: int = 0) -> bytes:
        """Return the header of a file with one strip per page; the data begin after it, but not
        before byte ``start``."""
        if self.stack == "pages" and self.planes > 1:
            return self.segments_header([self.plane_nbytes] * self.planes, compression, start=start)
        return self.segments_header([data_nbytes], compression, start=start)

    def segments_header(
        self,
        nbytes: Sequence[int],
        compression: int = 1,
        tile: tuple[int, int] | None = None,
        start: int = 0,
    ) -> bytes:
        """Return the header of a file with contiguous segments of ``nbytes`` bytes each: the
        strips, or tiles, of all pages in order."""
        pages = self.planes if self.stack == "pages" else 1
        count = len(nbytes) // pages
        # | "II" 42 8 | directory of page 0 | directory of page 1 | ... | chunk: page 0, page 1, ...
        # | All directories have the same size, so the offsets of all pages are known before one is
        # formatted.
        page_size = len(self._directory((0,) * count, (0,) * count, 0, compression, 8, tile))
        start = max(start, 8 + pages * page_size)
        ends = list(accumulate(nbytes, initial=start))
        if ends[-1] >= _LIMIT:
            raise UnsupportedError(
                f"a TIFF file of {ends[-1]} bytes, expected less than {_LIMIT}: choose smaller "
                "chunks"
            )
        mark, order = _ORDERS[self.byteorder]
        parts = [struct.pack(f"{order}2sHI", mark, 42, 8)]
        for page in range(pages):
            at = 8 + page * page_size
            segments = slice(page * count, (page + 1) * count)
            parts.append(
                self._directory(
                    ends[segments],
                    nbytes[segments],
                    at + page_size if page + 1 < pages else 0,
                    compression,
                    at,
                    tile,
                )
            )
        return b"".join(parts)

    def _directory(
        self,
        starts: Sequence[int],
        nbytes: Sequence[int],
        following: int,
        compression: int,
        at: int,
        tile: tuple[int, int] | None,
    ) -> bytes:
        """Return an image file directory at byte ``at``, followed by the values that do not fit
        into its entries; the next directory is at ``following``."""
        samples = self.samples
        # ExtraSamples: 0 is unspecified, 2 is unassociated alpha
        extra = {2: (0,), 4: (2,)}.get(samples, (0,) * (samples - 1 if samples > 4 else 0))
        sample_format = _SAMPLE_FORMATS[self.dtype.kind][0]
        entries = [  # sorted by tag, as TIFF 6.0 section 2 requires
            (256, _number_type(self.width), (self.width,)),  # ImageWidth
            (257, _number_type(self.height), (self.height,)),  # ImageLength
            (258, _SHORT, (self.dtype.itemsize * 8,) * samples),  # BitsPerSample
            (259, _SHORT, (compression,)),  # Compression
            # PhotometricInterpretation: RGB, or BlackIsZero
            (262, _SHORT, (2 if samples in (3, 4) else 1,)),
            # ImageDescription
            (270, _ASCII, self.description.encode("ascii") + b"\0" if self.description else b""),
            (273, _LONG, () if tile else starts),  # StripOffsets
            (277, _SHORT, (samples,) if samples > 1 else ()),  # SamplesPerPixel
            (278, _number_type(self.height), () if tile else (self.height,)),  # RowsPerStrip
            (279, _LONG, () if tile else nbytes),  # StripByteCounts
            # PlanarConfiguration: samples of a pixel are contiguous
            (284, _SHORT, (1,) if samples > 1 else ()),
            (322, _LONG, tile[1:] if tile else ()),  # TileWidth
            (323, _LONG, tile[:1] if tile else ()),  # TileLength
            (324, _LONG, starts if tile else ()),  # TileOffsets
            (325, _LONG, nbytes if tile else ()),  # TileByteCounts
            (338, _SHORT, extra),  # ExtraSamples
            # SampleFormat; unsigned integers are the default
            (339, _SHORT, (sample_format,) * samples if sample_format != 1 else ()),
        ]
        return _pack_directory(
            [entry for entry in entries if entry[2]], following, at, _ORDERS[self.byteorder][1]
        )


def _pack_directory(
    entries: list[tuple[int, int, Any]], following: int, at: int, order: str
) -> bytes:
    # number of entries | 12 bytes per entry: tag, type, count, value or its offset | offset of the
    # next directory | long values
    fields, overflow = [], b""
    outside = at + 2 + 12 * len(entries) + 4
    for tag, kind, values in entries:
        packed = (
            values
            if kind == _ASCII
            else struct.pack(f"{order}{len(values)}{_FORMATS[kind]}", *values)
        )
        if len(packed) > 4:
            place = struct.pack(f"{order}I", outside + len(overflow))
            overflow += packed + b"\0" * (len(packed) % 2)  # values begin at even offsets
        else:
            place = packed.ljust(4, b"\0")
        fields.append(struct.pack(f"{order}HHI", tag, kind, len(values)) + place)
    return (
        struct.pack(f"{order}H", len(entries))
        + b"".join(fields)
        + struct.pack(f"{order}I", following)
        + overflow
    )


def _number_type(value: int) -> int:
    return _SHORT if value < 1 << 16 else _LONG


def _checked_dtype(given: Any) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(given)
    _, sizes = _SAMPLE_FORMATS.get(dtype.kind, (0, ()))
    if dtype.itemsize not in sizes:
        hint = ": cast to uint8" if dtype.kind == "b" else ""
        raise TypeError(
            f"TIFF has no type for {dtype.name}; it stores integers of 8 to 64 bits, floats of 16 "
            f"to 64 and complex numbers of two floats{hint}"
        )
    return dtype


def _checked_axes(shape: tuple[int, ...], axes: str | None) -> str:
    if axes is None:
        if len(shape) not in _AXES:
            raise ValueError(
                f"a chunk of shape {shape}: axes= must name its axes t, z, c, y, x and s"
            )
        axes = _AXES[len(shape)]
    planes, _, samples = axes.partition("yx")
    if (
        "yx" not in axes
        or samples not in ("", "s")
        or not set(planes) <= set("tzc")
        or len(set(axes)) != len(axes)
    ):
        raise ValueError(f"axes {axes!r}, expected any of t, z, c, then y and x, then optionally s")
    if len(axes) != len(shape) or min(shape) < 1:
        raise ValueError(
            f"axes {axes!r} for a chunk of shape {shape}, expected a length of at least 1 for each "
            "axis"
        )
    return axes


def _imagej_description(shape: tuple[int, ...], axes: str, dtype: np.dtype[Any]) -> str:
    planes = axes.partition("yx")[0]
    if dtype.name not in _IMAGEJ_DTYPES or (
        axes.endswith("s") and (dtype.name != "uint8" or shape[-1] != 3)
    ):
        raise UnsupportedError(
            f"ImageJ stacks of {dtype.name} {axes}, expected {', '.join(_IMAGEJ_DTYPES)}, or RGB "
            "of uint8: use stack='pages'"
        )
    if planes not in ("t", "z", "c", "tz", "tc", "zc", "tzc"):
        raise UnsupportedError(
            f"an ImageJ stack with the axes {axes!r}, expected the order t, z, c: use stack='pages'"
        )
    counts = dict(zip(planes, shape, strict=False))
    lines = [
        "ImageJ=1.11a",
        f"images={math.prod(counts.values())}",
        *(f"{_IMAGEJ_COUNTS[a]}={counts[a]}" for a in "czt" if a in counts),
    ]
    if len(counts) > 1:
        lines.append("hyperstack=true")
    return "\n".join([*lines, "loop=false", ""])


# number, first bytes
COMPRESSIONS = {
    "none": (1, b""),
    "zlib": (8, b""),
    "lzma": (34925, b"\xfd7zXZ\x00"),
    "zstd": (50000, b"\x28\xb5\x2f\xfd"),
}
_GZIP_MAGIC = b"\x1f\x8b"


def tiff_prefix(
    shape: Sequence[int],
    dtype: Any,
    byteorder: str = "little",
    *,
    axes: str | None = None,
    stack: str = "pages",
) -> bytes:
    """Return the header that makes an uncompressed chunk a TIFF file.

    It is meant for ``offset_codec(prefix=...)``.

    Parameters
    ----------
    shape : sequence of int
        Elements of a chunk along its axes, the last one fastest: (y, x), (z, y, x), (y, x, 3).
    dtype : dtype_like
        Type of an element: signed or unsigned integers of 8 to 64 bits, floats of 16 to 64, complex
        numbers of two floats.
    byteorder : str
        ``"little"`` or ``"big"``, the ``endian`` of the codec ``bytes``.
    axes : str, optional
        A letter per axis: any of ``t``, ``z``, ``c`` for planes, then ``y`` and ``x``, then
        optionally ``s`` for the samples of a pixel (3 are RGB, 4 RGBA). Default: ``"yx"`` or
        ``"zyx"``.
    stack : str
        Storage of the planes. ``"pages"``: one directory per plane, which every reader supports.
        ``"imagej"``: one directory with ImageJ's description (uint8, uint16, float32), a short
        header for many planes. ``"tall"``: one image with all planes below each other.

    Returns
    -------
    bytes
        The header; the data follow immediately.

    Raises
    ------
    TypeError
        TIFF does not support the type.
    ValueError
        The axes do not fit the shape, or an option is unknown.
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
    encoded: bytes,
    layout: ChunkLayout,
    *,
    compression: str = "none",
    byteorder: str = "little",
    axes: str | None = None,
    stack: str | None = None,
) -> bytes:
    """Return the TIFF header of one chunk, compressed or not: the header function ``"tiff"``."""
    if compression not in COMPRESSIONS:
        raise ValueError(f"compression {compression!r}, expected one of {', '.join(COMPRESSIONS)}")
    stack = stack or ("pages" if compression == "none" else "tall")
    image = TiffImage.of(layout.shape, layout.dtype, byteorder, axes, stack)
    check_strip(encoded, compression, image.nbytes)
    if compression != "none" and image.planes > 1 and stack != "tall":
        raise ValueError(
            f"stack {stack!r} of a compressed chunk of {image.planes} planes, expected 'tall': its "
            "planes are one stream"
        )
    header = image.header(len(encoded), COMPRESSIONS[compression][0], layout.header_nbytes)
    if len(header) > layout.header_nbytes:
        raise ValueError(
            f"a TIFF header of this chunk has {len(header)} bytes, expected at most "
            f"{layout.header_nbytes}: choose a larger offset"
        )
    return header + bytes(layout.header_nbytes - len(header))


def check_strip(encoded: bytes, compression: str, nbytes: int) -> None:
    """Check that a strip has the format that TIFF defines for a compression."""
    magic = COMPRESSIONS[compression][1]
    if compression == "none" and len(encoded) != nbytes:
        raise ValueError(
            f"a chunk has {len(encoded)} encoded bytes, expected {nbytes}: if it is compressed, "
            "name the compressor with compression="
        )
    if compression == "zlib" and not _is_zlib(encoded):
        hint = (
            ": this is gzip; TIFF's Deflate is a zlib stream, which the codec numcodecs.zlib writes"
            if encoded[:2] == _GZIP_MAGIC
            else ""
        )
        raise ValueError(
            f"a chunk begins with {encoded[:4].hex(' ')}, expected a zlib stream{hint}"
        )
    if not encoded.startswith(magic):
        hint = ", which numcodecs.lzma writes with format 1 (xz)" if compression == "lzma" else ""
        raise ValueError(
            f"a chunk begins with {encoded[: len(magic)].hex(' ')}, expected {magic.hex(' ')} of "
            f"{compression}{hint}"
        )


def _is_zlib(data: bytes) -> bool:
    """Return whether bytes begin with a zlib header: method 8, a check over two bytes, no
    dictionary (RFC 1950, section 2.2)."""
    return (
        len(data) > 2
        and data[0] & 15 == 8
        and (data[0] << 8 | data[1]) % 31 == 0
        and not data[1] & 32
    )


def tiff_segments_header(
    image: TiffImage,
    shape: Sequence[int],
    tile: Sequence[int],
    lengths: Sequence[int],
    compression: str,
) -> bytes:
    """Return the header of a TIFF file whose strips or tiles are the contiguous parts of a chunk,
    in C order."""
    axes = image.axes
    along = dict(zip(axes, zip(shape, tile, strict=True), strict=True))
    cut = [axis for axis in axes if along[axis][0] != along[axis][1]]
    planes = [axis for axis in axes if axis in "tzc"]
    number = COMPRESSIONS[compression][0]
    if not cut and (compression == "none" or image.planes == 1):
        # one part: the planes of an uncompressed chunk are its strips
        return image.header(sum(lengths), number)
    if any(along[axis][1] != 1 for axis in planes) or "s" in cut:
        told = ", ".join(f"{axis} {part} of {whole}" for axis, (whole, part) in along.items())
        raise ValueError(
            f"inner chunks with {told}, expected 1 along planes and all samples: a TIFF tile lies "
            "in one plane"
        )
    if not set(cut) & {"y", "x"}:
        return image.segments_header(lengths, number)
    height, width = along["y"][1], along["x"][1]
    if height % 16 or width % 16:
        raise ValueError(
            f"tiles of {height} x {width} pixels, expected multiples of 16 (TIFF 6.0, section 15)"
        )
    return image.segments_header(lengths, number, (height, width))
