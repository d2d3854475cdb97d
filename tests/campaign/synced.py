"""The table of ``docs/safety.md`` that states what is synced before which step, and its check on
the recorded system calls of a job."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .system_calls import Call

_DOCUMENTATION = Path(__file__).resolve().parents[2] / "docs" / "safety.md"
_HEAD = "| File | Contents are synced before | Name is synced before |"
_JOB = r"/\.wkwdask-job-[^/]+"
_DOCUMENT = r"(datasource-properties\.json|info|zarr\.json|\.zattrs|\.zgroup|attributes\.json)$"
_KINDS = {
    "a lock": re.compile(r"-lock$"),
    "a document": re.compile(rf"^(?!.*{_JOB}).*/{_DOCUMENT}"),
    "a file of a level": re.compile(rf"{_JOB}/[^/.]+/(?!\.)"),
    "a level": re.compile(rf"^(?!.*{_JOB})"),
    "a record of a job": re.compile(rf"{_JOB}/(owner|plan|publish)\.json$"),
}
_NAMED = "it has its name"
_STEPS: dict[str, Callable[[Call, Call], bool]] = {
    "its lock is released": lambda call, naming: (
        call.name == "unlink"
        and call.path == "{}/.{}.wkwdask-lock".format(*os.path.split(naming.new_path))
    ),
    "the level is in its place": lambda call, _: _is_publication(call),
    "a document lists it": lambda call, _: (
        call.name == "rename" and _KINDS["a document"].search(call.new_path) is not None
    ),
}


def _is_publication(call: Call) -> bool:
    """Whether a level is renamed from the folder of its job to its place."""
    return (
        call.name in ("rename", "exchange")
        and re.search(rf"{_JOB}/[^/.]+$", call.path) is not None
        and re.search(_JOB, call.new_path) is None
    )


def stated_steps() -> list[tuple[str, str, str]]:
    """Read the table: the kind of a file, and the steps before which its contents and its name are
    synced."""
    lines = _DOCUMENTATION.read_text(encoding="utf-8").splitlines()
    rows = []
    for line in lines[lines.index(_HEAD) + 2 :]:
        if not line.startswith("|"):
            break
        kind, contents, name = (cell.strip() for cell in line.strip("|").split("|"))
        if kind not in _KINDS or contents not in ("", _NAMED) or name not in ("", *_STEPS):
            raise ValueError(f"{_DOCUMENTATION}: no check of the row {line!r}")
        rows.append((kind, contents, name))
    return rows


def violations(calls: Sequence[Call], rows: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    """Yield the files that were named, or whose step came, before they were synced."""
    for number, call in enumerate(calls):
        if call.name not in ("rename", "exchange", "link"):
            continue
        for kind, contents, name in rows:
            if _KINDS[kind].search(call.new_path) is None:
                continue
            if (kind == "a level") != _is_publication(call):
                continue
            if contents and _is_unsynced(call.inode, calls[:number]):
                yield f"{kind} has a name before its contents are synced: {call.new_path}"
            if name and _comes_first(_STEPS[name], call, calls[number + 1 :]):
                yield f"{kind} is not synced before {name}: {call.new_path}"


def _is_unsynced(inode: int, calls: Sequence[Call]) -> bool:
    of_file = [call.name for call in calls if call.inode == inode]
    after = of_file[::-1].index("fsync") if "fsync" in of_file else len(of_file)
    return any(name in ("write", "truncate") for name in of_file[len(of_file) - after :])


def _comes_first(
    is_step: Callable[[Call, Call], bool], naming: Call, calls: Sequence[Call]
) -> bool:
    """Whether a step comes before the folder of a new name is synced."""
    folder = os.path.dirname(naming.new_path)
    for call in calls:
        if call.name == "fsync" and call.path == folder:
            return False
        if is_step(call, naming):
            return True
    return False
