"""Staging a WKW pyramid: from what a user asks for to sources, targets, passes and the job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wkwdask.errors import ResumeError
from wkwdask.formats.wkw.header import BlockType
from wkwdask.formats.wkw.target import WkwTarget
from wkwdask.formats.wkw.volume import read_header
from wkwdask.geometry.mag import Mag
from wkwdask.model.pieces import MEMORY_NBYTES
from wkwdask.plans.mag_ladder import default_coarsest, listed_mags, mag_ladder
from wkwdask.plans.pyramid import check_steps, plan_passes
from wkwdask.plans.regions import Tiling
from wkwdask.runs.stage import stage
from wkwdask.runs.staged import settings_of
from wkwdask.store.records import read_record
from wkwdask.verbs.pyramid import Pyramid, check_method
from wkwdask.verbs.update import LivingMag, changed_shards
from wkwdask.verbs.wkw.mags import (
    NewMagsOptions,
    aligned_mags,
    box_setting,
    check_apart,
    check_not_replaced,
    edit_of,
    header_like,
    mag_folder,
    open_source,
    presence,
    source_token,
    stored_nbytes,
)
from wkwdask.verbs.wkw.places import parent_of
from wkwdask.verbs.wkw.write import level_of, staged_target, stored_settings

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from wkwdask.formats.wkw.header import WkwHeader
    from wkwdask.formats.wkw.volume import WkwVolume
    from wkwdask.model.image import Image
    from wkwdask.runs.report import Report

_METHOD_OF_CATEGORY = {"color": "median", "segmentation": "mode"}


@dataclass(frozen=True, slots=True)
class PyramidOptions(NewMagsOptions):
    """What a user may choose for a pyramid."""

    finest: Mag | None = None
    """The mag to start from."""
    method: str = "default"
    """How a window becomes a voxel."""
    ignore_zero: bool = False
    """Whether zeros do not count in a window."""
    coarsest: Mag | None = None
    """Where the ladder ends."""
    sampling: str | None = None
    """Rule of the ladder."""
    align_with: str | bool = True
    """Whose mags the ladder follows: those of one layer, of all others, of none."""


@dataclass(frozen=True, slots=True)
class WkwPyramid(Pyramid):
    """A pyramid of a WKW layer that can be built."""

    source: WkwVolume
    """The finest mag."""
    level: int
    """LZ4HC level."""

    def source_nbytes(self) -> tuple[int, int]:
        """Count the files of the finest mag, and estimate their bytes from a sample."""
        return stored_nbytes(self.source)

    def check_unchanged(self) -> None:
        """Make sure that the source is still the one that was read, see :func:`wkwdask.verbs.wkw.mags.check_not_replaced`."""
        check_not_replaced(self.source)

    def finished_before(self, report: Report) -> Report:
        """Make sure that a finished pyramid is that of the source as it is now."""
        finer = self.source
        for target, folder in zip(self.staged.targets, self.staged.folders, strict=True):
            published = WkwTarget(folder, "", read_header(folder), self.level, target.box)
            changed = changed_shards(LivingMag(published, finer, self.method, self.ignore_zero, read_record(folder), None))
            if changed:
                raise ResumeError(
                    f"{folder}: {len(changed)} files are not what they were, or are made from files of mag {finer.box.mag} that have changed since; "
                    "update=True makes them anew"
                )
            finer = published.as_volume()
        return report


def lay_out_pyramid(url: str | os.PathLike[str], layer_name: str | None, options: PyramidOptions, existing: str, workers: int) -> WkwPyramid:
    """Check and lay out the building of a pyramid, or find the interrupted one that is to go on."""
    level = options.stored.chosen_level
    layer, source = open_source(url, layer_name, options.finest, "finest", allow_external=options.allow_external)
    method = choose_method(layer, options)
    mags = choose_mags(layer, source, options)
    check_steps(source.box.mag, mags)
    folders = tuple(mag_folder(layer, mag) for mag in mags)
    check_apart(layer, source, mags, folders)
    parent = parent_of(layer, folders)
    headers = [header_like(source, options.stored, source.box.in_mag(mag)) for mag in mags]
    header = headers[0] if headers else header_like(source, options.stored, source.box)
    settings = settings_of(
        "build_pyramid", source=source.box.mag, box=box_setting(source.box), mags=",".join(mag.name for mag in mags),
        method=method, ignore_zero=options.ignore_zero, **stored_settings(header, level_of(header, level), *headers[1:]), input=source_token(source),
    )  # fmt: skip
    draft = stage(f"build_pyramid of {layer.folder}", parent, folders, settings, existing)
    targets = tuple(staged_target(draft, header, level, source.box.in_mag(mag)) for mag, header in zip(mags, headers, strict=True))
    tilings = [Tiling(target.chunk_shape, target.shard_shape, header.voxel_nbytes) for target in targets]
    passes = tuple(plan_passes(source.box, mags, tilings, workers, draft.shapes()))
    edit = edit_of(layer, mags, folders, headers)
    plan = {"regions": [one.levels[0].region_shape for one in passes], "presence": presence(source, [one.source_region_shape for one in passes[:1]])}
    nbytes_in = source.box.volume * header.voxel_nbytes
    task_nbytes = max((one.memory_nbytes(header.voxel_nbytes) + len(one.levels) * MEMORY_NBYTES for one in passes), default=0)
    staged = draft.mags(targets, nbytes_in, edit, plan, is_ladder=True, task_nbytes=task_nbytes)
    return WkwPyramid(source, method, options.ignore_zero, passes, staged, _described(header, headers, level), level)


def _described(header: WkwHeader, headers: Sequence[WkwHeader], level: int) -> str:
    """Say how mags are stored, for people."""
    compression = header.block_type.label + (f" level {level}" if header.block_type is BlockType.LZ4HC else "")
    lengths = [f"{length}^3" for length in dict.fromkeys(one.file_len_vx for one in headers or [header])]
    return f"{compression}, blocks of {header.block_len}^3 and files of {' then '.join(lengths)} voxels"


def choose_mags(layer: Image, source: WkwVolume, options: PyramidOptions) -> list[Mag]:
    """Choose the mags of a pyramid."""
    finest = source.box.mag
    if options.mags is not None:
        if options.coarsest is not None or options.sampling is not None or options.align_with is not True:
            raise ValueError("mags= lists the mags; coarsest=, sampling= and align_with= choose them: give one or the other")
        return listed_mags(options.mags, finest, "finest")
    box = layer.container.record.bounding_box if layer.container.record is not None else source.box.in_mag(Mag(1, 1, 1))
    voxel_size = layer.container.datasource.voxel_size_nm if layer.container.datasource is not None else None
    sampling = options.sampling or ("constant_z" if source.box.size[2] == 1 else "anisotropic")  # a single section stays one
    coarsest = options.coarsest if options.coarsest is not None else default_coarsest(box)
    return mag_ladder(finest, coarsest, voxel_size, sampling, aligned_mags(layer, options.align_with))


def choose_method(layer: Image, options: PyramidOptions) -> str:
    """Choose how a window becomes a voxel."""
    method = options.method
    if method == "default":
        if layer.container.record is None:
            raise ValueError(
                f"{layer.folder}: no datasource-properties.json says what kind of layer this is; give method= (median or mean for images, mode for labels)"
            )
        method = _METHOD_OF_CATEGORY[layer.container.record.category]
    return check_method(method, ignore_zero=options.ignore_zero)
