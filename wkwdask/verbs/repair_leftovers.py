"""Removal of the leftovers of processes that have ended: locks, temporaries, job folders and
unpublished copies."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from wkwdask.formats.leftovers import age_seconds, is_external_temporary
from wkwdask.formats.repair import (
    FINISH,
    REMOVE,
    Action,
    RepairOptions,
    Unrepaired,
    summarize_faults,
)
from wkwdask.plans.regions import RegionGrid
from wkwdask.runs.job_folder import remove_ownerless_folder
from wkwdask.runs.job_records import JobState, job_states
from wkwdask.store.locks import guarded, is_lock, remove_stale_lock
from wkwdask.store.paths import basename, dirname, split
from wkwdask.store.store import store_at
from wkwdask.verbs.compare import CopyCheckSpec
from wkwdask.verbs.verify import UNREADABLE_LOCK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from wkwdask.formats.inspection import LayerScope, Scope
    from wkwdask.model.faults import Fault
    from wkwdask.runs.job import Task


class LeftoverRepair:
    """Planned removal of leftovers."""

    def __init__(self, scope: Scope, options: RepairOptions) -> None:
        self._scope = scope
        self._options = options
        self._removed: dict[str, list[str]] = defaultdict(list)
        self._refused: dict[str, list[str]] = defaultdict(list)
        self._cleaned: set[str] = set()
        self._only_copies: set[str] = set()
        self.actions: list[Action] = []
        self.left: list[Unrepaired] = []

    def plan(self, faults: Sequence[Fault]) -> set[str]:
        """Choose an action, or the reason for none, for all leftovers; return the paths that the
        repair handles."""
        handled: set[str] = set()
        for fault in faults:
            if not self._options.allow_external and not self._scope.is_inside(fault.path):
                continue
            if fault.kind == "job.unpublished":
                self._add_action(FINISH, fault, handled, "its mags are complete")
            elif fault.kind == "job.refused":
                self._refused[dirname(fault.path)].append(fault.path)
                self._add_action(
                    REMOVE, fault, handled, f"{fault.found}; removes all that the job has built"
                )
            elif fault.kind in ("job.dead", "record.broken"):
                self._add_action(REMOVE, fault, handled)
            elif _is_copy(fault) and (
                not self._options.remove_copies or self._layer_of(fault.path) is None
            ):
                self.left.append(
                    Unrepaired(
                        fault,
                        (
                            "inspect it before you remove it; remove_copies=True removes it if the "
                            "layer has all of its voxels"
                        ),
                    )
                )
            elif _is_copy(fault) and (
                fault.path in self._only_copies or self._has_errors(fault.path, faults)
            ):
                self.left.append(
                    Unrepaired(
                        fault,
                        (
                            "the layer lacks some of its voxels, or has errors: it may be the only "
                            "complete copy"
                        ),
                    )
                )
            elif fault.kind.startswith("leftover.") and self._may_be_written(fault):
                self.left.append(
                    Unrepaired(
                        fault,
                        (
                            "a process may still write it: it is removed when it is older than "
                            f"{self._options.older_than_seconds:g} s"
                        ),
                    )
                )
            elif fault.kind.startswith("leftover."):
                self._add_action(REMOVE, fault, handled)
        return handled

    def probe_tasks(self, faults: Iterable[Fault]) -> Iterator[Task]:
        """Yield the tasks that check whether a layer contains all voxels of the copies that were to
        replace its mags."""
        for fault in faults:
            layer = (
                self._layer_of(fault.path)
                if _is_copy(fault) and self._options.remove_copies
                else None
            )
            if layer is not None:
                yield from self._copy_tasks(fault.path, layer)

    def _copy_tasks(self, copy: str, layer: LayerScope) -> Iterator[Task]:
        for pair in self._scope.copies(copy, layer):
            if pair is None:
                self._only_copies.add(copy)
                return
            volume, copied = pair
            edge = max(*volume.shard_shape, *copied.shard_shape)
            plan = RegionGrid(copied.box, (edge,) * 3, (edge,) * 3)
            yield from (
                CopyCheckSpec(volume, copied, plan, region).task()
                for region in plan.regions(copied.files.occupied(plan.region_shape))
            )

    def record_probe(self, spec: CopyCheckSpec, *, is_contained: bool) -> None:
        """Record that a copy has voxels that its layer lacks, unless the layer contains all of
        them."""
        if not is_contained:
            copies = (fault.path for fault in self._scope.faults if _is_copy(fault))
            self._only_copies |= {
                path
                for path in copies
                if spec.copy.name.startswith(f"{path}/") or spec.copy.name == path
            }

    def _layer_of(self, path: str) -> LayerScope | None:
        return next(
            (layer for layer in self._scope.layers if path.startswith(f"{layer.folder}/")), None
        )

    def _has_errors(self, path: str, faults: Iterable[Fault]) -> bool:
        """Return whether any file of the layer around a path is missing or broken."""
        layer = self._layer_of(path)
        folders = [] if layer is None else [layer.folder, *(scope.folder for scope in layer.mags)]
        return any(
            fault.severity == "error"
            and any(fault.path.startswith(f"{folder}/") for folder in folders)
            for fault in faults
        )

    def _may_be_written(self, fault: Fault) -> bool:
        """Return whether the writer of a leftover may still run. Our own temporaries in a mag have
        no writer once the mag's lock is held."""
        if fault.kind == "leftover.lock" and fault.found != UNREADABLE_LOCK:
            return False
        is_own = (
            fault.kind == "leftover.temporary"
            and not is_external_temporary(fault.path)
            and self._mag_of(fault.path) is not None
        )
        return not is_own and age_seconds(fault.path) < self._options.older_than_seconds

    def _mag_of(self, path: str) -> str | None:
        """Return the mag folder around a file, None outside of mags."""
        folders = (scope.folder for layer in self._scope.layers for scope in layer.mags)
        return next((folder for folder in folders if path.startswith(f"{folder}/")), None)

    def _add_action(self, verb: str, fault: Fault, handled: set[str], how: str = "") -> None:
        handled.add(fault.path)
        self.actions.append(Action(verb, fault.path, summarize_faults([fault]), how))
        layer = self._layer_of(fault.path)
        owner = self._scope.path if layer is None else layer.folder
        self._cleaned.add(owner)
        if not fault.kind.startswith("job."):
            # the repair's own job folder ends other jobs when it takes the locks
            self._removed[owner].append(fault.path)

    def has_work(self, folder: str) -> bool:
        """Return whether the folder of a layer or dataset contains anything to remove."""
        return folder in self._cleaned

    def mags(self, folder: str) -> set[str]:
        """Return the mags in which files are removed; the repair must hold their locks."""
        return {mag for mag in map(self._mag_of, self._removed.get(folder, [])) if mag is not None}

    def remove_locks(self, folder: str) -> None:
        """Remove the locks of dead jobs in a layer. An unreadable lock would keep any job from
        starting."""
        locks = [path for path in self._removed.get(folder, []) if is_lock(basename(path))]
        if locks:
            with guarded(folder):
                for path in locks:
                    remove_ownerless_folder(path)
                    remove_stale_lock(path)

    def remove_refused(self, folder: str) -> None:
        """Remove the folders of jobs with refused records. While they exist, no other job can
        start."""
        if self._refused.get(folder):
            with guarded(folder):
                refused = {root for root, state in job_states(folder) if state is JobState.REFUSED}
                for path in refused.intersection(self._refused[folder]):
                    store_at(path).delete_folder()

    def remove(self, folder: str) -> None:
        """Remove all other leftovers of a layer or dataset, except for locks."""
        for path in self._removed.get(folder, []):
            if not is_lock(basename(path)):
                _remove(path)


def _is_copy(fault: Fault) -> bool:
    """Return whether a leftover may be a mag of other software."""
    return fault.kind == "leftover.folder" or (
        fault.kind == "leftover.temporary" and store_at(fault.path).is_folder()
    )


def _remove(path: str) -> None:
    store = store_at(path)
    if store.is_folder() and not store.link_target():
        store.delete_folder()
    elif store.is_taken():
        folder, name = split(path)
        store_at(folder).delete(name)
