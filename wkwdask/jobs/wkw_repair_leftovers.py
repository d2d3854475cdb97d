"""Clearing away what processes left that have ended."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import TYPE_CHECKING

from wkwdask.jobs.repair import FINISH, REMOVE, Action, Left, RepairOptions, why
from wkwdask.storage.dataset_check import UNREADABLE_LOCK, Scope, is_inside
from wkwdask.storage.local import remove_tree
from wkwdask.storage.locks import guarded, is_lock, remove_stale_lock
from wkwdask.storage.wkw_listing import age_seconds, is_foreign_temporary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.formats.faults import Fault


class LeftoverRepair:
    """What is to be cleared away.

    Parameters
    ----------
    scope : Scope
        What was checked.
    options : RepairOptions
        What may be done.
    """

    def __init__(self, scope: Scope, options: RepairOptions) -> None:
        self._scope = scope
        self._options = options
        self._removed: dict[str, list[str]] = defaultdict(list)
        self._cleaned: set[str] = set()
        self.actions: list[Action] = []
        self.left: list[Left] = []

    def plan(self, faults: Sequence[Fault]) -> set[str]:
        """Decide about what processes left; gives the paths of all that is dealt with."""
        handled: set[str] = set()
        missing = {os.path.dirname(fault.path) for fault in faults if fault.kind in ("mag.missing", "header.missing")}
        for fault in faults:
            if not is_inside(self._scope, fault.path):
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
        return handled

    def _may_be_written(self, fault: Fault) -> bool:
        """Tell whether the writer of a left-over may still be alive: that of our own in a mag is not, once the mag's lock is held."""
        if fault.kind == "leftover.lock" and fault.found != UNREADABLE_LOCK:
            return False
        is_known = fault.kind == "leftover.temporary" and not is_foreign_temporary(fault.path) and self._mag_of(fault.path) is not None
        return not is_known and age_seconds(fault.path) < self._options.older_than_seconds

    def _mag_of(self, path: str) -> str | None:
        """Name the mag that a file lies in, None where it lies in none."""
        folders = (scope.folder for layer in self._scope.layers for scope in layer.mags)
        return next((folder for folder in folders if path.startswith(f"{folder}/")), None)

    def _leftover(self, verb: str, fault: Fault, handled: set[str], how: str = "") -> None:
        handled.add(fault.path)
        self.actions.append(Action(verb, fault.path, why([fault]), how))
        owner = next((layer.folder for layer in self._scope.layers if fault.path.startswith(f"{layer.folder}/")), self._scope.path)
        self._cleaned.add(owner)
        if not fault.kind.startswith("job."):  # these are for the job that holds the locks to end
            self._removed[owner].append(fault.path)

    def has_work(self, folder: str) -> bool:
        """Tell whether anything is to be done in a layer's folder, or in that of the dataset."""
        return folder in self._cleaned

    def mags(self, folder: str) -> set[str]:
        """Name the mags in which something is removed: their locks must be held."""
        return {mag for mag in map(self._mag_of, self._removed.get(folder, [])) if mag is not None}

    def remove_locks(self, folder: str) -> None:
        """Remove locks that dead jobs left in a layer: one that cannot be read would keep any job from starting."""
        locks = [path for path in self._removed.get(folder, []) if is_lock(os.path.basename(path))]
        if locks:
            with guarded(folder):
                for path in locks:
                    remove_stale_lock(path)

    def remove(self, folder: str) -> None:
        """Remove what else is left in a layer or dataset, locks aside."""
        for path in self._removed.get(folder, []):
            if not is_lock(os.path.basename(path)):
                _remove(path)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        remove_tree(path)
    elif os.path.lexists(path):
        os.unlink(path)
