"""Read single images: PNG and JPEG by Pillow, TIFF pages by tifffile. First the headers as slices,
then pixels.

Pixels are the stored values: an image with a palette reads as indices, an image with one bit as 0
and 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError, MissingError, UnsupportedError
from wkwdask.formats.pictures.slices import Page, PixelFormat, Slice, check_plausible
from wkwdask.formats.pictures.tiff_pages import is_tiff, read_tiff_page, tiff_slices
from wkwdask.model.extras import import_extra
from wkwdask.model.parsing import reason_of
from wkwdask.model.voxel_type import common_dtype
from wkwdask.store import by_path
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from wkwdask.array_types import AnyArray


# Pillow's modes with their data type and channels. Pillow reduces 16-bit color images to 8 bits, so
# imagecodecs reads those.
_MODES = {
    "1": ("uint8", 1),
    "L": ("uint8", 1),
    "P": ("uint8", 1),
    "LA": ("uint8", 2),
    "RGB": ("uint8", 3),
    "RGBA": ("uint8", 4),
    "I;16": ("uint16", 1),
}
# PNG specification, section 11.2.1 (IHDR): byte 24 of the file is the bit depth, byte 25 the color
# type
_PNG_HEAD_NBYTES = 26
_PNG_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}  # by color type: gray, RGB, gray and alpha, RGBA


def slices_of(path: str, axes: str | None = None) -> list[Slice]:
    by_path.check_regular(path)
    try:
        return tiff_slices(path, axes) if is_tiff(path) else [_image_slice(path)]
    except FileNotFoundError:
        raise MissingError(f"{path}: not found") from None
    except ModuleNotFoundError:
        raise
    except Exception as error:
        _reraise_system_error(error)
        return [Slice((Page(path),), problem=reason_of(error).removeprefix(f"{path}: "))]


def read_pixels(slice_: Slice, columns: slice, rows: slice) -> AnyArray:
    images = [_read_page(page, columns, rows) for page in slice_.pages]
    return images[0] if len(images) == 1 else np.concatenate(images, axis=2)


def _read_page(page: Page, columns: slice, rows: slice) -> AnyArray:
    try:
        if is_tiff(page.path):
            return read_tiff_page(page, columns, rows)
        return _read_image(page.path)[rows, columns]
    except FileNotFoundError:
        raise MissingError(f"{page.path}: is gone") from None
    except (MemoryError, ModuleNotFoundError):
        raise
    except Exception as error:
        _reraise_system_error(error)
        raise CorruptError(f"{page.name}: cannot be decoded: {reason_of(error)}") from error


def _reraise_system_error(error: Exception) -> None:
    # An error with an errno comes from the system, such as a failing disk: the file itself may be
    # intact.
    if isinstance(error, OSError) and error.errno is not None:
        raise error


# ------------------------------------------------------------------------------------------------
# PNG and JPEG


class _Stored:
    """Open file for Pillow, which else allocates as many bytes as a damaged chunk claims."""

    def __init__(self, path: str, file: Any) -> None:
        self._file, self._nbytes = file, store_at(path).status().st_size
        self.seek, self.tell = file.seek, file.tell

    def read(self, nbytes: int = -1) -> bytes:
        data: bytes = self._file.read(min(nbytes, self._nbytes))
        return data


def _open_image(path: str, stream: Any) -> Any:
    """Open an image by the suffix of its name. ``Image.open`` rejects large sections as
    decompression bombs."""
    from PIL import JpegImagePlugin, PngImagePlugin

    file: Any = _Stored(path, stream)
    return (
        PngImagePlugin.PngImageFile(file, path)
        if path.lower().endswith(".png")
        else JpegImagePlugin.JpegImageFile(file, path)
    )


def _deep_png(path: str, file: Any) -> tuple[str, int] | None:
    """Return type and channels of a PNG with 16 bits per channel, else None."""
    if not path.lower().endswith(".png"):
        return None
    head = file.read(_PNG_HEAD_NBYTES)
    file.seek(0)
    is_deep = len(head) == _PNG_HEAD_NBYTES and head[24] == 16 and head[25] in _PNG_CHANNELS
    return ("uint16", _PNG_CHANNELS[head[25]]) if is_deep else None


def _image_slice(path: str) -> Slice:
    with store_at(path).open_stream() as file:
        deep = _deep_png(path, file)
        image = _open_image(path, file)
        pixel_type = deep or _MODES.get(image.mode)
        if pixel_type is None:
            raise UnsupportedError(
                f"pixels of mode {image.mode}, expected one of {', '.join(_MODES)}"
            )
        dtype, channels = pixel_type
        if min(image.size) < 1:
            raise CorruptError(f"holds {image.width} x {image.height} pixels")
        check_plausible(
            image.width * image.height * channels * np.dtype(dtype).itemsize,
            store_at(path).status().st_size,
            "the header",
        )
        return Slice(
            (Page(path),),
            PixelFormat(image.width, image.height, channels, dtype),
            (image.width, image.height),
        )


def _read_image(path: str) -> AnyArray:
    with store_at(path).open_stream() as file:
        deep = _deep_png(path, file)
        if deep is not None and deep[1] > 1:
            array: AnyArray = import_extra("imagecodecs", path).png_decode(file.read())
        else:
            image = _open_image(path, file)
            array = np.asarray(image)
            array = array.astype("uint16" if deep else common_dtype(array.dtype), copy=False)
    return array[:, :, np.newaxis] if array.ndim == 2 else array
