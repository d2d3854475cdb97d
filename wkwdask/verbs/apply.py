"""Planning of :func:`wkwdask.apply` and of reductions: sources, target, bricks and the job."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from wkwdask.formats.opening import options_of_target
from wkwdask.geometry.bounding_box import counted_from, voxel_box
from wkwdask.model.volume import voxel_nbytes
from wkwdask.model.voxel_type import parse_dtype
from wkwdask.model.writing.target_image import LevelSpec
from wkwdask.plans.apply import plan_bricks
from wkwdask.plans.regions import Tiling
from wkwdask.runs.drive import Outcome, Phase, Plan
from wkwdask.runs.retries import FailurePolicy
from wkwdask.runs.staged import StagedMags, settings_of
from wkwdask.verbs.apply_job import (
    AppliedFunction,
    ApplyJob,
    SizeSpec,
    TrialSpec,
    function_name,
    is_finer,
)
from wkwdask.verbs.function_calls import FunctionCalls
from wkwdask.verbs.sources import (
    SourceVolume,
    TargetRequest,
    box_setting,
    cast_note,
    open_source_volume,
    source_token,
    stage_level,
    where_box,
)
from wkwdask.verbs.space import need_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator, Mapping, Sequence

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.levels import Lengths
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.target_array import TargetArray
    from wkwdask.plans.apply import BrickPlan
    from wkwdask.runs.job import Task
    from wkwdask.runs.space import Need, RunTasks

_COMMAND = "apply"
_CHUNK, _SHARD = (32, 32, 32), (1024, 1024, 1024)  # grid of jobs without a stored target


@dataclass(frozen=True, slots=True)
class ApplyOptions:
    """Options of a function's application and of the storage of its result."""

    halo: Vec3 = (0, 0, 0)
    """Border around each brick that the function gets too, along x, y, z [voxels]."""
    mask: str | os.PathLike[str] | None = None
    """Volume that restricts the result: voxels where it is zero become zero."""
    where: BoundingBox | Sequence[Sequence[int]] | None = None
    """Box to compute [voxels of the mag]."""
    skips_empty: bool = False
    """Whether the result is zero where the first source is."""
    chunks: Vec3 | None = None
    """Box of one function call [voxels]; None chooses it."""
    dtype: Any = None
    """Type of one channel of the result; None is that of the first source."""
    num_channels: int = 1
    stored: Any = None
    category: str | None = None
    token: str | None = None
    """Version of the function, as the user names it."""
    arguments: str | None = None
    """Digest of the arguments that are bound to the function."""
    retries: int = 0
    """Further attempts for a brick whose call failed."""
    most_failures: int = 0
    """Failed tasks after which the job ends at once."""
    allow_external: bool = False
    calls: FunctionCalls = field(default_factory=FunctionCalls)
    """Set-up of the function, and number of calls at the same time."""
    batch: int = 1
    """Bricks of one call."""
    resources: Mapping[str, float] | None = None
    """Resources that a worker of a cluster needs for a task."""


@dataclass(frozen=True, slots=True)
class Apply(Plan):
    """Plan of a function's application to volumes."""

    application: AppliedFunction
    target: TargetArray
    staged: StagedMags
    most_failures: int
    """Failed tasks after which the job ends at once."""
    resources: Mapping[str, float] | None

    def need(self) -> Need:
        """Return the space of the mag: the function is called on a few bricks, where it would run,
        only if its voxels may not fit."""

        def encode(
            _: int, boxes: Sequence[BoundingBox], run_tasks: RunTasks
        ) -> tuple[int, int] | None:
            sizes = run_tasks(
                [SizeSpec(self.application, self.target, box).task() for box in boxes]
            )
            return (
                (sum(stored for stored, _ in sizes), sum(decoded for _, decoded in sizes))
                if sizes
                else None
            )

        return need_of(self.staged, lambda: ApplyJob(self.application, self.target), encode)

    def phases(self) -> Generator[Phase, str, Outcome]:
        """Compute the mag; failed tasks are listed when all others are done."""
        job = ApplyJob(self.application, self.target)
        note = yield Phase(
            job,
            f"applying to {self.staged.folders[0]}",
            FailurePolicy(self.most_failures, lists_always=True),
            resources=self.resources,
        )
        cast = cast_note(self.application.sources[0], self.target.dtype)
        return Outcome(job.tallies, "; ".join(filter(None, [note, cast])))


@dataclass(frozen=True, slots=True)
class Sources:
    """Volumes that a function reads."""

    first: SourceVolume
    """The first volume, whose box, type and voxel size the result takes by default."""
    volumes: tuple[Volume, ...]
    mask: Volume | None

    @property
    def all(self) -> tuple[Volume, ...]:
        """All volumes, the mask included."""
        return (*self.volumes, *(() if self.mask is None else (self.mask,)))

    def voxel_size_nm(self, mag: Mag) -> Lengths | None:
        """Return the edge lengths of a voxel of a mag [nm]."""
        if self.first.voxel_size_nm is None:
            return None
        (x, y, z), (fx, fy, fz) = self.first.voxel_size_nm, mag.factors
        return x * fx, y * fy, z * fz


def open_sources(sources: Sequence[str | os.PathLike[str]], options: ApplyOptions) -> Sources:
    if not sources:
        raise ValueError("expected at least one source, got none")
    opened = tuple(map(open_source_volume, sources))
    return Sources(
        opened[0],
        tuple(source.volume for source in opened),
        None if options.mask is None else open_source_volume(options.mask).volume,
    )


@dataclass(frozen=True, slots=True)
class BrickGrid:
    """Grid that divides a job into bricks."""

    mag: Mag
    voxel_nbytes: int
    """Bytes of one voxel of the result, all channels."""
    chunk_shape: Vec3 = _CHUNK
    shard_shape: Vec3 = _SHARD
    origin: Vec3 = (0, 0, 0)
    """Absolute voxel at which chunks begin."""
    region: Vec3 | None = None
    """Region shape that an earlier start of the same job chose."""


def check_sources(sources: Sources, mag: Mag) -> None:
    """Raise a ValueError if volumes cannot be read together in voxels of a mag."""
    for volume in sources.all:
        is_finer(volume.box.mag, mag)


def plan_application(
    function: Callable[..., Any],
    sources: Sources,
    options: ApplyOptions,
    grid: BrickGrid,
    workers: int,
) -> AppliedFunction:
    """Plan the regions and bricks of a function's application."""
    check_sources(sources, grid.mag)
    first = sources.volumes[0]
    box = first.box.in_mag(grid.mag)
    where = where_box(first.name, options.where, box)
    nbytes_per_voxel = grid.voxel_nbytes + sum(voxel_nbytes(volume) for volume in sources.volumes)
    plan = plan_bricks(
        counted_from(box, grid.origin),
        Tiling(grid.chunk_shape, grid.shard_shape, nbytes_per_voxel),
        workers,
        options.chunks,
        grid.region,
    )
    application = applied_function(function, sources, options, plan, grid.mag)
    return replace(application, where=where, origin=grid.origin)


def applied_function(
    function: Callable[..., Any], sources: Sources, options: ApplyOptions, plan: BrickPlan, mag: Mag
) -> AppliedFunction:
    """Return a function that is applied to sources brick by brick, as options say."""
    return AppliedFunction(
        function,
        sources.volumes,
        plan,
        options.halo,
        sources.mask,
        skips_empty=options.skips_empty,
        attempts=1 + options.retries,
        voxel_size_nm=sources.voxel_size_nm(mag),
        calls=options.calls,
        batch=options.batch,
    )


def make_trial(
    function: Callable[..., Any],
    urls: Sequence[str | os.PathLike[str]],
    target: str | os.PathLike[str] | None,
    options: ApplyOptions,
) -> Task:
    """Make the task that calls the function once, before anything is planned."""
    sources = open_sources(urls, options)
    first = sources.volumes[0]
    mag = (
        first.box.mag
        if target is None
        else target_request(target, options).target_image(sources.first).mag
    )
    spec = _spec(first, mag, target, options)
    grid = _default_grid(first, spec)
    if options.chunks is not None:  # checked when the grid of the target is known
        grid = replace(grid, chunk_shape=options.chunks, shard_shape=options.chunks)
    application = plan_application(function, sources, options, grid, 1)
    return TrialSpec(
        application,
        None if target is None else spec,
        first.chunk_shape if first.is_regular else _CHUNK,
    ).task()


def make_reduction(
    function: Callable[..., Any],
    urls: Sequence[str | os.PathLike[str]],
    options: ApplyOptions,
    workers: int,
) -> AppliedFunction:
    """Plan a function's application whose results are combined to one value."""
    sources = open_sources(urls, options)
    first = sources.volumes[0]
    return plan_application(
        function,
        sources,
        options,
        _default_grid(first, _spec(first, first.box.mag, None, options)),
        workers,
    )


def _spec(
    first: Volume, mag: Mag, target: str | os.PathLike[str] | None, options: ApplyOptions
) -> LevelSpec:
    """Return the level of the result, by default of the type in which the target stores that of the
    first source."""
    default = first.dtype if target is None else options_of_target(target).stored_dtype(first.dtype)
    return LevelSpec(
        first.box.in_mag(mag),
        default if options.dtype is None else parse_dtype(options.dtype),
        options.num_channels,
    )


def _default_grid(first: Volume, spec: LevelSpec) -> BrickGrid:
    """Return the grid of a job that stores nothing."""
    shapes = (first.chunk_shape, first.shard_shape) if first.is_regular else (_CHUNK, _SHARD)
    return BrickGrid(spec.box.mag, spec.voxel_nbytes, *shapes)


def target_request(target: str | os.PathLike[str], options: ApplyOptions) -> TargetRequest:
    return TargetRequest(target, options.stored, options.category, options.allow_external)


def function_settings(
    function: Callable[..., Any], sources: Sources, options: ApplyOptions, box: BoundingBox
) -> dict[str, Any]:
    """Return the settings of a function and of what it reads, for jobs that apply it."""
    return {
        "function": function_name(function),
        "arguments": options.arguments,
        "token": options.token,
        "sources": ",".join(volume.name for volume in sources.volumes),
        "box": box_setting(box),
        "setup": None if options.calls.setup is None else function_name(options.calls.setup),
        "batch": options.batch,
        "skips_empty": int(options.skips_empty),
        "input": ",".join(map(source_token, sources.all)),
        "halo": ",".join(map(str, options.halo)),
        "mask": None if sources.mask is None else sources.mask.name,
        "where": None
        if options.where is None
        else box_setting(voxel_box(options.where, box.mag, "where")),
        "chunks": None if options.chunks is None else ",".join(map(str, options.chunks)),
    }


def lay_out_apply(
    function: Callable[..., Any],
    urls: Sequence[str | os.PathLike[str]],
    target: str | os.PathLike[str],
    options: ApplyOptions,
    existing: str,
    workers: int,
) -> Apply:
    """Plan a level that a function computes, or resume the interrupted job of the same settings."""
    sources = open_sources(urls, options)
    first = sources.volumes[0]
    target_image = target_request(target, options).target_image(sources.first)
    spec = _spec(first, target_image.mag, target, options)
    levels = target_image.new_levels([spec], options.stored, first, existing)
    settings = settings_of(
        _COMMAND,
        dtype=spec.dtype.name,
        channels=spec.num_channels,
        **function_settings(function, sources, options, spec.box),
    )
    draft, array = stage_level(
        levels,
        f"{_COMMAND} {function_name(function)}",
        settings,
        existing,
        settings_are_complete=False,
    )
    grid = BrickGrid(
        target_image.mag,
        spec.voxel_nbytes,
        array.chunk_shape,
        array.shard_shape,
        array.origin,
        draft.shape(),
    )
    application = plan_application(function, sources, options, grid, workers)
    nbytes = sum(LevelSpec.like(volume).nbytes for volume in sources.volumes)
    record = {"region": application.plan.region_shape}
    staged = draft.mags(
        [array], nbytes, levels.edit, record, task_nbytes=_task_nbytes(application, array)
    )
    return Apply(application, array, staged, options.most_failures, options.resources)


def _task_nbytes(application: AppliedFunction, target: TargetArray) -> int:
    """Estimate the peak memory of a task [bytes]."""
    grown = math.prod(
        n + 2 * halo for n, halo in zip(application.plan.brick_shape, application.halo, strict=True)
    )
    nbytes_per_voxel = voxel_nbytes(target) + sum(
        voxel_nbytes(source) for source in application.sources
    )
    # bricks with halo of each source and of the result, doubled for the function's own arrays
    return 2 * grown * nbytes_per_voxel * application.batch
