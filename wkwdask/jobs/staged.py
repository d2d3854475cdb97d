"""Mags that are built out of sight and appear together: the life of a writing job, whatever the format of its targets."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from wkwdask.errors import IncompleteWriteError, LockedError
from wkwdask.geometry.grid import cells
from wkwdask.jobs.report import Report, mag_report
from wkwdask.storage.job_folder import JobFolder, NewMag, Owner, check_targets, lock_holder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.storage.job_folder import LayerEdit
    from wkwdask.storage.receipts import Receipt
    from wkwdask.storage.volume import Target

EXISTING = ("error", "overwrite")
_FINISHED_NOTE = "an earlier job with the same settings was interrupted while it published its result; that was finished now"


@dataclass(frozen=True, slots=True)
class StagedMags:
    """One writing job: what it builds, where, and how it ends. Picklable; nothing is made before :meth:`start`."""

    owner: Owner
    """Who builds."""
    parent: str
    """The layer's folder, in which the job's folder is made."""
    targets: tuple[Target, ...]
    """What tasks write, finest first."""
    folders: tuple[str, ...]
    """Where each is to appear."""
    nbytes_in: int
    """Voxel bytes that go in, for the report."""
    edit: LayerEdit | None
    """What the JSON is to say in the end."""
    settings: dict[str, Any]
    """What the job does, for its provenance."""
    existing: str
    """``"error"`` or ``"overwrite"``."""

    @staticmethod
    def staged_folder(owner: Owner, parent: str, name: str) -> str:
        """Say where a mag is built before it appears."""
        return f"{JobFolder(parent, owner).root}/{name}"

    def with_input(self, token: str) -> StagedMags:
        """Give the same job with a token of what goes in, so that an equal job on other data is another job."""
        return replace(self, settings={**self.settings, "input": token})

    def check_free(self) -> None:
        """Make sure, without taking anything, that the job could start now.

        Raises
        ------
        LockedError
            Another job writes one of the mags.
        ExistsError
            One of them is there and ``existing="error"``, or is no mag.
        PermissionError
            The dataset's JSON cannot be updated.
        """
        for folder in self.folders:
            holder = lock_holder(folder)
            if holder is not None:
                raise LockedError(f"{folder}: another job writes it: {holder}")

        check_targets(self.folders, self.existing)
        self._check_json()

    def _check_json(self) -> None:
        """Make sure, before any work, that the JSON can be brought up to date after it."""
        if self.edit is not None and not os.access(self.edit.dataset_folder, os.W_OK):
            raise PermissionError(errno.EACCES, "the dataset's datasource-properties.json could not be updated", self.edit.dataset_folder)

    def start(self) -> Report | None:
        """Lock the mags and make the job's folder; starting again in another process changes nothing.

        Returns
        -------
        Report or None
            Where an equal job was killed while it published, that was finished, and this is its report: nothing is left to do.

        Raises
        ------
        LockedError, ExistsError, PermissionError
            As for :meth:`check_free`.
        """
        self._check_json()
        finished = self._job_folder().start(self.folders, self.existing, self.settings)
        if finished is not None:
            return Report.from_json(finished["report"], _FINISHED_NOTE)
        for target in self.targets:
            target.prepare()
        return None

    def publish(self, receipts: Sequence[Sequence[Receipt]]) -> Report:
        """Make sure that every file was written, and let the mags appear.

        Parameters
        ----------
        receipts : sequence of sequence of Receipt
            Receipts of the files of each mag.

        Returns
        -------
        Report

        Raises
        ------
        IncompleteWriteError
            A file is missing, or was written twice.
        """
        for target, folder, of_mag in zip(self.targets, self.folders, receipts, strict=True):
            expected = set(cells(target.box, target.shard_shape))
            found = [receipt.shard for receipt in of_mag]
            if len(found) != len(expected) or set(found) != expected:
                raise IncompleteWriteError(f"{folder}: receipts for {len(found)} files, expected {len(expected)}")
        job_folder = self._job_folder()
        seconds = time.time() - job_folder.started_at()
        mags = tuple(mag_report(folder, of_mag) for folder, of_mag in zip(self.folders, receipts, strict=True))
        report = Report(mags, self.nbytes_in, seconds)
        new_mags = [NewMag(os.path.basename(target.folder), folder) for target, folder in zip(self.targets, self.folders, strict=True)]
        job_folder.publish(new_mags, self.edit, {"settings": self.settings, "report": report.to_json()})
        return report

    def discard(self) -> None:
        """End the job without publishing anything."""
        self._job_folder().discard()

    def _job_folder(self) -> JobFolder:
        folder = JobFolder(self.parent, self.owner)
        folder.resume_ownership(self.folders)
        return folder


def settings_of(command: str, **options: Any) -> dict[str, Any]:
    """Write down what a job is to do, in values that JSON keeps."""
    return {"command": command, **{name: value if isinstance(value, (int, float, type(None))) else str(value) for name, value in options.items()}}


def check_existing(existing: str) -> None:
    """Make sure that the option is one that there is.

    Raises
    ------
    ValueError
        It is not.
    """
    if existing not in EXISTING:
        raise ValueError(f'existing must be "error" or "overwrite", got {existing!r}')
