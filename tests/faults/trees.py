"""Contents of a dataset's folder: the bytes of visible files, and leftover files of jobs."""

from __future__ import annotations

import json
import os
import re
from itertools import pairwise
from pathlib import Path

import wkwdask

JSON_NAME = "datasource-properties.json"
# what may stay in a dataset beside the data: provenance and record of a mag
HARMLESS = (".wkwdask.json", ".wkwdask-files.npy", ".wkwdask-progress.jsonl")
_JOB = re.compile(r"\.\d{8}T\d{6}-[0-9a-f]{8}")


def make_dataset(folder, voxel_size):
    """A dataset without layers."""
    wkwdask.create_dataset(folder, voxel_size, name="ds")
    return folder


def contents(folder):
    """The bytes of every visible file of a folder, and the JSON parsed.

    Scales have their plain names, whichever job wrote them. A scale that was replaced by one of
    another name, and stays for those who read it, is not visible.
    """
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not _is_hidden(Path(folder), name):
            found[_JOB.sub("", str(name))] = (
                json.loads(path.read_text()) if path.name == JSON_NAME else _plain_bytes(path)
            )
    return found


def _is_hidden(folder, name):
    """Whether a file has a hidden name, or belongs to a scale whose folder ``info`` does
    not list."""
    if any(part.startswith(".") for part in name.parts):
        return True
    for above, below in pairwise([*reversed(name.parents), name]):
        info = folder / above / "info"
        if info.exists():
            keys = {scale["key"] for scale in json.loads(info.read_text()).get("scales", ())}
            if below.name not in keys and _JOB.sub("", below.name) in {
                _JOB.sub("", key) for key in keys
            }:
                return True
    return False


def _plain_bytes(path):
    data = path.read_bytes()
    return _JOB.sub("", data.decode()).encode() if path.name == "info" else data


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
        if path.name not in HARMLESS and not path.name.startswith(".wkwdask-garbage-")
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
