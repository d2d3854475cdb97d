"""Planning of :func:`wkwdask.connected_components`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from wkwdask.formats.opening import SourceSelection, open_source
from wkwdask.geometry.bounding_box import counted_from
from wkwdask.geometry.mag import whole_number
from wkwdask.ids.components import Labelling, faces_job, label_job, number, tabulate
from wkwdask.ids.id_types import dtype_of_ids, layout_of_longer_ids, staged_for_ids
from wkwdask.kernels.labels.components import CONNECTIVITIES
from wkwdask.model.volume import read_voxels, relative_to
from wkwdask.model.writing.target_image import LevelSpec
from wkwdask.plans.apply import plan_components
from wkwdask.plans.regions import Tiling
from wkwdask.runs.drive import Outcome, Phase, Plan
from wkwdask.runs.staged import StagedMags, settings_of
from wkwdask.streams.converted import countable
from wkwdask.verbs.apply_job import ApplyJob
from wkwdask.verbs.sources import (
    SourceVolume,
    TargetRequest,
    box_setting,
    check_no_overlap,
    check_not_replaced,
    occupancy_digest,
    open_source_volume,
    source_token,
    stage_level,
    where_box,
)
from wkwdask.verbs.space import by_brick, encoded_like, need_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator, Sequence

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.target_image import NewLevels
    from wkwdask.runs.space import Need

_COMMAND = "components"
# of the size of the labels, which components at least have that join equal labels
_SURE_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class ComponentsOptions:
    """Options of a search for components."""

    threshold: float | tuple[float, float] | None = None
    """Least value of the foreground, or least and greatest; None joins equal labels."""
    connectivity: int = 26
    min_voxels: int = 0
    where: BoundingBox | Sequence[Sequence[int]] | None = None
    """Box to label [voxels of the mag]."""
    dtype: Any = None
    """Type of the ids; None chooses uint32, or uint64 if there are too many components."""


@dataclass(frozen=True, slots=True)
class ComponentsSearch(Plan):
    """Plan of a search for components."""

    source: Volume
    labelling: Labelling
    """Labelling in coordinates of the target."""
    staged: StagedMags
    lay_out_longer: Callable[[], NewLevels] | None
    """Returns the same level with ids of 64 bits; None if the user chose the type."""

    def need(self) -> Need:
        """Return the space of the components, estimated from labels that are joined where they are
        equal; those of a threshold are not known before."""
        labelling, source = self.labelling, self.labelling.source
        is_like_source = (
            labelling.limits is None
            and labelling.min_voxels <= 1
            and labelling.area.contains(source.box)
        )
        return need_of(
            self.staged,
            lambda: ApplyJob(by_brick(labelling), self.staged.targets[0]),
            encoded_like(self.staged.targets, lambda _, box: read_voxels(source, box)),
            _SURE_SHARE if is_like_source else 0,
        )

    def phases(self) -> Generator[Phase, str, Outcome]:
        """Label bricks, pair labels across faces, number the components, and write them."""
        labelling = self.labelling
        yield Phase(label_job(labelling), f"labelling {labelling.source.name}")
        tabulate(labelling)
        yield Phase(faces_job(labelling), f"joining labels of {labelling.source.name}")
        numbering = number(labelling)
        staged = staged_for_ids(
            self.staged, self.lay_out_longer, numbering.num_components, "components"
        )
        job = ApplyJob(labelling, staged.targets[0])
        note = yield Phase(job, f"components into {staged.folders[0]}", staged=staged)
        return Outcome(job.tallies, "; ".join(filter(None, (str(numbering), note))))

    def check_unchanged(self) -> None:
        check_not_replaced(self.source)


def open_labels(url: str | os.PathLike[str], layer: str | None, mag: Mag | None) -> SourceVolume:
    """Open a mag, a layer (its finest mag), or a dataset with the name of a layer."""
    if layer is None and mag is None:
        opened = open_source_volume(url)
    else:
        image, volume = open_source(url, SourceSelection(layer, mag, "mag"))
        opened = SourceVolume(volume, image.voxel_size_nm)
    if opened.volume.num_channels != 1:
        raise ValueError(
            f"{opened.volume.name}: has {opened.volume.num_channels} channels, expected one"
        )
    return opened


def lay_out_components(
    opened: SourceVolume,
    request: TargetRequest,
    options: ComponentsOptions,
    existing: str,
    workers: int,
) -> ComponentsSearch:
    """Plan connected components, or resume the interrupted job of the same settings."""
    if options.connectivity not in CONNECTIVITIES:
        raise ValueError(f"connectivity must be 6, 18 or 26, got {options.connectivity!r}")
    whole_number(options.min_voxels, "min_voxels", 0)
    source = countable(opened.volume)
    limits = _limits(options.threshold, source)
    destination = request.target_image_of_same_mag(opened)
    box = source.box
    area = where_box(source.name, options.where, box) or box
    spec = LevelSpec(box, dtype_of_ids(options.dtype), 1)
    levels = check_no_overlap(
        destination.new_levels([spec], request.stored, opened.volume, existing), source
    )
    longer = layout_of_longer_ids(
        destination, spec, request.stored, opened.volume, is_chosen=options.dtype is not None
    )
    settings = settings_of(
        _COMMAND,
        source=source.name,
        box=box_setting(box),
        where=box_setting(area),
        limits=None if limits is None else str(limits),
        connectivity=options.connectivity,
        min_voxels=options.min_voxels,
        ids="auto" if options.dtype is None else spec.dtype.name,
        input=source_token(source),
    )
    draft, target = stage_level(levels, _COMMAND, settings, existing)
    framed = relative_to(source, target.origin)
    plan = plan_components(
        framed.box,
        Tiling(target.chunk_shape, target.shard_shape, source.dtype.itemsize),
        workers,
        draft.shape(),
    )
    record = {
        "region": plan.region_shape,
        "presence": occupancy_digest(framed, [plan.region_shape]),
    }
    labelling = Labelling(
        framed,
        plan,
        counted_from(area, target.origin),
        limits,
        options.connectivity,
        options.min_voxels,
        target.scratch_folder,
    )
    staged = draft.mags([target], LevelSpec.like(source).nbytes, levels.edit, record)
    return ComponentsSearch(source, labelling, staged, longer)


def _limits(
    threshold: float | tuple[float, float] | None, source: Volume
) -> tuple[Any, Any] | None:
    """Return the least and the greatest value of the foreground, rounded inward for integer
    voxels."""
    if threshold is None:
        if source.dtype.kind not in "iu":
            raise TypeError(
                f"{source.name}: holds {source.dtype.name}; only equal integers can be joined: set "
                "threshold="
            )
        return None
    limits = tuple(threshold) if isinstance(threshold, (tuple, list)) else (threshold, math.inf)
    if (
        len(limits) != 2
        or not all(isinstance(value, Real) for value in limits)
        or not limits[0] <= limits[1]
    ):
        raise ValueError(
            f"threshold must be a number or two, the lower one first, got {threshold!r}"
        )
    # as a float, a large integer would be rounded
    low, high = (int(value) if isinstance(value, Integral) else float(value) for value in limits)
    if source.dtype.kind in "iu":
        low, high = (
            value if math.isinf(value) else rounded(value)
            for value, rounded in ((low, math.ceil), (high, math.floor))
        )
    return low, high
