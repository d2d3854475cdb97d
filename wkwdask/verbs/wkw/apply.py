"""Staging a function that is applied to volumes: from what a user asks for to sources, target and plan."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wkwdask.errors import BoundsError
from wkwdask.formats.pictures.foreign import open_any
from wkwdask.formats.wkw.options import WkwOptions
from wkwdask.formats.wkw.volume import WkwVolume
from wkwdask.plans.apply import plan_bricks
from wkwdask.plans.chunks import LARGEST_FILE_LEN
from wkwdask.plans.regions import Tiling
from wkwdask.runs.drive import Outcome, Phase, Plan
from wkwdask.runs.stage import stage
from wkwdask.runs.staged import StagedMags, settings_of
from wkwdask.runs.tolerant import Tolerance
from wkwdask.verbs.aligned import is_finer
from wkwdask.verbs.apply import Application, ApplyJob, TrialSpec, function_name
from wkwdask.verbs.wkw.mags import box_setting, source_token
from wkwdask.verbs.wkw.places import edit_for, place_of
from wkwdask.verbs.wkw.write import header_for, staged_target, stored_settings

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator, Sequence

    from wkwdask.formats.wkw.header import WkwHeader
    from wkwdask.formats.wkw.target import WkwTarget
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.volume import Volume
    from wkwdask.runs.job import Task

_COMMAND = "apply"


@dataclass(frozen=True, slots=True)
class ApplyOptions:
    """How a function is applied, and how its result is stored."""

    halo: Vec3 = (0, 0, 0)
    """How far it looks beyond what it computes [voxels]."""
    mask: str | os.PathLike[str] | None = None
    """Where it counts."""
    where: BoundingBox | None = None
    """What is computed [voxels of mag 1]."""
    skips_empty: bool = False
    """Whether the result is zero where the first source is."""
    chunks: Vec3 | None = None
    """What one call computes [voxels]."""
    dtype: Any = None
    """Type of one channel of the result; by default that of the first source."""
    num_channels: int = 1
    """Channels of the result."""
    stored: WkwOptions = field(default_factory=WkwOptions)
    """How the result is stored."""
    category: str | None = None
    """What a new layer is."""
    token: str | None = None
    """What the user calls the function's version."""
    arguments: str | None = None
    """What tells the arguments apart that are bound to the function."""
    retries: int = 0
    """How often the function is tried again for a brick for which it failed."""
    most_failures: int = 0
    """With more failed tasks than these the job ends at once."""
    allow_external: bool = False
    """Whether links of the target may lead out of its dataset."""


@dataclass(frozen=True, slots=True)
class Apply(Plan):
    """A function that can be applied."""

    application: Application
    """What is applied to what."""
    target: WkwTarget
    """What is written."""
    staged: StagedMags
    """How it appears."""
    most_failures: int
    """With more failed tasks than these the job ends at once."""

    def phases(self) -> Generator[Phase, str, Outcome]:
        """Make the mag; tasks that fail are listed when all others are done."""
        job = self.job()
        note = yield Phase(job, f"applying to {self.staged.folders[0]}", Tolerance(self.most_failures, lists_always=True))
        return Outcome(job.tallies, note)

    def job(self) -> ApplyJob:
        """Make the job."""
        return ApplyJob(self.application, self.target)


def open_sources(sources: Sequence[str | os.PathLike[str]], options: ApplyOptions) -> tuple[tuple[Volume, ...], Volume | None]:
    """Open what is read."""
    if not sources:
        raise ValueError("name at least one source")
    return tuple(open_any(url) for url in sources), None if options.mask is None else open_any(options.mask)


def make_application(
    function: Callable[..., Any],
    volumes: tuple[Volume, ...],
    mask: Volume | None,
    options: ApplyOptions,
    header: WkwHeader,
    mag: Mag,
    workers: int,
    region: Vec3 | None = None,
) -> Application:
    """Plan how a function is applied."""
    for volume in (*volumes, *(() if mask is None else (mask,))):
        is_finer(volume.box.mag, mag)
    if min(options.halo) < 0:
        raise ValueError(f"halo must not be negative, got {options.halo}")
    box = volumes[0].box.in_mag(mag)
    where = None if options.where is None else options.where.in_mag(mag).intersection(box)
    if where is not None and where.is_empty:
        raise BoundsError(f"{volumes[0].name}: where={options.where} holds nothing of it, its box is {box}")
    voxel_nbytes = header.voxel_nbytes + sum(volume.dtype.itemsize * volume.num_channels for volume in volumes)
    plan = plan_bricks(box, Tiling((header.block_len,) * 3, (header.file_len_vx,) * 3, voxel_nbytes), workers, options.chunks, region)
    return Application(function, volumes, plan, options.halo, mask, where, options.skips_empty, 1 + options.retries)


def trial_of(function: Callable[..., Any], sources: Sequence[str | os.PathLike[str]], target: str | os.PathLike[str] | None, options: ApplyOptions) -> Task:
    """Lay out one call of a function before anything is planned."""
    volumes, mask = open_sources(sources, options)
    mag = volumes[0].box.mag if target is None else place_of(target, allow_external=options.allow_external).mag
    header = header_of_result(volumes[0], options.stored, volumes[0].box.in_mag(mag), options.dtype, options.num_channels)
    application = make_application(function, volumes, mask, options, header, mag, 1)
    return TrialSpec(application, None if target is None else header, (header.block_len,) * 3).task()


def header_of_result(first: Volume, stored: WkwOptions, box: BoundingBox, dtype: Any = None, num_channels: int = 1) -> WkwHeader:
    """Choose how a result is stored: what is not given as in the first source where that is WKW, with files as long as suits the box of the result."""
    like = first.header if isinstance(first, WkwVolume) else None
    return header_for(stored, first.dtype if dtype is None else dtype, num_channels, box, like, LARGEST_FILE_LEN if like is None else like.file_len)


def lay_out_apply(
    function: Callable[..., Any], sources: Sequence[str | os.PathLike[str]], target: str | os.PathLike[str], options: ApplyOptions, existing: str, workers: int
) -> Apply:
    """Check and lay out the making of a mag by a function, or find the interrupted job that is to go on."""
    volumes, mask = open_sources(sources, options)
    place = place_of(target, allow_external=options.allow_external)
    box = volumes[0].box.in_mag(place.mag)
    header = header_of_result(volumes[0], options.stored, box, options.dtype, options.num_channels)
    given = {
        "halo": ",".join(map(str, options.halo)),
        "mask": None if mask is None else mask.name,
        "where": None if options.where is None else box_setting(options.where),
        "chunks": None if options.chunks is None else ",".join(map(str, options.chunks)),
    }
    settings = settings_of(
        _COMMAND, function=function_name(function), arguments=options.arguments, token=options.token, sources=",".join(volume.name for volume in volumes),
        box=box_setting(box), skips_empty=int(options.skips_empty), dtype=header.dtype.name, channels=header.num_channels,
        **stored_settings(header, options.stored.chosen_level), input=_token((*volumes, *(() if mask is None else (mask,)))), **given,
    )  # fmt: skip
    draft = stage(f"{_COMMAND} {function_name(function)} into {place.folder}", place.layer.folder, [place.folder], settings, existing)
    application = make_application(function, volumes, mask, options, header, place.mag, workers, draft.shape())
    made = staged_target(draft, header, options.stored.chosen_level, box)
    nbytes = sum(volume.box.volume * volume.dtype.itemsize * volume.num_channels for volume in volumes)
    edit = edit_for(place, header, box, options.category)
    plan = {"region": application.plan.region_shape}
    staged = draft.mags([made], nbytes, edit, plan, task_nbytes=_task_nbytes(application, made))
    return Apply(application, made, staged, options.most_failures)


def _task_nbytes(application: Application, made: WkwTarget) -> int:
    """Estimate the memory of a task [bytes]: one brick of each source with its halo, and of the result, twice: the function has arrays of its own."""
    grown = math.prod(n + 2 * halo for n, halo in zip(application.plan.brick_shape, application.halo, strict=True))
    voxel_nbytes = made.dtype.itemsize * made.num_channels + sum(source.dtype.itemsize * source.num_channels for source in application.sources)
    return 2 * grown * voxel_nbytes


def _token(volumes: Sequence[Volume]) -> str:
    """Name the sources, so that others in their place have another name."""
    return ",".join(source_token(volume) for volume in volumes)
