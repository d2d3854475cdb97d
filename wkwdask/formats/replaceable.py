"""Replacement of target folders: check that they may be replaced, and copy their permissions to the
new folders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wkwdask.errors import ExistsError
from wkwdask.formats.registry import default_format, formats
from wkwdask.store.store import folders_of, store_at

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence


def replaces(existing: str) -> bool:
    """Check whether a policy allows replacing existing data."""
    return existing in ("overwrite", "restart")


def check_targets(targets: Sequence[str], existing: str) -> None:
    """Raise ExistsError unless folders are free, or are mags that may be replaced."""
    occupied = [target for target in targets if is_occupied(target)]
    if occupied and not replaces(existing):
        more = f" (and {len(occupied) - 1} more)" if len(occupied) > 1 else ""
        raise ExistsError(
            f'{occupied[0]}: already exists{more}; existing="overwrite" replaces it whole'
        )
    links = [target for target in targets if store_at(target).link_target()]
    if links:
        raise ExistsError(f"{links[0]}: is a symbolic link; write to the folder that it points to")
    for target in occupied:
        if not store_at(target).is_folder() or not any(
            fmt.level_folders.is_level(target) for fmt in formats()
        ):
            its_format = next(
                (fmt for fmt in formats() if fmt.level_folders.record_of(target) is not None),
                default_format(),
            )
            raise ExistsError(f"{target}: {its_format.level_folders.why_not_replaceable(target)}")


def is_occupied(target: str) -> bool:
    """Return whether a target exists; an empty folder does not count."""
    if not store_at(target).is_taken():
        return False
    return (
        not store_at(target).is_folder()
        or store_at(target).link_target() is not None
        or store_at(target).can.compares  # folders of a bucket exist by what is in them
        or bool(store_at(target).names())
    )


def inherit_tree_permissions(staged: str, old: str) -> None:
    """Set the modes and groups of a new mag to those of the mag that it replaces; all files get
    those of one example file."""
    folder, new_folder = _stat(old), _stat(staged)
    if folder is None or new_folder is None:
        return
    file, new_file = _stat(_example_file(old)), _stat(_example_file(staged))
    if all(_is_alike(a, b) for a, b in ((folder, new_folder), (file, new_file))):
        return
    folders = folders_of(staged)
    for path, _, names in store_at(staged).walk():
        folders.inherit_permissions(path, folder)
        if file is not None:
            for name in names:
                folders.inherit_permissions(f"{path}/{name}", file)


def _example_file(folder: str) -> str | None:
    return next(
        (
            record
            for fmt in formats()
            if (record := fmt.level_folders.record_of(folder)) is not None
        ),
        None,
    )


def _stat(path: str | None) -> os.stat_result | None:
    try:
        return None if path is None else store_at(path).status()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_alike(old: os.stat_result | None, new: os.stat_result | None) -> bool:
    return old is None or (
        new is not None and (old.st_mode, old.st_gid) == (new.st_mode, new.st_gid)
    )
