"""Estimate of an update before it runs: the files to rebuild and to copy, their bytes, and in a
bucket the requests. Sizes are those of the files that are replaced; nothing is sampled."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wkwdask.geometry.vectors import divide
from wkwdask.model.summary import counted, format_nbytes
from wkwdask.model.volume import voxel_nbytes
from wkwdask.plans.cells import count_cells
from wkwdask.runs.space import free_nbytes, space_problems
from wkwdask.store.locks import lock_holder
from wkwdask.store.paths import is_bucket
from wkwdask.verbs.estimate import Estimate, files_text, start_notes
from wkwdask.verbs.pyramid import footprint
from wkwdask.verbs.update.new_levels import SwitchedUpdate, find_changes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.verbs.pyramid import ExistingMag
    from wkwdask.verbs.update.in_place import Update
    from wkwdask.verbs.update.new_levels import Changes

_WRITES_PER_COPY = 3  # S3 copies on condition only as an upload in parts: begin, copy, complete


@dataclass(frozen=True, slots=True)
class UpdatedMag:
    """Estimate of one mag to update."""

    folder: str
    files: int
    """Files to rebuild, at most: on a disk, those whose sources turn out to be equal are kept."""
    copied: int
    """Files that the server copies to the new level, at most; 0 on a disk."""
    nbytes: int
    """Estimated size of the rebuilt files, from those that they replace."""


@dataclass(frozen=True, slots=True)
class UpdatePlan(Estimate):
    """Estimate of an update of a pyramid."""

    source: str
    """Folder of the finest mag."""
    mags: tuple[UpdatedMag, ...]
    """Mags with changes, finest first."""
    voxel_nbytes_in: int
    """Decoded bytes of the voxels to read, at most."""
    tasks: int
    """Number of tasks, at most."""
    workers: int
    """Tasks that run at once."""
    free_nbytes: int
    """Free bytes of the disk."""
    notes: tuple[str, ...] = ()
    """Warnings."""
    seconds = 0.0  # not sampled
    memory_nbytes = scratch_nbytes = 0

    @property
    def requests(self) -> tuple[int, int]:
        writes, reads = super(UpdatePlan, self).requests  # slots make another class
        copied = sum(mag.copied for mag in self.mags)
        return writes + _WRITES_PER_COPY * copied, reads + copied

    def _drawn(self) -> Iterable[str]:
        return [self.source]

    def __str__(self) -> str:
        if not self.mags:
            return "\n".join(
                [f"{self.source}: nothing to do: no finer file has changed", *self.notes]
            )
        lines = [f"update of the mags above {self.source}"]
        for mag in self.mags:
            copied = f", and {counted(mag.copied, 'file')} copied by the server"
            lines.append(
                f"  {mag.folder}: {files_text(mag.files, mag.nbytes)}{copied if mag.copied else ''}"
            )
        return "\n".join([*lines, *self._aligned_totals(), *self.notes])

    def _reads(self) -> str:
        return f"up to {format_nbytes(self.voxel_nbytes_in)} of voxels"


def estimate_update(
    work: Update | SwitchedUpdate, workers: int, *, by_content: bool, box: BoundingBox | None
) -> UpdatePlan:
    """Estimate an update from its plan."""
    changed: list[tuple[ExistingMag, Changes]]
    if isinstance(work, SwitchedUpdate):
        parent, notes = work.staged.parent, start_notes(work.staged)
        changed = [(version.mag, version.changes) for version in work.versions]
    else:
        parent, notes = work.folder.parent, _lock_notes(work.mags)
        changes = find_changes(work.mags, by_content=by_content, box=box)
        changed = [
            (mag, each) for mag, each in zip(work.mags, changes, strict=True) if each.rebuilt
        ]
    mags = tuple(
        UpdatedMag(
            mag.target.folder,
            _files(mag, each.rebuilt),
            _files(mag, each.copied) if is_bucket(parent) else 0,
            _nbytes(mag, each.rebuilt),
        )
        for mag, each in changed
    )
    nbytes, files = sum(mag.nbytes for mag in mags), sum(mag.files for mag in mags)
    return UpdatePlan(
        source=work.source.name,
        mags=mags,
        voxel_nbytes_in=sum(
            len(each.rebuilt)
            * math.prod(footprint(mag.finer, mag.target))
            * voxel_nbytes(mag.finer)
            for mag, each in changed
        ),
        tasks=sum(
            len(each.rebuilt) + (len(each.copied) if is_bucket(parent) else 0)
            for _, each in changed
        ),
        workers=workers,
        free_nbytes=free_nbytes(parent),
        notes=(*space_problems(parent, nbytes, files), *notes),
    )


def _files(mag: ExistingMag, shards: Collection[Vec3]) -> int:
    target = mag.target
    chunks = math.prod(divide(target.shard_shape, target.chunk_shape))
    return target.files.max_files(
        len(shards), min(len(shards) * chunks, count_cells(target.box, target.chunk_shape))
    )


def _nbytes(mag: ExistingMag, shards: Collection[Vec3]) -> int:
    """Estimate the size of rebuilt shards: those that had no file are like the others."""
    rows = mag.stored_states() if mag.record is None else mag.record
    stored = {(x, y, z): nbytes for x, y, z, nbytes in rows[:, :4].tolist()}
    mean = sum(stored.values()) / max(1, len(stored))
    return int(sum(stored.get(shard, mean) for shard in shards))


def _lock_notes(mags: Iterable[ExistingMag]) -> list[str]:
    holders = ((mag.target.folder, lock_holder(mag.target.folder)) for mag in mags)
    return [
        f"would be refused: {folder}: another job writes it: {holder}"
        for folder, holder in holders
        if holder is not None
    ]
