"""A WKW mag with blocks of annotations in the place of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.grid import cell_range
from wkwdask.plans.cells import cell_map, in_either

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from wkwdask.formats.webknossos.annotation import AnnotationMag
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.states import States
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.plans.cells import CellMap


@dataclass(frozen=True, slots=True)
class MergedVolume:
    """A mag, and annotations on it: a block that one of them stores is taken from the last that does, zeros included."""

    base: StoredArray
    """The mag."""
    annotations: tuple[AnnotationMag, ...]
    """The annotations, the strongest last."""
    box: BoundingBox
    """Where there are data; outside of the base's own box, only those of annotations."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of one channel."""
        return self.base.dtype

    @property
    def num_channels(self) -> int:
        """Values per voxel."""
        return self.base.num_channels

    @property
    def origin(self) -> Vec3:
        """Files count from absolute voxel 0."""
        return 0, 0, 0

    @property
    def chunk_shape(self) -> Vec3:
        """A block of the base along x, y, z [voxels]."""
        return self.base.chunk_shape

    @property
    def shard_shape(self) -> Vec3:
        """A file of the base along x, y, z [voxels]."""
        return self.base.shard_shape

    @property
    def name(self) -> str:
        """The base's folder."""
        return self.base.name

    @property
    def token(self) -> tuple[Any, ...]:
        """Values that change when the base or an annotation is replaced."""
        return ("merged", self.base.token, self.annotations, self.box)

    @property
    def content_token(self) -> tuple[Any, ...]:
        """Values that change when the base or an annotation holds something else."""
        return ("merged", *self.base.content_token, self.annotations, self.box)

    @property
    def is_regular(self) -> bool:
        """That of the base."""
        return True

    def is_current(self) -> bool:
        """Tell whether the base is still the one that was opened."""
        return self.base.is_current()

    def has_shards(self) -> bool:
        """Tell whether any file is stored."""
        return self.base.has_shards()

    @property
    def lengths_nm(self) -> None:
        """Nothing in a mag says them."""
        return

    def count_files(self) -> tuple[int, int] | None:
        """Count the files of the base."""
        return self.base.count_files()

    def read_into(self, out: npt.NDArray[Any], topleft: Vec3, first_channel: int = 0, *, fill_zeros: bool = True) -> int:
        """Fill an array with voxels, see :meth:`wkwdask.model.volume.Volume.read_into`."""
        if not out.size:
            return 0
        wanted = BoundingBox(topleft, (out.shape[1], out.shape[2], out.shape[3]), self.box.mag)
        stored = [(annotation, _index(row)) for annotation in self.annotations for row in annotation.blocks_in(wanted)]
        covering = [number for number, (annotation, index) in enumerate(stored) if _block_box(annotation, index).contains(wanted)]
        stored = stored[max(covering, default=0) :]
        nonzero = 0 if covering else self._read_base(out, wanted, first_channel, fill_zeros=fill_zeros or bool(stored))
        for annotation, index in stored:
            block = annotation.read_block(index, self.dtype)[first_channel : first_channel + out.shape[0]]
            step = annotation.header.block_len
            corner = [n * step for n in index]
            inside = [(max(t, c), min(t + n, c + step)) for t, n, c in zip(topleft, out.shape[1:], corner, strict=True)]
            here = tuple(slice(a - t, b - t) for (a, b), t in zip(inside, topleft, strict=True))
            part = block[(slice(None), *(slice(a - c, b - c) for (a, b), c in zip(inside, corner, strict=True)))]
            out[(slice(None), *here)] = part
            nonzero += bool(part.any())
        return nonzero

    def _read_base(self, out: npt.NDArray[Any], wanted: BoundingBox, first_channel: int, *, fill_zeros: bool) -> int:
        """Fill an array from the base, with zeros outside of its box as far as the whole goes beyond that."""
        inside = wanted if self.box == self.base.box else wanted.intersection(self.base.box)
        if inside == wanted:
            return self.base.read_into(out, wanted.topleft, first_channel, fill_zeros=fill_zeros)
        out[...] = 0
        if inside.is_empty:
            return 0
        corner = tuple(slice(a - t, b - t) for a, b, t in zip(inside.topleft, inside.bottomright, wanted.topleft, strict=True))
        return self.base.read_into(out[(slice(None), *corner)], inside.topleft, first_channel)

    def touched(self, box: BoundingBox, cell_shape: Vec3) -> CellMap:
        """Tell which cells that a box touches hold voxels of annotated blocks."""
        ranges = cell_range(box, cell_shape)
        found = cell_map(box, cell_shape, self.name)
        for annotation in self.annotations:
            step = annotation.header.block_len
            for row in np.unique(annotation.blocks_in(box) * step // np.maximum(cell_shape, step), axis=0).tolist():
                edges = np.maximum(cell_shape, step)
                first = [max(t, n * edge) // c - r.start for t, n, edge, c, r in zip(box.topleft, row, edges, cell_shape, ranges, strict=True)]
                last = [-(-min(b, (n + 1) * edge) // c) - r.start for b, n, edge, c, r in zip(box.bottomright, row, edges, cell_shape, ranges, strict=True)]
                found[tuple(slice(a, b) for a, b in zip(first, last, strict=True))] = True
        return found

    def shard_exists(self, index: Vec3) -> bool:
        """Tell whether a file of the base is stored, or a block of an annotation in its place."""
        return self.base.shard_exists(index) or any(len(annotation.blocks_in(self._shard_box(index))) for annotation in self.annotations)

    def _shard_box(self, index: Vec3) -> BoundingBox:
        edge = self.shard_shape[0]
        return BoundingBox((index[0] * edge, index[1] * edge, index[2] * edge), self.shard_shape, self.box.mag)

    def shard_path(self, index: Vec3) -> str:
        """Name a file of the base."""
        return self.base.shard_path(index)

    def occupied(self, cell_shape: Vec3) -> CellMap:
        """Tell which cells of a grid have voxels in a stored file or block, see :meth:`wkwdask.model.volume.Volume.occupied`."""
        return in_either(self.base.cropped(self.box).occupied(cell_shape), self.touched(self.box, cell_shape))

    def shard_states(self, box: BoundingBox) -> States:
        """Look at the stored files that a part of the volume touches; an annotation has a row for each that it has blocks for."""
        inside = box.intersection(self.box)
        return np.concatenate([self.base.cropped(self.box).shard_states(inside), *self._annotated_states(inside)])

    def stored_states(self) -> States:
        """Look at all stored files that the box touches."""
        return np.concatenate([self.base.cropped(self.box).stored_states(), *self._annotated_states(self.box)])

    def _annotated_states(self, box: BoundingBox) -> Iterator[States]:
        for annotation in self.annotations:
            shards = np.unique(annotation.blocks_in(box) * annotation.header.block_len // self.shard_shape[0], axis=0).reshape(-1, 3)
            yield np.concatenate([shards, np.tile(np.array(annotation.file.state, np.int64), (len(shards), 1))], axis=1)


def _block_box(annotation: AnnotationMag, index: Vec3) -> BoundingBox:
    step = annotation.header.block_len
    return BoundingBox((index[0] * step, index[1] * step, index[2] * step), (step, step, step), annotation.mag)


def _index(row: npt.NDArray[np.int64]) -> Vec3:
    x, y, z = row.tolist()
    return x, y, z
