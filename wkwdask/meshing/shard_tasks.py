"""Tasks that sort fragments by shard, then write the shards, or the files of each label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.errors import FormatError, IncompleteWriteError
from wkwdask.formats.precomputed.mesh_writer import labels_in_shard, writing_meshes
from wkwdask.formats.precomputed.meshes import MANIFEST_SUFFIX, format_manifest
from wkwdask.geometry import morton
from wkwdask.meshing.cell_file import CellFile
from wkwdask.meshing.fragments import FragmentFile, FragmentRows, ShardFragments
from wkwdask.meshing.label_tables import LabelTables, is_in
from wkwdask.runs.job import Result, ScratchJob, Task
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from wkwdask.formats.precomputed.sharding import Sharding
    from wkwdask.meshing.tasks import Meshing

    Cells = npt.NDArray[np.int64]

_BATCH_NBYTES, _ROW_NBYTES = 1 << 27, 1 << 9  # memory


@dataclass(frozen=True, slots=True)
class MeshFiles:
    """Files of labels to write."""

    meshing: Meshing
    sharding: Sharding
    """Distribution of labels over tasks."""
    is_sharded: bool
    """Whether labels share shards; if not, each has two files."""

    @property
    def num_shards(self) -> int:
        return 1 << self.sharding.shard_bits

    def sorted_file(self, number: int) -> FragmentFile:
        """Return the scratch file with the fragments of a batch of cells."""
        return FragmentFile(self.meshing.folder, f"sorted{number}", self.num_shards)

    def sort(self, number: int, cells: Cells) -> None:
        """Write the fragments of cells, given as level, x, y, z, sorted by shard."""
        tables, rows = LabelTables(self.meshing.folder), FragmentRows()
        dropped = {lod: tables.dropped(lod) for lod in np.unique(cells[:, 0]).tolist()}
        codes = morton.encode(cells[:, 1:]).tolist()
        for (lod, x, y, z), code in zip(cells.tolist(), codes, strict=True):
            file = CellFile(self.meshing.folder, lod, (x, y, z))
            kept = set(file.labels[~is_in(file.labels, dropped[lod])].tolist())
            for group in file.groups():
                for label, data in file.fragments(group):
                    if label in kept:
                        rows.add(label, lod, code, data)
        rows.write(self.meshing.folder, self.sorted_file(number).name, self.sharding)

    def write(self, num_files: int, shard: int) -> None:
        """Write the labels of a shard."""
        files = [self.sorted_file(number) for number in range(num_files)]
        fragments, grid = ShardFragments(files, self.sharding, shard), self.meshing.grid
        if not fragments.num_labels:
            return
        shape = [grid.edge * length for length in grid.lengths_nm]
        folders = self.meshing.target, self.meshing.folder
        with writing_meshes(*folders, self.sharding, shard, is_sharded=self.is_sharded) as writer:
            for label, levels, data in fragments.labels():
                writer.add(label, data, format_manifest(shape, levels))

    def check_complete(self, expected: int) -> None:
        """Raise an error unless all labels have their files."""
        folder = self.meshing.target
        if self.is_sharded:
            found = sum(
                labels_in_shard(folder, self.sharding, shard) for shard in range(self.num_shards)
            )
        else:
            names = store_at(folder).names()
            found = min(sum(n.endswith(MANIFEST_SUFFIX) for n in names), (len(names) - 1) // 2)
        if found != expected:
            raise IncompleteWriteError(
                f"{folder}: {found} labels have files, expected {expected}; "
                'existing="restart" starts over'
            )


def batches(
    cells: Cells, counts: npt.NDArray[np.int64], nbytes: npt.NDArray[np.int64]
) -> Iterator[Cells]:
    """Cut cells into batches of at most about 128 MiB, from the number and bytes of the fragments
    of each cell."""
    needed = counts * _ROW_NBYTES + nbytes
    numbers = (np.cumsum(needed) - needed) // _BATCH_NBYTES
    yield from np.split(cells, np.flatnonzero(np.diff(numbers)) + 1)


@dataclass(frozen=True, slots=True)
class SortSpec:
    """Task that sorts the fragments of a batch of cells."""

    files: MeshFiles
    number: int
    cells: Cells

    def run(self) -> Result:
        self.files.sort(self.number, self.cells)
        return Result(())


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """Task that writes the labels of one shard."""

    files: MeshFiles
    num_files: int
    shard: int

    def run(self) -> Result:
        self.files.write(self.num_files, self.shard)
        return Result(())


def sort_job(files: MeshFiles, cells: Iterable[Cells]) -> ScratchJob:
    """Return the job that sorts the fragments of batches of cells."""

    def is_written(task: Task, _: Result) -> bool:
        try:
            files.sorted_file(task.spec.number).check()
        except (FormatError, FileNotFoundError):
            return False
        return True

    tasks = [
        Task(f"fragments, batch {n}", f"sort {n}", SortSpec.run, SortSpec(files, n, batch))
        for n, batch in enumerate(cells)
    ]
    return ScratchJob(tasks, is_written)


def write_job(files: MeshFiles, num_files: int) -> ScratchJob:
    """Return the job that writes the files of all labels."""
    tasks = [
        Task(
            f"files of labels, shard {shard}",
            f"write {shard}",
            ShardSpec.run,
            ShardSpec(files, num_files, shard),
        )
        for shard in range(files.num_shards)
    ]
    return ScratchJob(tasks, lambda *_: True)  # each file was written whole
