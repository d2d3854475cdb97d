"""Planning of :func:`wkwdask.segment`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wkwdask.formats.replaceable import is_occupied
from wkwdask.geometry.bounding_box import counted_from
from wkwdask.geometry.mag import real_number, whole_number
from wkwdask.ids.extra_array import ExtraTarget, listed_folders, open_extra
from wkwdask.ids.extra_array import policy as extra_policy
from wkwdask.ids.guards import Guards
from wkwdask.ids.id_types import dtype_of_ids, layout_of_longer_ids, staged_for_ids
from wkwdask.ids.segmentation import MATCHES, BlockTotals, Segmentation, segment_job, tabulate
from wkwdask.ids.stitching import (
    FromBlocksJob,
    Relabelling,
    match_job,
    number,
    write_objects,
    write_refused,
)
from wkwdask.kernels.labels.components import CONNECTIVITIES
from wkwdask.model.summary import counted
from wkwdask.model.writing.target_image import LevelSpec
from wkwdask.plans.apply import BrickPlan, plan_bricks
from wkwdask.plans.regions import Tiling
from wkwdask.runs.drive import Outcome, Phase, Plan
from wkwdask.runs.retries import FailurePolicy
from wkwdask.runs.staged import StagedMags, settings_of
from wkwdask.verbs.apply import (
    ApplyOptions,
    applied_function,
    check_sources,
    function_settings,
    open_sources,
    target_request,
)
from wkwdask.verbs.apply_job import function_name
from wkwdask.verbs.sources import (
    check_no_overlap,
    check_not_replaced,
    digest_of_cells,
    stage_level,
    where_box,
)
from wkwdask.verbs.space import by_brick, need_of, unknown

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator, Mapping, Sequence

    from wkwdask.model.json_text import JsonObject
    from wkwdask.model.levels import Lengths
    from wkwdask.model.writing.target_image import NewLevels
    from wkwdask.runs.space import Need
    from wkwdask.verbs.apply_job import AppliedFunction

_COMMAND = "segment"
_BLOCKS = (256, 256, 256)
_AXES = "xyz"
_LABEL_NBYTES = 12  # of one voxel in the labels of the function and their numbers


@dataclass(frozen=True, slots=True)
class SegmentOptions:
    """Options of a segmentation."""

    applied: ApplyOptions = field(default_factory=ApplyOptions)
    """Options of the function and of the storage of the result; its type is that of the ids."""
    match: str = "overlap"
    min_overlap: float = 0.5
    connectivity: int = 26
    stitch: str = _AXES
    """Axes along which blocks are joined."""
    min_voxels: int = 0
    on_error: str = "fail"
    table: str | None = None
    """Path of a table of the objects."""
    extra: str | os.PathLike[str] | None = None
    """Mag of the second array that the function returns."""
    guards: Guards = field(default_factory=Guards)
    """Rules by which pairs of labels are not joined."""
    refused: str | None = None
    """Path of a table of the pairs that guards refuse."""

    @property
    def rules(self) -> JsonObject:
        """Options that decide about the ids, for the settings of the job."""
        return {
            "match": self.match,
            "min_overlap": self.min_overlap if self.match == "overlap" else None,
            "connectivity": self.connectivity if self.match == "touch" else None,
            "stitch": "".join(sorted(self.stitch)),
            "min_voxels": self.min_voxels,
            "one_per_block": int(self.guards.one_per_block),
            "max_voxels": self.guards.max_voxels,
            "on_error": self.on_error,
            "extra": self.extra,
        }

    def check(self) -> None:
        """Raise a ValueError for options that contradict themselves."""
        if self.match not in MATCHES:
            raise ValueError(f'match must be "overlap" or "touch", got {self.match!r}')
        if not 0.5 <= real_number(self.min_overlap, "min_overlap") < 1:
            # above a half, a label has at most one partner at each face
            raise ValueError(
                f"min_overlap must be at least 0.5 and below 1, got {self.min_overlap}"
            )
        if self.connectivity not in CONNECTIVITIES:
            raise ValueError(f"connectivity must be 6, 18 or 26, got {self.connectivity!r}")
        if not set(self.stitch) <= set(_AXES) or len(set(self.stitch)) != len(self.stitch):
            raise ValueError(f'stitch names axes, such as "xyz" or "xy", got {self.stitch!r}')
        whole_number(self.min_voxels, "min_voxels", 0)
        if self.guards.max_voxels is not None:
            whole_number(self.guards.max_voxels, "max_voxels", 1)
        if self.refused is not None and not self.guards:
            raise ValueError("refused lists pairs that one_per_block or max_voxels refuse; set one")
        if self.on_error not in ("fail", "fill"):
            raise ValueError(f'on_error must be "fail" or "fill", got {self.on_error!r}')


@dataclass(frozen=True, slots=True)
class Segment(Plan):
    """Plan of a segmentation."""

    segmentation: Segmentation
    relabelling: Relabelling
    staged: StagedMags
    lay_out_longer: Callable[[], NewLevels] | None
    """Returns the same level with ids of 64 bits; None if the user chose the type."""
    most_failures: int
    resources: Mapping[str, float] | None
    table: str | None
    voxel_size_nm: Lengths | None
    """Edge lengths of a voxel of mag 1 [nm]."""
    extra: ExtraTarget | None
    refused: str | None

    def need(self) -> Need:
        """Return the space of the objects, which are not known before but lie in the blocks to
        compute."""
        target = self.staged.targets[0]
        return need_of(
            self.staged, lambda: FromBlocksJob(by_brick(self.relabelling), target), unknown, 0
        )

    def phases(self) -> Generator[Phase, str, Outcome]:
        """Segment blocks, match their labels across faces, number the objects, and write them."""
        segmentation = self.segmentation
        yield Phase(
            segment_job(segmentation),
            f"segmenting {segmentation.name}",
            FailurePolicy(self.most_failures, lists_always=True),
            resources=self.resources,
        )
        totals = tabulate(segmentation)
        extra_note = ""
        if self.extra is not None and totals.extra is not None:
            extra_note = yield from self.extra.phases(
                segmentation, totals.extra, self.staged.owner.job
            )
        yield Phase(
            match_job(segmentation),
            f"matching labels of {segmentation.name}",
            staged=self.staged,
        )
        numbers = number(segmentation)
        staged = staged_for_ids(self.staged, self.lay_out_longer, numbers.num_objects, "objects")
        job = FromBlocksJob(self.relabelling, staged.targets[0])
        note = yield Phase(job, f"objects into {staged.folders[0]}", staged=staged)
        if self.table is not None:
            write_objects(segmentation, self.voxel_size_nm, self.table)
        if self.refused is not None:
            write_refused(segmentation, self.refused)
        return Outcome(
            job.tallies,
            "; ".join(
                filter(None, (str(numbers), extra_note, *_notes(segmentation, totals), note))
            ),
        )

    def check_unchanged(self) -> None:
        for source in self.segmentation.application.sources:
            check_not_replaced(source)


def _notes(segmentation: Segmentation, totals: BlockTotals) -> list[str]:
    reading, calling = totals.seconds
    notes = [f"{calling:.1f} s in the function, {reading:.1f} s of reading"]
    if totals.num_split:
        parts = counted(totals.num_split, "further part")
        notes.append(f"{parts} of labels that are not connected inside their block")
    if totals.failures:
        (block, error), *_ = totals.failures
        notes.append(
            f"{counted(len(totals.failures), 'block')} left empty, since the function failed: the "
            f"first is {segmentation.plan.region_box(block)}: {error}"
        )
    return notes


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """Plan of a segmentation that is not run."""

    path: str
    """Folder of the mag."""
    blocks: int
    """Blocks to segment, each by one call of the function."""
    block_shape: tuple[int, int, int]
    """Shape of a block without its halo [voxels]."""
    voxels: int
    """Voxels of the box."""
    read_factor: float
    """Times that a voxel is read, because of the halo."""
    memory_nbytes: int
    """Estimated memory of one task, without that of the function [bytes]."""

    def __str__(self) -> str:
        shape = " x ".join(map(str, self.block_shape))
        return (
            f"{self.path}: {counted(self.blocks, 'block')} of {shape} voxels, "
            f"{counted(self.voxels, 'voxel')}, each read {self.read_factor:.2f} times, about "
            f"{self.memory_nbytes / 2**20:,.0f} MiB for a task, without the memory of the function"
        )


def describe(plan: Segment) -> SegmentPlan:
    """Return what a segmentation would do."""
    application = plan.segmentation.application
    blocks, box = plan.segmentation.blocks(), application.plan.box
    edges = zip(application.plan.brick_shape, application.halo, strict=True)
    return SegmentPlan(
        plan.staged.folders[0],
        len(blocks),
        application.plan.brick_shape,
        box.volume,
        math.prod((edge + 2 * halo) / edge for edge, halo in edges),
        plan.staged.task_nbytes,
    )


def lay_out_segment(
    function: Callable[..., Any],
    urls: Sequence[str | os.PathLike[str]],
    target: str | os.PathLike[str],
    options: SegmentOptions,
    existing: str,
    workers: int,
) -> Segment:
    """Plan a segmentation, or resume the interrupted job of the same settings."""
    options.check()
    applied = options.applied
    sources = open_sources(urls, applied)
    first = sources.volumes[0]
    target_image = target_request(target, applied).target_image(sources.first)
    check_sources(sources, target_image.mag)
    box = first.box.in_mag(target_image.mag)
    area = where_box(first.name, applied.where, box) or box
    blocks = applied.chunks or _BLOCKS
    axes = tuple(_AXES.index(axis) for axis in sorted(options.stitch))
    plan = BrickPlan(area, blocks, blocks)
    if options.match == "overlap":
        _check_halo(plan, axes, applied)
    spec = LevelSpec(box, dtype_of_ids(applied.dtype), 1)
    levels = target_image.new_levels([spec], applied.stored, first, existing)
    for source in sources.all:
        check_no_overlap(levels, source)
    settings = settings_of(
        _COMMAND,
        ids="auto" if applied.dtype is None else spec.dtype.name,
        **function_settings(function, sources, applied, box),
        **options.rules,
    )
    draft, array = stage_level(
        levels,
        f"{_COMMAND} {function_name(function)}",
        settings,
        existing,
        settings_are_complete=False,
    )
    application = applied_function(function, sources, applied, plan, target_image.mag)
    segmentation = Segmentation(
        application,
        options.match,
        options.min_overlap,
        options.connectivity,
        axes,
        options.min_voxels,
        options.on_error == "fill",
        array.scratch_folder,
        options.guards,
        options.extra is not None,
    )
    extra, choices = None, {}
    if options.extra is not None:
        policy = extra_policy(existing, draft.before)
        choices["replaces_extra"] = policy == "overwrite"
        opened = open_extra(
            options.extra, sources.first, target_image, allow_external=applied.allow_external
        )
        extra = ExtraTarget(options.extra, opened, first, box, policy, workers)
        is_done = existing == "resume" and all(map(is_occupied, listed_folders(levels)))
        extra.check(sources.all, levels, is_resumed=is_done or draft.before is not None)
    bricks = plan_bricks(
        counted_from(box, array.origin),
        Tiling(array.chunk_shape, array.shard_shape, spec.voxel_nbytes),
        workers,
        None,
        draft.shape(),
    )
    record = {
        "region": bricks.region_shape,
        "presence": digest_of_cells([application.occupied(blocks)]),
        **choices,
    }
    staged = draft.mags(
        [array],
        sum(LevelSpec.like(volume).nbytes for volume in sources.volumes),
        levels.edit,
        record,
        task_nbytes=_task_nbytes(application),
    )
    return Segment(
        segmentation,
        Relabelling(segmentation, bricks, array.origin),
        staged,
        layout_of_longer_ids(
            target_image, spec, applied.stored, first, is_chosen=applied.dtype is not None
        ),
        applied.most_failures,
        applied.resources,
        options.table,
        sources.first.voxel_size_nm,
        extra,
        options.refused,
    )


def _check_halo(plan: BrickPlan, axes: Sequence[int], options: ApplyOptions) -> None:
    """Raise a ValueError if blocks do not overlap along an axis along which they are joined."""
    for axis in axes:
        if len(plan.region_range()[axis]) > 1 and options.halo[axis] < 1:
            raise ValueError(
                f'match="overlap" compares labels in the halo of neighbouring blocks, and halo is '
                f"{options.halo[axis]} along {_AXES[axis]}: about the diameter of an object is a "
                'good choice; match="touch" needs none'
            )


def _task_nbytes(application: AppliedFunction) -> int:
    """Estimate the peak memory of a task, without that of the function [bytes]."""
    edges = zip(application.plan.brick_shape, application.halo, strict=True)
    voxel_nbytes = sum(
        source.dtype.itemsize * source.num_channels for source in application.sources
    )
    grown = math.prod(n + 2 * halo for n, halo in edges)
    return grown * (voxel_nbytes + _LABEL_NBYTES) * application.batch
