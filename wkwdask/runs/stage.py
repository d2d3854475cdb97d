"""How every job is laid out, whatever the verb: an interrupted start is found, and what is built lies in the job's folder."""

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

    from wkwdask.formats.metadata import MetadataEdit
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.volume import Target
    from wkwdask.runs.content import Content
    from wkwdask.runs.job_records import UnfinishedJob
    from wkwdask.store.locks import ShardBox

EXISTING = ("error", "resume", "overwrite")
_PRESENCE = "presence"


@dataclass(frozen=True, slots=True)
class Draft:
    """A job that is being laid out: who does it and where, and what an interrupted start of it decided."""

    owner: Owner
    """Who does it."""
    parent: str
    """The folder in which the job's folder is."""
    folders: tuple[str, ...]
    """Where each mag is to appear."""
    settings: dict[str, Any]
    """What the job does."""
    existing: str
    """What to do where a mag is there."""
    before: dict[str, Any] | None
    """What the interrupted start decided, None where there is none."""

    def staged(self, name: str) -> str:
        """Say where a mag is built before it appears."""
        return f"{job_root(self.parent, self.owner.job)}/{name}"

    def shape(self, name: str = "region") -> Vec3 | None:
        """Give a shape that the interrupted start chose."""
        return None if self.before is None else vec3(self.before[name])

    def shapes(self, name: str = "regions") -> list[Vec3] | None:
        """Give shapes that the interrupted start chose, one for each mag or pass."""
        return None if self.before is None else [vec3(shape) for shape in self.before[name]]

    def mags(self, targets: Sequence[Target], nbytes_in: int, edit: MetadataEdit | None, plan: dict[str, Any] | None = None, **options: Any) -> StagedMags:
        """Stage the mags.

        Parameters
        ----------
        targets : sequence of Target
            What tasks write, one for each folder.
        nbytes_in : int
            Voxel bytes that go in.
        edit : MetadataEdit, optional
            What the metadata is to say in the end.
        plan : dict, optional
            What a later start must not decide anew; under ``"presence"``, what names the cells of the source that have files.
        **options
            Further fields of :class:`StagedMags`.

        Raises
        ------
        ResumeError
            Files of the source were added or removed since an interrupted start.
        """
        if self.before is not None and plan is not None and _PRESENCE in plan and plan[_PRESENCE] != self.before.get(_PRESENCE):
            raise ResumeError(f'{self.owner.command}: files were added or removed since the job was interrupted; existing="overwrite" starts anew')
        options.setdefault("existing", self.existing)
        return StagedMags(self.owner, self.parent, tuple(targets), self.folders, nbytes_in, edit, self.settings, plan=plan, **options)


def stage(command: str, parent: str, folders: Sequence[str], settings: dict[str, Any], existing: str) -> Draft:
    """Begin to lay out a job, or the going on of an interrupted one.

    Parameters
    ----------
    command : str
        What the job is called.
    parent : str
        The folder in which it works: of the layer, volume or group.
    folders : sequence of str
        Where the mags are to appear.
    settings : dict
        What it does, in values that JSON keeps.
    existing : str
        ``"error"``, ``"resume"`` or ``"overwrite"``.

    Returns
    -------
    Draft

    Raises
    ------
    ResumeError
        Another job that writes the mags was interrupted.
    ValueError
        There is no such option.
    """
    check_existing(existing)
    interrupted = _find_interrupted(parent, folders, settings, existing)
    owner = Owner.this_process(command, None if interrupted is None else interrupted.job)
    return Draft(owner, parent, tuple(folders), settings, existing, None if interrupted is None else interrupted.plan)


def stage_array(command: str, parent: str, folder: str, settings: dict[str, Any], existing: str, content: Content, region: ShardBox | None = None) -> Draft:
    """Begin to lay out a job that writes an array, whose voxels need not be the same where it goes on.

    Parameters
    ----------
    command, parent, folder, settings, existing
        As for :func:`stage`.
    content : Content
        The array.
    region : ShardBox, optional
        The shards that are written, of a mag that is there.

    Raises
    ------
    ResumeError
        What was interrupted was started with other settings.
    ValueError
        There is no such option.
    """
    check_existing(existing)
    settings = {**settings, **content.settings}
    is_free = not any(lock.stands_in_the_way(region) and not lock.owner.is_gone() for lock in locks_of(folder))
    left = find_left(parent, [folder], region) if existing != "overwrite" and is_free else None
    if left is not None and existing == "error" and settings != left.settings:
        left = None  # the new job takes its place
    if left is not None:
        check_same_settings(left.root, settings, left.settings, content.not_compared)
    return Draft(Owner.this_process(command, None if left is None else left.job), parent, (folder,), settings, existing, None)


def check_existing(existing: str) -> None:
    """Make sure that the option is one that there is.

    Raises
    ------
    ValueError
        It is not.
    """
    if existing not in EXISTING:
        raise ValueError(f"existing must be {' or '.join(map(repr, EXISTING))}, got {existing!r}")


def _find_interrupted(parent: str, folders: Sequence[str], settings: dict[str, Any], existing: str) -> UnfinishedJob | None:
    """Find the interrupted job that a new one is to go on with.

    Raises
    ------
    ResumeError
        There is one that writes the same mags with other settings.
    """
    if existing == "overwrite" or any(lock_holder(folder) is not None for folder in folders):
        return None  # a job that is running is told apart when the locks are taken
    unfinished = find_unfinished(parent, folders)
    if unfinished is not None:
        check_same_settings(unfinished.root, settings, unfinished.settings)
    return unfinished
