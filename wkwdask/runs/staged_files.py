"""A file or a folder of files that is no array: built in a job folder, then renamed to its final
path. In a bucket, where nothing is renamed, a folder has a name that contains its job, and the
document that names it switches to that name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wkwdask.errors import ExistsError
from wkwdask.formats.replaceable import replaces
from wkwdask.model.placement import placed_name
from wkwdask.runs.job_folder import JobFolder, NewMag
from wkwdask.runs.job_records import SCRATCH_NAME
from wkwdask.runs.report import MagReport, Report
from wkwdask.runs.staged import FINISHED_NOTE, StagedJob
from wkwdask.store import by_path
from wkwdask.store.paths import basename, is_bucket
from wkwdask.store.store import folders_of, store_at

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wkwdask.model.metadata_edit import MetadataEdit
    from wkwdask.runs.parts import ShardTally
    from wkwdask.runs.staged import Draft


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFiles(StagedJob):
    """Job that writes one file, or one folder of files."""

    voxels: int
    """Number of voxels, for the report."""
    check: Callable[[str, str], None]
    """Raises ExistsError unless a policy allows to write what is at the target; picklable."""
    edit: MetadataEdit | None = None
    """Change of the document that names the result, made when it is published."""

    @property
    def target(self) -> str:
        """Final path."""
        (target,) = self.folders
        return target

    @property
    def built(self) -> str:
        """Path of the result before it is published."""
        if is_bucket(self.parent):
            return placed_name(self.target, self.owner.job)
        return f"{self.root}/{basename(self.target)}"

    @property
    def _published(self) -> str:
        """Path of the result after it is published."""
        return self.built if is_bucket(self.parent) else self.target

    @property
    def scratch(self) -> str:
        """Folder for jobs that make a part of the result."""
        return f"{self.root}/{SCRATCH_NAME}"

    def planned(self) -> tuple[MagReport, ...]:
        return ()

    def start(self) -> Report | None:
        if self.edit is not None:
            self.edit.check_writable()
        finished = self._take_folder()
        if finished is None:
            self._check_document()
            return None
        place = self.target
        if is_bucket(self.parent):
            place = placed_name(place, str(finished["job"]))
        return self._report(place, _measure(place, sync=False), 0.0, FINISHED_NOTE)

    def _check_document(self) -> None:
        """Check under the locks that the document can name the result; on an error, end the job."""
        try:
            if self.edit is not None:
                self.edit.check_current()
        except BaseException:
            self._end()
            raise

    def publish(self, tallies: Sequence[ShardTally], note: str = "") -> Report:
        """Flush the result to disk and rename it to the target."""
        job_folder = self._job_folder()
        seconds = job_folder.seconds()
        size = _measure(self.built, sync=True)
        job_folder.publish([self._result()], self._placed_edit(), {"settings": self.settings})
        return self._report(self._published, size, seconds, note)

    def _result(self) -> NewMag:
        if not is_bucket(self.parent):
            return NewMag(basename(self.built), self.target, is_level=False)
        return NewMag(None, self.built, replaces=next(iter(self._replaced()), None))

    def _check_not_named(self, existing: str) -> None:
        """Raise ExistsError if the document names a result of this name, of any job, that must
        not be replaced."""
        for named in self._replaced() if not replaces(existing) else ():
            raise ExistsError(f'{named}: already exists; existing="overwrite" replaces it whole')

    def _replaced(self) -> list[str]:
        """List the result that the document names now."""
        return [*filter(None, () if self.edit is None else self.edit.listed_now())]

    def _placed_edit(self) -> MetadataEdit | None:
        """Return the edit of the document as it names the result."""
        if self.edit is None or not is_bucket(self.parent):
            return self.edit
        return self.edit.placed(self.owner.job, None)

    def _report(self, path: str, size: tuple[int, int], seconds: float, note: str) -> Report:
        num_files, nbytes = size
        entry = MagReport(path, num_files, self.voxels, nbytes, None, None, None)
        return Report((entry,), self.nbytes_in, seconds, note)

    def _check_targets(self, existing: str) -> None:
        if is_bucket(self.parent):
            self._check_not_named(existing)
        else:
            self.check(self.target, existing)

    def _job_folder(self) -> JobFolder:
        datasets = () if self.edit is None else tuple(self.edit.folders().values())
        return JobFolder(
            self.parent, self.owner, self.folders, datasets=datasets, check=self._check_targets
        )


def staged_files(
    draft: Draft, voxels: int, nbytes_in: int, check: Callable[[str, str], None], **others: Any
) -> StagedFiles:
    """Return the job of a draft; ``others`` are further fields."""
    return StagedFiles(
        owner=draft.owner,
        parent=draft.parent,
        folders=draft.folders,
        settings=draft.settings,
        existing=draft.existing,
        resumed_by=draft.resumed_by,
        voxels=voxels,
        nbytes_in=nbytes_in,
        check=check,
        **others,
    )


def _measure(path: str, *, sync: bool) -> tuple[int, int]:
    """Return the number and bytes of a file or of those in a folder, flushed to disk if ``sync`` is
    set."""
    if is_bucket(path):
        return by_path.count_tree(path)
    folders, nbytes = folders_of(path), 0
    walked = [(folder, names) for folder, _, names in store_at(path).walk()]  # none in a file
    paths = [f"{folder}/{name}" for folder, names in walked for name in names] if walked else [path]
    for file in paths:
        nbytes += folders.stat(file).st_size
    for each in (*paths, *(folder for folder, _ in reversed(walked))) if sync else ():
        folders.fsync(each)
    return len(paths), nbytes
