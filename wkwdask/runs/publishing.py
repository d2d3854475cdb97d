"""How the mags of a job appear or go: the one place that knows the protocol of a store.

Folders of a file system are built in the job's folder. Then a record says what is left to be done, folders are renamed, and the documents follow.
A protocol for object stores is another class with these methods.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError
from wkwdask.formats.publication import RECORD_NAME, format_publication, format_removal, read_publication
from wkwdask.formats.replaceable import inherit_tree_permissions
from wkwdask.model.parsing import reason_of
from wkwdask.runs.job_records import PLAN_NAME
from wkwdask.store import files
from wkwdask.store.new_files import publish_bytes
from wkwdask.store.paths import basename, dirname
from wkwdask.store.provenance import read_provenance, write_provenance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.formats.format import MetadataEdit
    from wkwdask.formats.record_paths import RecordPaths


@dataclass(frozen=True, slots=True)
class NewMag:
    """One mag that a job builds."""

    staged: str
    """Name of its folder inside the job's folder."""
    folder: str
    """Where it is to appear."""
    box: tuple[int, ...] | None = None
    """Where it has data, as its provenance keeps it: lowest voxel and size [voxels of the mag]."""


@dataclass(frozen=True, slots=True)
class Publication:
    """The publication of the mags that are built in a job's folder."""

    paths: RecordPaths
    """The job's folder, and what its records may name."""

    @property
    def is_prepared(self) -> bool:
        """Whether it has begun: then only :meth:`publish` ends it."""
        return files.exists(self._record)

    @property
    def _record(self) -> str:
        return f"{self.paths.root}/{RECORD_NAME}"

    def prepare(self, job: str, mags: Sequence[NewMag], edit: MetadataEdit | None, provenance: dict[str, Any]) -> None:
        """Complete mags, let them last, and write down what :meth:`publish` has to do."""
        mark = secrets.token_hex(8)
        for mag in mags:
            staged = f"{self.paths.root}/{mag.staged}"
            write_provenance(staged, {"job": job, "publication": mark, **provenance, **({} if mag.box is None else {"box": mag.box})})
            inherit_tree_permissions(staged, mag.folder)
            for folder, _, _ in files.walk(staged, topdown=False):
                files.fsync(folder)
        listed = [(mag.staged, mag.folder) for mag in mags]
        publish_bytes(self._record, format_publication(self.paths, job, mark, listed, edit))

    def prepare_removal(self, folders: Sequence[str], edit: MetadataEdit | None) -> None:
        """Write down which mags go, and take them out of sight; :meth:`publish` deletes them."""
        publish_bytes(self._record, format_removal(self.paths, folders, edit))
        self.set_aside()

    def publish(self) -> None:
        """Do what the record says; doing it again changes nothing."""
        root, publication = self.paths.root, read_publication(self.paths)
        if publication is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._record)
        if publication.removed is not None:
            self.set_aside()
        for staged, folder in publication.mags:
            if read_provenance(folder).get("publication") != publication.mark:
                files.publish_folder(staged, folder)
        if publication.removed is None and publication.edit is not None:
            _apply(publication.edit, self._record)
        with contextlib.suppress(FileNotFoundError):  # another job may be ending this one at the same time
            files.unlink(f"{root}/{PLAN_NAME}")  # before the rest: the folder holds the old mags now, and must not look like a job that can go on
            files.fsync(root)
        self.discard()

    def set_aside(self) -> None:
        """Let the JSON forget the mags that a record takes away, and move them beside it; from then on it says that nothing but deleting is left."""
        root, publication = self.paths.root, read_publication(self.paths)
        if publication is None or publication.removed is None:
            return
        if publication.edit is not None:
            _apply(publication.edit, self._record)
        for number, folder in enumerate(publication.removed):
            with contextlib.suppress(FileNotFoundError):  # moved before, or listed in the JSON and not there
                files.rename(folder, f"{root}/{number}-{basename(folder)}")
                files.fsync(dirname(folder))
        files.fsync(root)
        publish_bytes(self._record, format_removal(self.paths, (), None))

    def discard(self) -> None:
        """Remove what was built, or what was replaced."""
        files.remove_tree(self.paths.root)


def _apply(edit: MetadataEdit, source: str) -> None:
    """Change the metadata as a record says; values of a wrong kind are faults of the record, other errors are those of the change."""
    try:
        edit.apply()
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError) as error:
        raise CorruptError(f"{source}: not readable as record: {reason_of(error)}") from error
