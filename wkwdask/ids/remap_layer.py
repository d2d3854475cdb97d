"""Planning of :func:`wkwdask.remap` and of verbs that map ids: sources, target, table and job."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import IncompleteWriteError, MissingError
from wkwdask.formats.webknossos.annotation import read_nodes
from wkwdask.geometry.bounding_box import counted_from, moved
from wkwdask.ids.id_map import IdMap, saved_map
from wkwdask.ids.id_source import IdSource, PairsInMemory, as_ids, open_mapping
from wkwdask.kernels.labels.components import DisjointSets
from wkwdask.kernels.labels.values import map_ids
from wkwdask.model.volume import read_voxels
from wkwdask.model.voxel_type import parse_dtype
from wkwdask.model.writing.target_image import LevelSpec
from wkwdask.plans.apply import plan_bricks
from wkwdask.plans.regions import Tiling
from wkwdask.runs.drive import Outcome, Phase, Plan
from wkwdask.runs.staged import StagedMags, settings_of
from wkwdask.store.paths import local_path
from wkwdask.store.store import store_at
from wkwdask.streams.converted import countable
from wkwdask.streams.points import sample_points
from wkwdask.verbs.apply_job import AppliedFunction, ApplyJob
from wkwdask.verbs.sources import (
    SourceVolume,
    TargetRequest,
    box_setting,
    check_no_overlap,
    check_not_replaced,
    file_digest,
    occupancy_digest,
    source_token,
    stage_level,
    where_box,
)
from wkwdask.verbs.space import by_brick, encoded_like, need_of

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from wkwdask.array_types import AnyArray, IntArray, UintArray
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.target_array import TargetArray
    from wkwdask.runs.space import Need

# of the size of the source's ids, which a mapping that keeps the others at least has
_SURE_SHARE = 0.25


@dataclass(frozen=True)
class MergerMode(PairsInMemory):
    """Merges of an NML in one segmentation: each segment below a node maps to the smallest id of
    its tree."""

    note: str = ""
    """Note on nodes that were left out."""

    def digest(self) -> str:
        return hashlib.blake2b(b"nml" + super().digest().encode(), digest_size=16).hexdigest()


def read_merger_mode(path: str, segmentation: Volume) -> MergerMode:
    """Look up the segments that an NML merges; trees that share a segment are merged too."""
    trees, positions = read_nodes(path)
    ids = sample_ids(segmentation, positions // np.array(segmentation.box.mag.factors))
    hit = ids != 0
    segments, numbers = np.unique(ids[hit], return_inverse=True)
    num_trees = int(trees.max()) + 1 if len(trees) else 0
    # segments come first and ascend, so the root of a set is its smallest segment
    sets = DisjointSets(len(segments) + num_trees)
    sets.unite(np.stack([numbers.reshape(-1), trees[hit] + len(segments)], axis=1))
    roots = sets.roots()[: len(segments)]
    num_outside = int(len(ids) - hit.sum())  # nodes outside the layer, or on id 0
    return MergerMode(
        segments,
        segments[roots],
        path,
        f"{num_outside} of {len(ids)} nodes lie on no segment" if num_outside else "",
    )


def note_on(mapping: IdSource | None) -> str:
    """Return the note of a report on a mapping, or an empty text."""
    return mapping.note if isinstance(mapping, MergerMode) else ""


def sample_ids(volume: Volume, points: IntArray) -> UintArray:
    """Return the ids at points, shape (n, 3); 0 outside the volume."""
    ids = np.zeros(len(points), np.uint64)
    inside = ((points >= volume.box.topleft) & (points < volume.box.bottomright)).all(axis=1)
    ids[inside] = as_ids(sample_points(volume, points[inside])[:, 0], volume.name)
    return ids


DEFAULTS = ("keep", "zero")


@dataclass(frozen=True, slots=True)
class RemapOptions:
    """Options of a mapping of ids."""

    default: str = "keep"
    """Value of ids that the mapping does not contain: ``"keep"`` or ``"zero"``."""
    where: BoundingBox | Sequence[Sequence[int]] | None = None
    """Box to map [voxels of the mag]; voxels outside become zero."""
    dtype: Any = None
    command: str = "remap"
    """Verb of the user."""
    counted: int | None = None
    """Digest of the source's files when its segments were counted; None if they were not."""


@dataclass(frozen=True, slots=True)
class IdLookup:
    """Callable that maps the ids of an array by a table."""

    table: IdMap
    keeps: bool
    """Whether ids that the table does not contain stay."""
    dtype: np.dtype[Any]
    has_default: bool = True
    """Whether the user can choose with ``default=`` what becomes of these ids."""

    def __call__(self, ids: AnyArray) -> AnyArray:
        out = np.empty(ids.shape, self.dtype, order="F")
        unfit = map_ids(np.asfortranarray(ids), *self.table.arrays(), out, keeps=self.keeps)
        if unfit is not None:
            what, remedy = (
                ("is not in the mapping", ', or default="zero"')
                if self.has_default
                else ("is not removed", "")
            )
            raise ValueError(
                f"id {unfit} {what}, and {self.dtype.name} cannot hold it: set another "
                f"dtype={remedy}"
            )
        return out


@dataclass(frozen=True, slots=True)
class Remap(Plan):
    """Plan of a mapping of ids."""

    source: Volume
    mapping: IdSource
    application: AppliedFunction
    """Sources and bricks; its function is replaced once the table is written."""
    target: TargetArray
    staged: StagedMags
    keeps: bool
    """Whether ids that the table does not contain stay."""
    command: str
    """Verb of the user."""
    counted: int | None
    """Digest of the source's files when its segments were counted; None if they were not."""

    def need(self) -> Need:
        """Return the space of the mapped layer, estimated from the ids before they are mapped, as
        if 0 stayed 0."""
        source, application = self.source, replace(self.application, skips_empty=True)
        encode = encoded_like(
            [self.target], lambda _, box: read_voxels(source, moved(box, application.origin))
        )
        return need_of(
            self.staged,
            lambda: ApplyJob(by_brick(application), self.target),
            encode,
            _SURE_SHARE if self.keeps and application.where is None else 0,
        )

    def phases(self) -> Generator[Phase, str, Outcome]:
        job = self.job(self.table())
        note = yield Phase(job, f"mapping ids into {self.staged.folders[0]}")
        return Outcome(job.tallies, "; ".join(filter(None, (note_on(self.mapping), note))))

    def check_unchanged(self) -> None:
        check_not_replaced(self.source)
        if self.counted is not None and file_digest(self.source) != self.counted:
            # an id that came could be the new one of another segment, or one that is removed
            raise IncompleteWriteError(
                f"{self.source.name}: was changed after its segments had been counted; "
                'existing="restart" counts again'
            )

    def table(self) -> IdMap:
        """Write the table into the job's folder, or reuse that of an earlier start."""
        folder = self.target.scratch_folder
        store_at(folder).make(in_existing=True)
        table = saved_map(folder) or self.mapping.write(folder)
        if table.largest > np.iinfo(self.target.dtype).max:
            raise ValueError(
                f"{self.mapping.name}: contains id {table.largest}, which {self.target.dtype.name} "
                "cannot hold: set another dtype="
            )
        table.save(folder)
        return table

    def job(self, table: IdMap) -> ApplyJob:
        """Return the job that writes the mapped layer."""
        function = IdLookup(table, self.keeps, self.target.dtype, self.command == "remap")
        return ApplyJob(
            replace(self.application, function=function, skips_empty=table.of_zero() == 0),
            self.target,
        )


def lay_out_remap(
    opened: SourceVolume,
    request: TargetRequest,
    mapping: Any,
    options: RemapOptions,
    existing: str,
    workers: int,
) -> Remap:
    """Plan a mapping of ids, or resume the interrupted job of the same settings."""
    if options.default not in DEFAULTS:
        raise ValueError(f"default must be 'keep' or 'zero', got {options.default!r}")
    source = countable(opened.volume)
    dtype = source.dtype if options.dtype is None else parse_dtype(options.dtype)
    if source.dtype.kind not in "iu" or dtype.kind not in "iu":
        raise TypeError(
            f"{source.name}: ids are integers, got {source.dtype.name} to be stored as {dtype.name}"
        )
    destination = request.target_image_of_same_mag(opened)
    id_source = open_id_source(mapping, source)
    box = source.box
    area = where_box(source.name, options.where, box)
    spec = LevelSpec(box, dtype, 1)
    levels = check_no_overlap(
        destination.new_levels([spec], request.stored, opened.volume, existing), source
    )
    settings = settings_of(
        options.command,
        source=source.name,
        box=box_setting(box),
        where=None if area is None else box_setting(area),
        mapping=id_source.digest(),
        default=options.default,
        dtype=dtype.name,
        input=source_token(source),
    )
    draft, target = stage_level(levels, options.command, settings, existing)
    nbytes_per_voxel = source.dtype.itemsize + spec.voxel_nbytes
    plan = plan_bricks(
        counted_from(box, target.origin),
        Tiling(target.chunk_shape, target.shard_shape, nbytes_per_voxel),
        workers,
        None,
        draft.shape(),
    )
    record = {
        "region": plan.region_shape,
        "presence": occupancy_digest(source, [plan.region_shape]),
    }
    staged = draft.mags([target], LevelSpec.like(source).nbytes, levels.edit, record)
    application = AppliedFunction(map_ids, (source,), plan, where=area, origin=target.origin)
    keeps = options.default == "keep"
    return Remap(
        source, id_source, application, target, staged, keeps, options.command, options.counted
    )


def open_id_source(mapping: Any, source: Volume) -> IdSource:
    """Open a mapping; an NML is looked up in the source."""
    if isinstance(mapping, (str, os.PathLike)) and os.fspath(mapping).lower().endswith(".nml"):
        path = local_path(mapping)
        if not store_at(path).is_file():
            raise MissingError(f"{path}: no such file")
        return read_merger_mode(path, source)
    return open_mapping(mapping)
