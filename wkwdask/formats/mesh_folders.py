"""Folders of meshes that the documents of an image name: what may replace or remove them, and the
warning that their voxels change."""

from __future__ import annotations

import contextlib
import re
import warnings
from typing import TYPE_CHECKING

from wkwdask.errors import ExistsError
from wkwdask.formats.replaceable import replaces
from wkwdask.model.placement import job_in
from wkwdask.store.paths import dirname, is_bucket
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PROPERTIES_NAME = "properties"
"""Name of the folder of the properties of segments, in that of meshes."""
_FILE = re.compile(rf"\d+(\.index)?|[0-9a-f]+\.shard|info|{PROPERTIES_NAME}")


def removable_meshes(folder: str, meshes: Sequence[str]) -> Iterator[str]:
    """Yield the folders of meshes that lie in the folder of their image and hold nothing else."""
    for path in meshes:
        if dirname(path) != folder or not store_at(path).is_file("info"):
            continue
        if is_bucket(path):  # those of other software have plain names
            yield from [path] if job_in(path) else []
            continue
        with contextlib.suppress(ExistsError):
            check_mesh_folder(path, "overwrite")
            yield path


def check_mesh_folder(folder: str, existing: str) -> None:
    """Raise ExistsError unless meshes may be written to a folder; only a folder of meshes is
    replaced."""
    there = store_at(folder)
    if there.link_target():
        raise ExistsError(f"{folder}: is a symbolic link, which is not replaced; remove it")
    if not there.is_taken() or (there.is_folder() and not there.names()):
        return
    if not there.is_folder():
        raise ExistsError(f"{folder}: is a file, expected nothing or a folder of meshes")
    if not replaces(existing):
        raise ExistsError(f'{folder}: already exists; existing="overwrite" replaces it whole')
    other = min((name for name in there.names() if not _FILE.fullmatch(name)), default=None)
    if other is not None or not there.is_file("info"):
        what = "no info" if other is None else f"something else ({other})"
        raise ExistsError(f"{folder}: holds {what} beside meshes, and is not replaced")


def warn_of_meshes(*folders: str | None) -> None:
    """Warn that meshes in some folders, None for none, are those of voxels that change."""
    for folder in filter(None, folders):
        warnings.warn(
            f"{folder}: the meshes are those of the old voxels; "
            'meshes(existing="overwrite") makes them again',
            stacklevel=2,
        )
