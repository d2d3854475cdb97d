"""Doors of the records that jobs leave on disks and in buckets: any bytes are understood or refused
by an error of this package, and a job that follows them changes nothing outside of its dataset."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from wkwdask.errors import WkwDaskError
from wkwdask.formats.publication import read_publication
from wkwdask.formats.record_paths import OWNER_NAME, RecordPaths
from wkwdask.geometry.mag import Mag
from wkwdask.runs import batch_file, job_records, journal, progress
from wkwdask.runs.cleaning import clean
from wkwdask.runs.status import jobs_of, status_of
from wkwdask.store import leases, locks, records, slurm
from wkwdask.store.local import LocalFileSystem
from wkwdask.store.locks import Owner
from wkwdask.store.store import store_at

from .door import CORPUS, Door, door_of_file, folder_in_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_JOB = ".wkwdask-job-1"
_DEAD = json.dumps(asdict(replace(Owner.this_process("a job", "1"), boot="ended"))).encode()
_IMAGE = "memory://campaign/image"


def _sample(name: str) -> bytes:
    """Return the first file of the corpus of a door."""
    return (CORPUS / name.replace(" ", "-") / "0").read_bytes()


# ------------------------------------------------------------------------------------------------
# records that are read


def _lines(folder: Path) -> None:
    entries = journal.entries_of(journal.read_journal(str(folder)))
    for entry in entries.values():
        journal.stored_nbytes(entry)
    list(journal.receipts_of(journal.read_journal(str(folder)), ()))


def _provenance(folder: Path) -> None:
    records.read_creation_settings(str(folder), Mag.parse(2))
    records.read_box(str(folder), Mag.parse(1))


def _ask(owner: Owner) -> None:
    """Ask whether an owner has ended, but not SLURM."""
    replace(owner, batch="").is_gone()
    str(owner)


def _locks(folder: Path) -> None:
    for lock in locks.locks_of(f"{folder}/1"):
        _ask(lock.owner)


def _lease(data: bytes) -> None:
    """Ask for the owner of a lock in a bucket, and take over the lease of its job."""
    root = f"{_IMAGE}/{_JOB}"
    lease = f"{root}/{OWNER_NAME}"
    for folder, name in ((root, OWNER_NAME), (_IMAGE, ".1.wkwdask-lock")):
        store_at(folder).put(name, data)
    with contextlib.suppress(WkwDaskError):
        for lock in locks.locks_of(f"{_IMAGE}/1"):
            _ask(lock.owner)
    with contextlib.suppress(WkwDaskError):
        read_publication(RecordPaths(root))
    try:
        locks.write_owner(lease, replace(Owner.this_process("another job", "1"), lease=lease))
    finally:
        leases.drop_lease(lease)


def _status(folder: Path) -> None:
    """Describe the jobs of a layer as the command does, without SLURM."""
    with mock.patch.object(slurm, "_run", side_effect=FileNotFoundError):
        for job in jobs_of(str(folder / "seg")):
            status = status_of(job)
            str(status)
            json.dumps(status.to_json())


def _door_of_record(name: str, file: str, use: Callable[[str], Any]) -> Door:
    return door_of_file(name, f"{_JOB}/{file}", lambda top: use(f"{top}/{_JOB}"))


def _door_of_status(name: str, file: str) -> Door:
    others = {
        OWNER_NAME: _DEAD,
        "plan.json": _sample("plan of a job"),
        "journal-0.jsonl": _sample("journal"),
    }
    inside = {f"seg/{_JOB}/{each}": data for each, data in others.items()}
    return door_of_file(name, f"seg/{_JOB}/{file}", _status, **inside)


# ------------------------------------------------------------------------------------------------
# records that are followed


class OutsideError(BaseException):
    """A job changes something outside of the dataset that it may change."""


_CHANGES = {
    **dict.fromkeys(("os.rename", "os.replace"), (0, 1)),
    **dict.fromkeys(("os.link", "os.symlink"), (1,)),
    **dict.fromkeys(
        ("os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.chmod", "os.chown", "os.utime"),
        (0,),
    ),
    **dict.fromkeys(("open", "shutil.rmtree"), (0,)),
}
"""Arguments of audit events that are paths which change."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_watched: list[str] = []
"""Folder that may change now; everything while there is none."""


def _check_path(path: Any) -> None:
    text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
    # relative names are below an open folder
    if os.path.isabs(text):
        above, name = os.path.split(os.path.normpath(text))
        if not f"{os.path.realpath(above)}/{name}/".startswith(f"{_watched[0]}/"):
            raise OutsideError(text)


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse changes of other files, as an audit hook."""
    if not _watched or event not in _CHANGES:
        return
    if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & _WRITING):
        return
    for number in _CHANGES[event]:
        _check_path(arguments[number])


@contextlib.contextmanager
def _only_inside(folder: Path) -> Iterator[None]:
    """Refuse changes outside of a folder."""
    exchange = LocalFileSystem.exchange

    def checked(self: LocalFileSystem, first: str, second: str) -> bool:
        _check_path(first)
        _check_path(second)
        return exchange(self, first, second)

    _watched.append(os.path.realpath(folder))
    try:
        with mock.patch.object(LocalFileSystem, "exchange", checked):
            yield
    finally:
        _watched.clear()


def _followed(file: str, *others: str) -> Callable[[bytes], None]:
    """Return a function that lets ``clean`` follow a record of a dead job, beside some valid
    ones."""
    tops: list[Path] = []

    def follow(data: bytes) -> None:
        if not tops:
            sys.addaudithook(_watch)
            tops.append(Path(tempfile.mkdtemp(dir=folder_in_memory())))
        dataset = tops[0] / "dataset"
        shutil.rmtree(dataset, ignore_errors=True)
        header = _sample("WKW header")
        layer, job = dataset / "seg", dataset / "seg" / _JOB
        files = {
            dataset / "datasource-properties.json": _sample("datasource-properties.json"),
            **{layer / mag / "header.wkw": header for mag in ("1", "2-2-1")},
            job / OWNER_NAME: _DEAD,
            job / "2-2-1" / "header.wkw": header,
            job / "2-2-1" / records.PROVENANCE_NAME: b'{"publication": "new"}',
            **{job / other: _sample(f"{other} that is followed") for other in others},
            job / file: data,
        }
        for path, content in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        with _only_inside(dataset):
            clean(layer, grace_seconds=0)

    return follow


def _door_of_followed(file: str, *others: str) -> Door:
    name = f"{file} that is followed"
    return Door(name, _followed(file, *others), "job", (WkwDaskError, OSError))


RECORDS = (
    door_of_file("provenance", records.PROVENANCE_NAME, _provenance),
    _door_of_record("plan of a job", "plan.json", job_records.read_plan),
    _door_of_record(
        "publication", "publish.json", lambda root: read_publication(RecordPaths(root))
    ),
    _door_of_record("batch", "batch.json", batch_file.read_batch),
    door_of_file("journal", "journal-0.jsonl", _lines),
    door_of_file(
        "progress", "progress-0.jsonl", lambda folder: progress.read_progress(str(folder))
    ),
    door_of_file("lock", ".1.wkwdask-lock", _locks),
    Door("lease", _lease, "file", (WkwDaskError, OSError)),
    _door_of_status("status by a plan", "plan.json"),
    _door_of_status("status by a batch", "batch.json"),
    _door_of_status("status by an owner", OWNER_NAME),
    _door_of_followed("plan.json"),
    _door_of_followed("publish.json", "plan.json"),
)
