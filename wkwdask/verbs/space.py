"""Space that the jobs of verbs need. It is measured only where the voxels, without any compression,
would not fit."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from wkwdask.geometry.grid import cells, clipped_cell
from wkwdask.geometry.mag import vec3
from wkwdask.model.volume import voxel_nbytes
from wkwdask.plans.cells import count_cells
from wkwdask.runs.space import Need, Size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wkwdask.array_types import AnyArray
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.model.writing.target_array import TargetArray
    from wkwdask.plans.cells import CellMap
    from wkwdask.plans.regions import RegionGrid
    from wkwdask.runs.space import RunTasks
    from wkwdask.runs.staged import StagedMags
    from wkwdask.verbs.region_job import RegionJob

    Encode = Callable[[int, Sequence[BoundingBox], RunTasks], tuple[int, int] | None]

_SAMPLED_BOXES = 6
_MOST_LISTED = 1000
_MOST_BRICKS = 1 << 22
_LARGEST_RATIO = 1.01  # what compression adds to noise
C = TypeVar("C", bound=Any)  # a computation that is a dataclass
SURE_SHARE = 0.5
"""Part of a sampled size that is very probably written: a job for which there is not even room for
that is refused."""


def need_of(
    staged: StagedMags,
    make_job: Callable[[], RegionJob],
    encode: Encode,
    sure_share: float = SURE_SHARE,
) -> Need:
    """Return the need of a job that makes mags region by region.

    ``encode`` encodes some boxes of a mag and returns the stored and the decoded bytes, None if it
    cannot; ``sure_share`` is 0 where samples say nothing.
    """

    def measure(run_tasks: RunTasks) -> Size:
        job = make_job()
        likely = least = num_files = 0.0
        for number, (target, plan, occupied, shards) in enumerate(job.levels()):
            share = int(occupied.sum()) / max(1, count_cells(plan.box, plan.region_shape))
            sample = encode(number, sampled_boxes(plan, occupied), run_tasks)
            stored, decoded = sample or (1, 1)
            nbytes = target.files.expected_nbytes(
                shards, int(voxel_nbytes(target, plan.box) * share), stored / max(1, decoded)
            )
            likely += nbytes
            least += nbytes * (
                sure_share if sample is not None else SURE_SHARE if is_raw(target) else 0
            )
            num_files += target.files.max_files(
                shards, math.ceil(count_cells(plan.box, target.chunk_shape) * share)
            )
        return Size(int(least), int(likely), int(num_files))

    return need_of_targets(staged, measure)


def by_brick(computation: C) -> C:
    """Return a computation whose regions are single bricks: they show more exactly where its voxels
    can be nonzero. That of a very large volume stays."""
    plan = computation.plan
    if count_cells(plan.box, plan.brick_shape) > _MOST_BRICKS:
        return computation
    return replace(computation, plan=replace(plan, region_shape=plan.brick_shape))


def need_of_targets(staged: StagedMags, measure: Callable[[RunTasks], Size]) -> Need:
    nbytes = num_files = 0
    for target in staged.targets:
        shards, chunks = (
            count_cells(target.box, target.shard_shape),
            count_cells(target.box, target.chunk_shape),
        )
        nbytes += target.files.expected_nbytes(
            shards, voxel_nbytes(target, target.box), _LARGEST_RATIO
        )
        num_files += target.files.max_files(shards, chunks)
    return Need(staged.parent, nbytes, num_files, measure, staged.held)


def sampled_boxes(plan: RegionGrid, occupied: CellMap) -> list[BoundingBox]:
    """Return a few boxes of whole bricks, spread over the regions with data."""
    regions = list(islice(plan.regions(occupied), _MOST_LISTED))
    regions = regions[:: -(-len(regions) // _SAMPLED_BOXES) or 1]
    boxes = []
    for region in regions:
        box, count = plan.region_box(region), -(-_SAMPLED_BOXES // len(regions))
        bricks = list(islice(cells(box, plan.brick_shape), _MOST_LISTED))
        chosen = {bricks[(2 * n + 1) * len(bricks) // (2 * count)] for n in range(count)}
        boxes += [clipped_cell(brick, plan.brick_shape, plan.box) for brick in chosen]
    return boxes


def is_raw(target: TargetArray) -> bool:
    """Return whether a mag stores voxels uncompressed: any compression makes much less of equal
    ones."""
    box = target.box
    corner = vec3([t // n * n for t, n in zip(box.topleft, target.chunk_shape, strict=True)])
    ones = target.encoder.clip_to_box(
        np.ones((target.num_channels, *target.chunk_shape), target.dtype, order="F"), corner
    )
    return not box.is_empty and 2 * target.encoder.encoded_nbytes(ones, corner) >= ones.nbytes


def encoded_like(
    targets: Sequence[TargetArray], read: Callable[[int, BoundingBox], AnyArray]
) -> Encode:
    """Return the sample of a job, from a function that reads or computes the voxels of a box of one
    of its mags."""

    def encode(number: int, boxes: Sequence[BoundingBox], _: RunTasks) -> tuple[int, int]:
        stored = decoded = 0
        for box in boxes:
            voxels = read(number, box).astype(targets[number].dtype, order="F", copy=False)
            decoded += voxels.nbytes
            stored += targets[number].encoder.encoded_nbytes(voxels, box.topleft)
        return stored, decoded

    return encode


def unknown(number: int, boxes: Sequence[BoundingBox], run_tasks: RunTasks) -> None:
    """Return no sample: the voxels are not known before the job runs."""
