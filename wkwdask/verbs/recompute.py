"""How coarser levels were made of finer ones, as far as anything says so, and the tasks that make their shards once more to compare them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.grid import cell_box, cell_range, cells
from wkwdask.geometry.mag import Mag
from wkwdask.kernels.window.reduce import METHODS
from wkwdask.model.volume import in_frame
from wkwdask.plans.pyramid import plan_offset_passes
from wkwdask.plans.regions import Tiling
from wkwdask.runs.job import Result, Task
from wkwdask.store.records import read_creation_settings
from wkwdask.streams.pyramid import PyramidStream
from wkwdask.verbs.compare import Differences, find_differences

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.formats.inspection import LayerScope, LevelScope
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.volume import Volume
    from wkwdask.plans.pyramid import Pass


class BrokenShard(Protocol):
    """A broken shard of which some chunks can be read."""

    def read(self, block: Vec3) -> npt.NDArray[Any] | None:
        """Read a chunk, shape (c, x, y, z), by its index in the mag; None where it is broken."""


@dataclass(frozen=True, slots=True)
class RecomputeSpec:
    """Compute a shard of a coarser mag anew and compare it with what is stored."""

    finer: Volume
    """What it is made from."""
    coarser: Volume
    """What is stored."""
    plan: Pass
    """One level, whose regions are shards."""
    method: str
    """How a window becomes a voxel."""
    ignore_zero: bool
    """Whether zeros do not count in a window."""
    shard: Vec3
    origin: Vec3 = (0, 0, 0)
    """Absolute voxel at which the coordinates of both start."""
    check: Any = None
    """How a broken one is read: chunks of it that cannot be are passed over."""

    def task(self) -> Task:
        return Task(
            f"comparison of {self.coarser.shard_path(self.shard)} with mag {self.finer.box.mag}",
            "recompute {} {},{},{}".format(self.coarser.name, *self.shard),
            RecomputeSpec.run,
            self,
        )

    def run(self) -> Result:
        """Stream the finer mag; the value of the result is what differs."""
        stream = PyramidStream(self.plan, self.method, self.finer.dtype, self.finer.num_channels, ignore_zero=self.ignore_zero)
        found = Differences()
        broken = None if self.check is None else self.check.open_damaged(self.shard)
        try:
            for brick in self.plan.bricks(self.shard):
                nonzero = self.finer.read_into(stream.source_view(brick), stream.source_box(brick).topleft, fill_zeros=False)
                for done in stream.push(brick, nonzero == 0):
                    box = cell_box(done.index, self.plan.levels[0].brick_shape, self.coarser.box).intersection(self.coarser.box)
                    stored = np.empty((self.coarser.num_channels, *box.size), self.coarser.dtype, order="F")
                    made = np.zeros_like(stored) if done.voxels is None else np.asfortranarray(done.voxels)
                    if broken is not None:
                        found += self._sound_differences(broken, made, box)
                        continue
                    self.coarser.read_into(stored, box.topleft)
                    found += find_differences(made, stored, box)
        finally:
            stream.close()
        return Result((), value=found)

    def _sound_differences(self, broken: BrokenShard, made: npt.NDArray[Any], box: BoundingBox) -> Differences:
        """Compare the chunks that can be read."""
        found = Differences()
        for index in cells(box, self.coarser.chunk_shape):
            whole = cell_box(index, self.coarser.chunk_shape, box)
            chunk, stored = whole.intersection(box), broken.read(index)
            if stored is not None:
                there = np.asfortranarray(stored[_place(chunk, whole)])
                found += find_differences(np.asfortranarray(made[_place(chunk, box)]), there, chunk)
        return found


def _place(part: BoundingBox, whole: BoundingBox) -> tuple[slice, ...]:
    """Give the place of a box in the array of another one."""
    return (slice(None), *(slice(a - b, a - b + n) for a, b, n in zip(part.topleft, whole.topleft, part.size, strict=True)))


@dataclass(frozen=True, slots=True)
class Provenance:
    """How a coarser level was made, as far as anything says so."""

    finer: Any
    """From which level, a LevelScope."""
    method: str
    """How a window becomes a voxel."""
    ignore_zero: bool
    """Whether zeros do not count."""
    is_known: bool
    """Whether the level's provenance or the user says so; else it is what most software does."""
    box: BoundingBox | None = None
    """Where the finer level had data then [voxels of the finer level], None where nothing says so."""

    @property
    def is_noted(self) -> bool:
        """Whether the level's provenance says so."""
        return self.box is not None

    @property
    def source(self) -> Any:
        """The finer level: with the box that a document says, else with the one that it had then."""
        volume = self.finer.volume()
        return volume if self.finer.box is not None or self.box is None else volume.cropped(self.box)


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """How shards of a coarser level are made, in coordinates that start where its grid does."""

    finer: Volume
    """What they are made from."""
    coarser: Volume
    """What is stored."""
    plan: Pass
    """One level, whose regions are shards."""
    below: dict[Vec3, list[Vec3]]
    """The shards that each shard is made from, those that are gone too."""
    made: Provenance
    """How."""

    def sources(self, shard: Vec3) -> list[str]:
        """Name the files that a shard is made from."""
        return [path for source in self.below.get(shard, ()) for path in self.made.finer.paths_of(source)]


def plan_rebuild(scope: LevelScope, made: Provenance, lost: Iterable[Vec3] = ()) -> RebuildPlan:
    """Plan how shards of a level are made; ``lost`` are shards of the finer one that should be there."""
    source = made.source
    box = source.box.in_mag(scope.mag)
    stored = scope.volume()
    origin = stored.origin
    coarser = in_frame(stored.cropped(box), origin)
    voxel_nbytes = coarser.dtype.itemsize * coarser.num_channels
    tiling = Tiling(coarser.chunk_shape, coarser.shard_shape, voxel_nbytes)
    (plan,) = plan_offset_passes(source.box, [coarser.box.mag], [(0, 0, 0), origin], [tiling], 1, [coarser.shard_shape])
    finer = source.moved(plan.source_shift)
    factor = finer.box.mag.step_to(coarser.box.mag)
    footprint = (coarser.shard_shape[0] * factor[0], coarser.shard_shape[1] * factor[1], coarser.shard_shape[2] * factor[2])
    first = source.origin
    corner = (first[0] + plan.source_shift[0], first[1] + plan.source_shift[1], first[2] + plan.source_shift[2])
    below = shards_by_coarser([*made.finer.shards(), *lost], finer.shard_shape, corner, footprint)
    return RebuildPlan(finer, coarser, plan, below, made)


def find_provenance(layer: LayerScope, scope: LevelScope, method: str | None) -> Provenance | None:
    """Tell from which level and how a level was made: as its provenance says, else from the next finer one as most software does."""
    finer = {other.mag: other for other in finer_levels(layer, scope)}
    if not finer or not scope.can_be_read:
        return None
    noted = _noted(scope, finer)
    if noted is not None:
        return noted
    nearest = max(finer.values(), key=lambda other: (other.mag.maximum, other.mag.factors))
    chosen = method or scope.method
    return None if chosen is None else Provenance(nearest, chosen, ignore_zero=False, is_known=method is not None)


def _noted(scope: LevelScope, finer: dict[Mag, Any]) -> Provenance | None:
    """Read from a level's provenance how it was made; None where it has none, or one that makes no sense."""
    settings: Any = read_creation_settings(scope.folder)
    try:
        if settings["command"] != "build_pyramid":
            return None
        named = next((mag for mag, other in finer.items() if other.folder == settings["source"]), None)
        finest = Mag.parse(settings["source"]) if named is None else named
        ladder = [finest, *(Mag.parse(name) for name in settings["mags"].split(","))]
        origin = finer[ladder[ladder.index(scope.mag, 1) - 1]]  # type: ignore[arg-type]
        box = BoundingBox.parse(settings["box"])
        box = BoundingBox(box.topleft, box.size, ladder[0]).in_mag(origin.mag)
        return Provenance(origin, str(settings["method"]), bool(settings["ignore_zero"]), is_known=True, box=box) if settings["method"] in METHODS else None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def finer_levels(layer: LayerScope, scope: LevelScope) -> list[Any]:
    """List the levels of an image that have files and from which a level can have been made."""
    mag = scope.mag
    levels = [other for other in layer.mags if other.mag is not None and other.mag != mag and other.can_be_read]
    return [] if mag is None else [other for other in levels if all(a <= b for a, b in zip(other.mag.factors, mag.factors, strict=True))]


def recompute_specs(scope: LevelScope, made: Provenance, broken: set[str]) -> Iterator[RecomputeSpec]:
    """Give a task for each shard of a coarser level that is there, or should be since a finer one is; not for broken ones, or those made from such."""
    found = plan_rebuild(scope, made)
    coarser = found.coarser
    touched = cell_range(coarser.box, coarser.shard_shape)
    for shard in sorted({*scope.shards(), *found.below}, key=lambda shard: shard[::-1]):
        if all(n in r for n, r in zip(shard, touched, strict=True)) and broken.isdisjoint((*scope.paths_of(shard), *found.sources(shard))):
            yield RecomputeSpec(found.finer, coarser, found.plan, made.method, made.ignore_zero, shard, scope.volume().origin)


def shards_by_coarser(shards: Iterable[Sequence[int]], shape: Vec3, origin: Vec3, footprint: Vec3) -> dict[Vec3, list[Vec3]]:
    """List the shards of a level, counted from their origin, that each shard of a coarser one is made from."""
    below: dict[Vec3, list[Vec3]] = {}
    for x, y, z in shards:
        axes = zip((x, y, z), shape, origin, footprint, strict=True)
        ranges = (range((n * edge + o) // cell, ((n + 1) * edge + o - 1) // cell + 1) for n, edge, o, cell in axes)
        for i, j, k in product(*ranges):
            below.setdefault((i, j, k), []).append((x, y, z))
    return below


def is_sampled(folder: str, shard: Vec3, share: float) -> bool:
    """Choose a share of the files, the same ones in each run."""
    if share >= 1:
        return True
    digest = hashlib.blake2b(f"{folder.rsplit('/', 2)[-2:]} {shard}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") < share * 2**32
