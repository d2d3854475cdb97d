"""Staging connected components: from what a user asks for to source, target and plan."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import BoundsError
from wkwdask.formats.pictures.foreign import open_any
from wkwdask.formats.wkw.header import format_header, make_header
from wkwdask.formats.wkw.options import WkwOptions
from wkwdask.formats.wkw.volume import HEADER_NAME
from wkwdask.ids.components import Components, Labelling, faces_job, label_job, number, tabulate
from wkwdask.kernels.labels.components import CONNECTIVITIES
from wkwdask.model.volume import StoredVolume
from wkwdask.plans.components import plan_components
from wkwdask.plans.regions import Tiling
from wkwdask.runs.drive import Outcome, Phase, Plan
from wkwdask.runs.stage import stage
from wkwdask.runs.staged import StagedMags, settings_of
from wkwdask.store import files
from wkwdask.store.new_files import publish_bytes
from wkwdask.store.paths import is_remote
from wkwdask.verbs.apply import ApplyJob
from wkwdask.verbs.wkw.apply import header_of_result
from wkwdask.verbs.wkw.mags import box_setting, check_not_replaced, open_source, presence, source_token
from wkwdask.verbs.wkw.places import Place, edit_for, place_of
from wkwdask.verbs.wkw.write import staged_target, stored_settings

if TYPE_CHECKING:
    import os
    from collections.abc import Generator

    from wkwdask.formats.wkw.target import WkwTarget
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.volume import Volume

_COMMAND = "components"
_MOST_OF_32_BITS = 2**32 - 1


@dataclass(frozen=True, slots=True)
class ComponentsOptions:
    """What is labelled, and how the result is stored."""

    threshold: float | tuple[float, float] | None = None
    """Least value of the voxels that count, or least and greatest; None where equal labels are joined."""
    connectivity: int = 26
    """Neighbours of a voxel."""
    min_voxels: int = 0
    """Components of fewer voxels are left out."""
    where: BoundingBox | None = None
    """What is labelled [voxels of mag 1]."""
    dtype: Any = None
    """Type of the ids; None for the smallest of uint32 and uint64."""
    stored: WkwOptions = field(default_factory=WkwOptions)
    """How the result is stored."""
    allow_external: bool = False
    """Whether links of the target may lead out of its dataset."""


@dataclass(frozen=True, slots=True)
class ComponentsSearch(Plan):
    """Components that can be found."""

    labelling: Labelling
    """What is labelled."""
    staged: StagedMags
    """How the target appears."""
    place: Place
    """Where."""
    chooses_dtype: bool
    """Whether ids become longer where there are too many."""

    def job(self) -> ApplyJob:
        """Make the job that writes, when all is numbered."""
        (target,) = self.staged.targets
        return ApplyJob(Components(self.labelling), target)

    def phases(self) -> Generator[Phase, str, Outcome]:
        """Label bricks, pair labels across their faces, number the components, and write them."""
        labelling = self.labelling
        yield Phase(label_job(labelling), f"labelling {labelling.source.name}")
        tabulate(labelling)
        yield Phase(faces_job(labelling), f"joining labels of {labelling.source.name}")
        numbering = number(labelling)
        numbered = self.numbered(numbering.num_components)
        job = numbered.job()
        note = yield Phase(job, f"components into {self.staged.folders[0]}", staged=numbered.staged)
        return Outcome(job.tallies, "; ".join(filter(None, (str(numbering), note))))

    def check_unchanged(self) -> None:
        """Make sure that the source is still the one that was read, as far as that can be told."""
        if isinstance(self.labelling.source, StoredVolume):
            check_not_replaced(self.labelling.source)

    def numbered(self, num_components: int) -> ComponentsSearch:
        """Choose the type of the ids, now that their number is known, and let the JSON tell it."""
        target: Any = self.staged.targets[0]
        if num_components > np.iinfo(target.dtype).max or (self.chooses_dtype and num_components > _MOST_OF_32_BITS):
            if not self.chooses_dtype:
                raise ValueError(f"{self.place.folder}: {num_components} components are too many for {target.dtype.name}; give another dtype=")
            target = _with_longer_ids(target)
        edit = edit_for(self.place, target.header, target.box, "segmentation")
        return replace(self, staged=replace(self.staged, targets=(target,), edit=edit))


def _with_longer_ids(target: WkwTarget) -> WkwTarget:
    """Change the type of a target before anything is written to it."""
    before = target.header
    header = make_header(
        np.dtype(np.uint64), before.num_channels, block_len=before.block_len, file_len=before.file_len, block_type=before.block_type, any_length=True
    )
    publish_bytes(f"{target.folder}/{HEADER_NAME}", format_header(header))
    return replace(target, header=header)


def open_labels(url: str | os.PathLike[str], layer: str | None, mag: Mag | None) -> Volume:
    """Open what is read: a mag, a layer (its finest mag), a dataset together with the name of a layer, or what other formats hold."""
    volume: Volume = open_any(url) if layer is None and mag is None else open_source(url, layer, mag, "mag")[1]
    if volume.num_channels != 1:
        raise ValueError(f"{volume.name}: has {volume.num_channels} channels, expected one")
    return volume


def place_like(target: str | os.PathLike[str], source: Volume, *, allow_external: bool) -> Place:
    """Find out where a mag goes that is made of another one, voxel by voxel."""
    place = place_of(target, allow_external=allow_external)
    if isinstance(source, StoredVolume) and not is_remote(source.name):
        folder, outer = files.realpath(place.folder), files.realpath(source.name)
        if folder == outer:
            raise ValueError(f"{place.folder}: is the source; name another place")
        if folder.startswith(f"{outer}/"):
            raise ValueError(f"{place.folder}: lies inside the source {source.name}; name another place")
    if place.mag != source.box.mag:
        raise ValueError(f"{place.folder}: is mag {place.mag}, but {source.name} is mag {source.box.mag}; name it {source.box.mag.name}")
    return place


def lay_out_components(source: Volume, target: str | os.PathLike[str], options: ComponentsOptions, existing: str, workers: int) -> ComponentsSearch:
    """Check and lay out the making of components, or find the interrupted job that is to go on."""
    if options.connectivity not in CONNECTIVITIES:
        raise ValueError(f"connectivity must be 6, 18 or 26, got {options.connectivity}")
    if options.min_voxels < 0:
        raise ValueError(f"min_voxels must not be negative, got {options.min_voxels}")
    limits = _limits(options.threshold, source)
    place = place_like(target, source, allow_external=options.allow_external)
    box = source.box
    area = box if options.where is None else options.where.in_mag(box.mag).intersection(box)
    if area.is_empty and options.where is not None:
        raise BoundsError(f"{source.name}: where={options.where} holds nothing of it, its box is {box}")
    dtype = np.dtype(np.uint32 if options.dtype is None else options.dtype)
    if dtype.kind not in "iu":
        raise TypeError(f"ids are integers, got dtype {dtype.name}")
    header = header_of_result(source, options.stored, box, dtype)
    settings = settings_of(
        _COMMAND, source=source.name, box=box_setting(box), where=box_setting(area), limits=None if limits is None else str(limits),
        connectivity=options.connectivity, min_voxels=options.min_voxels, dtype="auto" if options.dtype is None else dtype.name,
        **stored_settings(header, options.stored.chosen_level), input=source_token(source),
    )  # fmt: skip
    draft = stage(f"{_COMMAND} into {place.folder}", place.layer.folder, [place.folder], settings, existing)
    plan = plan_components(box, Tiling((header.block_len,) * 3, (header.file_len_vx,) * 3, source.dtype.itemsize), workers, draft.shape())
    record = {"region": plan.region_shape, "presence": presence(source, [plan.region_shape])}
    made = staged_target(draft, header, options.stored.chosen_level, box)
    labelling = Labelling(source, plan, area, limits, options.connectivity, options.min_voxels, made.scratch_folder)
    edit = edit_for(place, header, box, "segmentation")
    staged = draft.mags([made], box.volume * source.dtype.itemsize, edit, record)
    return ComponentsSearch(labelling, staged, place, options.dtype is None)


def _limits(threshold: float | tuple[float, float] | None, source: Volume) -> tuple[Any, Any] | None:
    """Turn what a user asks for into the least and the greatest value that counts; whole numbers where values are."""
    if threshold is None:
        if source.dtype.kind not in "iu":
            raise TypeError(f"{source.name}: holds {source.dtype.name}; equal labels are joined only of integers, give threshold=")
        return None
    given = tuple(threshold) if isinstance(threshold, (tuple, list)) else (threshold, math.inf)
    if len(given) != 2 or not all(isinstance(value, Real) for value in given) or not given[0] <= given[1]:
        raise ValueError(f"threshold must be a number or two, the lower one first, got {threshold!r}")
    low, high = (int(value) if isinstance(value, Integral) else float(value) for value in given)  # NumPy rounds its own integers as floats
    if source.dtype.kind in "iu":
        low, high = (value if math.isinf(value) else rounded(value) for value, rounded in ((low, math.ceil), (high, math.floor)))
    return low, high
