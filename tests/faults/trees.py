"""Contents of a dataset's folder: the bytes of visible files, and leftover files of jobs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import wkwdask

JSON_NAME = "datasource-properties.json"
# what may stay in a dataset beside the data: provenance and record of a mag
HARMLESS = (".wkwdask.json", ".wkwdask-files.npy", ".wkwdask-progress.jsonl")


def make_dataset(folder, voxel_size):
    """A dataset without layers."""
    wkwdask.create_dataset(folder, voxel_size, name="ds")
    return folder


def contents(folder):
    """The bytes of every visible file of a folder, and the JSON parsed."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file() and not any(
            part.startswith(".") for part in path.relative_to(folder).parts
        ):
            found[str(path.relative_to(folder))] = (
                json.loads(path.read_text()) if path.name == JSON_NAME else path.read_bytes()
            )
    return found


def lay_out(files, folder):
    """Write what :func:`contents` gave."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(json.dumps(content, indent=4))
    return folder


def leftovers(folder):
    """Names that begin with a dot: temporary files, locks, folders of jobs."""
    return sorted(
        str(path.relative_to(folder))
        for path in Path(folder).rglob(".*")
        if path.name not in HARMLESS
    )


def differences(found, expected):
    """Names of files that are missing, too many or different: what an assertion can print."""
    return sorted(name for name in {**found, **expected} if found.get(name) != expected.get(name))


def states(folder):
    """Inode and time of every visible file but the JSON."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        if (
            path.is_file()
            and path.name != JSON_NAME
            and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        ):
            status = os.stat(path)
            found[str(path.relative_to(folder))] = (status.st_ino, status.st_mtime_ns)
    return found
