"""A layer whose ids are mapped, from what a user asks for to source, target, table, plan and job."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import MissingError
from wkwdask.formats.webknossos.annotation import read_nodes
from wkwdask.geometry.bounding_box import BoundingBox, counted_from
from wkwdask.ids.id_map import IdMap, saved_map
from wkwdask.ids.id_source import IdSource, PairsInMemory, as_ids, open_mapping
from wkwdask.kernels.labels.components import Sets
from wkwdask.kernels.labels.values import map_ids
from wkwdask.model.target_image import LevelSpec
from wkwdask.plans.apply import plan_bricks
from wkwdask.plans.regions import Tiling
from wkwdask.runs.drive import Outcome, Phase, Plan
from wkwdask.runs.staged import StagedMags, settings_of
from wkwdask.store import files
from wkwdask.store.paths import dirname, local_path
from wkwdask.verbs.apply_job import AppliedFunction, ApplyJob
from wkwdask.verbs.sources import (
    SourceVolume,
    TargetRequest,
    box_setting,
    check_no_overlap,
    check_not_replaced,
    occupancy_digest,
    source_token,
    stage_level,
    where_box,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    import numpy.typing as npt

    from wkwdask.model.target_array import TargetArray
    from wkwdask.model.volume import Volume


@dataclass(frozen=True)
class MergerMode(PairsInMemory):
    """The merges of an NML in one segmentation: each segment under a node, and the smallest id of those that it is merged with."""

    note: str = ""
    """What was left aside."""

    def digest(self) -> str:
        """Name its content."""
        return hashlib.blake2b(b"nml" + super().digest().encode(), digest_size=16).hexdigest()


def read_merger_mode(path: str, segmentation: Volume) -> MergerMode:
    """Look up which segments an NML merges; trees that share a segment are one."""
    trees, positions = read_nodes(path)
    ids = sample_ids(segmentation, positions // np.array(segmentation.box.mag.factors))
    hit = ids != 0
    segments, numbers = np.unique(ids[hit], return_inverse=True)
    num_trees = int(trees.max()) + 1 if len(trees) else 0
    sets = Sets(len(segments) + num_trees)  # segments come first, in their order: the root of a set is its smallest segment
    sets.unite(np.stack([numbers.reshape(-1), trees[hit] + len(segments)], axis=1))
    roots = sets.roots()[: len(segments)]
    num_outside = int(len(ids) - hit.sum())  # outside of the layer, or where it is 0
    return MergerMode(segments, segments[roots], path, f"{num_outside} of {len(ids)} nodes lie on no segment" if num_outside else "")


def sample_ids(volume: Volume, places: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Read single voxels, each chunk once; 0 outside of the volume."""
    found = np.zeros(len(places), np.uint64)
    box = volume.box
    inside = np.flatnonzero(((places >= box.topleft) & (places < box.bottomright)).all(axis=1))
    chunks = places[inside] // np.array(volume.chunk_shape)
    order = np.lexsort(chunks.T)
    starts = np.flatnonzero(np.append(True, (np.diff(chunks[order], axis=0) != 0).any(axis=1))[: len(order)])
    for rows in np.split(inside[order], starts[1:]):
        if not len(rows):
            continue
        low, high = places[rows].min(axis=0), places[rows].max(axis=0) + 1
        part = BoundingBox.from_corners(low.tolist(), high.tolist(), box.mag)
        voxels: Any = np.zeros((1, *part.size), volume.dtype, order="F")
        volume.read_into(voxels, part.topleft)
        x, y, z = (places[rows] - low).T
        found[rows] = as_ids(voxels[0, x, y, z], volume.name)
    return found


DEFAULTS = ("keep", "zero")


@dataclass(frozen=True, slots=True)
class RemapOptions:
    """How ids are mapped."""

    default: str = "keep"
    """What becomes of ids that the mapping does not name: ``"keep"`` or ``"zero"``."""
    where: BoundingBox | None = None
    """What is mapped [voxels of mag 1]; everything else becomes zero."""
    dtype: Any = None
    """Type of the ids, by default as in the source."""
    command: str = "remap"
    """What a user asked for."""


@dataclass(frozen=True, slots=True)
class IdLookup:
    """Maps the ids of an array by a table that each process maps into memory."""

    table: IdMap
    """The table."""
    keeps: bool
    """Whether ids that are not named stay."""
    dtype: np.dtype[Any]
    """Type of the result."""

    def __call__(self, ids: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Map."""
        out = np.empty(ids.shape, self.dtype, order="F")
        unfit = map_ids(np.asfortranarray(ids), *self.table.arrays(), out, keeps=self.keeps)
        if unfit is not None:
            raise ValueError(f'id {unfit} is not in the mapping, and {self.dtype.name} cannot hold it: set another dtype=, or default="zero"')
        return out


@dataclass(frozen=True, slots=True)
class Remap(Plan):
    """A layer whose ids can be mapped."""

    source: Volume
    """What is read."""
    mapping: IdSource
    """The mapping."""
    application: AppliedFunction
    """What is done to which bricks, but for the table."""
    target: TargetArray
    """What is written."""
    staged: StagedMags
    """How it appears."""
    keeps: bool
    """Whether ids that are not named stay."""

    @property
    def note(self) -> str:
        """What a user should know about the mapping."""
        return self.mapping.note if isinstance(self.mapping, MergerMode) else ""

    def phases(self) -> Generator[Phase, str, Outcome]:
        """Map all ids."""
        job = self.job(self.table())
        note = yield Phase(job, f"mapping ids into {self.staged.folders[0]}")
        return Outcome(job.tallies, "; ".join(filter(None, (self.note, note))))

    def check_unchanged(self) -> None:
        """Make sure that the source is still the one that was read, as far as that can be told."""
        check_not_replaced(self.source)

    def table(self) -> IdMap:
        """Make the table in the job's folder, or find that of an earlier start."""
        folder = self.target.scratch_folder
        files.make_folders_below(dirname(folder), folder)
        table = saved_map(folder) or self.mapping.write(folder)
        if table.largest > np.iinfo(self.target.dtype).max:
            raise ValueError(f"{self.mapping.name}: holds id {table.largest}, which {self.target.dtype.name} cannot hold: set another dtype=")
        table.save(folder)
        return table

    def job(self, table: IdMap) -> ApplyJob:
        """Make the job that writes."""
        function = IdLookup(table, self.keeps, self.target.dtype)
        return ApplyJob(replace(self.application, function=function, skips_empty=table.of_zero() == 0), self.target)


def lay_out_remap(read: SourceVolume, wanted: TargetRequest, mapping: Any, options: RemapOptions, existing: str, workers: int) -> Remap:
    """Check and lay out the mapping of a layer's ids, or find the interrupted job that is to go on."""
    if options.default not in DEFAULTS:
        raise ValueError(f"default must be 'keep' or 'zero', got {options.default!r}")
    source = read.volume
    dtype = source.dtype if options.dtype is None else np.dtype(options.dtype)
    if source.dtype.kind not in "iu" or dtype.kind not in "iu":
        raise TypeError(f"{source.name}: ids are integers, got {source.dtype.name} to be stored as {dtype.name}")
    place = wanted.place_like(read)
    found = _opened(mapping, source)
    box = source.box
    area = where_box(source.name, options.where, box)
    spec = LevelSpec(box, dtype, 1)
    levels = check_no_overlap(place.new_levels([spec], wanted.stored, source, existing), source)
    settings = settings_of(
        options.command, source=source.name, box=box_setting(box), where=None if area is None else box_setting(area), mapping=found.digest(),
        default=options.default, dtype=dtype.name, input=source_token(source),
    )  # fmt: skip
    draft, made = stage_level(levels, options.command, settings, existing)
    voxel_nbytes = source.dtype.itemsize + spec.voxel_nbytes
    plan = plan_bricks(counted_from(box, made.origin), Tiling(made.chunk_shape, made.shard_shape, voxel_nbytes), workers, None, draft.shape())
    record = {"region": plan.region_shape, "presence": occupancy_digest(source, [plan.region_shape])}
    staged = draft.mags([made], LevelSpec.like(source).nbytes, levels.edit, record)
    application = AppliedFunction(map_ids, (source,), plan, where=area, origin=made.origin)
    return Remap(source, found, application, made, staged, options.default == "keep")


def _opened(mapping: Any, source: Volume) -> IdSource:
    """Open a mapping; an NML is looked up in the source."""
    if isinstance(mapping, (str, os.PathLike)) and os.fspath(mapping).lower().endswith(".nml"):
        path = local_path(mapping)
        if not files.isfile(path):
            raise MissingError(f"{path}: no such file")
        return read_merger_mode(path, source)
    return open_mapping(mapping)
