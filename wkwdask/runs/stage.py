"""The layout of a job: resumption of an interrupted start, and targets in the job's folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wkwdask.errors import ResumeError
from wkwdask.formats.record_paths import job_root
from wkwdask.geometry.mag import vec3
from wkwdask.runs.job_records import find_left, find_unfinished
from wkwdask.runs.staged import StagedMags, check_same_settings
from wkwdask.store.locks import lock_holder, locks_of
from wkwdask.store.owner import Owner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.formats.format import MetadataEdit
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.volume import Target
    from wkwdask.runs.content import Content
    from wkwdask.runs.job_records import UnfinishedJob

EXISTING = ("error", "resume", "overwrite")
_PRESENCE = "presence"


@dataclass(frozen=True, slots=True)
class Draft:
    """A job before its targets are known: owner, place, settings, and the decisions of an interrupted start."""

    owner: Owner
    """The process that runs the job."""
    parent: str
    """Folder that will hold the job's folder."""
    folders: tuple[str, ...]
    """Final folder of each mag."""
    settings: dict[str, Any]
    """Settings of the job."""
    existing: str
    """Policy for mags that already exist."""
    before: dict[str, Any] | None
    """Decisions of the interrupted start, None for a new job."""

    @property
    def root(self) -> str:
        """Folder of the job."""
        return job_root(self.parent, self.owner.job)

    def staged(self, name: str) -> str:
        """Return the folder in which a mag is built."""
        return f"{self.root}/{name}"

    def shape(self, name: str = "region") -> Vec3 | None:
        """Return a shape that the interrupted start chose, None for a new job."""
        return None if self.before is None else vec3(self.before[name])

    def shapes(self, name: str = "regions") -> list[Vec3] | None:
        """Return the shapes that the interrupted start chose, one per mag or pass; None for a new job."""
        return None if self.before is None else [vec3(shape) for shape in self.before[name]]

    def mags(self, targets: Sequence[Target], nbytes_in: int, edit: MetadataEdit | None, plan: dict[str, Any] | None = None, **options: Any) -> StagedMags:
        """Stage the mags."""
        if self.before is not None and plan is not None and _PRESENCE in plan and plan[_PRESENCE] != self.before.get(_PRESENCE):
            raise ResumeError(f'{self.owner.command}: files were added or removed since the job was interrupted; existing="overwrite" starts anew')
        options.setdefault("existing", self.existing)
        return StagedMags(self.owner, self.parent, tuple(targets), self.folders, nbytes_in, edit, self.settings, plan=plan, **options)


def stage(command: str, parent: str, folders: Sequence[str], settings: dict[str, Any], existing: str) -> Draft:
    """Begin the layout of a job, new or resumed."""
    check_existing(existing)
    interrupted = _find_interrupted(parent, folders, settings, existing)
    owner = Owner.this_process(command, None if interrupted is None else interrupted.job)
    return Draft(owner, parent, tuple(folders), settings, existing, None if interrupted is None else interrupted.plan)


def stage_array(command: str, parent: str, folder: str, settings: dict[str, Any], existing: str, content: Content) -> Draft:
    """Begin the layout of a job that writes an array. A resumed job need not prove that the voxels are the same."""
    check_existing(existing)
    settings = {**settings, **content.settings}
    is_free = not any(lock.stands_in_the_way(content.shards) and not lock.owner.is_gone() for lock in locks_of(folder))
    left = find_left(parent, [folder], content.shards) if existing != "overwrite" and is_free else None
    if left is not None and existing == "error" and settings != left.settings:
        left = None  # the new job takes its place
    if left is not None:
        check_same_settings(left.root, settings, left.settings, content.not_compared)
    return Draft(Owner.this_process(command, None if left is None else left.job), parent, (folder,), settings, existing, None)


def check_existing(existing: str) -> None:
    """Make sure that the option is one that there is."""
    if existing not in EXISTING:
        raise ValueError(f"existing must be {' or '.join(map(repr, EXISTING))}, got {existing!r}")


def _find_interrupted(parent: str, folders: Sequence[str], settings: dict[str, Any], existing: str) -> UnfinishedJob | None:
    """Find the interrupted job that a new one is to go on with."""
    if existing == "overwrite" or any(lock_holder(folder) is not None for folder in folders):
        return None  # a job that is running is told apart when the locks are taken
    unfinished = find_unfinished(parent, folders)
    if unfinished is not None:
        check_same_settings(unfinished.root, settings, unfinished.settings)
    return unfinished
