"""Provenance of coarser levels, and the tasks that compute their shards again to compare or rebuild
them."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.geometry.bounding_box import BoundingBox, part_of_array
from wkwdask.geometry.grid import cell_box, cell_range, cells, clipped_cell, is_inside
from wkwdask.geometry.mag import Mag, mag_order, vec3
from wkwdask.geometry.vectors import ceil_divide, divide, plus, times
from wkwdask.kernels.window.reduce import METHODS
from wkwdask.model.volume import read_voxels, relative_to, voxel_nbytes
from wkwdask.plans.pyramid import plan_offset_passes
from wkwdask.plans.regions import Tiling
from wkwdask.runs.job import Result, Task
from wkwdask.store.records import read_creation_settings
from wkwdask.streams.pyramid import PyramidStream
from wkwdask.verbs.compare import Differences, find_differences

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from wkwdask.array_types import AnyArray
    from wkwdask.formats.array_check import BrokenShard
    from wkwdask.formats.inspection import LayerScope, LevelScope
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.volume import Volume
    from wkwdask.plans.pyramid import Pass


@dataclass(frozen=True, slots=True)
class RecomputeSpec:
    """Task that computes a shard of a coarser mag and compares it with the stored one."""

    finer: Volume
    coarser: Volume
    plan: Pass
    """Pass of one level, whose regions are shards."""
    method: str
    ignore_zero: bool
    shard: Vec3
    origin: Vec3 = (0, 0, 0)
    """Absolute voxel at which the coordinates of both volumes start."""
    check: Any = None
    """Reader of broken shards: only their intact chunks are compared. None for an intact shard."""

    def task(self) -> Task:
        return Task(
            f"comparison of {self.coarser.files.shard_path(self.shard)} with mag "
            f"{self.finer.box.mag}",
            "recompute {} {},{},{}".format(self.coarser.name, *self.shard),
            RecomputeSpec.run,
            self,
        )

    def run(self) -> Result:
        """Compute the shard from the finer mag; the value of the result is the
        :class:`Differences`."""
        stream = PyramidStream(
            self.plan,
            self.method,
            self.finer.dtype,
            self.finer.num_channels,
            ignore_zero=self.ignore_zero,
        )
        differences = Differences()
        broken = None if self.check is None else self.check.open_damaged(self.shard)
        with contextlib.closing(stream):
            for source_brick in self.plan.bricks(self.shard):
                nonzero = self.finer.read_into(
                    stream.source_view(source_brick),
                    stream.source_box(source_brick).topleft,
                    fill_zeros=False,
                )
                for brick in stream.push(source_brick, nonzero == 0):
                    box = clipped_cell(
                        brick.index, self.plan.levels[0].brick_shape, self.coarser.box
                    )
                    if box.is_empty:  # incomplete windows that the level leaves out
                        continue
                    shape = (self.coarser.num_channels, *box.size)
                    computed = (
                        np.zeros(shape, self.coarser.dtype, order="F")
                        if brick.voxels is None
                        else np.asfortranarray(part_of_array(brick.voxels, box, brick.topleft))
                    )
                    if broken is not None:
                        differences += self._intact_differences(broken, computed, box)
                        continue
                    stored = read_voxels(self.coarser, box)
                    differences += find_differences(computed, stored, box)
        return Result((), value=differences)

    def _intact_differences(
        self, broken: BrokenShard, computed: AnyArray, box: BoundingBox
    ) -> Differences:
        """Compare the intact chunks of a broken shard."""
        differences = Differences()
        for index in cells(box, self.coarser.chunk_shape):
            whole = cell_box(index, self.coarser.chunk_shape, box)
            chunk = whole.intersection(box)
            expected = part_of_array(computed, chunk, box.topleft)
            for channel, stored in broken.intact_parts(index):
                inside = np.asfortranarray(part_of_array(stored, chunk, whole.topleft))
                differences += find_differences(
                    np.asfortranarray(expected[channel : channel + len(inside)]), inside, chunk
                )
        return differences


@dataclass(frozen=True, slots=True)
class Provenance:
    """Source and method of a coarser level."""

    finer: Any
    """Level that it was made from, a LevelScope."""
    method: str
    ignore_zero: bool
    is_known: bool
    """Whether the level's record or the user states the method. Otherwise it is the usual one of
    most software."""
    box: BoundingBox | None = None
    """Box of the finer level when the level was made [voxels of the finer level], None without a
    record."""

    @property
    def is_recorded(self) -> bool:
        """Whether the level's record states its provenance."""
        return self.box is not None

    @property
    def source(self) -> Any:
        """The finer level, with the box that its document states, or else with the recorded one."""
        volume = self.finer.array
        return (
            volume if self.finer.box is not None or self.box is None else volume.cropped(self.box)
        )


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """Plan by which shards of a coarser level are computed, in coordinates that start at the origin
    of its grid."""

    finer: Volume
    coarser: Volume
    plan: Pass
    """Pass of one level, whose regions are shards."""
    source_shards: dict[Vec3, list[Vec3]]
    """Shards of the finer level below each shard, lost ones included."""
    provenance: Provenance

    def sources(self, shard: Vec3) -> list[str]:
        """Return the files that a shard is made from."""
        return [
            path
            for source in self.source_shards.get(shard, ())
            for path in self.provenance.finer.paths_of(source)
        ]


def plan_rebuild(
    scope: LevelScope, provenance: Provenance, lost: Iterable[Vec3] = ()
) -> RebuildPlan:
    """Plan how shards of a level are computed; ``lost`` are missing shards of the finer level."""
    source, stored = provenance.source, scope.array
    origin = stored.origin
    coarser = relative_to(stored.cropped(computed_box(scope, source)), origin)
    nbytes_per_voxel = voxel_nbytes(coarser)
    tiling = Tiling(coarser.chunk_shape, coarser.shard_shape, nbytes_per_voxel)
    (plan,) = plan_offset_passes(
        source.box, [coarser.box.mag], [(0, 0, 0), origin], [tiling], 1, [coarser.shard_shape]
    )
    finer = source.moved(plan.source_shift)
    footprint = times(coarser.shard_shape, finer.box.mag.step_to(coarser.box.mag))
    source_shards = shards_by_coarser(
        [*provenance.finer.shards(), *lost],
        finer.shard_shape,
        plus(source.origin, plan.source_shift),
        footprint,
    )
    return RebuildPlan(finer, coarser, plan, source_shards, provenance)


def computed_box(scope: LevelScope, source: Volume) -> BoundingBox:
    """Return the voxels of a level that follow from a finer level. Other software leaves out
    incomplete windows, so a level may end before that one."""
    assert scope.mag is not None
    box = source.box.in_mag(scope.mag)
    return box if scope.box is None else box.intersection(scope.box)


def left_out_windows(scope: LevelScope, provenance: Provenance) -> BoundingBox | None:
    """Return the complete windows of a finer level [voxels of the level] unless the level contains
    all of them."""
    source, mag = provenance.source.box, scope.mag
    assert mag is not None
    step = source.mag.step_to(mag)
    low, high = ceil_divide(source.topleft, step), divide(source.bottomright, step)
    whole = BoundingBox.from_corners(
        low, vec3([max(pair) for pair in zip(low, high, strict=True)]), mag
    )
    return None if scope.box is None or scope.box.contains(whole) else whole


def find_provenance(layer: LayerScope, scope: LevelScope, method: str | None) -> Provenance | None:
    """Return the recorded provenance of a level; without a record, the next finer level and the
    user's or the usual method; None if neither is known."""
    finer = {other.mag: other for other in finer_levels(layer, scope)}
    if not finer or not scope.can_be_read:
        return None
    recorded = _read_provenance(scope, finer)
    if recorded is not None:
        return recorded
    nearest = max(finer.values(), key=lambda other: mag_order(other.mag))
    assumed = method or scope.method
    return (
        None
        if assumed is None
        else Provenance(nearest, assumed, ignore_zero=False, is_known=method is not None)
    )


def recorded_ladder(settings: Mapping[str, Any], finest: Mag | None = None) -> list[Mag]:
    """Return the mags of the pyramid to which a mag with these creation settings belongs, finest
    first; empty unless the settings are valid.

    ``finest`` is the source if the settings name it by its folder.
    """
    if settings.get("command") != "build_pyramid":
        return []
    try:
        return [
            finest or Mag.parse(settings["source"]),
            *map(Mag.parse, settings["mags"].split(",")),
        ]
    except (AttributeError, KeyError, TypeError, ValueError):
        return []


def _read_provenance(scope: LevelScope, finer: dict[Mag, Any]) -> Provenance | None:
    """Read the provenance from a level's record; return None without a valid one."""
    settings: Any = read_creation_settings(scope.folder, scope.mag)
    # "source" is a mag, or the folder of a level without a mag. "mags" is the ladder above it, in
    # which each mag is made from the previous one.
    named = next(
        (mag for mag, other in finer.items() if other.folder == settings.get("source")), None
    )
    ladder = recorded_ladder(settings, named)
    try:
        source = finer[ladder[ladder.index(scope.mag, 1) - 1]]  # type: ignore[arg-type]
        box = BoundingBox.parse(settings["box"])
        box = BoundingBox(box.topleft, box.size, ladder[0]).in_mag(source.mag)
        return (
            Provenance(
                source,
                str(settings["method"]),
                bool(settings["ignore_zero"]),
                is_known=True,
                box=box,
            )
            if settings["method"] in METHODS
            else None
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def finer_levels(layer: LayerScope, scope: LevelScope) -> list[Any]:
    """Return the readable levels of an image from which a level can have been made."""
    mag = scope.mag
    return [
        other
        for other in layer.mags
        if mag is not None
        and other.mag is not None
        and other.mag != mag
        and all(a <= b for a, b in zip(other.mag.factors, mag.factors, strict=True))
        and other.can_be_read
    ]


def recompute_specs(
    scope: LevelScope, provenance: Provenance, broken: set[str]
) -> Iterator[RecomputeSpec]:
    """Yield a task for each shard of a coarser level that exists or has source shards, except
    broken shards and those with broken sources."""
    rebuild = plan_rebuild(scope, provenance)
    coarser = rebuild.coarser
    ranges = cell_range(coarser.box, coarser.shard_shape)
    for shard in sorted({*scope.shards(), *rebuild.source_shards}, key=lambda shard: shard[::-1]):
        if is_inside(shard, ranges) and broken.isdisjoint(
            (*scope.paths_of(shard), *rebuild.sources(shard))
        ):
            yield RecomputeSpec(
                rebuild.finer,
                coarser,
                rebuild.plan,
                provenance.method,
                provenance.ignore_zero,
                shard,
                scope.array.origin,
            )


def shards_by_coarser(
    shards: Iterable[Sequence[int]], shape: Vec3, origin: Vec3, footprint: Vec3
) -> dict[Vec3, list[Vec3]]:
    """Map each shard of a coarser level to the finer shards inside its footprint, all counted from
    their origin."""
    source_shards: dict[Vec3, list[Vec3]] = {}
    for x, y, z in shards:
        axes = zip((x, y, z), shape, origin, footprint, strict=True)
        ranges = (
            range((n * edge + o) // cell, ((n + 1) * edge + o - 1) // cell + 1)
            for n, edge, o, cell in axes
        )
        for i, j, k in product(*ranges):
            source_shards.setdefault((i, j, k), []).append((x, y, z))
    return source_shards


def is_sampled(folder: str, shard: Vec3, share: float) -> bool:
    """Return whether a shard belongs to a random share of all shards, which is the same in each
    run."""
    if share >= 1:
        return True
    # The last two folder names and the shard decide, so that a copy of a dataset samples the same
    # shards.
    digest = hashlib.blake2b(
        f"{folder.rsplit('/', 2)[-2:]} {shard}".encode(), digest_size=4
    ).digest()
    return int.from_bytes(digest, "little") < share * 2**32
