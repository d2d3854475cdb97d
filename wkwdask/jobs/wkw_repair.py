"""Staging the repair of WKW mags: from the faults of a check to what is done about each, in a safe order.

Whatever can be decoded is kept byte for byte. What a coarser mag has lost is made anew from the finer one; what a finest mag has lost stays lost, and is
touched only where the user says so.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

from wkwdask.errors import CorruptError, FormatError, LockedError, UnsupportedError
from wkwdask.formats.wkw.block import DEFAULT_LEVEL
from wkwdask.formats.wkw.header import HEADER_NBYTES, BlockType, WkwHeader, format_header, parse_header
from wkwdask.jobs.job import FlatJob, Result
from wkwdask.jobs.pyramid import RegionTask
from wkwdask.jobs.repair import CUT, FINISH, HEADER, QUARANTINE, REBUILD, REMOVE, REWRITE, SALVAGE, Action, Left, RepairOptions, matter
from wkwdask.jobs.verify import RecomputeTask
from wkwdask.jobs.wkw_repair_json import JsonRepair
from wkwdask.jobs.wkw_verify import Made, check_of, files_below, how_made, recompute_tasks
from wkwdask.kernels.window import METHODS
from wkwdask.plans.pyramid import plan_pass
from wkwdask.storage.dataset_check import UNREADABLE_LOCK, check_header, header_votes
from wkwdask.storage.job_folder import JobFolder, job_root, read_provenance
from wkwdask.storage.local import publish_bytes, remove_tree
from wkwdask.storage.locks import guarded, is_lock, remove_stale_lock
from wkwdask.storage.owner import Owner
from wkwdask.storage.wkw import HEADER_NAME, file_path
from wkwdask.storage.wkw_listing import age_seconds, is_foreign_temporary, list_mag
from wkwdask.storage.wkw_mend import mend_file, patch_record, set_aside
from wkwdask.storage.wkw_target import WkwTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from wkwdask.formats.faults import Fault
    from wkwdask.geometry.mag import Vec3
    from wkwdask.jobs.job import Task
    from wkwdask.jobs.verify import VerifyReport
    from wkwdask.jobs.wkw_verify import StagedVerify
    from wkwdask.storage.dataset_check import LayerScope, MagScope, Scope
    from wkwdask.storage.wkw_check import WkwCheck

_DATA_FILE = re.compile(r"z(\d+)/y(\d+)/x(\d+)\.wkw")
_HEADER_KINDS = ("other_block_type", "missing", "short", "magic", "version", "block_type", "voxel_type", "voxel_size", "block_nbytes", "data_offset", "differs")
_DAMAGED_HEADERS = {f"file.{name}" for name in ("magic", "version", "bad_block_type", "bad_voxel_type", "bad_voxel_size", "block_nbytes", "data_offset")}
_OTHER_HEADERS = {f"file.{name}" for name in ("block_len", "file_len", "voxel_type", "channels")}
_OUT_OF_REACH = {"file.unreadable": "make it readable", "file.dangling": "is its disk mounted?"}
_TRIED = 2  # intact files that show how a mag was made


@dataclass(frozen=True, slots=True)
class ProbeTask:
    """Find out what can be saved of a broken file; changes nothing."""

    check: WkwCheck
    """The mag."""
    shard: Vec3
    """Which file."""
    kinds: frozenset[str]
    """What is wrong with it."""

    @property
    def name(self) -> str:
        """What an error calls the task."""
        return f"probe of {file_path(self.check.folder, self.shard)}"

    @property
    def key(self) -> str:
        """What a journal calls the task."""
        return f"probe {file_path(self.check.folder, self.shard)}"

    def run(self) -> Result:
        """Decode all blocks; the value is a header by which the file is whole or None, and how many blocks can be decoded by its own."""
        if self.kinds & (_DAMAGED_HEADERS | _OTHER_HEADERS):
            for header in self._headers():
                sound = self.check.sound_blocks(self.shard, header)
                if sound.is_whole:
                    return Result((), value=(header, sound.num_sound))
            return Result((), value=(None, 0))
        return Result((), value=(None, self.check.sound_blocks(self.shard).num_sound))

    def _headers(self) -> Iterator[WkwHeader]:
        """Give the headers that the file may have had; only such by which its bytes would be no file at all if they were wrong."""
        mag = self.check.header
        own = _own_header(file_path(self.check.folder, self.shard))
        for block_type in (mag.block_type, BlockType.LZ4HC if mag.block_type is BlockType.RAW else BlockType.RAW):
            header = mag.with_block_type(block_type).for_data_file()
            is_other = own is None or (own.block_nbytes, own.blocks_per_file) != (header.block_nbytes, header.blocks_per_file)
            if own is None or (header.is_compressed and is_other):
                yield header


def _own_header(path: str) -> WkwHeader | None:
    """Read the header of a data file, None where it is impossible."""
    with open(path, "rb") as file:
        try:
            return parse_header(file.read(HEADER_NBYTES), path, is_data_file=True)
        except (FormatError, UnsupportedError):
            return None


@dataclass(frozen=True, slots=True)
class MendTask:
    """Write a file anew from its blocks that can be decoded."""

    check: WkwCheck
    """The mag."""
    shard: Vec3
    """Which file."""
    header: WkwHeader | None
    """In place of the file's own."""
    why: str
    """What is wrong with it."""
    salvage: bool
    """Whether broken blocks become zeros."""

    @property
    def name(self) -> str:
        """What an error calls the task."""
        return f"mending of {file_path(self.check.folder, self.shard)}"

    @property
    def key(self) -> str:
        """What a journal calls the task."""
        return f"mend {file_path(self.check.folder, self.shard)}"

    def run(self) -> Result:
        """Do it, and check the new file; the value is its index, size and time.

        Raises
        ------
        CorruptError
            The new file is not sound; that would be a fault of this program.
        """
        nbytes, mtime_ns = mend_file(self.check, self.shard, self.header, self.why, salvage=self.salvage)
        left = [fault for fault in matter(self.check.check_shard(self.shard).faults) if fault.severity == "error"]
        if left:
            raise CorruptError(f"still broken after it was mended: {left[0]}")
        return Result((), value=(self.shard, (nbytes, mtime_ns)))


@dataclass
class MagPlan:
    """What is to be done with the files of one mag."""

    scope: MagScope
    """The mag."""
    header: WkwHeader | None = None
    """What header.wkw is to say, None where it stays."""
    tasks: list[Task] = field(default_factory=list)
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
        return self.header is None and not self.tasks and not self.aside


class StagedRepair:
    """A repair: what is wrong, what can be saved of it, and what is done.

    Parameters
    ----------
    staged : StagedVerify
        The check.
    report : VerifyReport
        What it found, with all blocks decoded.
    options : RepairOptions
        What may be done.
    """

    def __init__(self, staged: StagedVerify, report: VerifyReport, options: RepairOptions) -> None:
        self.scope: Scope = staged.scope
        self._options = options
        self._faults = matter(report.faults)
        self._by_path: dict[str, list[Fault]] = defaultdict(list)
        for fault in self._faults:
            self._by_path[fault.path].append(fault)
        self._probed: dict[str, tuple[WkwHeader | None, int]] = {}
        self._reproduced: dict[str, set[str]] = defaultdict(set)
        self._tried: dict[str, int] = defaultdict(int)
        self.actions: list[Action] = []
        self.left: list[Left] = []
        self.plans: dict[str, list[MagPlan]] = {}
        self._removed: dict[str, list[str]] = defaultdict(list)
        self._cleaned: set[str] = set()
        self.json = JsonRepair(staged, options)

    # ------------------------------------------------------------------ looking

    def probe_job(self) -> FlatJob:
        """Make the job that finds out what can be saved of broken files, and how coarser mags were made that do not say so."""
        tasks: list[Task] = []
        for layer in self.scope.layers:
            for scope in layer.mags:
                check = check_of(scope, decode=True)
                broken = self._broken_files(scope)
                for shard, faults in broken.items():
                    kinds = frozenset(fault.kind for fault in faults)
                    if check is not None and not kinds & {*_OUT_OF_REACH, "file.lost", "file.no_file", "file.empty", "file.short"}:
                        tasks.append(ProbeTask(check, shard, kinds))
                made = how_made(layer, scope, self._options.method) if broken else None
                if made is not None and not made.is_known and _header_is_good(scope, self._by_path):
                    tasks += self._trials(scope, made)
        return FlatJob(lambda: iter(tasks), len(tasks), self._take_probe)

    def _trials(self, scope: MagScope, made: Made) -> Iterator[Task]:
        """Compute intact files by every method."""
        broken = {path for path, faults in self._by_path.items() if any(fault.severity == "error" for fault in faults)}
        stored = {file_path(scope.folder, (x, y, z)) for x, y, z in scope.listing.shards.tolist()}
        for method in dict.fromkeys((made.method, *METHODS)):
            tasks = recompute_tasks(scope, replace(made, method=method), broken)
            yield from islice((task for task in tasks if task.coarser.shard_path(task.shard) in stored), _TRIED)

    def _take_probe(self, task: Task, result: Result) -> None:
        if isinstance(task, ProbeTask):
            self._probed[file_path(task.check.folder, task.shard)] = result.value
        elif isinstance(task, RecomputeTask):
            self._take_trial(task, result)

    def _take_trial(self, task: RecomputeTask, result: Result) -> None:
        folder = task.coarser.name
        self._tried[folder] += 1
        self._reproduced[folder].add(task.method)
        if result.value.different:
            self._reproduced[f"{folder} not"].add(task.method)

    def _broken_files(self, scope: MagScope) -> dict[Vec3, list[Fault]]:
        """List the files of a mag that something is wrong with."""
        broken = {}
        for path, faults in self._by_path.items():
            named = _DATA_FILE.fullmatch(path[len(scope.folder) + 1 :]) if path.startswith(f"{scope.folder}/") else None
            serious = [fault for fault in faults if fault.severity == "error" or fault.kind == "file.trailing" or self._rebuilds(fault)]
            if named is not None and serious:
                broken[int(named[3]), int(named[2]), int(named[1])] = serious
        return broken

    def _rebuilds(self, fault: Fault) -> bool:
        return self._options.rebuild_differing and fault.kind == "pyramid.differs"

    # ------------------------------------------------------------------ planning

    def plan(self) -> None:
        """Decide what is done about every fault."""
        handled: set[str] = set()
        for layer in self.scope.layers:
            plans = [self._plan_mag(layer, scope, handled) for scope in layer.mags]
            self.plans[layer.folder] = [plan for plan in plans if not plan.is_empty]
        self._plan_leftovers(handled)
        handled |= self.json.plan(self._faults)
        self.actions += self.json.actions
        self.left += self.json.left
        known = {id(left.fault) for left in self.left}
        for fault in self._faults:
            if fault.path not in handled and id(fault) not in known:
                self.left.append(Left(fault, _ADVICE.get(fault.kind, "repair does not touch it")))

    def _plan_mag(self, layer: LayerScope, scope: MagScope, handled: set[str]) -> MagPlan:
        plan = MagPlan(scope)
        if not self._is_inside(scope.folder):
            for faults in (faults for path, faults in self._by_path.items() if path.startswith(f"{scope.folder}/")):
                self.left += [Left(fault, "it lies outside the dataset, which is read but not written through: repair it where it is") for fault in faults]
            return plan
        self._plan_header(plan, handled)
        if plan.header is None and not _header_is_good(scope, self._by_path):
            return plan
        for shard, faults in sorted(self._broken_files(scope).items(), key=lambda item: item[0][::-1]):
            self._plan_file(layer, plan, shard, faults)
            plan.kinds[shard] = {fault.kind for fault in faults}
            handled.add(file_path(scope.folder, shard))
        for path, faults in self._by_path.items():
            if path.startswith(f"{scope.folder}/z") and faults[0].kind == "folder.no_folder" and self._options.quarantine:
                self._set_aside(plan, path, None, faults)
                handled.add(path)
        return plan

    def _is_inside(self, folder: str) -> bool:
        dataset = self.scope.dataset_folder
        return dataset is None or os.path.realpath(folder).startswith(f"{os.path.realpath(dataset)}/")

    def _plan_header(self, plan: MagPlan, handled: set[str]) -> None:
        path = f"{plan.scope.folder}/{HEADER_NAME}"
        faults = [fault for fault in self._by_path.get(path, []) if fault.kind.removeprefix("header.") in _HEADER_KINDS]
        if not faults:
            return
        handled.add(path)
        if plan.scope.header is None:
            self.left += [Left(fault, "no data file tells what it should say") for fault in faults]
            return
        votes = sum(1 for _ in header_votes(plan.scope.folder, plan.scope.listing))
        plan.header = plan.scope.header.with_block_type(plan.scope.header.block_type)
        how = "its other values stay" if faults[0].kind == "header.data_offset" else f"as {votes} data files say"
        self.actions.append(Action(HEADER, path, _why(faults), how))

    def _plan_file(self, layer: LayerScope, plan: MagPlan, shard: Vec3, faults: list[Fault]) -> None:
        scope = plan.scope
        path = file_path(scope.folder, shard)
        kinds = {fault.kind for fault in faults}
        check = check_of(scope, decode=True)
        out_of_reach = next((kind for kind in _OUT_OF_REACH if kind in kinds), None)
        if check is None or out_of_reach is not None:
            if out_of_reach == "file.dangling" and self._options.quarantine:
                self._set_aside(plan, path, shard, faults)
            else:
                self.left += [Left(fault, _OUT_OF_REACH.get(fault.kind, "nothing says what the file should be like")) for fault in faults]
            return
        header, num_sound = self._probed.get(path, (None, 0))
        if header is not None:
            self._mend(plan, REWRITE, MendTask(check, shard, header, _why(faults), salvage=False), faults, "all blocks decode by the mag's header")
        elif kinds == {"file.trailing"}:
            self._mend(plan, CUT, MendTask(check, shard, None, _why(faults), salvage=False), faults, "all blocks stay as they are")
        elif not self._plan_rebuild(layer, plan, shard, faults):
            self._plan_loss(plan, check, shard, faults, num_sound)

    def _mend(self, plan: MagPlan, verb: str, task: MendTask, faults: list[Fault], how: str) -> None:
        plan.tasks.append(task)
        self.actions.append(Action(verb, file_path(plan.scope.folder, task.shard), _why(faults), how))

    def _plan_rebuild(self, layer: LayerScope, plan: MagPlan, shard: Vec3, faults: list[Fault]) -> bool:
        """Rebuild a file of a coarser mag from the finer one, if that is sound and it is clear how."""
        scope = plan.scope
        made = how_made(layer, scope, self._options.method)
        if made is None or not _header_is_good(made.finer, self._by_path):
            return False
        known_by = f"by {made.method}, as its provenance says"
        if not made.is_known:
            method = self._method_of(scope, made)
            if method is None:
                return False
            made = replace(made, method=method)
            known_by = f"by {method}, as intact files of the mag show" if self._tried[scope.folder] else f"by {method}, which most software takes"
        elif self._options.method is not None and read_provenance(scope.folder).get("settings", {}).get("command") != "build_pyramid":
            known_by = f"by {made.method}, as you say"
        task = self._rebuild_task(plan, made, shard)
        if task is None:
            return False
        path = file_path(scope.folder, shard)
        is_file = os.path.isfile(path)
        why = _why(faults)
        if os.path.lexists(path) and (not is_file or not made.is_known or any(self._rebuilds(fault) for fault in faults)):
            known_by += "; the old one is set aside"
            if is_file:
                plan.copied_aside.append((path, shard, why))
            else:
                plan.aside.append((path, shard, why))
        plan.tasks.append(task)
        self.actions.append(Action(REBUILD, path, why, f"from mag {made.finer.mag.name}, {known_by}"))
        return True

    def _method_of(self, scope: MagScope, made: Made) -> str | None:
        """Choose the method that intact files were made by; the usual one where there are none."""
        if not self._tried[scope.folder]:
            return made.method
        right = self._reproduced[scope.folder] - self._reproduced[f"{scope.folder} not"]
        return next((method for method in dict.fromkeys((made.method, *METHODS)) if method in right), None)

    def _rebuild_task(self, plan: MagPlan, made: Made, shard: Vec3) -> RegionTask | None:
        scope = plan.scope
        if scope.header is None:
            return None
        finer = made.source
        box = finer.box.in_mag(scope.mag)
        factor = finer.box.mag.step_to(scope.mag)
        edge = scope.header.file_len_vx
        footprint = (edge * factor[0], edge * factor[1], edge * factor[2])
        there = [(x, y, z) for x, y, z in made.finer.listing.shards.tolist()]
        sources = files_below([*there, *self._lost(made.finer)], finer.header.file_len_vx, footprint).get(shard, [])
        if not all(self._is_saved(finer.shard_path(source)) for source in sources):
            return None
        level = read_provenance(scope.folder).get("settings", {}).get("level") or DEFAULT_LEVEL
        target = WkwTarget(scope.folder, f"{scope.folder}/", scope.header, level, box, is_living=True)
        region = plan_pass(finer.box, [scope.mag], target.chunk_shape, scope.header.voxel_nbytes, target.shard_shape)
        return RegionTask(finer, region, (target,), made.method, made.ignore_zero, shard)

    def _is_saved(self, path: str) -> bool:
        """Tell whether a file is sound, or will be before coarser ones are made of it."""
        errors = [fault for fault in self._by_path.get(path, []) if fault.severity == "error"]
        return not errors or any(action.path == path and action.verb in (REWRITE, REBUILD) for action in self.actions)

    def _lost(self, scope: MagScope) -> list[Vec3]:
        """List the files of a mag that are gone."""
        return [shard for shard, faults in self._broken_files(scope).items() if any(fault.kind == "file.lost" for fault in faults)]

    def _plan_loss(self, plan: MagPlan, check: WkwCheck, shard: Vec3, faults: list[Fault], num_sound: int) -> None:
        """Do what can be done about a file that nothing can be made from."""
        path = file_path(plan.scope.folder, shard)
        total = check.header.blocks_per_file
        if any(fault.kind == "pyramid.differs" for fault in faults):
            self.left += [Left(fault, "it is not clear how the mag was made: give method=") for fault in faults]
        elif any(fault.kind == "file.lost" for fault in faults):
            self.left += [Left(fault, "bring it back from a backup") for fault in faults]
        elif self._options.salvage and num_sound:
            how = f"{total - num_sound} of {total} blocks become ZEROS, the other {num_sound} stay; the old file is set aside"
            self._mend(plan, SALVAGE, MendTask(check, shard, None, _why(faults), salvage=True), faults, how)
        elif self._options.quarantine:
            self._set_aside(plan, path, shard, faults)
        else:
            can = f"salvage (--salvage) keeps {num_sound} of {total} blocks and makes zeros of the others; " if num_sound else ""
            advice = f"bring it back from a backup; {can}quarantine (--quarantine) sets the file aside, its place then reads as zeros"
            self.left += [Left(fault, advice) for fault in faults]

    def _set_aside(self, plan: MagPlan, path: str, shard: Vec3 | None, faults: list[Fault]) -> None:
        plan.aside.append((path, shard, _why(faults)))
        self.actions.append(Action(QUARANTINE, path, _why(faults), "its place reads as ZEROS from now on"))

    def _plan_leftovers(self, handled: set[str]) -> None:
        """Decide about what processes left."""
        missing = {os.path.dirname(fault.path) for fault in self._faults if fault.kind in ("mag.missing", "header.missing")}
        for fault in self._faults:
            if not self._is_inside(fault.path):
                continue
            if fault.kind == "job.unpublished":
                self._leftover(FINISH, fault, handled, "its mags are complete")
            elif fault.kind in ("job.dead", "record.broken"):
                self._leftover(REMOVE, fault, handled)
            elif fault.kind == "leftover.folder" and os.path.dirname(fault.path) in missing:
                self.left.append(Left(fault, "a mag of the layer is missing, and this may hold its data: look before you remove it"))
            elif fault.kind.startswith("leftover.") and self._may_be_written(fault):
                self.left.append(Left(fault, f"somebody may still write it: it is removed when it is older than {self._options.older_than_seconds:g} s"))
            elif fault.kind.startswith("leftover."):
                self._leftover(REMOVE, fault, handled)

    def _may_be_written(self, fault: Fault) -> bool:
        """Tell whether the writer of a left-over may still be alive: that of our own in a mag is not, once the mag's lock is held."""
        if fault.kind == "leftover.lock" and fault.found != UNREADABLE_LOCK:
            return False
        is_known = fault.kind == "leftover.temporary" and not is_foreign_temporary(fault.path) and self._mag_of(fault.path) is not None
        return not is_known and age_seconds(fault.path) < self._options.older_than_seconds

    def _mag_of(self, path: str) -> str | None:
        """Name the mag that a file lies in, None where it lies in none."""
        folders = (scope.folder for layer in self.scope.layers for scope in layer.mags)
        return next((folder for folder in folders if path.startswith(f"{folder}/")), None)

    def _leftover(self, verb: str, fault: Fault, handled: set[str], how: str = "") -> None:
        handled.add(fault.path)
        self.actions.append(Action(verb, fault.path, _why([fault]), how))
        owner = next((layer.folder for layer in self.scope.layers if fault.path.startswith(f"{layer.folder}/")), self.scope.path)
        self._cleaned.add(owner)
        if not fault.kind.startswith("job."):  # these are for the job that holds the locks to end
            self._removed[owner].append(fault.path)

    # ------------------------------------------------------------------ doing

    def run(self, run_job: Callable[[FlatJob, str], None]) -> None:
        """Do what was planned: layer by layer, under the locks of its mags, finest mag first; the JSON comes last.

        Parameters
        ----------
        run_job : callable
            Runs a job.

        Raises
        ------
        LockedError
            A job that is running writes one of the mags.
        ResumeError
            An interrupted job that can go on writes one of the mags.
        """
        for layer in self.scope.layers:
            if self.plans.get(layer.folder) or layer.folder in self._cleaned:
                self._repair_layer(layer, run_job)
        for path in self._removed.get(self.scope.path, []) if self.scope.path not in {layer.folder for layer in self.scope.layers} else []:
            _remove(path)
        self.json.run()

    def _repair_layer(self, layer: LayerScope, run_job: Callable[[FlatJob, str], None]) -> None:
        plans, removed = self.plans.get(layer.folder, []), self._removed.get(layer.folder, [])
        folders = {plan.scope.folder for plan in plans} | {folder for folder in map(self._mag_of, removed) if folder is not None}
        if not folders:
            folders = {scope.folder for scope in layer.mags[:1]}
        locks = [path for path in removed if is_lock(os.path.basename(path))]
        if locks:  # one that cannot be read would stop the next step
            with guarded(layer.folder):
                for path in locks:
                    remove_stale_lock(path)
        owner = Owner.this_process(f"repair of {layer.folder}")
        hold = JobFolder(layer.folder, owner, sorted(folders))
        hold.start("update", {"command": "repair"})
        try:
            for plan in plans:
                _check_unchanged(plan)
            for path in removed:
                if path not in locks:
                    _remove(path)
            for plan in plans:
                self._repair_mag(plan, run_job, job_root(layer.folder, owner.job))
        finally:
            hold.discard()

    def _repair_mag(self, plan: MagPlan, run_job: Callable[[FlatJob, str], None], scratch: str) -> None:
        folder = plan.scope.folder
        if plan.header is not None:
            publish_bytes(f"{folder}/{HEADER_NAME}", format_header(plan.header))
        states: dict[Vec3, tuple[int, ...]] = {}
        for path, shard, why in plan.aside:
            set_aside(path, folder, shard, why)
            if shard is not None:
                states[shard] = (0, 0)
        for path, shard, why in plan.copied_aside:
            set_aside(path, folder, shard, why, keep=True)

        def take(task: Task, result: Result) -> None:
            if isinstance(task, RegionTask):
                states.update({receipt.shard: (receipt.nbytes, receipt.mtime_ns, receipt.sources) for _, receipt in result.receipts})
            else:
                states[result.value[0]] = result.value[1]

        tasks = [_with_scratch(task, scratch) for task in plan.tasks]
        try:
            run_job(FlatJob(lambda: iter(tasks), len(tasks), take), f"repairing {folder}")
        finally:
            patch_record(folder, states)


def _check_unchanged(plan: MagPlan) -> None:
    """Make sure, now that nobody else can write the mag, that it is still as it was when it was checked.

    Raises
    ------
    LockedError
        It is not.
    """
    scope = plan.scope
    again: list[Fault] = []
    header = check_header(scope.folder, list_mag(scope.folder), again)
    is_same = header == scope.header and (plan.header is None) == (not [fault for fault in again if fault.kind.removeprefix("header.") in _HEADER_KINDS])
    is_same = is_same and all(_is_still(scope, shard, kinds) for shard, kinds in plan.kinds.items())
    if not is_same:
        raise LockedError(f"{scope.folder}: was changed since it was checked; start again")


def _is_still(scope: MagScope, shard: Vec3, kinds: set[str]) -> bool:
    """Tell whether what was wrong with a file is so still; one that only differs from a finer mag is made anew from what that is now."""
    check = check_of(scope, decode=True)
    if check is None or kinds == {"pyramid.differs"}:
        return True
    if not os.path.lexists(file_path(scope.folder, shard)):
        return "file.lost" in kinds
    return not kinds.isdisjoint(fault.kind for fault in check.check_shard(shard).faults)


def _with_scratch(task: Task, scratch: str) -> Task:
    """Let a rebuilt file be written in the job's folder first."""
    if not isinstance(task, RegionTask):
        return task
    return replace(task, targets=tuple(replace(target, parts_folder=scratch) for target in task.targets if isinstance(target, WkwTarget)))


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        remove_tree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def _header_is_good(scope: MagScope, by_path: dict[str, list[Fault]]) -> bool:
    """Tell whether a mag can be opened, or will be when its header.wkw is mended."""
    faults = by_path.get(f"{scope.folder}/{HEADER_NAME}", [])
    return scope.header is not None and not any(fault.kind == "header.unreadable" for fault in faults)


def _why(faults: Iterable[Fault]) -> str:
    """Name what is wrong with a file."""
    return "; ".join(dict.fromkeys(f"{fault.kind}{f' ({fault.place})' if fault.place else ''}" for fault in islice(faults, 5)))


_ADVICE = {
    "header.lengths": "rechunk the mag with block_len and file_len of at most 128",
    "header.unreadable": "make it readable",
    "file.block_type": "compress the mag: all files are then stored alike",
    "file.size_changed": "if the change was meant, build_pyramid(update=True) brings coarser mags up to date",
    "file.outside": "grow the layer's box (grow_box, --grow-box), or remove the file",
    "folder.unreadable": "make it readable",
    "folder.dangling": "is its disk mounted?",
    "folder.no_folder": "quarantine (--quarantine) sets it aside",
    "name.unread": "rename it if it is a data file of this mag",
    "mag.missing": "is its disk mounted? drop_missing (--drop-missing) takes it off the JSON",
    "mag.twice": "compare the two, and remove one",
    "job.interrupted": "run the same command again, or remove the folder",
    "pyramid.differs": "rebuild_differing (--pyramid) makes such files anew; build_pyramid(update=True) does where wkwdask made the mag",
    "json.box_smaller": "grow_box (--grow-box) makes the box larger",
}
