"""Build the files of one mag from the stored blocks of another; only blocks that the box cuts are
decoded.

An aligned cube of blocks is one range of Morton codes in every file that contains it, and therefore
one byte range::

    source file:  | head | ... |   cube   | ... |        one byte range
                                    |
                                    v
    target file:  | head | zeros |   cube   | zeros |    the same bytes at another offset, moved by whole blocks

The cube is as large as it can be while it stays aligned in both mags: at most the smaller file, a
page of the jump table, and the largest power of two that divides the shift. A source file whose
blocks all become one target file is copied whole.
"""  # noqa: E501

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from wkwdask.formats.wkw.folder import file_path
from wkwdask.formats.wkw.layout import header_of, is_wkw, layout_of
from wkwdask.formats.wkw.remote import open_in
from wkwdask.formats.wkw.stored_file import PAGE_LEN, check_links_of
from wkwdask.geometry import morton
from wkwdask.geometry.bounding_box import part_of_array
from wkwdask.geometry.grid import clipped_cell
from wkwdask.model.volume import Volume
from wkwdask.model.writing.receipts import Receipt
from wkwdask.model.writing.run import publish_shard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.array_types import AnyArray, BoolArray, IntArray, UintArray
    from wkwdask.formats.wkw.stored_file import WkwFile
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.model.writing.target_array import TargetArray
    from wkwdask.plans.cells import CellMap

    Stored: TypeAlias = "StoredArray | Overlaid"


class Overlaid(Volume):
    """Mag some of whose blocks are replaced by others; the rest are copied from the mag below."""

    base: StoredArray

    @abstractmethod
    def annotated_cells(self, box: BoundingBox, cell_shape: Vec3) -> CellMap:
        """Mark the cells of a grid, within a box, that contain voxels of replaced blocks."""


@dataclass(frozen=True, slots=True)
class WkwSplicer:
    """Copy of stored blocks between WKW mags, a
    :class:`wkwdask.model.writing.target_array.Splicer`."""

    def can_splice(self, source: Any, target: TargetArray) -> bool:
        """Return whether blocks can be copied: same voxel type, block length and block type, and a
        shift by whole blocks."""
        volume = _stored(source)
        # A merge that extends the box must not copy: stored blocks may contain hidden voxels
        # outside of the box of the base.
        if not is_wkw(volume) or source.box != volume.box:
            return False
        headers = header_of(volume), header_of(target.array)
        theirs, ours = (
            (header.block_len, header.voxel_type, header.num_channels, header.block_type)
            for header in headers
        )
        return theirs == ours and all(shift % headers[0].block_len == 0 for shift in volume.origin)

    def splice_shard(self, source: Stored, target: TargetArray, shard: Vec3) -> Receipt:
        return _Splice(source, target, shard).run()


def _stored(source: Any) -> Any:
    return source.base if isinstance(source, Overlaid) else source


# position of a block: outside the box (zeros), cut by it (decoded and encoded), inside (copied)
_OUTSIDE, _CUT, _INSIDE = range(3)


class _Splice:
    """Construction of one target file in Morton order; ``_next`` is the code of the next block."""

    def __init__(self, source: Stored, target: TargetArray, shard: Vec3) -> None:
        self._source, self._target, self._shard = source, target, shard
        self._stored: StoredArray = _stored(source)
        self._header, self._before = header_of(target.array), header_of(self._stored)
        self._shift = [s // self._header.block_len for s in self._stored.origin]
        self._box = clipped_cell(shard, target.shard_shape, target.box)
        self._files = target.files
        self._file = self._files.new_shard((0, *shard))
        self._next = 0
        self._has_voxels = False
        self._absent: list[str] = []

    def run(self) -> Receipt:
        try:
            file = self._same_file()
            if file is not None:
                return self._take_over(file)
            self._copy_cubes()
            if not self._has_voxels:
                self._file.buffer.discard()
                return Receipt(
                    self._shard, self._box, voxels=self._box.volume, minimum=0, maximum=0
                )
            publish_shard(self._file, is_in_place=self._target.is_in_place)
        except BaseException:
            self._file.buffer.discard()
            raise
        return self._published()

    def _same_file(self) -> WkwFile | None:
        """Return the source file that can be copied whole: the same blocks in the same order, and
        none outside of the box."""
        file_len = self._header.file_len
        if self._before.file_len != file_len or any(s % file_len for s in self._shift):
            return None
        if self._box.size != self._target.shard_shape and not self._target.keeps_files:
            return None
        if (
            isinstance(self._source, Overlaid)
            and self._source.annotated_cells(self._box, self._target.shard_shape).any()
        ):
            return None
        x, y, z = (n - s // file_len for n, s in zip(self._shard, self._shift, strict=True))
        file = open_in(self._stored.store, (x, y, z), self._before)
        return file if file is not None and file.header == self._header.for_data_file() else None

    def _take_over(self, stored: WkwFile) -> Receipt:
        """Copy a whole file."""
        stored.all_bounds()  # raises if the jump table is broken
        self._file.buffer.file.copy_from(stored.file, stored.nbytes)
        self._file.buffer.close().publish(flush_folder=self._target.is_in_place, keep_equal=True)
        return self._published()

    def _published(self) -> Receipt:
        return self._files.published_receipt(
            Receipt(self._shard, self._box, voxels=self._box.volume)
        )

    def _copy_cubes(self) -> None:
        # the largest power of two that divides each shift
        lengths = [s & -s for s in self._shift if s]
        edge = min(self._before.file_len, self._header.file_len, PAGE_LEN, *lengths)
        per_file = self._header.file_len // edge
        _, cubes = morton.ordered_box((0, 0, 0), (per_file,) * 3)
        for x, y, z in (cubes + np.multiply(self._shard, per_file)).tolist():
            self._copy_cube((x, y, z), edge)
        if self._absent:
            # absent files are zeros only while the mag is in place and no link is broken
            self._stored.identity.check(has_absent=True)
            check_links_of(self._absent)

    def _copy_cube(self, cube: Vec3, edge: int) -> None:
        """Copy an aligned cube of blocks, which lies within one page of one source file."""
        shape = (edge * self._before.block_len,) * 3
        inside = clipped_cell(cube, shape, self._box)
        before = [n - s // edge for n, s in zip(cube, self._shift, strict=True)]
        file, path = (None, "") if inside.is_empty else self._source_file(before, edge)
        annotated = self._annotated(inside, cube, edge)
        if file is None and path:
            self._absent.append(path)
        if file is None and annotated is None:
            self._next += edge**3
            return
        first_code = int(morton.encode([n * edge % self._before.file_len for n in before])[0])
        bounds = np.zeros(0, np.int64) if file is None else file.bounds(first_code, edge**3)
        # Each file is encoded as its own header says: other software may have left raw files in a
        # compressed mag, whose blocks are encoded again.
        whole = (
            _OUTSIDE
            if file is None
            else _INSIDE
            if file.header.is_compressed == self._header.is_compressed
            else _CUT
        )
        for first, last, kind in self._runs(cube, edge, inside, annotated, whole):
            if kind == _OUTSIDE:
                self._next += last - first  # start_stretch() fills the gap with zeros
            elif kind == _INSIDE and file is not None:
                self._put_stored(file, first_code + first, bounds[first : last + 1])
            else:
                for number in range(first, last):
                    self._put_cut(cube, edge, number)

    def _source_file(self, cube: Sequence[int], edge: int) -> tuple[WkwFile | None, str]:
        x, y, z = (n * edge // self._before.file_len for n in cube)
        return open_in(self._stored.store, (x, y, z), self._before), file_path(
            self._stored.folder, (x, y, z)
        )

    def _annotated(self, inside: BoundingBox, cube: Vec3, edge: int) -> BoolArray | None:
        """Return a mask, in Morton order, of the blocks of a cube that an annotation changes; None
        if there are none."""
        if inside.is_empty or not isinstance(self._source, Overlaid):
            return None
        step = self._before.block_len
        covered = self._source.annotated_cells(inside, (step,) * 3)
        if not covered.any():
            return None
        annotated = np.zeros((edge,) * 3, np.bool_)
        low = [t // step - n * edge for t, n in zip(inside.topleft, cube, strict=True)]
        annotated[tuple(slice(a, a + n) for a, n in zip(low, covered.shape, strict=True))] = covered
        _, blocks = morton.ordered_box((0, 0, 0), (edge,) * 3)
        in_morton_order: BoolArray = annotated[tuple(blocks.T)]
        return in_morton_order

    def _runs(
        self, cube: Vec3, edge: int, inside: BoundingBox, annotated: BoolArray | None, whole: int
    ) -> list[tuple[int, int, int]]:
        """Split the blocks of a cube, in Morton order, into runs of one kind: first block, end,
        kind."""
        if annotated is None and inside.volume == (edge * self._before.block_len) ** 3:
            return [(0, edge**3, whole)]
        step = self._before.block_len
        _, blocks = morton.ordered_box((0, 0, 0), (edge,) * 3)
        low = (blocks + np.multiply(cube, edge)) * step
        covered = np.minimum(low + step, inside.bottomright) - np.maximum(low, inside.topleft)
        cut = _OUTSIDE if whole == _OUTSIDE else _CUT
        kinds = np.where(
            (covered <= 0).any(axis=1),
            _OUTSIDE,
            np.where((covered == step).all(axis=1), whole, cut),
        )
        if annotated is not None:
            kinds[annotated] = _CUT
        starts = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(kinds)]
        return [(first, last, int(kinds[first])) for first, last in pairwise(starts)]

    def _put_stored(self, file: WkwFile, first: int, bounds: IntArray) -> None:
        """Copy stored blocks byte for byte."""
        if not self._has_voxels:
            # a file of zeros is not written, so look for the first block with voxels
            self._has_voxels = not file.is_all_zero(bounds, layout_of(self._target.array).zero)
        codes = self._begin(len(bounds) - 1)
        file.copy_blocks(first, bounds, self._file.buffer)
        self._file.record(codes, np.diff(bounds))

    def _put_cut(self, cube: Vec3, edge: int, number: int) -> None:
        """Decode a block, clip it to the box, and encode it."""
        step = self._header.block_len
        _, blocks = morton.ordered_box((0, 0, 0), (edge,) * 3)
        x, y, z = ((blocks[number] + np.multiply(cube, edge)) * step).tolist()
        voxels: AnyArray = np.zeros(
            (self._header.num_channels, step, step, step), self._target.dtype, order="F"
        )
        inside = clipped_cell((x // step, y // step, z // step), (step,) * 3, self._box)
        self._source.read_into(part_of_array(voxels, inside, (x, y, z)), inside.topleft)
        codes, encode = self._begin(1), self._target.array.codec.encode_batch
        sizes, nonzero = encode(
            voxels,
            np.zeros((1, 3), np.int64),
            (step, step, step),
            self._file.buffer,
            self._target.folder,
            stores_zeros=True,
        )
        self._has_voxels |= nonzero > 0
        self._file.record(codes, sizes)

    def _begin(self, count: int) -> UintArray:
        """Return the Morton codes of the next blocks, after zeros up to the first of them."""
        codes = np.arange(self._next, self._next + count, dtype=np.uint64)
        self._file.start_stretch(codes)
        self._next += count
        return codes
