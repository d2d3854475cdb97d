"""Planning of repairs: one action for each fault of a verification, in a safe order.

Every chunk that decodes is kept byte for byte. Broken shards of a coarser level are rebuilt from
the finer one. Broken shards of the finest level cannot be rebuilt; they are salvaged or set aside
only on request.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from wkwdask.formats.array_repair import ArrayRepair, Probe
from wkwdask.formats.leftovers import can_be_quarantined
from wkwdask.formats.record_paths import job_root
from wkwdask.formats.repair import (
    ACCEPT,
    CORRECT_HEADER,
    CORRECT_INDEX,
    CUT,
    QUARANTINE,
    REBUILD,
    SALVAGE,
    WRITE_HEADER,
    Action,
    RepairOptions,
    Unrepaired,
    summarize_faults,
    without_notes,
)  # fmt: skip
from wkwdask.formats.roots import OWN_COPY_OR_EXTERNAL
from wkwdask.model.placement import plain_name
from wkwdask.model.summary import counted
from wkwdask.runs.drive import Phase, Work
from wkwdask.runs.job import FlatJob, Result
from wkwdask.runs.job_folder import JobFolder
from wkwdask.store.locks import Owner
from wkwdask.store.paths import dirname, is_below, is_bucket
from wkwdask.store.store import store_at
from wkwdask.verbs.compare import CopyCheckSpec
from wkwdask.verbs.pyramid import RegionSpec
from wkwdask.verbs.recompute import (
    Provenance,
    RebuildPlan,
    RecomputeSpec,
    find_provenance,
    finer_levels,
    plan_rebuild,
    recompute_specs,
)
from wkwdask.verbs.repair_leftovers import LeftoverRepair
from wkwdask.verbs.repair_level import (
    LevelPlan,
    ProbeSpec,
    RewriteSpec,
    check_unchanged,
    repair_level,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from wkwdask.formats.inspection import LayerScope, LevelScope
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.faults import Fault
    from wkwdask.runs.job import Task
    from wkwdask.verbs.verify import Verification, VerifyReport

_OLD_FILE = "; the old file is set aside"
_OUT_OF_REACH = {"file.unreadable": "make it readable", "file.dangling": "is its disk mounted?"}


_TOO_LARGE = (
    "the server copies no object of its size to the quarantine; move it away with the tool of the "
    "provider, and repair again"
)


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Rebuild of files of one coarser level."""

    base: RebuildPlan
    target: Any
    """The level as a target in place."""
    basis: str = ""
    """Its method, and whether that is recorded or requested, for people."""

    @property
    def provenance(self) -> Provenance:
        return self.base.provenance

    def spec(self, shard: Vec3) -> RegionSpec:
        return RegionSpec(
            self.base.finer,
            self.base.plan,
            (self.target,),
            self.provenance.method,
            self.provenance.ignore_zero,
            shard,
        )


@dataclass(frozen=True, slots=True)
class BrokenFile:
    """File with faults."""

    plan: LevelPlan
    """Repair plan of its level."""
    shard: Vec3
    faults: list[Fault]
    repairer: ArrayRepair | None
    """None if files of its format cannot be rewritten chunk by chunk."""
    probe: Probe
    """Its intact chunks."""

    @property
    def path(self) -> str:
        return self.faults[0].path

    @property
    def place(self) -> tuple[str, Vec3]:
        """Folder of its level, and its shard."""
        return self.plan.scope.folder, self.shard

    @property
    def num_sound(self) -> int:
        return self.probe.num_intact

    def has(self, kind: str) -> bool:
        return any(fault.kind == kind for fault in self.faults)

    def rewrite_spec(
        self, header: Any = None, *, salvage: bool = False, rebuild: RegionSpec | None = None
    ) -> RewriteSpec:
        """Return the spec of the task that rewrites the file from its own chunks."""
        assert self.repairer is not None
        return RewriteSpec(
            self.repairer,
            self.shard,
            self.path,
            header,
            summarize_faults(self.faults),
            salvage=salvage,
            rebuild=rebuild,
        )


@dataclass(frozen=True, slots=True)
class RepairReport:
    """Report of a repair, or of a dry run."""

    path: str
    """Path that was repaired."""
    is_dry_run: bool
    """Whether nothing was changed."""
    actions: tuple[Action, ...]
    """Actions, in the order of their execution."""
    remaining: tuple[Unrepaired, ...]
    """Errors and warnings that remain."""

    @property
    def is_sound(self) -> bool:
        """Whether no error remains."""
        return not any(unrepaired.fault.severity == "error" for unrepaired in self.remaining)

    def __str__(self) -> str:
        would = "would " if self.is_dry_run else ""
        lines = [f"{would}{action}" for action in self.actions] + [
            str(unrepaired) for unrepaired in self.remaining
        ]
        done = (
            "nothing was changed (dry run)"
            if self.is_dry_run
            else counted(len(self.actions), "action")
            if self.actions
            else "nothing to do"
        )
        return "\n".join([*lines, f"{done}; {self._state}"])

    @property
    def _state(self) -> str:
        errors = sum(unrepaired.fault.severity == "error" for unrepaired in self.remaining)
        numbers = [
            counted(number, noun)
            for number, noun in ((errors, "error"), (len(self.remaining) - errors, "warning"))
            if number
        ]
        return (
            f"{' and '.join(numbers)} {'remains' if len(self.remaining) == 1 else 'remain'}"
            if numbers
            else "no errors or warnings remain"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``json.dumps``."""
        return {
            "path": self.path,
            "dry_run": self.is_dry_run,
            "sound": self.is_sound,
            "actions": [action.to_json() for action in self.actions],
            "left": [
                {**unrepaired.fault.to_json(), "reason": unrepaired.reason}
                for unrepaired in self.remaining
            ],
        }


class Repair:
    """Repair of the faults of one verification: probe, plan, execute."""

    def __init__(self, staged: Verification, report: VerifyReport, options: RepairOptions) -> None:
        self.scope: Any = staged.scope
        self._options = options
        self._faults = without_notes(report.faults)
        self._by_path: dict[str, list[Fault]] = defaultdict(list)
        for fault in self._faults:
            self._by_path[fault.path].append(fault)
        self._probed: dict[str, Probe] = {}
        # whether the intact blocks of a broken shard equal those computed from the finer mag
        self._compared: dict[tuple[str, Vec3], bool] = {}
        self._saved: set[str] = set()  # files that are intact after the repair
        # files that are readable after the repair, with zeros for lost blocks
        self._salvaged: set[str] = set()
        self._without_method: set[str] = set()  # folders of coarser levels whose method is unknown
        self.actions: list[Action] = []
        self.left: list[Unrepaired] = []
        self.plans: dict[str, list[LevelPlan]] = {}
        self.leftovers = LeftoverRepair(self.scope, options)
        self.documents = staged.scope.repair_documents(staged.scope, staged.found, options)

    # ------------------------------------------------------------------ probe

    def probe_job(self) -> FlatJob:
        """Return the job that counts the intact blocks of broken files, and checks whether the
        user's method reproduces them."""
        tasks: list[Task] = []
        trials: list[Iterator[Task]] = []
        errors = {fault.path for fault in self._faults if fault.severity == "error"}
        for layer in self.scope.layers:
            for scope in layer.mags:
                repairer = scope.repairer()
                broken = self._broken_shards(scope)
                for shard, faults in broken.items() if repairer is not None else ():
                    kinds = frozenset(fault.kind for fault in faults)
                    is_probed = not kinds & {
                        *_OUT_OF_REACH,
                        "file.lost",
                        "file.size_changed",
                        "file.no_file",
                        "file.empty",
                        "file.short",
                    }
                    if is_probed and store_at(faults[0].path).is_taken():
                        # a missing file can differ from the finer level
                        tasks.append(ProbeSpec(repairer, shard, faults[0].path, kinds).task())
                provenance = (
                    find_provenance(layer, scope, self._options.method)
                    if broken and repairer is not None
                    else None
                )
                if (
                    provenance is not None
                    and provenance.is_known
                    and not provenance.is_recorded
                    and _is_described(scope, self._by_path)
                ):
                    trials.append(_comparisons(scope, provenance, errors))
        tasks += self.leftovers.probe_tasks(self._faults)
        return FlatJob(lambda: chain(tasks, *trials), len(tasks) + len(trials), self._record_probe)

    def _record_probe(self, spec: Any, result: Result) -> None:
        if isinstance(spec, ProbeSpec):
            self._probed[spec.path] = result.value
        elif isinstance(spec, RecomputeSpec):
            if result.value.compared:
                self._compared[spec.coarser.name, spec.shard] = not result.value.different
        elif isinstance(spec, CopyCheckSpec):
            self.leftovers.record_probe(spec, is_contained=result.value)

    def _broken_shards(self, scope: LevelScope) -> dict[Vec3, list[Fault]]:
        """Return the shards of a level with faults that a repair handles."""
        if any(fault.kind == "folder.dangling" for fault in self._by_path.get(scope.folder, ())):
            return {}  # its files cannot be listed
        serious = {
            path: handled
            for path, faults in self._by_path.items()
            if path.startswith(f"{scope.folder}/")
            if (
                handled := [
                    fault
                    for fault in faults
                    if fault.severity == "error"
                    or fault.kind == "file.trailing"
                    or self._rebuilds(fault)
                    or self._accepts(fault)
                ]
            )
        }
        return scope.broken_shards(serious)

    def _differs(self, file: BrokenFile) -> bool:
        return any(map(self._rebuilds, file.faults))

    def _rebuilds(self, fault: Fault) -> bool:
        return self._options.rebuild_differing and fault.kind == "pyramid.differs"

    def _accepts(self, fault: Fault) -> bool:
        return self._options.accept_changes and fault.kind in ("file.lost", "file.size_changed")

    # ------------------------------------------------------------------ plan

    def plan(self) -> None:
        """Choose an action, or the reason for none, for every fault."""
        document = (
            None
            if self._options.allow_external or self.scope.root.folder is None
            else self.scope.root.linked_document(self.scope.root.folder)
        )
        if self.scope.root.folder is not None and self._is_external(self.scope.root.folder):
            self._leave_external(self.scope.root.folder, self._faults)
            return
        if document is not None:  # all of the image depends on it
            self.left = [Unrepaired(fault, self._advice_on(document)) for fault in self._faults]
            return
        handled: set[str] = set()
        # Finest mag first: a file of a coarser mag is rebuilt only if its sources are intact by
        # then.
        for layer in self.scope.layers:
            plans = [self._plan_mag(layer, scope, handled) for scope in layer.mags]
            self.plans[layer.folder] = [plan for plan in plans if not plan.is_empty]
        for part in (self.leftovers, self.documents):
            handled |= part.plan(self._faults)
            self.actions += part.actions
            self.left += part.left
        known, broken = (
            {id(left.fault) for left in self.left},
            {left.fault.path for left in self.left},
        )
        for fault in self._faults:
            if id(fault) not in known and (fault.path not in handled or fault.path in broken):
                self.left.append(Unrepaired(fault, fault.remedy))

    def _plan_mag(self, layer: LayerScope, scope: LevelScope, handled: set[str]) -> LevelPlan:
        plan = LevelPlan(scope)
        document = (
            None if self._options.allow_external else self.scope.root.linked_document(scope.folder)
        )
        if document is not None or self._is_external(scope.folder):
            for faults in (
                faults for path, faults in self._by_path.items() if is_below(path, scope.folder)
            ):
                if document is not None:
                    self.left += [Unrepaired(fault, self._advice_on(document)) for fault in faults]
                else:
                    self._leave_external(scope.folder, faults, scope.stated)
            return plan
        self._plan_document(plan, handled)
        if plan.document is None and not _is_described(scope, self._by_path):
            return plan
        broken = sorted(self._broken_shards(scope).items(), key=lambda item: item[0][::-1])
        rebuild = self._find_rebuild(layer, scope) if broken else None
        for shard, faults in broken:
            if self._is_external(dirname(faults[0].path)):
                self._leave_external(dirname(faults[0].path), faults)
                continue
            self._plan_file(rebuild, plan, shard, faults)
            plan.kinds[shard] = {fault.kind for fault in faults}
            handled.update(fault.path for fault in faults)
        for path, faults in self._by_path.items():
            is_aside = (
                path.startswith(f"{scope.folder}/")
                and faults[0].kind == "folder.no_folder"
                and self._options.quarantine
            )
            if is_aside and not self._is_external(dirname(path)):
                self._set_aside(plan, None, faults[:1])
                handled.add(path)
        return plan

    def _is_external(self, folder: str) -> bool:
        return not self._options.allow_external and not self.scope.is_inside(folder)

    def _leave_external(self, folder: str, faults: list[Fault], stated: str | None = None) -> None:
        root, named = (
            self.scope.root,
            "" if stated is None else f" ({self.scope.root.document} names it {stated!r})",
        )
        advice = (
            f"it lies outside the {root.noun} {root.boundary(folder)}, at "
            f"{store_at(folder).real()}{named}: allow_external=True repairs it there"
        )
        self.left += [Unrepaired(fault, advice) for fault in faults]

    def _advice_on(self, document: str) -> str:
        return f"{document}: {self.scope.root.describe_document(document)}: {OWN_COPY_OR_EXTERNAL}"

    def _plan_document(self, plan: LevelPlan, handled: set[str]) -> None:
        path = plan.scope.document
        faults = plan.scope.document_faults(self._by_path.get(path, []))
        if not faults:
            return
        handled.add(path)
        repaired = plan.scope.repaired_document(faults)
        if repaired is None:
            self.left += [Unrepaired(fault, "no data file implies its content") for fault in faults]
            return
        plan.document, how = repaired
        self.actions.append(Action(WRITE_HEADER, path, summarize_faults(faults), how))

    def _plan_file(
        self, rebuild: Rebuild | None, plan: LevelPlan, shard: Vec3, faults: list[Fault]
    ) -> None:
        # In order of preference: correct the header, cut surplus bytes, rebuild from the finer mag,
        # and only then accept a loss.
        file = BrokenFile(
            plan, shard, faults, plan.scope.repairer(), self._probed.get(faults[0].path, Probe())
        )
        header = file.probe.head
        out_of_reach = next((kind for kind in _OUT_OF_REACH if file.has(kind)), None)
        if plan.scope.check(decode=True) is None or out_of_reach is not None:
            if out_of_reach == "file.dangling" and self._options.quarantine:
                self._set_aside(plan, shard, faults)
            else:
                self.left += [
                    Unrepaired(
                        fault,
                        _OUT_OF_REACH.get(
                            fault.kind, "the expected content of the file is unknown"
                        ),
                    )
                    for fault in faults
                ]
        elif file.has("file.size_changed"):
            self._accept(file, "its voxels stay unchanged; the record takes over its size")
        elif not all(map(can_be_quarantined, {fault.path for fault in faults})):
            self.left += [Unrepaired(fault, _TOO_LARGE) for fault in faults]
        elif file.repairer is not None and header is not None:
            self._saved.add(file.path)
            self._add_rewrite(
                file, CORRECT_HEADER, file.rewrite_spec(header), _PROOF[header.is_compressed]
            )
        elif file.repairer is not None and all(fault.kind == "file.trailing" for fault in faults):
            self._add_rewrite(file, CUT, file.rewrite_spec(), "all blocks stay unchanged")
        elif 0 < file.probe.num_chunks == file.num_sound and all(
            fault.kind == "shard.checksum" for fault in faults
        ):
            self._saved.add(file.path)
            self._add_rewrite(
                file,
                CORRECT_INDEX,
                file.rewrite_spec(salvage=True),
                "all its chunks decode and stay; the old file is set aside",
            )
        else:
            rebuild, doubt = self._confirmed(rebuild, file)
            if not self._plan_rebuild(rebuild, file):
                self._plan_loss(rebuild, file, doubt)

    def _add_rewrite(self, file: BrokenFile, verb: str, spec: RewriteSpec, how: str) -> None:
        file.plan.specs.append(spec)
        self.actions.append(Action(verb, spec.path, summarize_faults(file.faults), how))

    def _find_rebuild(self, layer: LayerScope, scope: LevelScope) -> Rebuild | None:
        """Return the rebuild of files of a coarser level, None without a finer level or a
        method."""
        provenance = find_provenance(layer, scope, self._options.method)
        if provenance is None and finer_levels(layer, scope):
            self._without_method.add(scope.folder)
        if (
            provenance is None
            or not scope.can_be_written
            or not _is_described(provenance.finer, self._by_path)
        ):
            return None
        lost = (
            shard
            for shard, faults in self._broken_shards(provenance.finer).items()
            if any(fault.kind == "file.lost" for fault in faults)
        )
        plan = plan_rebuild(scope, provenance, lost)
        return Rebuild(plan, scope.target(plan.coarser.box, f"{scope.folder}/"))

    def _confirmed(self, rebuild: Rebuild | None, file: BrokenFile) -> tuple[Rebuild | None, str]:
        """Return the rebuild of a file, or None and the reason why its method is uncertain."""
        unknown = "the method that made the mag is unknown: set method="
        if rebuild is None:
            return None, unknown if file.plan.scope.folder in self._without_method else ""
        provenance = rebuild.provenance
        if not provenance.is_known:
            return None, unknown
        if (
            file.num_sound
            and not self._differs(file)
            and not provenance.is_recorded
            and file.place not in self._compared
        ):
            return None, "its sound blocks could not be compared with the finer mag"
        if not self._compared.get(file.place, True):
            return (
                None,
                (
                    f"its sound blocks differ from the {provenance.method} of the finer mag, which "
                    "may contain less than the file had"
                ),
            )
        return replace(
            rebuild,
            basis=(
                f"by {provenance.method}, as "
                f"{'recorded' if provenance.is_recorded else 'requested'}"
            ),
        ), ""

    def _plan_rebuild(self, rebuild: Rebuild | None, file: BrokenFile) -> bool:
        """Plan to rebuild a file from the finer level; return False if that is not safe."""
        # A file without intact blocks has nothing to lose, so salvage may rebuild it even from
        # salvaged sources.
        is_good = (
            self._is_readable if self._options.salvage and not file.num_sound else self._is_saved
        )
        if rebuild is None or not all(map(is_good, rebuild.base.sources(file.shard))):
            return False
        is_recorded, differs = rebuild.provenance.is_recorded, self._differs(file)
        how = f"from mag {rebuild.provenance.finer.name}, {rebuild.basis}"
        is_kept = (
            file.repairer is not None
            and (file.num_sound or file.repairer.keeps_files)
            and not file.has("file.lost")
        )
        if is_kept and not is_recorded and not differs:
            # Its intact blocks equal the computed ones, so only the others are rebuilt. They get
            # the compression of the mag, and all blocks of a file must have the same one.
            if any(fault.kind == "file.block_type" for fault in self._by_path[file.path]):
                return False
            self._saved.update(fault.path for fault in file.faults)
            spec = file.rewrite_spec(salvage=True, rebuild=rebuild.spec(file.shard))
            kept = (
                f"; its {counted(file.num_sound, 'sound block')} "
                f"{'stays' if file.num_sound == 1 else 'stay'}"
                if file.num_sound
                else ""
            )
            self._add_rewrite(file, REBUILD, spec, how + kept + _OLD_FILE)
            return True
        reason = summarize_faults(file.faults)
        sets_aside = not is_recorded or differs or is_bucket(file.path)
        for path in dict.fromkeys(fault.path for fault in file.faults):
            store = store_at(path)
            is_file = store.is_file()
            is_folder = store.is_taken() and not is_file
            if is_folder:
                file.plan.quarantined.append((path, file.shard, reason))
            note = _OLD_FILE if is_folder or (sets_aside and is_file) else ""
            self._saved.add(path)
            self.actions.append(Action(REBUILD, path, reason, how + note))
        if sets_aside:  # all files of a group are computed again
            file.plan.set_aside[file.shard] = reason
        file.plan.specs.append(rebuild.spec(file.shard))
        return True

    def _is_readable(self, path: str) -> bool:
        """Return whether a file is readable, or will be, with zeros for lost blocks."""
        return path in self._salvaged or self._is_saved(path)

    def _is_saved(self, path: str) -> bool:
        """Return whether a file is intact, or will be before coarser files are rebuilt from it."""
        return path in self._saved or not any(
            fault.severity == "error" for fault in self._by_path.get(path, [])
        )

    def _plan_loss(self, rebuild: Rebuild | None, file: BrokenFile, doubt: str) -> None:
        """Plan the salvage or quarantine of a file that cannot be rebuilt, or leave it."""
        _, num_sound, total = file.probe
        if file.has("pyramid.differs"):
            self.left += [
                Unrepaired(fault, doubt or "the method that made the mag is unclear: set method=")
                for fault in file.faults
            ]
        elif all(map(self._accepts, file.faults)):
            self._accept(
                file, f"its voxels stay {file.plan.scope.absent_value}; the record forgets it"
            )
        elif file.has("file.lost"):
            self.left += [
                Unrepaired(fault, doubt or "restore it from a backup") for fault in file.faults
            ]
        elif self._options.salvage and num_sound and file.repairer is not None:
            spec, replacement = None, file.repairer.replacement
            if rebuild is not None and all(
                map(self._is_readable, rebuild.base.sources(file.shard))
            ):
                spec, replacement = (
                    rebuild.spec(file.shard),
                    f"those computed from the repaired mag {rebuild.provenance.finer.name}",
                )
            how = (
                f"{total - num_sound} of {total} blocks become {replacement}, the other "
                f"{num_sound} stay; the old file is set aside"
            )
            self._salvaged.update(fault.path for fault in file.faults)
            self._add_rewrite(file, SALVAGE, file.rewrite_spec(salvage=True, rebuild=spec), how)
        elif self._options.quarantine:
            self._set_aside(file.plan, file.shard, file.faults)
        else:
            salvage = (
                f"salvage=True keeps {num_sound} of {total} blocks and replaces the others by "
                "zeros; "
                if num_sound
                else ""
            )
            advice = f"{doubt}; else restore it" if doubt else "restore it"
            advice += (
                f" from a backup; {salvage}quarantine=True sets the file aside, and its voxels "
                "then read as zeros"
            )
            self.left += [Unrepaired(fault, advice) for fault in file.faults]

    def _accept(self, file: BrokenFile, how: str) -> None:
        """Plan to record what other software left of a shard."""
        file.plan.accepted.append(file.shard)
        self._saved.update(fault.path for fault in file.faults)
        self.actions.append(Action(ACCEPT, file.path, summarize_faults(file.faults), how))

    def _set_aside(self, plan: LevelPlan, shard: Vec3 | None, faults: list[Fault]) -> None:
        for path in dict.fromkeys(fault.path for fault in faults):
            plan.quarantined.append((path, shard, summarize_faults(faults)))
            self.actions.append(
                Action(
                    QUARANTINE,
                    path,
                    summarize_faults(faults),
                    f"its voxels then read as {plan.scope.absent_value}",
                )
            )

    # ------------------------------------------------------------------ execute

    def phases(self) -> Generator[Phase, str, None]:
        """Execute the plan layer by layer, under the locks of its mags, finest mag first; the
        dataset JSON comes last."""
        for layer in self.scope.layers:
            if self.plans.get(layer.folder) or self.leftovers.has_work(layer.folder):
                yield from self._repair_layer(layer)
        if self.scope.path not in {layer.folder for layer in self.scope.layers}:
            self.leftovers.remove_refused(self.scope.path)
            self.leftovers.remove_locks(self.scope.path)
            self.leftovers.remove(self.scope.path)
        self.documents.run()

    def _repair_layer(self, layer: LayerScope) -> Generator[Phase, str, None]:
        plans = self.plans.get(layer.folder, [])
        folders = {plan.scope.folder for plan in plans} | self.leftovers.mags(layer.folder) or {
            scope.folder for scope in layer.mags[:1]
        }
        # the names by which jobs that replace the levels know them
        folders = set(map(plain_name, folders))
        self.leftovers.remove_refused(layer.folder)
        self.leftovers.remove_locks(layer.folder)
        owner = Owner.this_process(f"repair of {layer.folder}")
        datasets = [*filter(None, [self.scope.root.folder])] if self._options.allow_external else []
        job_folder = JobFolder(layer.folder, owner, sorted(folders), datasets=datasets)
        job_folder.start("update", {"command": "repair"})
        try:
            for plan in plans:
                check_unchanged(plan)
            self.leftovers.remove(layer.folder)
            for plan in plans:
                for shard, changed in (
                    yield from repair_level(plan, job_root(layer.folder, owner.job))
                ).items():
                    self._report_rebuilt(plan.scope.paths_of(shard), changed)
        finally:
            job_folder.discard()

    def _report_rebuilt(self, paths: list[str], changed: dict[str, bool]) -> None:
        """Name the files of a shard that changed; a difference is stated for the first one. Without
        a change, its encoding does not keep the values."""
        planned = [
            action for action in self.actions if action.verb == REBUILD and action.path in paths
        ]
        # A lost file that is computed again may stay absent.
        done = [
            action
            for action in planned
            if action.path in changed
            or (not store_at(action.path).is_taken() and self._has_own_fault(action.path))
        ]
        known = {action.path for action in done}
        how = planned[0].how.removesuffix(_OLD_FILE)
        done += [
            replace(planned[0], path=path, how=how + _OLD_FILE * is_aside)
            for path, is_aside in changed.items()
            if path not in known
        ]
        place = self.actions.index(planned[0])
        self.actions = [action for action in self.actions if action not in planned]
        self.actions[place:place] = done
        reason = (
            "computed again, it has the same bytes, so it stays: its encoding does not keep the "
            "values"
        )
        unchanged = (
            fault
            for action in planned
            if action not in done
            for fault in self._by_path[action.path]
        )
        self.left += [
            Unrepaired(fault, reason)
            for fault in unchanged
            if not (done and fault.kind == "pyramid.differs")
        ]

    def _has_own_fault(self, path: str) -> bool:
        return any(fault.kind != "pyramid.differs" for fault in self._by_path[path])


class RepairWork(Work[RepairReport]):
    """Verification, and the repair of the faults that it finds."""

    def __init__(self, staged: Verification, options: RepairOptions, *, dry_run: bool) -> None:
        self._staged, self._options, self._dry_run = staged, options, dry_run

    def phases(self) -> Generator[Phase, str, RepairReport]:
        report = yield from self._staged.phases()
        repair = Repair(self._staged, report, self._options)
        path = self._staged.scope.path
        yield Phase(repair.probe_job(), f"probing broken files of {path}")
        repair.plan()
        if not self._dry_run:
            yield from repair.phases()
        return RepairReport(path, self._dry_run, tuple(repair.actions), tuple(repair.left))


def _comparisons(scope: LevelScope, provenance: Provenance, broken: set[str]) -> Iterator[Task]:
    """Yield tasks that compare the intact chunks of broken shards with the finer level."""
    stored = {path for shard in scope.shards() for path in scope.paths_of(shard)}
    check = scope.check(decode=True)
    for spec in recompute_specs(scope, provenance, broken - stored):
        paths = broken.intersection(scope.paths_of(spec.shard))
        if any(store_at(path).is_file() for path in paths):
            yield replace(spec, check=check).task()


def _is_described(scope: LevelScope, by_path: dict[str, list[Fault]]) -> bool:
    """Return whether a level opens, or will when its document is repaired."""
    faults = by_path.get(scope.document, [])
    return scope.check(decode=False) is not None and not any(
        fault.kind == "header.unreadable" for fault in faults
    )


_PROOF = {
    True: "all blocks decode by the mag's header",
    False: (
        "its size is exactly that of the mag's raw files, not the one in its header; raw blocks "
        "allow no other check"
    ),
}
