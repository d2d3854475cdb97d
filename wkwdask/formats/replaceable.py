"""Folders in whose place a job may put others, by the formats that there are: what they must hold, and whose modes the new ones inherit."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from wkwdask.errors import ExistsError
from wkwdask.formats.n5.folder import is_n5_dataset, n5_record
from wkwdask.formats.precomputed.folder import is_scale, scale_file, scale_stray
from wkwdask.formats.wkw.volume import HEADER_NAME, is_mag, what_else
from wkwdask.formats.zarr.folder import array_record, array_stray, is_array
from wkwdask.store import files

if TYPE_CHECKING:
    from collections.abc import Sequence


def check_targets(targets: Sequence[str], existing: str) -> None:
    """Make sure that folders are free, or are mags that may be replaced."""
    there = [target for target in targets if is_taken(target)]
    if there and existing != "overwrite":
        more = f" (and {len(there) - 1} more)" if len(there) > 1 else ""
        raise ExistsError(f'{there[0]}: already exists{more}; existing="overwrite" replaces it whole')
    links = [target for target in targets if os.path.islink(target)]
    if links:
        raise ExistsError(f"{links[0]}: is a symbolic link; write to the folder that it points to")
    for target in there:
        if not os.path.isdir(target) or not (is_mag(target) or is_scale(target) or is_n5_dataset(target) or _is_plain_array(target)):
            raise ExistsError(f"{target}: {_what_it_holds(target)}")


def _what_it_holds(target: str) -> str:
    """Say why a folder is not replaced."""
    if not os.path.exists(f"{target}/{HEADER_NAME}") and scale_file(target) is not None:
        return f"holds something else than one precomputed scale ({scale_stray(target)}), and is not replaced; move it away"
    if n5_record(target) is not None:
        return "holds something else than one N5 dataset, and is not replaced; move it away"
    if not os.path.exists(f"{target}/{HEADER_NAME}") and array_record(target) is not None:
        return f"holds something else than one Zarr array ({array_stray(target)}), and is not replaced; move it away"
    return f"holds something else than one mag{what_else(target)}, and is not replaced; name a mag's folder, such as DATASET/LAYER/1"


def _is_plain_array(target: str) -> bool:
    """Tell whether a folder is a Zarr array and nothing else, also no WKW mag with a description beside it."""
    return not os.path.exists(f"{target}/{HEADER_NAME}") and is_array(target)


def is_taken(target: str) -> bool:
    """Tell whether something stands where a mag is to appear; an empty folder does not count."""
    if not os.path.lexists(target):
        return False
    return not os.path.isdir(target) or os.path.islink(target) or bool(os.listdir(target))


def inherit_tree_permissions(staged: str, old: str) -> None:
    """Give a mag that replaces another the modes and groups of that one's folder and of one of its files, which stands for all."""
    folder, fresh_folder = _stat(old), _stat(staged)
    if folder is None or fresh_folder is None:
        return
    file, fresh_file = _stat(_example_file(old)), _stat(_example_file(staged))
    if all(_is_alike(a, b) for a, b in ((folder, fresh_folder), (file, fresh_file))):
        return
    for path, _, names in os.walk(staged):
        files.inherit_permissions(path, folder)
        if file is not None:
            for name in names:
                files.inherit_permissions(f"{path}/{name}", file)


def _example_file(folder: str) -> str | None:
    header = f"{folder}/{HEADER_NAME}"
    return header if os.path.exists(header) else array_record(folder) or scale_file(folder) or n5_record(folder)


def _stat(path: str | None) -> os.stat_result | None:
    try:
        return None if path is None else os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_alike(old: os.stat_result | None, fresh: os.stat_result | None) -> bool:
    return old is None or (fresh is not None and (old.st_mode, old.st_gid) == (fresh.st_mode, fresh.st_gid))
