"""Repair of the files of one level, as planned by :class:`wkwdask.verbs.repair.Repair`."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from wkwdask.errors import LockedError
from wkwdask.formats.leftovers import quarantine, remove_quarantined_temporaries, withdraw_equal
from wkwdask.formats.record_paths import OWNER_NAME
from wkwdask.model.store import Conflict
from wkwdask.model.stored_array import StoredArray, with_states_in, without_listing
from wkwdask.runs.drive import Phase
from wkwdask.runs.garbage import is_replaced
from wkwdask.runs.job import FlatJob, Result, Task
from wkwdask.store.documents import replace_records
from wkwdask.store.leases import fenced_by
from wkwdask.store.paths import is_bucket, split
from wkwdask.store.records import patch_file_record, recorded_states
from wkwdask.store.store import store_at
from wkwdask.verbs.pyramid import RegionSpec

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping

    from wkwdask.formats.array_repair import ArrayRepair
    from wkwdask.formats.inspection import LevelScope
    from wkwdask.geometry.mag import Vec3


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """Task that counts the intact chunks of a broken shard and looks for its correct header; it
    changes nothing."""

    repairer: ArrayRepair
    shard: Vec3
    path: str
    kinds: frozenset[str]
    """Kinds of its faults."""

    def task(self) -> Task:
        return Task(f"probe of {self.path}", f"probe {self.path}", ProbeSpec.run, self)

    def run(self) -> Result:
        """Decode all chunks; the value is a :class:`wkwdask.formats.array_repair.Probe`."""
        return Result((), value=self.repairer.probe(self.shard, self.kinds))


@dataclass(frozen=True, slots=True)
class RewriteSpec:
    """Task that writes a shard again from its intact chunks."""

    repairer: ArrayRepair
    shard: Vec3
    path: str
    header: Any
    """Corrected header of the shard, None to keep its own."""
    why: str
    """Faults of the shard, for the note beside the quarantined file."""
    salvage: bool
    """Whether broken chunks are replaced."""
    rebuild: RegionSpec | None = None
    """Task that computes the shard in a scratch folder, from which broken chunks are replaced.
    Without it they become zeros."""
    record: str = ""
    """Record of the job in a bucket, where files are replaced only while it exists."""

    def task(self) -> Task:
        return Task(f"rewrite of {self.path}", f"rewrite {self.path}", RewriteSpec.run, self)

    def run(self) -> Result:
        """Rewrite and check the file; the value is its shard index, size and time."""
        spare = None
        if self.rebuild is not None:
            assert isinstance(self.rebuild.source, StoredArray)
            replace(self.rebuild, source=without_listing(self.rebuild.source)).run()
            spare = self.rebuild.targets[0].folder
        with _unchanged(self.path):
            state = self.repairer.with_snapshot(self.record).repair_shard(
                self.shard, self.header, self.why, spare, salvage=self.salvage
            )
        return Result((), value=(self.shard, state))


@dataclass(frozen=True, slots=True)
class RebuildSpec:
    """Task that copies the files of a shard to the quarantine, and computes them again in place."""

    region: RegionSpec
    paths: tuple[str, ...]
    """All files that the shard may have."""
    why: str

    def task(self) -> Task:
        return replace(self.region.task(), function=RebuildSpec.run, spec=self)

    def run(self) -> Result:
        """Rebuild the shard; the value is its shard index, and the place in quarantine of each
        old file."""
        (target,) = self.region.targets
        assert isinstance(self.region.source, StoredArray)
        source = with_states_in(
            self.region.source, self.region.plan.source_region(self.region.region)
        )
        store, folder = target.array.store.snapshot(target.record), target.folder
        with _unchanged(self.paths[0]):
            places = {
                path: quarantine(path, folder, path[len(folder) + 1 :], self.why, keep=True)
                for path in self.paths
                if store.is_file(path[len(folder) + 1 :])
            }
            rebuilt = replace(target, array=target.array.at(store))
            result = replace(self.region, source=source, targets=(rebuilt,)).run()
        return replace(result, value=(self.region.region, places))


@contextlib.contextmanager
def _unchanged(path: str) -> Iterator[None]:
    """Explain the error of a file in a bucket that another process has changed since it was
    read."""
    try:
        yield
    except Conflict:
        raise LockedError(f"{path}: was changed since it was checked; start again") from None


@dataclass
class LevelPlan:
    """Planned repair of the files of one level."""

    scope: LevelScope
    document: bytes | None = None
    """Corrected content of the level's document, None to keep it."""
    specs: list[RegionSpec | RewriteSpec] = field(default_factory=list)
    """Files to rewrite or rebuild."""
    quarantined: list[tuple[str, Vec3 | None, str]] = field(default_factory=list)
    """Files to move to quarantine first: path, shard, reason."""
    set_aside: dict[Vec3, str] = field(default_factory=dict)
    """Shards whose files are copied to quarantine before they are computed again, and the reason.
    The copy of a file that does not change is removed."""
    accepted: list[Vec3] = field(default_factory=list)
    """Shards whose files stay as other software left them, which the record of the files takes
    over."""
    kinds: dict[Vec3, set[str]] = field(default_factory=dict)
    """Kinds of the faults of each shard in the plan."""

    @property
    def is_empty(self) -> bool:
        return self.document is None and not (self.specs or self.quarantined or self.accepted)


def check_unchanged(plan: LevelPlan) -> None:
    """Raise an error if a level changed between its check and its lock."""
    is_same = plan.scope.is_as_checked(is_document_good=plan.document is None)
    if plan.scope.stated is not None and is_replaced(plan.scope.folder):
        is_same = False
    if not (
        is_same
        and all(_is_still_broken(plan.scope, shard, kinds) for shard, kinds in plan.kinds.items())
    ):
        raise LockedError(f"{plan.scope.folder}: was changed since it was checked; start again")


def _is_still_broken(scope: LevelScope, shard: Vec3, kinds: set[str]) -> bool:
    """Return whether a shard still has its faults. A shard that only differs from the finer level
    is rebuilt from what that level contains now."""
    check = scope.check(decode=True)
    if check is None or kinds <= {"pyramid.differs", "file.size_changed"}:
        return True
    stored = scope.files_of(shard)
    return (
        "file.lost" in kinds and len(stored) < len(scope.paths_of(shard))
    ) or not kinds.isdisjoint(fault.kind for fault in check.check_files(stored).faults)


def _in_scratch(
    plan: LevelPlan, spec: RegionSpec | RewriteSpec, scratch: str
) -> RegionSpec | RebuildSpec | RewriteSpec:
    """Let a rebuild write its parts into a scratch folder; a file that only supplies chunks is also
    published there."""
    record = _record_in(scratch)

    def written_to(rebuild: RegionSpec, folder: str | None) -> RegionSpec:
        targets = (plan.scope.target(target.box, scratch, folder) for target in rebuild.targets)
        return replace(rebuild, targets=tuple(replace(each, record=record) for each in targets))

    if isinstance(spec, RegionSpec):
        in_place, why = written_to(spec, None), plan.set_aside.get(spec.region)
        paths = tuple(plan.scope.paths_of(spec.region))
        return in_place if why is None else RebuildSpec(in_place, paths, why)
    spec = replace(spec, record=record)
    if spec.rebuild is None:
        return spec
    folder = f"{scratch}/spare-{spec.rebuild.plan.levels[0].box.mag}"
    store_at(folder).make()
    return replace(spec, rebuild=written_to(spec.rebuild, folder))


def _record_in(scratch: str) -> str:
    """Return the lease of the job with a scratch folder in a bucket, empty on a disk."""
    return f"{scratch}/{OWNER_NAME}" if is_bucket(scratch) else ""


def repair_level(
    plan: LevelPlan, scratch: str
) -> Generator[Phase, str, dict[Vec3, dict[str, bool]]]:
    """Repair one level under its lock: document, quarantine, files, in this order.

    Returns, for each shard in ``plan.set_aside``, the files that changed, and whether an old one is
    in quarantine.
    """
    folder, record = plan.scope.folder, _record_in(scratch)
    with fenced_by(record) if record else contextlib.nullcontext():
        states = _begin(plan)
    copies: dict[Vec3, dict[str, str]] = {}

    def record_state(spec: RegionSpec | RebuildSpec | RewriteSpec, result: Result) -> None:
        if isinstance(spec, RewriteSpec):
            states[result.value[0]] = result.value[1]
            return
        if isinstance(spec, RebuildSpec):
            shard, places = result.value
            copies[shard] = places
        states.update(
            {
                receipt.shard: (receipt.nbytes, receipt.mtime_ns, receipt.sources)
                for _, receipt in result.receipts
            }
        )

    # The record dropped these shards above. Their new states are recorded in any case, also after
    # an error.
    tasks = [_in_scratch(plan, spec, scratch).task() for spec in plan.specs]
    try:
        yield Phase(FlatJob(lambda: iter(tasks), len(tasks), record_state), f"repairing {folder}")
    finally:
        with fenced_by(record) if record else contextlib.nullcontext():
            patch_file_record(folder, states)
        changed_files = {
            shard: _changed_files(plan.scope.paths_of(shard), places)
            for shard, places in copies.items()
        }
    return changed_files


def _begin(plan: LevelPlan) -> dict[Vec3, tuple[int, ...]]:
    """Write the document of a level, move files to the quarantine, and let its record describe no
    file that is to change; return what it says of them, and of those that were moved."""
    folder = plan.scope.folder
    remove_quarantined_temporaries(folder)
    if plan.document is not None:
        _write_document(plan.scope.document, plan.document)
    changed = {spec.region if isinstance(spec, RegionSpec) else spec.shard for spec in plan.specs}
    changed |= {shard for _, shard, _ in plan.quarantined if shard is not None}
    states = recorded_states(
        folder, (shard for shard in changed if "file.lost" not in plan.kinds.get(shard, ()))
    )
    # if this repair is killed, no record describes files that it has replaced
    patch_file_record(folder, dict.fromkeys(states, (0, 0)))
    for path, shard, why in plan.quarantined:
        with _unchanged(path):
            quarantine(path, folder, path[len(folder) + 1 :], why)
        if shard is not None:
            states[shard] = plan.scope.state_of(shard)
    return states | {shard: plan.scope.state_of(shard) for shard in plan.accepted}


def _write_document(path: str, document: bytes) -> None:
    folder, name = split(path)
    if is_bucket(folder):
        replace_records({path: document})
    else:
        store_at(folder).put(name, document)


def _changed_files(paths: Iterable[str], copies: Mapping[str, str]) -> dict[str, bool]:
    """Return the files that differ from their copies in quarantine or are new, and whether they
    have a copy; copies of equal files are removed."""
    equal = {path for path, place in copies.items() if withdraw_equal(path, place)}
    return {
        path: path in copies
        for path in paths
        if path not in equal and (path in copies or store_at(path).is_taken())
    }
