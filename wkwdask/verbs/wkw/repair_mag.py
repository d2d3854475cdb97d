"""Doing what was planned for the files of one mag."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wkwdask.errors import LockedError
from wkwdask.formats.leftovers import set_aside
from wkwdask.formats.webknossos.inspection import MagScope, check_header
from wkwdask.formats.wkw.folder import HEADER_NAME, file_path
from wkwdask.formats.wkw.header import WkwHeader, format_header
from wkwdask.formats.wkw.listing import list_mag
from wkwdask.formats.wkw.mend import patch_record, recorded_states
from wkwdask.model.placement import Placement
from wkwdask.runs.drive import Phase
from wkwdask.runs.job import FlatJob, Result
from wkwdask.store import files
from wkwdask.store.new_files import publish_bytes
from wkwdask.verbs.pyramid_job import RegionSpec

if TYPE_CHECKING:
    from collections.abc import Generator

    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.faults import Fault
    from wkwdask.verbs.wkw.mend import MendSpec

HEADER_KINDS = ("other_block_type", "missing", "short", "magic", "version", "block_type", "voxel_type", "voxel_size", "block_nbytes", "data_offset", "differs")
"""Kinds of faults, behind ``header.``, that a new header.wkw mends."""


@dataclass
class MagPlan:
    """What is to be done with the files of one mag."""

    scope: MagScope
    """The mag."""
    header: WkwHeader | None = None
    """What header.wkw is to say, None where it stays."""
    specs: list[RegionSpec | MendSpec] = field(default_factory=list)
    """Files that are mended or rebuilt."""
    aside: list[tuple[str, Vec3 | None, str]] = field(default_factory=list)
    """What is set aside first: path, index, why."""
    copied_aside: list[tuple[str, Vec3, str]] = field(default_factory=list)
    """What is set aside and stays in its place until it is replaced."""
    kinds: dict[Vec3, set[str]] = field(default_factory=dict)
    """What is wrong with the files that are dealt with."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return self.header is None and not self.specs and not self.aside


def check_unchanged(plan: MagPlan) -> None:
    """Make sure, now that nobody else can write the mag, that it is still as it was when it was checked."""
    scope = plan.scope
    again: list[Fault] = []
    header = check_header(scope.folder, list_mag(scope.folder), again)
    is_same = header == scope.header and (plan.header is None) == (not [fault for fault in again if fault.kind.removeprefix("header.") in HEADER_KINDS])
    is_same = is_same and all(_is_still(scope, shard, kinds) for shard, kinds in plan.kinds.items())
    if not is_same:
        raise LockedError(f"{scope.folder}: was changed since it was checked; start again")


def _is_still(scope: MagScope, shard: Vec3, kinds: set[str]) -> bool:
    """Tell whether what was wrong with a file is so still; one that only differs from a finer mag is made anew from what that is now."""
    check = scope.check(decode=True)
    if check is None or kinds == {"pyramid.differs"}:
        return True
    if not files.lexists(file_path(scope.folder, shard)):
        return "file.lost" in kinds
    return not kinds.isdisjoint(fault.kind for fault in check.check_shard(shard).faults)


def _with_scratch(spec: RegionSpec | MendSpec, scratch: str) -> RegionSpec | MendSpec:
    """Let a file that is made anew be written in the job's folder first; one that only gives blocks stays there."""
    if isinstance(spec, RegionSpec):
        return _written_to(spec, None, scratch)
    remake = spec.remake
    return spec if remake is None else replace(spec, remake=_written_to(remake, f"{scratch}/spare-{remake.plan.levels[0].box.mag}", scratch))


def _written_to(spec: RegionSpec, folder: str | None, scratch: str) -> RegionSpec:
    if folder is not None:
        files.makedirs(folder)
    (target,) = spec.targets
    assert isinstance(target, Placement)
    store = target.array.store
    return replace(spec, targets=(replace(target, array=target.array.at(store.at(folder or target.folder)), parts=store.at(scratch)),))


def repair_mag(plan: MagPlan, scratch: str) -> Generator[Phase, str, None]:
    """Do what was planned for one mag, under its lock: header.wkw first, then what is set aside, then the files."""
    folder = plan.scope.folder
    if plan.header is not None:
        publish_bytes(f"{folder}/{HEADER_NAME}", format_header(plan.header))
    changed = {spec.region if isinstance(spec, RegionSpec) else spec.shard for spec in plan.specs}
    changed |= {shard for _, shard, _ in plan.aside if shard is not None}
    states = recorded_states(folder, (shard for shard in changed if "file.lost" not in plan.kinds.get(shard, ())))
    patch_record(folder, dict.fromkeys(states, (0, 0)))  # a repair that is killed leaves no record of files that are others now
    for path, shard, why in plan.aside:
        set_aside(path, folder, path[len(folder) + 1 :], why)
        if shard is not None:
            states[shard] = (0, 0)
    for path, _, why in plan.copied_aside:
        set_aside(path, folder, path[len(folder) + 1 :], why, keep=True)

    def take(spec: RegionSpec | MendSpec, result: Result) -> None:
        if isinstance(spec, RegionSpec):
            states.update({receipt.shard: (receipt.nbytes, receipt.mtime_ns, receipt.sources) for _, receipt in result.receipts})
        else:
            states[result.value[0]] = result.value[1]

    tasks = [_with_scratch(spec, scratch).task() for spec in plan.specs]
    try:
        yield Phase(FlatJob(lambda: iter(tasks), len(tasks), take), f"repairing {folder}")
    finally:
        patch_record(folder, states)
