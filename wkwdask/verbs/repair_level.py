"""Doing what was planned for the files of one level."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from wkwdask.errors import LockedError
from wkwdask.formats.leftovers import quarantine
from wkwdask.runs.drive import Phase
from wkwdask.runs.job import FlatJob, Result, Task
from wkwdask.store import files
from wkwdask.store.new_files import publish_bytes
from wkwdask.store.records import patch_file_record, recorded_states
from wkwdask.verbs.pyramid import RegionSpec

if TYPE_CHECKING:
    from collections.abc import Generator

    from wkwdask.formats.inspection import LevelScope
    from wkwdask.formats.repair import LevelRepair
    from wkwdask.geometry.mag import Vec3


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """Find out what can be saved of a broken shard; changes nothing."""

    repairer: LevelRepair
    """How its level is mended."""
    shard: Vec3
    path: str
    """Its file."""
    kinds: frozenset[str]
    """What is wrong with it."""

    def task(self) -> Task:
        return Task(f"probe of {self.path}", f"probe {self.path}", ProbeSpec.run, self)

    def run(self) -> Result:
        """Decode all chunks; the value is what it is to say of itself or None, and how many chunks are sound."""
        return Result((), value=self.repairer.probe(self.shard, self.kinds))


@dataclass(frozen=True, slots=True)
class MendSpec:
    """Write a shard anew from its chunks that can be decoded."""

    repairer: Any
    """How its level is mended, a LevelRepair."""
    shard: Vec3
    path: str
    """Its file."""
    head: Any
    """What it is to say of itself, None where that stays."""
    why: str
    """What is wrong with it."""
    salvage: bool
    """Whether broken chunks are replaced."""
    remake: RegionSpec | None = None
    """Makes the shard anew elsewhere, which gives the broken chunks; else they become zeros."""

    def task(self) -> Task:
        return Task(f"mending of {self.path}", f"mend {self.path}", MendSpec.run, self)

    def run(self) -> Result:
        """Do it, and check the new file; the value is its index, size and time."""
        spare = None
        if self.remake is not None:
            self.remake.run()
            spare = self.remake.targets[0].folder
        return Result((), value=(self.shard, self.repairer.mend(self.shard, self.head, self.why, spare, salvage=self.salvage)))


@dataclass
class LevelPlan:
    """What is to be done with the files of one level."""

    scope: LevelScope
    """The level."""
    document: bytes | None = None
    """What its document is to say, None where it stays."""
    specs: list[RegionSpec | MendSpec] = field(default_factory=list)
    """Files that are mended or rebuilt."""
    aside: list[tuple[str, Vec3 | None, str]] = field(default_factory=list)
    """What is set aside first: path, shard, why."""
    copied_aside: list[tuple[str, str]] = field(default_factory=list)
    """What is set aside and stays in its place until it is replaced: path, why."""
    kinds: dict[Vec3, set[str]] = field(default_factory=dict)
    """What is wrong with the files that are dealt with."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return self.document is None and not self.specs and not self.aside


def check_unchanged(plan: LevelPlan) -> None:
    """Make sure, now that nobody else can write the level, that it is still as it was when it was checked."""
    is_same = plan.scope.is_as_checked(is_document_good=plan.document is None)
    if not (is_same and all(_is_still(plan.scope, shard, kinds) for shard, kinds in plan.kinds.items())):
        raise LockedError(f"{plan.scope.folder}: was changed since it was checked; start again")


def _is_still(scope: LevelScope, shard: Vec3, kinds: set[str]) -> bool:
    """Tell whether what was wrong with a shard is so still; one that only differs from a finer level is made anew from what that is now."""
    check = scope.check(decode=True)
    if check is None or kinds == {"pyramid.differs"}:
        return True
    there = scope.files_of(shard)
    return ("file.lost" in kinds and len(there) < len(scope.paths_of(shard))) or not kinds.isdisjoint(fault.kind for fault in check.check_files(there).faults)


def _with_scratch(plan: LevelPlan, spec: RegionSpec | MendSpec, scratch: str) -> RegionSpec | MendSpec:
    """Let a file that is made anew be written in the job's folder first; one that only gives chunks stays there."""

    def written_to(remake: RegionSpec, folder: str | None) -> RegionSpec:
        return replace(remake, targets=tuple(plan.scope.target(target.box, scratch, folder) for target in remake.targets))

    if isinstance(spec, RegionSpec):
        return written_to(spec, None)
    if spec.remake is None:
        return spec
    folder = f"{scratch}/spare-{spec.remake.plan.levels[0].box.mag}"
    files.makedirs(folder)
    return replace(spec, remake=written_to(spec.remake, folder))


def repair_level(plan: LevelPlan, scratch: str) -> Generator[Phase, str, None]:
    """Do what was planned for one level, under its lock: its document first, then what is set aside, then the files."""
    folder = plan.scope.folder
    if plan.document is not None:
        publish_bytes(plan.scope.document, plan.document)
    changed = {spec.region if isinstance(spec, RegionSpec) else spec.shard for spec in plan.specs}
    changed |= {shard for _, shard, _ in plan.aside if shard is not None}
    states = recorded_states(folder, (shard for shard in changed if "file.lost" not in plan.kinds.get(shard, ())))
    patch_file_record(folder, dict.fromkeys(states, (0, 0)))  # a repair that is killed leaves no record of files that are others now
    for path, shard, why in plan.aside:
        quarantine(path, folder, path[len(folder) + 1 :], why)
        if shard is not None and not plan.scope.files_of(shard):
            states[shard] = (0, 0)
    for path, why in plan.copied_aside:
        quarantine(path, folder, path[len(folder) + 1 :], why, keep=True)

    def take(spec: RegionSpec | MendSpec, result: Result) -> None:
        if isinstance(spec, RegionSpec):
            states.update({receipt.shard: (receipt.nbytes, receipt.mtime_ns, receipt.sources) for _, receipt in result.receipts})
        else:
            states[result.value[0]] = result.value[1]

    tasks = [_with_scratch(plan, spec, scratch).task() for spec in plan.specs]
    try:
        yield Phase(FlatJob(lambda: iter(tasks), len(tasks), take), f"repairing {folder}")
    finally:
        patch_file_record(folder, states)
