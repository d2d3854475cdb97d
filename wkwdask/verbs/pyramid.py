"""The pyramid: all coarser mags of an image, from what a user asks for to source, levels, passes and the job."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from wkwdask.errors import ResumeError, UnsupportedError
from wkwdask.formats.opening import aligned_mags, default_method, image_box, place_in
from wkwdask.kernels.window.reduce import IGNORE_ZERO_METHODS, METHODS
from wkwdask.model.levels import ratio_of
from wkwdask.model.pieces import MEMORY_NBYTES
from wkwdask.model.place import LevelSpec, NewLevels
from wkwdask.plans.mag_ladder import default_coarsest, listed_mags, mag_ladder
from wkwdask.plans.pyramid import check_steps, plan_framed_passes
from wkwdask.plans.regions import Tiling
from wkwdask.runs.drive import Outcome, Phase, Plan
from wkwdask.runs.report import Report, space_problems
from wkwdask.runs.staged import settings_of, stage
from wkwdask.store.records import read_record
from wkwdask.verbs.pyramid_job import LivingMag, PyramidJob, changed_shards
from wkwdask.verbs.sources import box_setting, check_not_replaced, known_by, open_to_build, presence

if TYPE_CHECKING:
    import os
    from collections.abc import Generator

    from wkwdask.geometry.mag import Mag
    from wkwdask.model.image import Image
    from wkwdask.model.volume import Volume
    from wkwdask.plans.pyramid import Pass
    from wkwdask.runs.staged import StagedMags

_SAME = 1e-3  # of a voxel's lengths: these are the same


def check_method(method: str, *, ignore_zero: bool) -> str:
    """Make sure that there is such a way to make a voxel of a window, and give it."""
    if method not in METHODS:
        raise ValueError(f'method must be "default" or one of {", ".join(METHODS)}, got {method!r}')
    if ignore_zero and method not in IGNORE_ZERO_METHODS:
        raise ValueError(f"ignore_zero goes with {', '.join(IGNORE_ZERO_METHODS)}, not with {method}")
    return method


@dataclass(frozen=True, slots=True)
class PyramidOptions:
    """What a user may choose for a pyramid; None is the default that the fields of the function describe."""

    finest: Mag | str | None = None
    """The level to start from, by its mag or key."""
    method: str = "default"
    """How a window becomes a voxel."""
    ignore_zero: bool = False
    """Whether zeros do not count in a window."""
    mags: tuple[Mag, ...] | None = None
    """The mags to make."""
    coarsest: Mag | None = None
    """Where the ladder ends."""
    sampling: str | None = None
    """Rule of the ladder."""
    align_with: str | bool = True
    """Whose mags the ladder follows: those of one other image, of all, of none."""
    stored: Any = None
    """How the levels are stored, a record of the format."""
    allow_external: bool = False
    """Whether levels may be written where paths and links lead out of what holds the image."""


@dataclass(frozen=True, slots=True)
class Pyramid(Plan):
    """A pyramid that can be built."""

    source: Volume
    """The finest mag."""
    method: str
    """How a window becomes a voxel."""
    ignore_zero: bool
    """Whether zeros do not count in a window."""
    passes: tuple[Pass, ...]
    """How the mags are made."""
    staged: StagedMags
    """What is written; no targets where the finest mag is the coarsest already."""
    stored_as: str
    """How the new mags are stored, for people."""
    notes: tuple[str, ...] = ()
    """What is written right, but shown wrong by a viewer."""

    def job(self) -> PyramidJob:
        """Make the job."""
        return PyramidJob(self.source, self.staged.targets, self.passes, self.method, ignore_zero=self.ignore_zero)

    def accepting_finished(self) -> Self:
        """Return the pyramid as one for which nothing is done where an equal one was finished by now."""
        return replace(self, staged=self.staged.accepting_finished())

    def nothing_to_do(self) -> Report | None:
        """Say that the finest mag is the coarsest already."""
        return None if self.staged.targets else Report((), 0, 0.0, f"mag {self.source.box.mag} is the coarsest already: nothing to do")

    def problems(self) -> list[str]:
        """Compare free space with what the mags take if they are stored as densely as the source: quick enough to do it always."""
        files, nbytes = self.source.count_files() or (0, 0)
        share = sum(1 / math.prod(self.source.box.mag.step_to(target.box.mag)) for target in self.staged.targets)
        shards = math.prod(self.source.shard_shape) / math.prod(self.staged.targets[0].shard_shape)
        return space_problems(self.staged.parent, int(nbytes * share), int(files * shards * share))

    def phases(self) -> Generator[Phase, str, Outcome]:
        """Build all mags."""
        job = self.job()
        note = yield Phase(job, f"pyramid of {self.staged.parent}")
        return Outcome(job.tallies, note)

    def check_unchanged(self) -> None:
        """Make sure that the source is still the one that was read."""
        check_not_replaced(self.source)

    def finished_before(self, report: Report) -> Report:
        """Make sure that a finished pyramid is that of the source as it is now."""
        finer = self.source
        if not finer.is_regular:
            if known_by(finer)["states"] != self.staged.settings["states"]:
                raise ResumeError(f'{finer.name}: has changed since the pyramid was built; existing="overwrite" makes it anew')
            return report
        for target, folder in zip(self.staged.targets, self.staged.folders, strict=True):
            published = target.built_in(folder)
            changed = changed_shards(LivingMag(published, finer, self.method, self.ignore_zero, read_record(folder), None))
            if changed:
                raise ResumeError(
                    f"{folder}: {len(changed)} files are not what they were, or are made from files of mag {finer.box.mag} that have changed since; "
                    "update=True makes them anew"
                )
            finer = published.as_volume()
        return report


def lay_out_pyramid(url: str | os.PathLike[str], layer_name: str | None, options: PyramidOptions, existing: str, workers: int) -> Pyramid:
    """Check and lay out the building of a pyramid, or find the interrupted one that is to go on."""
    image, source = open_to_build(url, layer_name, options.finest, "finest", allow_external=options.allow_external)
    place = place_in(image, options.allow_external)
    method = choose_method(image, source, options)
    mags = choose_mags(image, source, options)
    check_steps(source.box.mag, mags)
    specs = [LevelSpec.like(source, source.box.in_mag(mag)) for mag in mags]
    levels = place.new_levels(specs, options.stored, source, existing) if specs else NewLevels(image.folder, (), (), {})
    settings = settings_of(
        "build_pyramid", box=box_setting(source.box), mags=",".join(mag.name for mag in mags), method=method, ignore_zero=options.ignore_zero
    )  # fmt: skip
    known = {**known_by(source), "source": source.box.mag.name}
    draft = stage(f"build_pyramid of {image.folder}", levels.parent, levels.folders, {**settings, **levels.settings, **known}, existing)
    targets = levels.staged(draft.root)
    origins = [(0, 0, 0), *(target.origin for target in targets)]
    voxel_nbytes = LevelSpec.like(source).voxel_nbytes
    tilings = [Tiling(target.chunk_shape, target.shard_shape, voxel_nbytes) for target in targets]
    passes = tuple(plan_framed_passes(source.box, mags, origins, tilings, workers, draft.shapes()))
    plan = {"regions": [one.levels[0].region_shape for one in passes], "presence": presence(source, [one.source_region_shape for one in passes[:1]])}
    task_nbytes = max((one.memory_nbytes(voxel_nbytes) + len(one.levels) * MEMORY_NBYTES for one in passes), default=0)
    staged = draft.mags(targets, LevelSpec.like(source).nbytes, levels.edit, plan, is_ladder=True, task_nbytes=task_nbytes)
    return Pyramid(source, method, options.ignore_zero, passes, staged, levels.stored_as, levels.warnings)


def choose_method(image: Image, source: Volume, options: PyramidOptions) -> str:
    """Choose how a window becomes a voxel."""
    return check_method(default_method(image, source) if options.method == "default" else options.method, ignore_zero=options.ignore_zero)


def choose_mags(image: Image, source: Volume, options: PyramidOptions) -> list[Mag]:
    """Choose the mags of a pyramid."""
    finest, size = source.box.mag, image.voxel_size_nm
    lengths = None if source.lengths_nm is None else ratio_of(source.lengths_nm, finest.factors)
    if size is not None and lengths is not None and any(abs(a / b - 1) > _SAME for a, b in zip(lengths, size, strict=True)):
        raise UnsupportedError(f"{source.name}: its voxel size is not a power-of-two multiple of that of the first scale, so no pyramid can be built from it")
    if options.mags is not None:
        if options.coarsest is not None or options.sampling is not None or options.align_with is not True:
            raise ValueError("mags= lists the mags; coarsest=, sampling= and align_with= choose them: give one or the other")
        return listed_mags(options.mags, finest, "finest")
    box = image_box(image, source)
    sampling = options.sampling or ("constant_z" if source.box.size[2] == 1 else "anisotropic")  # a single section stays one
    coarsest = options.coarsest if options.coarsest is not None else default_coarsest(box)
    return mag_ladder(finest, coarsest, size, sampling, aligned_mags(image, options.align_with))
