"""Files of one mag cut and joined from the files of another: byte ranges are copied, and only blocks that the box cuts are decoded.

An aligned cube of blocks is one range of Morton codes in every file that holds it, so one byte range. Where the voxels move on the way, by whole blocks,
cubes are as large as stay aligned. A file that becomes one file of the same blocks is copied as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from wkwdask.formats.wkw.file import format_file_head
from wkwdask.formats.wkw.merged import MergedVolume
from wkwdask.formats.wkw.stored_file import PAGE_LEN, check_absence, open_if_stored
from wkwdask.formats.wkw.volume import HEADER_NAME, WkwVolume, file_path
from wkwdask.geometry import morton
from wkwdask.geometry.grid import cell_box
from wkwdask.kernels.blocks.batch import compress_bound, encode_from, zero_encoding
from wkwdask.model.pieces import Pieces
from wkwdask.model.receipts import Receipt
from wkwdask.model.translated import TranslatedVolume
from wkwdask.store import files
from wkwdask.store.new_files import NewFile
from wkwdask.store.paths import dirname

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from wkwdask.formats.wkw.header import WkwHeader
    from wkwdask.formats.wkw.stored_file import WkwFile
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.store import NewFile as WrittenFile

    Stored = WkwVolume | TranslatedVolume[WkwVolume] | MergedVolume


class SpliceTarget(Protocol):
    """What a splice knows of the mag that it writes, see :class:`wkwdask.formats.wkw.target.WkwTarget`."""

    @property
    def folder(self) -> str: ...
    @property
    def parts_folder(self) -> str: ...
    @property
    def header(self) -> WkwHeader: ...
    @property
    def box(self) -> BoundingBox: ...
    @property
    def shard_shape(self) -> Vec3: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def level(self) -> int: ...
    @property
    def is_living(self) -> bool: ...
    @property
    def keeps_files(self) -> bool: ...


def can_splice(source: Any, target: SpliceTarget) -> bool:
    """Tell whether stored blocks of one mag are stored blocks of another: same voxels, places and block length, and LZ4 or raw in both."""
    if not isinstance(source, (WkwVolume, MergedVolume)) and not (isinstance(source, TranslatedVolume) and isinstance(source.volume, WkwVolume)):
        return False
    volume, shift = _parted(source)
    a, b = volume.header, target.header
    if isinstance(source, MergedVolume) and source.box != volume.box:
        return False  # stored blocks may hold voxels outside of the box of the base
    same = (a.block_len, a.voxel_type, a.num_channels, a.block_type) == (b.block_len, b.voxel_type, b.num_channels, b.block_type)
    return same and all(s % a.block_len == 0 for s in shift)


def _parted(source: Stored) -> tuple[WkwVolume, Vec3]:
    """Give what is stored, and by what it is moved [voxels]."""
    if isinstance(source, TranslatedVolume):
        return source.volume, source.shift
    return (source.base if isinstance(source, MergedVolume) else source), (0, 0, 0)


def splice_file(source: Stored, target: SpliceTarget, shard: Vec3) -> Receipt:
    """Make one file of the target of what the source has stored in its place, and publish it."""
    return _Splice(source, target, shard).run()


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Consecutive blocks of one cube that are treated alike."""

    first: int
    """The first of them, counted from the cube's first."""
    last: int
    """The one behind the last."""
    kind: int
    """Outside the box, cut by it, or inside."""


_OUTSIDE, _CUT, _INSIDE = 0, 1, 2


class _Splice:
    def __init__(self, source: Stored, target: SpliceTarget, shard: Vec3) -> None:
        self._source, self._target, self._shard = source, target, shard
        self._stored, shift = _parted(source)
        header = target.header
        self._shift = [s // header.block_len for s in shift]
        self._path = file_path(target.folder, shard)
        self._box = cell_box(shard, target.shard_shape, target.box).intersection(target.box)
        self._output = Pieces(self._open_file, header.smallest_data_offset)
        self._sizes = np.zeros(header.blocks_per_file, np.int64)
        self._zero = zero_encoding(header.block_nbytes, header.block_type, target.level)
        self._next = 0
        self._has_voxels = False
        self._absent: list[str] = []

    def _open_file(self) -> NewFile:
        files.make_folders_below(self._target.folder, dirname(self._path))
        return NewFile(self._path, self._target.parts_folder)

    def run(self) -> Receipt:
        file = self._same_file()
        return self._splice() if file is None else self._take_over(file)

    def _same_file(self) -> WkwFile | None:
        """Find the file of the source that holds the same blocks in the same places, and nothing that is to be left out."""
        file_len = self._target.header.file_len
        if self._stored.header.file_len != file_len or any(s % file_len for s in self._shift):
            return None
        if self._box.size != self._target.shard_shape and not self._target.keeps_files:
            return None
        if isinstance(self._source, MergedVolume) and self._source.touched(self._box, self._target.shard_shape).any():
            return None
        x, y, z = (n - s // file_len for n, s in zip(self._shard, self._shift, strict=True))
        file = open_if_stored(file_path(self._stored.folder, (x, y, z)), self._stored.header)
        return file if file is not None and file.header == self._target.header.for_data_file() else None

    def _take_over(self, stored: WkwFile) -> Receipt:
        """Copy a whole file."""
        stored.check_table()
        file = self._open_file()
        try:
            stored.copy_whole(file)
        except BaseException:
            file.discard()
            raise
        return self._published(file)

    def _published(self, file: WrittenFile) -> Receipt:
        file.publish(flush_folder=self._target.is_living, keep_equal=True)
        status = files.stat(self._path)
        return Receipt(self._shard, self._box, voxels=self._box.volume, path=self._path, nbytes=status.st_size, mtime_ns=status.st_mtime_ns)

    def _splice(self) -> Receipt:
        lengths = [s & -s for s in self._shift if s]  # the largest cubes that stay aligned
        edge = min(self._stored.header.file_len, self._target.header.file_len, PAGE_LEN, *lengths)
        per_file = self._target.header.file_len // edge
        _, cubes = morton.ordered_box((0, 0, 0), (per_file,) * 3)
        try:
            for cube in (cubes + np.multiply(self._shard, per_file)).tolist():
                self._copy_cube((cube[0], cube[1], cube[2]), edge)
            if self._absent:
                check_absence(f"{self._stored.folder}/{HEADER_NAME}", self._absent)
            if not self._has_voxels:
                self._output.discard()
                return Receipt(self._shard, self._box, voxels=self._box.volume, minimum=0, maximum=0)
            file = self._output.close()
            file.write(format_file_head(self._target.header, self._sizes), 0)
        except BaseException:
            self._output.discard()
            raise
        return self._published(file)

    def _copy_cube(self, cube: Vec3, edge: int) -> None:
        """Copy an aligned cube of blocks, which lies in one page of one file of the source."""
        shape = (edge * self._stored.header.block_len,) * 3
        inside = cell_box(cube, shape, self._box).intersection(self._box)
        before = [n - s // edge for n, s in zip(cube, self._shift, strict=True)]
        file, path = (None, "") if inside.is_empty else self._source_file(before, edge)
        touched = self._touched(inside, cube, edge)
        if file is None and path:
            self._absent.append(path)
        if file is None and touched is None:
            self._put_zeros(edge**3)
            return
        first_code = int(morton.encode([n * edge % self._stored.header.file_len for n in before])[0])
        bounds = np.zeros(0, np.int64) if file is None else file.bounds(first_code, edge**3)
        whole = _OUTSIDE if file is None else _INSIDE if file.header.is_compressed == self._target.header.is_compressed else _CUT
        for stretch in self._stretches(cube, edge, inside, touched, whole):
            if stretch.kind == _OUTSIDE:
                self._put_zeros(stretch.last - stretch.first)
            elif stretch.kind == _INSIDE and file is not None:
                self._put_stored(file, bounds[stretch.first : stretch.last + 1])
            else:
                for number in range(stretch.first, stretch.last):
                    self._put_cut(cube, edge, number)

    def _source_file(self, cube: Sequence[int], edge: int) -> tuple[WkwFile | None, str]:
        x, y, z = (n * edge // self._stored.header.file_len for n in cube)
        path = file_path(self._stored.folder, (x, y, z))
        return open_if_stored(path, self._stored.header), path

    def _touched(self, inside: BoundingBox, cube: Vec3, edge: int) -> npt.NDArray[np.bool_] | None:
        """Tell which blocks of a cube are not what the source has stored, in Morton order; None where all are."""
        if inside.is_empty or not isinstance(self._source, MergedVolume):
            return None
        step = self._stored.header.block_len
        found = self._source.touched(inside, (step,) * 3)
        if not found.any():
            return None
        touched = np.zeros((edge,) * 3, np.bool_)
        low = [t // step - n * edge for t, n in zip(inside.topleft, cube, strict=True)]
        touched[tuple(slice(a, a + n) for a, n in zip(low, found.shape, strict=True))] = found
        _, blocks = morton.ordered_box((0, 0, 0), (edge,) * 3)
        in_order: npt.NDArray[np.bool_] = touched[tuple(blocks.T)]
        return in_order

    def _stretches(self, cube: Vec3, edge: int, inside: BoundingBox, touched: npt.NDArray[np.bool_] | None, whole: int) -> list[_Stretch]:
        """Part the blocks of a cube, in their order, into those outside the box, those that are decoded, and those that are copied."""
        if touched is None and inside.volume == (edge * self._stored.header.block_len) ** 3:
            return [_Stretch(0, edge**3, whole)]
        step = self._stored.header.block_len
        _, blocks = morton.ordered_box((0, 0, 0), (edge,) * 3)
        low = (blocks + np.multiply(cube, edge)) * step
        covered = np.minimum(low + step, inside.bottomright) - np.maximum(low, inside.topleft)
        cut = _OUTSIDE if whole == _OUTSIDE else _CUT
        kinds = np.where((covered <= 0).any(axis=1), _OUTSIDE, np.where((covered == step).all(axis=1), whole, cut))
        if touched is not None:
            kinds[touched] = _CUT
        starts = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(kinds)]
        return [_Stretch(first, last, int(kinds[first])) for first, last in pairwise(starts)]

    def _put_zeros(self, count: int) -> None:
        self._output.repeat(self._zero, count)
        self._took(np.full(count, self._zero.size, np.int64))

    def _put_stored(self, file: WkwFile, bounds: npt.NDArray[np.int64]) -> None:
        """Copy stored blocks as they are."""
        sizes = np.diff(bounds)
        if not self._has_voxels:
            self._has_voxels = not file.is_all_zero(bounds, self._zero)
        file.copy(int(bounds[0]), int(bounds[-1] - bounds[0]), self._output)
        self._took(sizes)

    def _put_cut(self, cube: Vec3, edge: int, number: int) -> None:
        """Decode a block, and encode what of it lies in the box."""
        header = self._target.header
        step = header.block_len
        _, blocks = morton.ordered_box((0, 0, 0), (edge,) * 3)
        x, y, z = ((blocks[number] + np.multiply(cube, edge)) * step).tolist()
        voxels: npt.NDArray[Any] = np.zeros((header.num_channels, step, step, step), self._target.dtype, order="F")
        inside = cell_box((x // step, y // step, z // step), (step,) * 3, self._box).intersection(self._box)
        corner = tuple(slice(a - t, b - t) for a, b, t in zip(inside.topleft, inside.bottomright, (x, y, z), strict=True))
        self._source.read_into(voxels[(slice(None), *corner)], inside.topleft)
        out = self._output.room(compress_bound(header.block_nbytes))
        encoded = encode_from(voxels, np.zeros((1, 3), np.int64), out, block_len=step, block_type=header.block_type, level=self._target.level, store_zero=True)
        self._output.advance(encoded.nbytes)
        self._has_voxels |= encoded.nonzero > 0
        self._took(encoded.sizes)

    def _took(self, sizes: npt.NDArray[np.int64]) -> None:
        self._sizes[self._next : self._next + len(sizes)] = sizes
        self._next += len(sizes)
