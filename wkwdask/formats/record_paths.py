"""Paths in the records of a job: relative to the folder in which the job works, and checked to stay
inside its dataset.

A copy of a dataset with an interrupted job therefore refers to its own mags, and a dataset of
somebody else cannot name a folder outside of it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError
from wkwdask.formats.registry import formats
from wkwdask.store.lru import LruCache
from wkwdask.store.paths import (
    basename,
    dirname,
    is_below,
    is_bucket,
    join,
    normpath,
    relpath,
    split,
)
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_around: LruCache[str] = LruCache(256)
"""Datasets around folders of buckets, as the jobs of this process in these folders found them."""
OWNER_NAME = "owner.json"
"""Record of the process that works on a job, in its folder; the lease of a job in a bucket."""
_FOLDER_PREFIX = ".wkwdask-job-"


@dataclass(frozen=True)
class RecordPaths:
    """Paths in the records of one job.

    Paths may lead to the dataset of the folder in which the job works, and to those that the
    running call itself writes.
    """

    root: str
    """Folder of the job, which contains the records."""
    datasets: tuple[str, ...] = ()
    """Further datasets that the running call writes, as its options allow."""

    @cached_property
    def parent(self) -> str:
        """Folder in which the job works; if a link leads to it from another dataset, the real
        folder, to which records are relative."""
        folder = dirname(self.root)
        if store_at(folder).folders is None:  # without links
            return folder
        real, around = store_at(folder).real(), store_at(dataset_around(folder)).real()
        return folder if real == around or real.startswith(f"{around.rstrip('/')}/") else real

    def format_path(self, path: str) -> str:
        """Return a path in the form that a record stores."""
        return relpath(path, self.parent)

    def parse_path(self, text: Any) -> str:
        """Return the path that a record names, whether or not it lies inside the dataset; only for
        comparison."""
        if not isinstance(text, str) or not text or "\0" in text:
            raise ValueError(f"expected a path, found {text!r}")
        return normpath(join(self.parent, text))

    def target(self, text: Any, record: str) -> str:
        """Return the folder of a mag to replace or remove; raises CorruptError if it lies outside
        the dataset."""
        path = self.parse_path(text)
        above, name = split(path)
        # a target that is itself a link is rejected or replaced, never followed
        real = join(store_at(above).real(), name)
        if is_below(store_at(self.root).real(), real) or not any(
            real.startswith(f"{root}/") for root in self._roots
        ):
            self._raise_outside(path, record)
        return path

    def document_folder(self, text: Any, record: str) -> str:
        """Return the folder of a document to change; raises CorruptError if it lies outside the
        dataset."""
        path = self.parse_path(text)
        real = store_at(path).real()
        if not any(
            real == root or real.startswith(f"{root}/") for root in self._roots
        ) and not self._is_new_dataset(real):
            self._raise_outside(path, record)
        return path

    def staged(self, name: Any, record: str) -> str:
        """Return a folder directly inside the job's folder; raises CorruptError for any other
        path."""
        path = f"{self.root}/{name}"
        if (
            not isinstance(name, str)
            or name in ("", ".", "..")
            or "/" in name
            or "\0" in name
            or store_at(path).link_target()
        ):
            self._raise_outside(path, record)
        return path

    @cached_property
    def _roots(self) -> Sequence[str]:
        """Real folders below which files may be changed."""
        return [
            f"{store_at(folder).real().rstrip('/')}"
            for folder in (dataset_of_job(self.root, self.parent), *self.datasets)
        ]

    def _is_new_dataset(self, real: str) -> bool:
        """Return whether the job creates a dataset in a folder."""
        return (
            real == store_at(dirname(self.parent)).real() and _container_around(self.parent) is None
        )

    def _raise_outside(self, path: str, record: str) -> None:
        raise CorruptError(
            f"{self.root}/{record}: names {path!r}, which is not in the dataset "
            f"{dataset_around(self.parent)}, and is not changed; wkwdask repair removes "
            f"the record, or remove {self.root}; if an interrupted job wrote outside of its "
            "dataset, the same call with allow_external=True completes it"
        )


def dataset_around(folder: str) -> str:
    """Return the dataset of a folder, or the folder itself if it is in none."""
    return _container_around(folder) or folder


def dataset_of_job(root: str, folder: str) -> str:
    """Return the dataset of a folder in which a job works; in a bucket, as it began."""
    if not is_bucket(root):
        return dataset_around(folder)
    found = _around.get((root, folder))
    if found is None:
        found = dataset_around(folder)
        _around.put((root, folder), found)
    return found


def _container_around(folder: str) -> str | None:
    return next(
        (container for fmt in formats() if (container := fmt.container.around(folder)) is not None),
        None,
    )


def check_no_links(root: str) -> None:
    """Raise CorruptError if a folder of an earlier run contains a symbolic link, through which
    another folder would be written."""
    inside = (
        f"{folder}/{name}"
        for folder, folders, names in store_at(root).walk()
        for name in (*folders, *names)
    )
    link = next(
        (path for path in itertools.chain([root], inside) if store_at(path).link_target()), None
    )
    if link is not None:
        raise CorruptError(
            f"{link}: is a symbolic link, which jobs neither create nor follow in their folders: "
            f"remove {root}"
        )


def is_job_folder(name: str) -> bool:
    """Return whether the name is that of a job's folder."""
    return name.startswith(_FOLDER_PREFIX)


def job_root(parent: str, job: str) -> str:
    """Return the folder of a job."""
    return f"{parent}/{_FOLDER_PREFIX}{job}"


def job_of(root: str) -> str:
    """Return the job to which a folder belongs."""
    return basename(root).removeprefix(_FOLDER_PREFIX)


def job_folders(parent: str) -> Iterator[tuple[str, str]]:
    """Yield path and name of all jobs in a folder."""
    try:
        jobs = [
            entry
            for entry in store_at(parent).scandir()
            if is_job_folder(entry.name) and entry.is_dir(follow_symlinks=False)
        ]
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in jobs:
        yield entry.path, entry.name.removeprefix(_FOLDER_PREFIX)
