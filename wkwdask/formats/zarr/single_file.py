"""OME-NGFF images in one file (RFC-9 of OME-NGFF, "Zipped OME-Zarr"): a zip of the files of a group, with the suffix ``.ozx``."""

from __future__ import annotations

import contextlib
import json
import os
from hashlib import blake2b

from wkwdask.errors import CorruptError, ExistsError, MissingError, UnsupportedError
from wkwdask.formats.zarr.documents import FILE_NAME
from wkwdask.formats.zarr.ngff import zarr_format_of
from wkwdask.formats.zarr.ngff_edit import read_attributes
from wkwdask.formats.zarr.target import PREFIX
from wkwdask.store import files
from wkwdask.store.locks import locked_file
from wkwdask.store.paths import ZIP, basename, dirname, is_zipped, local_path
from wkwdask.store.zip_writer import write_zip

SUFFIX = ".ozx"


def names_single_file(url: object) -> bool:
    """Return whether a target names a zip, or a path in one.

    Examples
    --------
    >>> names_single_file("em.ozx"), names_single_file("zarr://em.ozx"), names_single_file("em.ome.zarr")
    (True, True, False)
    """
    return isinstance(url, (str, os.PathLike)) and is_zipped(os.fspath(url).rstrip("/"))


def single_file_path(url: str | os.PathLike[str]) -> str:
    """Return the path of a new zip; raises UnsupportedError for another kind of target in or as a zip."""
    text = os.fspath(url).removeprefix(PREFIX)
    if ZIP in text or not text.lower().endswith(SUFFIX):
        raise UnsupportedError(f"{text}: a new zip needs a name that ends with {SUFFIX}; a zip that exists is not changed")
    return local_path(text).removesuffix(ZIP)


def staging_folder(path: str) -> str:
    """Return the folder in which the image is built before it is zipped; a dot hides it."""
    return f"{_hidden(path)}/{basename(path)[: -len(SUFFIX)]}.ome.zarr"


def _hidden(path: str) -> str:
    return f"{dirname(path)}/.wkwdask-{basename(path).replace('.', '-')}"


def complete_path(path: str, call: str) -> str:
    """Return where the zip of a call is complete before it gets its final name: its hidden folder is removed in between."""
    return f"{_hidden(path)}.{blake2b(call.encode(), digest_size=8).hexdigest()}.zip"


def finish_single_file(path: str, call: str) -> bool:
    """Publish the zip of an interrupted call that had completed it, and return whether that was this call."""
    above = dirname(path)
    names = files.listdir(above) if files.isdir(above) else []
    complete = [f"{above}/{name}" for name in names if name.startswith(f"{basename(_hidden(path))}.") and name.endswith(".zip")]
    for zipped in complete:
        with locked_file(zipped, f"convert to {path}"):
            files.remove_tree(_hidden(path))
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            files.rename(zipped, path)  # the last change, so an existing zip needs no more work
        files.fsync(above)
    return complete_path(path, call) in complete


def check_single_file(path: str, existing: str, version: str | None) -> None:
    """Raise ExistsError if a zip exists that must not be replaced, and UnsupportedError for a version that is not stored in Zarr v3."""
    if version is not None and zarr_format_of(version) != 3:
        raise UnsupportedError(f"{path}: OME-NGFF {version} is not stored in one file, which needs Zarr v3; write version 0.5 or later")
    if files.isdir(path):
        raise ExistsError(f"{path}: is a folder, expected nothing or a file")
    if existing != "overwrite" and files.lexists(path):
        raise ExistsError(f'{path}: already exists; existing="overwrite" replaces it whole')
    if not files.isdir(dirname(path)):
        raise MissingError(f"{dirname(path)}: no such folder")


def is_group(folder: str) -> bool:
    """Return whether a folder is a Zarr v3 group with OME-NGFF metadata, which can become a single file."""
    stored = read_attributes(folder)
    return stored is not None and stored[0] == 3 and isinstance(stored[1].get("ome"), dict)


def publish_single_file(folder: str, path: str) -> tuple[int, int]:
    """Zip a group, and return the number of files and the size of the zip."""
    stored = read_attributes(folder)
    if stored is None or stored[0] != 3:
        raise CorruptError(f"{folder}: expected a group of Zarr v3, found {'none' if stored is None else 'Zarr v2'}")
    version = stored[1].get("ome", {}).get("version")
    names = _ordered_names(folder)
    # RFC-9, "OME-Zarr Zip Comment Structure"
    comment = {"ome": {"version": str(version), "zipFile": {"centralDirectory": {"jsonFirst": True}}}}
    with locked_file(path, f"convert to {path}"):
        files.remove_temporaries(dirname(path), basename(path))
        return len(names), write_zip(path, folder, names, json.dumps(comment).encode())


def _ordered_names(folder: str) -> list[str]:
    """List the files of a group: its ``zarr.json``, those of its members breadth-first, then all others. Records of jobs are left out."""
    names = []
    for path, folders, found in files.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        names += [f"{path}/{name}"[len(folder) + 1 :] for name in found if not name.startswith(".")]
    return sorted(names, key=lambda name: (basename(name) != FILE_NAME, name.count("/") if basename(name) == FILE_NAME else 0, name))
