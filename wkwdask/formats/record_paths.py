"""Paths in the records of a job: relative to the folder that the job works in, and never followed out of its dataset.

A copy of a dataset with an interrupted job is so about its own mags, and a dataset from elsewhere cannot name a folder beside it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError
from wkwdask.formats.registry import formats
from wkwdask.store import files
from wkwdask.store.paths import dirname, is_below, is_remote, join, normpath, relpath, split

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_FOLDER_PREFIX = ".wkwdask-job-"


@dataclass(frozen=True, slots=True)
class RecordPaths:
    """The paths in the records of one job.

    Which datasets they may name is the running call's to say: that of the folder that the job works in, and those that the call itself writes.
    """

    root: str
    """The job's folder, in which the records lie."""
    datasets: tuple[str, ...] = ()
    """Further datasets that the running call writes, which its options allow."""

    @property
    def parent(self) -> str:
        """The folder that the job works in: where a link leads to it from another dataset, the real one, for its records are about that."""
        folder = dirname(self.root)
        real, around = files.realpath(folder), files.realpath(dataset_around(folder))
        return folder if real == around or real.startswith(f"{around.rstrip('/')}/") else real

    def written(self, path: str) -> str:
        """Give the form of a path that a record holds."""
        return relpath(path, self.parent)

    def read(self, text: Any) -> str:
        """Give the path that a record names, wherever it leads: to compare it, not to change what is there."""
        if not isinstance(text, str) or not text or "\0" in text:
            raise ValueError(f"expected a path, found {text!r}")
        return normpath(join(self.parent, text))

    def target(self, text: Any, record: str) -> str:
        """Give the folder of a mag that a record names and that is to be replaced or removed."""
        path = self.read(text)
        above, name = split(path)
        real = join(files.realpath(above), name)  # a link that is itself the target is refused or replaced, never followed
        if is_below(files.realpath(self.root), real) or not any(real.startswith(f"{root}/") for root in self._roots()):
            self._refuse(path, record)
        return path

    def document_folder(self, text: Any, record: str) -> str:
        """Give the folder of a document that a record names and that is to be changed."""
        path = self.read(text)
        real = files.realpath(path)
        if not any(real == root or real.startswith(f"{root}/") for root in self._roots()) and not self._is_new_dataset(real):
            self._refuse(path, record)
        return path

    def staged(self, name: Any, record: str) -> str:
        """Give the folder inside of the job's own that a record names."""
        path = f"{self.root}/{name}"
        if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name or files.islink(path):
            self._refuse(path, record)
        return path

    def _roots(self) -> Iterable[str]:
        """Give the real folders that may be changed."""
        return [f"{files.realpath(folder).rstrip('/')}" for folder in (dataset_around(self.parent), *self.datasets)]

    def _is_new_dataset(self, real: str) -> bool:
        """Tell whether a folder is the one in which the job makes the JSON of a new dataset."""
        return real == files.realpath(dirname(self.parent)) and _container_around(self.parent) is None

    def _refuse(self, path: str, record: str) -> None:
        what = f"names {path!r}, which is not in the dataset {dataset_around(self.parent)}"
        raise CorruptError(
            f"{self.root}/{record}: {what}, and nothing is done there; wkwdask repair removes the record, and so does who removes {self.root}; "
            "where a job was interrupted that writes outside of its dataset, the same call with allow_external=True completes it"
        )


def dataset_around(folder: str) -> str:
    """Name the dataset that a folder belongs to, in which jobs work: the folder itself where nothing says that there is one."""
    return _container_around(folder) or folder


def _container_around(folder: str) -> str | None:
    return next((found for one in formats() if (found := one.container_around(folder)) is not None), None)


def external_location(dataset: str, folder: str) -> str | None:
    """Say where a folder really is, None where that is inside of its dataset."""
    if is_remote(folder):
        return folder
    real, inside = files.realpath(folder), files.realpath(dataset)
    return None if real == inside or real.startswith(f"{inside}/") else real


def check_no_links(root: str) -> None:
    """Make sure that a folder that an earlier start left holds no symbolic link, through which another folder would be written."""
    inside = (f"{folder}/{name}" for folder, folders, names in files.walk(root) for name in (*folders, *names))
    found = next((path for path in itertools.chain([root], inside) if files.islink(path)), None)
    if found is not None:
        raise CorruptError(f"{found}: is a symbolic link; jobs make none there, and none is followed: remove {root}")


def is_job_folder(name: str) -> bool:
    """Tell whether a folder is that of a job, by its name."""
    return name.startswith(_FOLDER_PREFIX)


def job_root(parent: str, job: str) -> str:
    """Name the folder of a job."""
    return f"{parent}/{_FOLDER_PREFIX}{job}"


def job_folders(parent: str) -> Iterator[tuple[str, str]]:
    """Go through the folders of all jobs in a layer: path and job."""
    try:
        with files.scandir(parent) as entries:
            found = [entry for entry in entries if is_job_folder(entry.name) and entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in found:
        yield entry.path, entry.name.removeprefix(_FOLDER_PREFIX)
