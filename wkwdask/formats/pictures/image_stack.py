"""Volume of a stack of images, one slice for each z. Slices are decoded when they are read; no file
stays open and nothing is cached."""

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
from wkwdask.store import by_path
from wkwdask.store.paths import basename
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wkwdask.array_types import AnyArray
    from wkwdask.formats.pictures.slices import PixelFormat, Slice
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.states import States

_UNBOUNDED = 1 << 40  # wider than any section


@dataclass(frozen=True, slots=True)
class ImageStack(PlainVolume):
    name: str
    slices: tuple[Slice, ...]
    format: PixelFormat
    origin: Vec3
    """Absolute voxel of the first pixel of the first slice."""
    box: BoundingBox
    """Part of the stack [voxels of its mag]."""
    tile_shape: tuple[int, int]
    """Smallest box that can be decoded along x, y [pixels]."""
    notes: str | None = None
    """Folder for notes on slices that cannot be decoded and read as zeros; None if such a slice is
    an error."""

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
        """One slice, which is one open file."""
        return self.format.width, self.format.height, 1

    @property
    def shard_shape(self) -> Vec3:
        # A slice is one shard, wider and higher than any box: its index is (0, 0, z).
        return _UNBOUNDED, _UNBOUNDED, 1

    @property
    def token(self) -> tuple[Any, ...]:
        stamps = {
            page.path: file_stamp(page.path) for slice_ in self.slices for page in slice_.pages
        }
        slices = tuple(
            tuple((basename(page.path), page.number, *stamps[page.path]) for page in slice_.pages)
            for slice_ in self.slices
        )
        return "images", self.format, self.origin, self.box, slices

    def slice_at(self, z: int) -> Slice:
        return self.slices[z - self.origin[2]]

    def cropped(self, box: BoundingBox) -> ImageStack:
        """Return a part of the stack without the slices outside, which keeps pickles small."""
        low, high = (z - self.origin[2] for z in (box.topleft[2], box.bottomright[2]))
        return replace(
            self, slices=self.slices[low:high], origin=(*self.origin[:2], box.topleft[2]), box=box
        )

    def shard_path(self, index: Vec3) -> str:
        return self.slice_at(index[2]).name

    def shard_states(self, box: BoundingBox) -> States:
        common = box.intersection(self.box)
        stored = [
            (0, 0, z)
            for z in range(common.topleft[2], common.bottomright[2])
            if self.slice_at(z).pages
        ]
        return by_path.file_states(stored, lambda index: self.slice_at(index[2]).pages[0].path)

    def read_into(
        self, out: AnyArray, topleft: Vec3, first_channel: int = 0, *, fill_zeros: bool = True
    ) -> int:
        decoded = 0
        channels = slice(first_channel, first_channel + out.shape[0])
        columns, rows = (
            slice(t - c, t - c + n)
            for t, c, n in zip(topleft[:2], self.origin[:2], out.shape[1:3], strict=True)
        )
        for z in range(out.shape[3]):
            plane = out[:, :, :, z].transpose(2, 1, 0)
            pixels = self.pixels(topleft[2] + z, columns, rows)
            decoded += pixels is not None
            np.copyto(plane, 0 if pixels is None else pixels[:, :, channels])
        return decoded

    def with_zero_fill(self, folder: str) -> ImageStack:
        """Return a stack whose undecodable sections read as zeros, with a note on each in a
        folder."""
        return replace(self, notes=folder)

    @contextmanager
    def cached(self, reading_shape: Vec3, scratch: str) -> Iterator[ImageStack]:
        """Yield a stack for reads of ``reading_shape`` that decodes each slice once."""
        # If a read is smaller than the parts that must be decoded at once, their other cells wait
        # in a scratch file:
        #     decoded: +-------+-------+        reads: (0, 0) now
        #              | 0, 0  | 1, 0  |               (1, 0) later, from the scratch file
        #              +-------+-------+
        cells = cell_range(self.box, reading_shape)
        is_cut = any(
            len(r) > 1 and tile_shape > edge
            for r, tile_shape, edge in zip(
                cells[:2], self.tile_shape, reading_shape[:2], strict=True
            )
        )
        if not is_cut:
            yield self
            return
        with closing(Scratch(scratch)) as parts:
            yield _ScratchStack(
                **{field.name: getattr(self, field.name) for field in fields(self)},
                cell_shape=reading_shape[:2],
                parts=parts,
            )

    def pixels(self, z: int, columns: slice, rows: slice) -> AnyArray | None:
        slice_ = self.slice_at(z)
        if not slice_.pages or slice_.format is None or slice_.format != self.format:
            return None
        try:
            pixels = read_pixels(slice_, columns, rows)
            expected = (rows.stop - rows.start, columns.stop - columns.start, self.num_channels)
            if pixels.shape != expected or pixels.dtype != self.dtype:
                raise CorruptError(
                    f"{slice_.name}: decodes to {pixels.dtype} of shape {pixels.shape}, expected "
                    f"{self.dtype} of shape {expected} (y, x, c) from its header"
                )
        except CorruptError as error:
            if self.notes is None:
                raise
            notes = store_at(self.notes)
            notes.make()
            notes.put(str(z), str(error).encode())
            return None
        return pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScratchStack(ImageStack):
    """Stack whose slices are decoded whole on the first read, and kept in a scratch file, cut into
    the cells of later reads."""

    cell_shape: tuple[int, int]
    """Shape of one read along x, y [voxels]."""
    parts: Scratch
    """Cells by (z, x, y); (z,) marks a slice as decoded."""

    def pixels(self, z: int, columns: slice, rows: slice) -> AnyArray | None:
        index = tuple(
            (part.start + corner) // edge
            for part, corner, edge in zip(
                (columns, rows), self.origin[:2], self.cell_shape, strict=True
            )
        )
        if (z,) not in self.parts:
            self._decode_slice(z)
        return self.parts.get((z, *index)) if (z, *index) in self.parts else None

    def _decode_slice(self, z: int) -> None:
        (left, top, _), (right, bottom, _) = (
            tuple(a - c for a, c in zip(p, self.origin, strict=True))
            for p in (self.box.topleft, self.box.bottomright)
        )
        pixels = ImageStack.pixels(self, z, slice(left, right), slice(top, bottom))
        self.parts.put((z,), np.empty(0, np.uint8))
        if pixels is None:
            return
        x_cells, y_cells, _ = cell_range(self.box, (*self.cell_shape, 1))
        for x, y in product(x_cells, y_cells):
            (x0, x1), (y0, y1) = (
                (max(low, n * edge - corner) - low, min(high, (n + 1) * edge - corner) - low)
                for n, edge, corner, low, high in zip(
                    (x, y),
                    self.cell_shape,
                    self.origin[:2],
                    (left, top),
                    (right, bottom),
                    strict=True,
                )
            )
            self.parts.put((z, x, y), pixels[y0:y1, x0:x1])


def read_notes(folder: str) -> list[str]:
    """Return the notes on slices that could not be decoded, in order of z."""
    try:
        names = sorted((name for name in store_at(folder).names() if name.isdecimal()), key=int)
    except FileNotFoundError:
        return []
    notes = []
    for name in names:
        with store_at(folder).open_stream(name) as file:
            notes.append(file.read().decode())
    return notes
