"""Repair of the files of one level, as planned by :class:`wkwdask.verbs.repair.Repair`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from wkwdask.errors import LockedError
from wkwdask.formats.leftovers import quarantine, remove_quarantined_temporaries, withdraw_equal
from wkwdask.runs.drive import Phase
from wkwdask.runs.job import FlatJob, Result, Task
from wkwdask.store.paths import split
from wkwdask.store.records import patch_file_record, recorded_states
from wkwdask.store.store import store_at
from wkwdask.verbs.pyramid import RegionSpec

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

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

    def task(self) -> Task:
        return Task(f"rewrite of {self.path}", f"rewrite {self.path}", RewriteSpec.run, self)

    def run(self) -> Result:
        """Rewrite and check the file; the value is its shard index, size and time."""
        spare = None
        if self.rebuild is not None:
            self.rebuild.run()
            spare = self.rebuild.targets[0].folder
        return Result(
            (),
            value=(
                self.shard,
                self.repairer.repair_shard(
                    self.shard, self.header, self.why, spare, salvage=self.salvage
                ),
            ),
        )


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
    """Shards whose files are copied to quarantine before they are computed again, and the reason. A
    file that is not replaced is not copied."""
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
) -> RegionSpec | RewriteSpec:
    """Let a rebuild write its parts into a scratch folder; a file that only supplies chunks is also
    published there."""

    def written_to(rebuild: RegionSpec, folder: str | None) -> RegionSpec:
        return replace(
            rebuild,
            targets=tuple(
                plan.scope.target(target.box, scratch, folder) for target in rebuild.targets
            ),
        )

    if isinstance(spec, RegionSpec):
        return written_to(spec, None)
    if spec.rebuild is None:
        return spec
    folder = f"{scratch}/spare-{spec.rebuild.plan.levels[0].box.mag}"
    store_at(folder).make()
    return replace(spec, rebuild=written_to(spec.rebuild, folder))


def repair_level(
    plan: LevelPlan, scratch: str
) -> Generator[Phase, str, dict[Vec3, dict[str, bool]]]:
    """Repair one level under its lock: document, quarantine, files, in this order.

    Returns, for each shard in ``plan.set_aside``, the files that changed, and whether an old one is
    in quarantine.
    """
    folder = plan.scope.folder
    remove_quarantined_temporaries(folder)
    if plan.document is not None:
        place, name = split(plan.scope.document)
        store_at(place).put(name, plan.document)
    changed = {spec.region if isinstance(spec, RegionSpec) else spec.shard for spec in plan.specs}
    changed |= {shard for _, shard, _ in plan.quarantined if shard is not None}
    states = recorded_states(
        folder, (shard for shard in changed if "file.lost" not in plan.kinds.get(shard, ()))
    )
    # if this repair is killed, no record describes files that it has replaced
    patch_file_record(folder, dict.fromkeys(states, (0, 0)))
    for path, shard, why in plan.quarantined:
        quarantine(path, folder, path[len(folder) + 1 :], why)
        if shard is not None:
            states[shard] = plan.scope.state_of(shard)
    states |= {shard: plan.scope.state_of(shard) for shard in plan.accepted}
    copies = {
        shard: {
            path: quarantine(path, folder, path[len(folder) + 1 :], why, keep=True)
            for path in plan.scope.paths_of(shard)
            if store_at(path).is_file()
        }
        for shard, why in plan.set_aside.items()
    }

    def record_state(spec: RegionSpec | RewriteSpec, result: Result) -> None:
        if isinstance(spec, RegionSpec):
            states.update(
                {
                    receipt.shard: (receipt.nbytes, receipt.mtime_ns, receipt.sources)
                    for _, receipt in result.receipts
                }
            )
        else:
            states[result.value[0]] = result.value[1]

    # The record dropped these shards above. Their new states are recorded in any case, also after
    # an error.
    tasks = [_in_scratch(plan, spec, scratch).task() for spec in plan.specs]
    try:
        yield Phase(FlatJob(lambda: iter(tasks), len(tasks), record_state), f"repairing {folder}")
    finally:
        patch_file_record(folder, states)
        changed_files = {
            shard: _changed_files(plan.scope.paths_of(shard), places)
            for shard, places in copies.items()
        }
    return changed_files


def _changed_files(paths: Iterable[str], copies: Mapping[str, str]) -> dict[str, bool]:
    """Return the files that differ from their copies in quarantine or are new, and whether they
    have a copy; copies of equal files are removed."""
    equal = {path for path, place in copies.items() if withdraw_equal(path, place)}
    return {
        path: path in copies
        for path in paths
        if path not in equal and (path in copies or store_at(path).is_taken())
    }
