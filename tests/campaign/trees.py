"""Folders before, during and after a job: visible files, levels and leftovers."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from wkwdask.store.records import PROGRESS_NAME, PROVENANCE_NAME

_JOB = re.compile(rb"\.\d{8}T\d{6}-[0-9a-f]{8}")
_JOB_IN_NAME = re.compile(_JOB.pattern.decode())
_RECORDS = (PROVENANCE_NAME, PROGRESS_NAME, ".wkwdask-files.npy")
_DOCUMENTS = frozenset({"info", "zarr.json", ".zattrs", "attributes.json"})
_ATTRIBUTES = ("/.zattrs", "/attributes.json")
"""Documents of a level that jobs edit when other levels appear."""


@dataclass(frozen=True)
class Tree:
    """Files of a folder."""

    visible: dict[str, bytes]
    """Contents by path; names of precomputed scales are without the job that wrote them."""
    leftovers: frozenset[str]
    """Temporary files, locks and folders of jobs."""
    levels: frozenset[str]
    """Folders of stored arrays."""

    def level(self, folder: str) -> dict[str, bytes]:
        """Return the visible files of a level."""
        return {name: data for name, data in self.visible.items() if name.startswith(f"{folder}/")}


@dataclass
class _Walk:
    root: Path
    visible: dict[str, bytes] = field(default_factory=dict)
    leftovers: set[str] = field(default_factory=set)
    levels: set[str] = field(default_factory=set)

    def visit(self, folder: str, *, replaced: frozenset[str] = frozenset()) -> None:
        entries = sorted(os.scandir(self.root / folder), key=lambda entry: entry.name)
        scales = self._scales(folder, {entry.name for entry in entries})
        self.levels.update(f"{folder}/{plain_name(key)}" for key in scales or ())
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if entry.name.startswith(".") and ".wkwdask" in entry.name:
                if entry.name not in _RECORDS and not entry.name.startswith(".wkwdask-garbage-"):
                    self.leftovers.add(path)
            elif entry.is_dir():
                if scales is None or not _is_old_scale(entry.name, scales):
                    self.visit(path)
            else:
                data = Path(entry.path).read_bytes()
                data = _JOB.sub(b"", data) if entry.name in _DOCUMENTS else data
                self.visible[plain_name(path)] = data
                if _is_array(entry.name, data):
                    self.levels.add(plain_name(folder))

    def _scales(self, folder: str, names: set[str]) -> set[str] | None:
        if "info" not in names:
            return None
        try:
            document = json.loads((self.root / folder / "info").read_bytes())
            return {scale["key"] for scale in document["scales"]}
        except (ValueError, KeyError):
            return None


def plain_name(path: str) -> str:
    """Remove the names of jobs from a path."""
    return _JOB_IN_NAME.sub("", path)


def _is_old_scale(name: str, keys: set[str]) -> bool:
    """Whether a scale was replaced by one of another job, and stays for those who read it."""
    return name not in keys and plain_name(name) in {plain_name(key) for key in keys}


def _is_array(name: str, data: bytes) -> bool:
    """Whether a file describes the array of its folder."""
    if name in ("header.wkw", ".zarray", "level.json"):
        return True
    try:
        document = json.loads(data) if name in ("zarr.json", "attributes.json") else {}
    except ValueError:
        return False
    return document.get("node_type") == "array" or "dimensions" in document


def tree_of(root: Path) -> Tree:
    """Read all files of a folder."""
    walk = _Walk(root)
    walk.visit("")
    return Tree(walk.visible, frozenset(walk.leftovers), frozenset(walk.levels))


def restore(kept: Path, root: Path) -> None:
    """Replace a folder by the copy that was kept of it."""
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(kept, root, symlinks=True)


def differences(found: Tree, expected: Tree, exempt: frozenset[str] = frozenset()) -> list[str]:
    """Name the visible files that are missing, too many or different."""
    return sorted(
        name
        for name in {**found.visible, **expected.visible}
        if (found.visible.get(name) != expected.visible.get(name) and name not in exempt)
        or (name in found.visible) != (name in expected.visible)
    )


def mixtures(found: Tree, old: Tree, new: Tree, exempt: frozenset[str], *, by_file: bool) -> list:
    """Describe what is neither old nor new: levels, and files that belong to none.

    Parameters
    ----------
    exempt : frozenset of str
        Files whose bytes differ between two runs.
    by_file : bool
        Whether the job publishes the files of a level one by one.
    """
    problems = []
    levels = frozenset() if by_file else old.levels | new.levels
    for level in sorted(levels):
        seen, *known = (_data_of(tree, level, exempt) for tree in (found, old, new))
        # levels of N5 make room for new ones: meanwhile no reader opens the group
        if seen not in known and (seen or not _has_moved(level, old, found, exempt)):
            problems.append(f"level {level} is neither old nor new: {_compared(seen, *known)}")
    for name, data in found.visible.items():
        if name in exempt or (_is_in(name, levels) and not name.endswith(_ATTRIBUTES)):
            continue
        known = [tree.visible[name] for tree in (old, new) if name in tree.visible]
        if name.endswith(_ATTRIBUTES):  # levels of N5 get other numbers
            known = [
                data
                for tree in (old, new)
                for other, data in tree.visible.items()
                if other.endswith(_ATTRIBUTES)
            ]
        if data not in known and not (known and _is_between(data, known)):
            problems.append(f"file {name} is neither old nor new")
    problems += [
        f"file {name} is missing"
        for name in (old.visible.keys() & new.visible.keys()) - found.visible.keys()
        if not _is_in(name, levels)
    ]
    return problems


def _is_in(name: str, levels: frozenset[str]) -> bool:
    return any(name.startswith(f"{level}/") for level in levels)


def _is_between(data: bytes, known: list[bytes]) -> bool:
    """Whether a document lists some of the new levels, which jobs publish one after another."""
    try:
        return _has_values_of(json.loads(data), [json.loads(other) for other in known])
    except ValueError:
        return False


def _has_values_of(found: object, known: list) -> bool:
    """Whether each value of a document is one of the old or of the new document."""
    if found in known:
        return True
    if isinstance(found, dict):
        mappings = [each for each in known if isinstance(each, dict)]
        return bool(mappings) and all(
            _has_values_of(value, [each[key] for each in mappings if key in each])
            for key, value in found.items()
        )
    if isinstance(found, list):
        lists = [each for each in known if isinstance(each, list)]
        return all(
            _has_values_of(value, [one for each in lists for one in each]) for value in found
        )
    return False


def _data_of(tree: Tree, level: str, exempt: frozenset[str]) -> dict[str, bytes]:
    return {
        name: data
        for name, data in tree.level(level).items()
        if name not in exempt and not name.endswith(_ATTRIBUTES)
    }


def _has_moved(level: str, old: Tree, found: Tree, exempt: frozenset[str]) -> bool:
    """Whether an old level has another name now."""
    before = _below(level, _data_of(old, level, exempt))
    return any(
        _below(other, _data_of(found, other, exempt)) == before
        for other in found.levels - old.levels
    )


def _below(level: str, files: dict[str, bytes]) -> dict[str, bytes]:
    return {name.removeprefix(f"{level}/"): data for name, data in files.items()}


def _compared(seen: dict, old: dict, new: dict) -> str:
    counts = [sum(other.get(name) == data for name, data in seen.items()) for other in (old, new)]
    return (
        f"{len(seen)} files, of which {counts[0]} as in the old ({len(old)}) and {counts[1]} as "
        f"in the new one ({len(new)})"
    )
