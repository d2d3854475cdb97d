"""A stack of images as a volume: one slice for each z. Holds no open file; slices are decoded when they are read, and not kept."""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError
from wkwdask.formats.pictures.images import read_pixels
from wkwdask.formats.pictures.scratch import Scratch
from wkwdask.formats.pictures.slices import file_stamp
from wkwdask.geometry.grid import cell_range
from wkwdask.model.volume import PlainVolume
from wkwdask.store import files
from wkwdask.store.files import file_states
from wkwdask.store.new_files import publish_bytes
from wkwdask.store.paths import basename

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from wkwdask.formats.pictures.slices import PixelFormat, Slice
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.states import States

_WIDEST = 1 << 40  # more than any section


@dataclass(frozen=True, slots=True)
class ImageStack(PlainVolume):
    """One slice of the stack for each z, a ``Volume``."""

    name: str
    slices: tuple[Slice, ...]
    """Along z."""
    format: PixelFormat
    origin: Vec3
    """Absolute voxel of the first pixel of the first slice."""
    box: BoundingBox
    """Which part of the stack is meant [voxels of its mag]."""
    tile_shape: tuple[int, int]
    """The smallest box that can be decoded along x, y [pixels]."""
    notes: str | None = None
    """Where a slice that cannot be decoded leaves a note and reads as zeros; None where it is an error."""

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.format.dtype)

    @property
    def num_channels(self) -> int:
        return self.format.num_channels

    @property
    def chunk_shape(self) -> Vec3:
        return (*self.tile_shape, 1)

    @property
    def unit_shape(self) -> Vec3:
        """What is opened at once: a slice."""
        return self.format.width, self.format.height, 1

    @property
    def shard_shape(self) -> Vec3:
        """One slice: wider and higher than any box, so that its index is (0, 0, z)."""
        return _WIDEST, _WIDEST, 1

    @property
    def token(self) -> tuple[Any, ...]:
        stamps = {page.path: file_stamp(page.path) for slice_ in self.slices for page in slice_.pages}
        slices = tuple(tuple((basename(page.path), page.number, *stamps[page.path]) for page in slice_.pages) for slice_ in self.slices)
        return "images", self.format, self.origin, self.box, slices

    def slice_at(self, z: int) -> Slice:
        return self.slices[z - self.origin[2]]

    def cropped(self, box: BoundingBox) -> ImageStack:
        """Give a part of the stack, which knows nothing of the slices outside."""
        low, high = (z - self.origin[2] for z in (box.topleft[2], box.bottomright[2]))
        return replace(self, slices=self.slices[low:high], origin=(*self.origin[:2], box.topleft[2]), box=box)

    def shard_path(self, index: Vec3) -> str:
        return self.slice_at(index[2]).name

    def shard_states(self, box: BoundingBox) -> States:
        share = box.intersection(self.box)
        here = [(0, 0, z) for z in range(share.topleft[2], share.bottomright[2]) if self.slice_at(z).pages]
        return file_states(here, lambda index: self.slice_at(index[2]).pages[0].path)

    def read_into(self, out: npt.NDArray[Any], topleft: Vec3, first_channel: int = 0, *, fill_zeros: bool = True) -> int:
        decoded = 0
        channels = slice(first_channel, first_channel + out.shape[0])
        columns, rows = (slice(t - c, t - c + n) for t, c, n in zip(topleft[:2], self.origin[:2], out.shape[1:3], strict=True))
        for z in range(out.shape[3]):
            plane = out[:, :, :, z].transpose(2, 1, 0)
            pixels = self.pixels(topleft[2] + z, columns, rows)
            decoded += pixels is not None
            np.copyto(plane, 0 if pixels is None else pixels[:, :, channels])
        return decoded

    def with_notes(self, folder: str) -> ImageStack:
        """Return the stack that fills sections that cannot be decoded with zeros, and leaves a note of each in a folder."""
        return replace(self, notes=folder)

    @contextmanager
    def held(self, reading_shape: Vec3, scratch: str) -> Iterator[ImageStack]:
        """Decode each slice once, even where readings hold a part of it: the others wait in a scratch file."""
        cells = cell_range(self.box, reading_shape)
        is_cut = any(len(r) > 1 and tile_shape > edge for r, tile_shape, edge in zip(cells[:2], self.tile_shape, reading_shape[:2], strict=True))
        if not is_cut:
            yield self
            return
        with closing(Scratch(scratch)) as kept:
            yield _Held(**{field.name: getattr(self, field.name) for field in fields(self)}, cell_shape=reading_shape[:2], kept=kept)

    def pixels(self, z: int, columns: slice, rows: slice) -> npt.NDArray[Any] | None:
        slice_ = self.slice_at(z)
        if not slice_.pages or slice_.format is None or slice_.format != self.format:
            return None
        try:
            pixels = read_pixels(slice_, columns, rows)
            expected = (rows.stop - rows.start, columns.stop - columns.start, self.num_channels)
            if pixels.shape != expected or pixels.dtype != self.dtype:
                raise CorruptError(
                    f"{slice_.name}: decodes to {pixels.dtype} of shape {pixels.shape}, its header promised {self.dtype} of {expected} (y, x, c)"
                )
        except CorruptError as error:
            if self.notes is None:
                raise
            files.makedirs(self.notes)
            publish_bytes(f"{self.notes}/{z}", str(error).encode())
            return None
        return pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held(ImageStack):
    """A stack whose slices are decoded whole, and kept in parts."""

    cell_shape: tuple[int, int]
    """What is read at a time along x, y [voxels]."""
    kept: Scratch
    """What was decoded and not read yet."""

    def pixels(self, z: int, columns: slice, rows: slice) -> npt.NDArray[Any] | None:
        index = tuple((part.start + corner) // edge for part, corner, edge in zip((columns, rows), self.origin[:2], self.cell_shape, strict=True))
        if (z,) not in self.kept:
            self._keep(z)
        return self.kept.get((z, *index)) if (z, *index) in self.kept else None

    def _keep(self, z: int) -> None:
        (left, top, _), (right, bottom, _) = (tuple(a - c for a, c in zip(at, self.origin, strict=True)) for at in (self.box.topleft, self.box.bottomright))
        pixels = ImageStack.pixels(self, z, slice(left, right), slice(top, bottom))
        self.kept.put((z,), np.empty(0, np.uint8))
        if pixels is None:
            return
        x_cells, y_cells, _ = cell_range(self.box, (*self.cell_shape, 1))
        for x, y in product(x_cells, y_cells):
            (x0, x1), (y0, y1) = (
                (max(low, n * edge - corner) - low, min(high, (n + 1) * edge - corner) - low)
                for n, edge, corner, low, high in zip((x, y), self.cell_shape, self.origin[:2], (left, top), (right, bottom), strict=True)
            )
            self.kept.put((z, x, y), pixels[y0:y1, x0:x1])


def read_notes(folder: str) -> list[str]:
    """List what was written down about slices that could not be decoded, by their z."""
    try:
        names = sorted((name for name in files.listdir(folder) if name.isdecimal()), key=int)
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        with files.open_stream(f"{folder}/{name}") as file:
            found.append(file.read().decode())
    return found
