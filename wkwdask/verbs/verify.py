"""The jobs that check stored files and compare coarser mags with finer ones, and what they find."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from wkwdask.geometry.grid import cell_box, cells
from wkwdask.model.faults import ERROR, SEVERITIES, UNCHECKED, WARNING, Fault
from wkwdask.runs.drive import Phase, Work
from wkwdask.runs.job import Result, Task
from wkwdask.runs.report import counted, format_nbytes
from wkwdask.streams.pyramid import PyramidStream
from wkwdask.verbs.compare import Differences, find_differences

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    import numpy.typing as npt

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.volume import Volume
    from wkwdask.plans.pyramid import Pass
    from wkwdask.runs.job import FlatJob

_SHOWN = 50


class Broken(Protocol):
    """A broken shard of which some chunks can be read."""

    def read(self, block: Vec3) -> npt.NDArray[Any] | None:
        """Read a chunk, shape (c, x, y, z), by its index in the mag; None where it is broken."""


class Check(Protocol):
    """How shards of one mag are checked; picklable."""

    @property
    def folder(self) -> str:
        """The mag."""

    def check_shards(self, shards: Sequence[Vec3], nbytes: Sequence[int]) -> Any:
        """Check several shards, with the size that each should have or 0; what is found can be added."""

    def open_broken(self, shard: Vec3) -> Broken:
        """Open a shard of which some chunks are broken."""


@dataclass(frozen=True, slots=True)
class CheckSpec:
    """Check a group of files."""

    check: Check
    """How."""
    shards: tuple[Vec3, ...]
    """Which."""
    nbytes: tuple[int, ...]
    """The size that each had when it was written, 0 where nobody knows."""

    def task(self) -> Task:
        """Give the task."""
        return Task(
            f"check of {len(self.shards)} files of {self.check.folder} from {self.shards[0]} on",
            "check {} {},{},{}".format(self.check.folder, *self.shards[0]),
            CheckSpec.run,
            self,
        )

    def run(self) -> Result:
        """Read the files; the value of the result is what was found."""
        return Result((), value=self.check.check_shards(self.shards, self.nbytes))


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
    """Which shard."""
    check: Check | None = None
    """How a broken one is read: chunks of it that cannot be are passed over."""

    def task(self) -> Task:
        """Give the task."""
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
        broken = None if self.check is None else self.check.open_broken(self.shard)
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

    def _sound_differences(self, broken: Broken, made: npt.NDArray[Any], box: BoundingBox) -> Differences:
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
class MagFindings:
    """What was found of one mag."""

    layer: str
    """Name of its layer."""
    mag: str
    """The mag."""
    folder: str
    """Its folder."""
    files: int
    """Data files."""
    nbytes: int
    """Their bytes."""
    blocks: int
    """Blocks that were decoded."""
    largest: int | None
    """Largest value of a segmentation, None where it was not looked for."""
    compared: int = 0
    """Files that were compared with the finer mag."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a check found."""

    path: str
    """What was checked."""
    decoded: bool
    """Whether all blocks were decoded."""
    mags: tuple[MagFindings, ...]
    """The mags, layer by layer, finest first."""
    faults: tuple[Fault, ...]
    """All that is wrong: errors first."""
    seconds: float
    """Wall time."""

    @property
    def is_sound(self) -> bool:
        """Whether something was checked and has no error; it may have warnings and notes."""
        return not self.count(ERROR) and (bool(self.mags) or not self.unchecked)

    @property
    def unchecked(self) -> tuple[str, ...]:
        """Layers and mags that were not checked."""
        return tuple(fault.path for fault in self.faults if fault.kind in UNCHECKED)

    @property
    def files(self) -> int:
        """Data files that were checked."""
        return sum(mag.files for mag in self.mags)

    @property
    def nbytes(self) -> int:
        """Their bytes."""
        return sum(mag.nbytes for mag in self.mags)

    def count(self, severity: str) -> int:
        """Count the faults of a severity, those that are not listed one by one too."""
        return sum(1 + fault.more for fault in self.faults if fault.severity == severity)

    def kinds(self) -> Counter[str]:
        """Count the faults of each kind."""
        counts: Counter[str] = Counter()
        for fault in self.faults:
            counts[fault.kind] += 1 + fault.more
        return counts

    @property
    def verdict(self) -> str:
        """All of it in one line."""
        blocks = sum(mag.blocks for mag in self.mags)
        if not self.decoded:
            how = "headers, tables, names and JSON; no block was decoded"
        elif not self.count(ERROR) and not self.unchecked and blocks:
            how = "every block was decoded"
        else:
            how = f"{blocks:,} blocks were decoded"
        if self.unchecked:
            how += f"; not checked: {', '.join(self.unchecked)}"
        counts = ", ".join(counted(self.count(severity), severity) for severity in SEVERITIES)
        state = "sound" if self.is_sound else "NOT SOUND" if self.count(ERROR) else "NOT CHECKED"
        return f"{state}: {counts}; {counted(self.files, 'file')}, {format_nbytes(self.nbytes)}, {self.seconds:.1f} s ({how})"

    def __str__(self) -> str:
        lines = [str(fault) for fault in self.faults[:_SHOWN]]
        if len(self.faults) > _SHOWN:
            lines.append(f"... and {len(self.faults) - _SHOWN} more")
        return "\n".join([*lines, self.verdict])

    def to_json(self) -> dict[str, Any]:
        """Give plain values for ``json.dumps``."""
        return {
            "path": self.path, "sound": self.is_sound, "errors": self.count(ERROR), "warnings": self.count(WARNING), "decoded": self.decoded,
            "seconds": round(self.seconds, 3),
            "mags": [{name: getattr(mag, name) for name in MagFindings.__slots__} for mag in self.mags],
            "faults": [fault.to_json() for fault in self.faults],
        }  # fmt: skip


class Verification(Work["VerifyReport"]):
    """A check of stored files, and of coarser mags by finer ones."""

    path: str
    """What is checked."""

    @abstractmethod
    def file_job(self) -> FlatJob:
        """Make the job that reads the files."""

    @abstractmethod
    def pyramid_job(self) -> FlatJob:
        """Make the job that compares coarser mags with finer ones; to be made when the files have been read."""

    @abstractmethod
    def report(self) -> VerifyReport:
        """Say what was found."""

    def phases(self) -> Generator[Phase, str, VerifyReport]:
        """Read all files, then compare mags."""
        yield Phase(self.file_job(), f"checking {self.path}")
        yield Phase(self.pyramid_job(), f"comparing mags of {self.path}")
        return self.report()


def sorted_faults(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    """Bring faults into an order: errors first, then by place."""
    return tuple(sorted(faults, key=lambda fault: (SEVERITIES.index(fault.severity), fault.path, fault.block or 0, fault.offset or 0, fault.kind)))


def outside_fault(json_path: str, layer: str, box: BoundingBox, outside: BoundingBox) -> Fault:
    """Say that voxels lie outside a layer's box."""
    return Fault("json.box_smaller", json_path, f"layer {layer}: box {box}", f"voxels that are not zero in {outside} too")
