"""Staging the pyramid of a precomputed volume: from what a user asks for to source, scales, passes and the job."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from wkwdask.errors import MissingError, ReplacedError, ResumeError, UnsupportedError
from wkwdask.formats.precomputed.files import num_files
from wkwdask.formats.precomputed.info_edits import scale_entry
from wkwdask.formats.precomputed.layer import open_precomputed_layer
from wkwdask.formats.precomputed.options import PrecomputedOptions
from wkwdask.geometry.bounding_box import MAG_1
from wkwdask.model.pieces import MEMORY_NBYTES
from wkwdask.model.states import digest
from wkwdask.plans.mag_ladder import default_coarsest, listed_mags, mag_ladder
from wkwdask.plans.pyramid import plan_framed_passes
from wkwdask.plans.regions import Tiling
from wkwdask.runs.stage import stage
from wkwdask.runs.staged import finish_what_was_left, settings_of
from wkwdask.store import files
from wkwdask.verbs.others.precomputed_places import SAME, volume_place
from wkwdask.verbs.others.precomputed_scales import source_settings, stored_like
from wkwdask.verbs.others.precomputed_write import VolumeType, lay_out_scales
from wkwdask.verbs.pyramid import Pyramid, check_method
from wkwdask.verbs.wkw.mags import check_not_replaced

if TYPE_CHECKING:
    import os

    from wkwdask.formats.precomputed.info import Scale
    from wkwdask.formats.precomputed.layer import AbsoluteVolume
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.levels import Lengths
    from wkwdask.runs.report import Report
    from wkwdask.verbs.others.precomputed_places import VolumePlace

_METHOD_OF_TYPE = {"image": "mean", "segmentation": "mode"}


@dataclass(frozen=True, slots=True)
class ScalePyramidOptions:
    """What a user may choose for a pyramid."""

    finest: Mag | str | None = None
    """The scale to start from, by its mag or key."""
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
    stored: PrecomputedOptions = field(default_factory=PrecomputedOptions)
    """How the scales are stored."""


@dataclass(frozen=True, slots=True)
class ScalePyramid(Pyramid):
    """A pyramid of a precomputed volume that can be built."""

    source: AbsoluteVolume
    """The finest scale."""
    notes: tuple[str, ...]
    """What a user should know."""
    stored_nbytes: int
    """What the finest scale took when the job was staged."""

    def source_nbytes(self) -> tuple[int, int]:
        """Count the files of the finest scale, and their bytes when the job was staged."""
        return num_files(self.source.volume.folder, self.source.volume.scale), self.stored_nbytes

    def check_unchanged(self) -> None:
        """Make sure that the source is still the one that was read."""
        check_not_replaced(self.source)

    def finished_before(self, report: Report) -> Report:
        """Make sure that a finished pyramid is that of the source as it is now."""
        if digest(self.source.volume.stored_states()) != self.staged.settings["states"]:
            raise ResumeError(f'{self.source.name}: has changed since the pyramid was built; existing="overwrite" makes it anew')
        return report


def lay_out_scale_pyramid(url: str | os.PathLike[str], options: ScalePyramidOptions, existing: str, workers: int) -> ScalePyramid:
    """Check and lay out the building of a pyramid, or find the interrupted one that is to go on."""
    layer = open_precomputed_layer(url)
    try:
        source: Any = layer.volume(options.finest)
    except ReplacedError:  # perhaps a job was killed while a scale appeared
        for level in layer.levels:
            finish_what_was_left(layer.folder, level.folder, "build_pyramid")
        layer = open_precomputed_layer(url)
        source = layer.volume(options.finest)
    finest = source.volume.scale
    place = volume_place(layer.folder)
    if not files.isdir(source.name):  # an empty one is a scale of zeros
        raise MissingError(f"{source.name}: not found: the scale has no files")
    volume = VolumeType(layer.details.info.type, source.dtype, source.num_channels)
    method = choose_method(options, volume.kind)
    mags = choose_mags(source, options, layer.voxel_size_nm)
    scales = _ladder(place, finest, source.box.mag, mags, options.stored, volume)
    folders = [place.folder_of(scale.key) for scale in scales]
    states = source.volume.stored_states()
    settings = {
        **settings_of("build_pyramid", method=method, ignore_zero=options.ignore_zero, compress=options.stored.file_compression),
        **source_settings(source, states),
        "scales": [scale_entry(scale) for scale in scales],
    }  # fmt: skip
    draft = stage(f"build_pyramid of {place.folder}", place.folder, folders, settings, existing)
    voxel_nbytes = volume.num_channels * volume.dtype.itemsize
    staged, notes = lay_out_scales(place, volume, list(zip(scales, mags, strict=True)), draft, source.box.volume * voxel_nbytes, options.stored)
    origins = [(0, 0, 0), *(scale.voxel_offset for scale in scales)]
    tilings = [Tiling(target.chunk_shape, target.shard_shape, voxel_nbytes) for target in staged.targets]
    passes = plan_framed_passes(source.box, mags, origins, tilings, workers, draft.shapes())
    task_nbytes = max((one.memory_nbytes(voxel_nbytes) + len(one.levels) * MEMORY_NBYTES for one in passes), default=0)
    staged = replace(staged, plan={"regions": [one.levels[0].region_shape for one in passes]}, task_nbytes=task_nbytes)
    return ScalePyramid(source, method, options.ignore_zero, tuple(passes), staged, _describe(scales), tuple(notes), int(states[:, 3].sum()))


def choose_method(options: ScalePyramidOptions, kind: str) -> str:
    """Choose how a window becomes a voxel."""
    return check_method(_METHOD_OF_TYPE[kind] if options.method == "default" else options.method, ignore_zero=options.ignore_zero)


def choose_mags(source: AbsoluteVolume, options: ScalePyramidOptions, voxel_size_nm: Lengths | None) -> list[Mag]:
    """Choose the mags of a pyramid."""
    finest = source.box.mag
    if voxel_size_nm is None or any(abs(a / (b * n) - 1) > SAME for a, b, n in zip(source.volume.scale.resolution, voxel_size_nm, finest.factors, strict=True)):
        raise UnsupportedError(f"{source.name}: its voxel size is not a power-of-two multiple of that of the first scale, so no pyramid can be built from it")
    if options.mags is not None:
        if options.coarsest is not None or options.sampling is not None:
            raise ValueError("mags= lists the mags; coarsest= and sampling= choose them: give one or the other")
        return listed_mags(options.mags, finest, "finest")
    sampling = options.sampling or ("constant_z" if source.box.size[2] == 1 else "anisotropic")  # a single section stays one
    coarsest = options.coarsest if options.coarsest is not None else default_coarsest(source.box.in_mag(MAG_1))
    return mag_ladder(finest, coarsest, voxel_size_nm, sampling)


def _ladder(place: VolumePlace, finest: Scale, mag: Mag, mags: list[Mag], options: PrecomputedOptions, volume: VolumeType) -> list[Scale]:
    """Describe the scales, each by the one before it; a scale that is there keeps its key."""
    scales: list[Scale] = []
    scale = stored_like(finest, options, volume)
    for finer, coarser in pairwise([mag, *mags]):
        scale = scale.coarser(finer.step_to(coarser))
        scale = replace(scale, key=place.key_for(scale.resolution), sharding=stored_like(scale, options, volume).sharding)
        scales.append(scale)
    return scales


def _describe(scales: list[Scale]) -> str:
    if not scales:
        return ""
    scale = scales[0]
    x, y, z = scale.chunk_size
    return f"{scale.encoding}, chunks of {x} x {y} x {z} voxels, {'each a file' if scale.sharding is None else 'in shards'}"
