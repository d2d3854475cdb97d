"""Chunks as JPEG, PNG or JPEG XL images. Opens no file.

The pixels of an image, row by row, are the voxels of the chunk: x fastest, then y, then z. Channels
are the components of a pixel. Any width and height with the right product is valid. New images are
X pixels wide and Y * Z high, as other software writes them, unless that exceeds the limits of the
image format (neuroglancer, ``precomputed/volume.rst``, "2-d image format encodings").
"""

from __future__ import annotations

import struct
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError, FormatError, TruncatedError
from wkwdask.model.extras import import_extra

if TYPE_CHECKING:
    from wkwdask.array_types import AnyArray
    from wkwdask.geometry.mag import Vec3

ENCODINGS = ("jpeg", "png", "jxl")
_EXTRA = "precomputed"
_MAX_SIDES = {"jpeg": 65500, "png": 1_000_000, "jxl": 1 << 18}
"""Longest side [pixels] that libjpeg and libpng accept by default, and that level 5 of JPEG XL
allows."""
_DEFAULT_JPEG_QUALITY = 75
# On electron micrographs twice the effort saves 2 to 3 % of the bytes and takes three times as
# long.
_DEFAULT_PNG_LEVEL = 4
_DEFAULT_JXL_EFFORT = 3
_END_OF_JPEG = b"\xff\xd9"


def decode(
    encoding: str,
    data: bytes,
    shape: tuple[int, int, int, int],
    dtype: np.dtype[Any],
    source: str,
    offset: int,
) -> AnyArray:
    imagecodecs = import_extra("imagecodecs", f"{source}: {encoding}", _EXTRA)
    try:
        width, height = image_size(encoding, data)
    except FormatError as error:
        raise type(error)(f"{source}: byte {offset}: {error}") from None
    num_channels, x, y, z = shape
    if width * height != x * y * z:
        raise CorruptError(
            f"{source}: byte {offset}: a chunk of {shape[1:]} voxels needs an image of {x * y * z} "
            f"pixels, found {width} x {height}"
        )
    try:
        if encoding == "jxl":  # one thread: chunks are already decoded in parallel
            image = imagecodecs.jpegxl_decode(data, index=0, numthreads=1)
        else:
            image = (
                imagecodecs.png_decode(data)
                if encoding == "png"
                else imagecodecs.jpeg8_decode(data)
            )
    except MemoryError:
        raise
    except Exception as error:  # damaged bytes make these libraries raise exceptions of any type
        raise CorruptError(
            f"{source}: byte {offset}: a {encoding} image cannot be decoded: {error}"
        ) from None
    if image.dtype != dtype or image.size != x * y * z * num_channels:
        components = image.size // (x * y * z)
        raise CorruptError(
            f"{source}: byte {offset}: expected a {encoding} image of {num_channels} x {dtype}, "
            f"found {components} x {image.dtype}"
        )
    voxels: AnyArray = image.reshape(z, y, x, num_channels).transpose(3, 2, 1, 0)
    return voxels


def image_size(encoding: str, data: bytes) -> tuple[int, int]:
    """Read width and height of an image without decoding it."""
    if encoding == "jxl":
        return jxl_size(data)
    from PIL import JpegImagePlugin, PngImagePlugin

    memory = BytesIO(data)
    try:
        size = (
            PngImagePlugin.PngImageFile if encoding == "png" else JpegImagePlugin.JpegImageFile
        )(memory).size
    except Exception as error:  # damaged bytes make these libraries raise exceptions of any type
        raise CorruptError(f"no {encoding} image: {error}") from None
    if encoding == "jpeg" and data.rfind(_END_OF_JPEG) < memory.tell():
        # decoders silently fill a truncated image with grey
        raise TruncatedError("a jpeg image is cut off")
    return size


def encode(
    encoding: str, array: AnyArray, quality: float | None, level: int | None, source: str
) -> bytes:
    imagecodecs = import_extra("imagecodecs", f"{source}: {encoding}", _EXTRA)
    channels, x, y, z = array.shape
    width, height = image_shape((x, y, z), _MAX_SIDES[encoding], f"{source}: {encoding}")
    pixels = np.ascontiguousarray(array.transpose(3, 2, 1, 0), array.dtype.newbyteorder("="))
    image = pixels.reshape((height, width) if channels == 1 else (height, width, channels))
    if encoding == "png":
        encoded = imagecodecs.png_encode(
            image,
            level=_DEFAULT_PNG_LEVEL if level is None else level,
            out=_max_png_nbytes(image.nbytes, height),
        )
    elif encoding == "jpeg":
        # Rows of different z planes are neighbours in the image: chroma subsampling would mix their
        # colors.
        encoded = imagecodecs.jpeg8_encode(
            image,
            level=round(_DEFAULT_JPEG_QUALITY if quality is None else quality),
            subsampling="444",
        )
    else:
        loss = (
            {"lossless": True}
            if quality is None or quality >= 100
            else {"distance": jxl_distance(quality)}
        )
        encoded = imagecodecs.jpegxl_encode(
            image, effort=_DEFAULT_JXL_EFFORT if level is None else level, numthreads=1, **loss
        )
    return bytes(encoded)


def image_shape(shape: Vec3, max_side: int, what: str) -> tuple[int, int]:
    """Choose width and height of an image that holds a chunk.

    Examples
    --------
    >>> (
    ...     image_shape((64, 64, 64), 65500, "chunk"),
    ...     image_shape((64, 256, 256), 65500, "chunk"),
    ...     image_shape((256, 256, 256), 65500, "chunk"),
    ... )
    ((64, 4096), (16384, 256), (4096, 4096))
    """
    x, y, z = shape
    for width, height in ((x, y * z), (x * y, z)):
        if max(width, height) <= max_side:
            return width, height
    total = x * y * z
    for width in range(int(total**0.5) + 1, 0, -1):
        if total % width == 0 and total // width <= max_side:
            return width, total // width
    raise FormatError(
        f"{what}: no image with sides of at most {max_side} pixels holds a chunk of {shape} "
        "voxels: choose another chunk size"
    )


def _max_png_nbytes(nbytes: int, height: int) -> int:
    """Return the largest size of a PNG. imagecodecs assumes less, and then fails on noise in narrow
    images or truncates it."""
    filtered = nbytes + height  # one filter byte per row
    return filtered + filtered // 64 + 1024  # an upper bound of what deflate and the PNG chunks add


def jxl_distance(quality: float) -> float:
    """Return the Butteraugli distance of a JPEG XL quality, as libjxl's
    ``JxlEncoderDistanceFromQuality`` maps it.

    Examples
    --------
    >>> jxl_distance(90), jxl_distance(30)
    (1.0, 6.4)
    """
    if quality >= 30:
        return round(0.1 + (100 - quality) * 0.09, 6)
    return round(53 / 3000 * quality * quality - 23 / 20 * quality + 25, 6)


_JXL_CODESTREAM = b"\xff\x0a"
_JXL_CONTAINER = b"\x00\x00\x00\x0cJXL \r\n\x87\n"
# ISO/IEC 18181-1, annex D (SizeHeader): ratios of width to height that three bits encode
_JXL_RATIOS = ((1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))


def jxl_size(data: bytes) -> tuple[int, int]:
    """Read width and height of a JPEG XL image (ISO/IEC 18181-1, section 9 and annex D)."""
    bits = _BitReader(_jxl_codestream(data))
    width, height = _jxl_dimensions(bits)
    if bits.take(1):  # all_default: three channels of eight bits
        return width, height
    if bits.take(1):  # extra_fields
        bits.take(3)  # orientation
        if bits.take(1):  # intrinsic size, which decoders of pixels ignore
            _jxl_dimensions(bits)
        if bits.take(2):
            raise CorruptError("a JPEG XL image with a preview or an animation")
    is_float = bits.take(1)  # bit depth
    bits.choose(
        ((0, 32), (0, 16), (0, 24), (6, 1)) if is_float else ((0, 8), (0, 10), (0, 12), (6, 1))
    )
    bits.take(5 if is_float else 1)
    extra = bits.choose(((0, 0), (0, 1), (4, 2), (12, 1)))
    if extra > 1:
        raise CorruptError(f"a JPEG XL image with {extra} extra channels, expected at most 1")
    return width, height


class _BitReader:
    """Reader of bits, the lowest bit of each byte first."""

    def __init__(self, data: bytes) -> None:
        self._value = int.from_bytes(data[:256], "little")
        self._left = 8 * min(len(data), 256)

    def take(self, count: int) -> int:
        if count > self._left:
            raise TruncatedError("a JPEG XL image is cut off in its header")
        value = self._value & ((1 << count) - 1)
        self._value >>= count
        self._left -= count
        return value

    def choose(self, forms: tuple[tuple[int, int], ...]) -> int:
        """Read a number that ISO/IEC 18181-1 calls U32: two bits choose one of four forms (bits,
        offset)."""
        count, offset = forms[self.take(2)]
        return self.take(count) + offset


def _jxl_codestream(data: bytes) -> bytes:
    """Return the start of the codestream, bare or in a container of boxes (ISO/IEC 18181-2)."""
    if data.startswith(_JXL_CODESTREAM):
        return data[2:258]
    if not data.startswith(_JXL_CONTAINER):
        raise CorruptError("no JPEG XL image")
    at = len(_JXL_CONTAINER)
    while at + 8 <= len(data):
        length, name = struct.unpack_from(">I4s", data, at)
        head = 8
        if length == 1 and at + 16 <= len(data):
            length, head = struct.unpack_from(">Q", data, at + 8)[0], 16
        if name in (b"jxlc", b"jxlp"):
            start = at + head + (4 if name == b"jxlp" else 0)
            if data[start : start + 2] != _JXL_CODESTREAM:
                break
            return data[start + 2 : start + 258]
        if length < head:
            break
        at += length
    raise CorruptError("a JPEG XL container without a codestream")


def _jxl_dimensions(bits: _BitReader) -> tuple[int, int]:
    forms = ((9, 1), (13, 1), (18, 1), (30, 1))
    is_small = bits.take(1)
    height = 8 * (bits.take(5) + 1) if is_small else bits.choose(forms)
    ratio = bits.take(3)
    if ratio:
        numerator, denominator = _JXL_RATIOS[ratio - 1]
        return height * numerator // denominator, height
    return (8 * (bits.take(5) + 1) if is_small else bits.choose(forms)), height
