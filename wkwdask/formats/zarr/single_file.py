"""OME-NGFF images in one file (RFC-9 of OME-NGFF, "Zipped OME-Zarr"): a zip of the files of a
group, with the suffix ``.ozx``."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError, MissingError, UnsupportedError
from wkwdask.formats.zarr.documents import FILE_NAME
from wkwdask.formats.zarr.layer import NAME, PREFIX
from wkwdask.formats.zarr.ngff import zarr_format_of
from wkwdask.formats.zarr.ngff_edit import read_attributes
from wkwdask.store.paths import ZIP, basename, dirname, is_bucket, is_zipped, local_path, normpath
from wkwdask.store.store import store_at
from wkwdask.store.zip_writer import write_zip

if TYPE_CHECKING:
    from collections.abc import Mapping

SUFFIX = ".ozx"


@dataclass(frozen=True, slots=True)
class ZippedImage:
    """New zip; implements :class:`wkwdask.formats.format.SingleFile`."""

    path: str

    def folder_in(self, scratch: str) -> str:
        return f"{scratch}/{basename(self.path)[: -len(SUFFIX)]}.ome.zarr"

    def url_of(self, folder: str) -> str:
        return PREFIX + folder

    def check(self, options: Mapping[str, Any]) -> None:
        path, version = self.path, options.get("ngff")
        if version is not None and zarr_format_of(version) != 3:
            raise UnsupportedError(
                f"{path}: OME-NGFF {version} is not stored in one file, which needs Zarr v3; write "
                "version 0.5 or later"
            )
        if not is_bucket(dirname(path)) and not store_at(dirname(path)).is_folder():
            raise MissingError(f"{dirname(path)}: no such folder")

    def at(self, path: str) -> ZippedImage:
        return ZippedImage(path)

    def can_pack(self, folder: str) -> bool:
        stored = read_attributes(folder)
        return stored is not None and stored[0] == 3 and isinstance(stored[1].get("ome"), dict)

    def pack(self, folder: str, path: str) -> int:
        return _zip(folder, path)

    def path_inside(self, path: str, folder: str) -> str:
        return f"{self.path}{ZIP}{path.removeprefix(folder)}"


def zipped_image(url: object) -> ZippedImage | None:
    """Return the new zip that a target names, None for another target; raises UnsupportedError for
    another kind of target in or as a zip.

    Examples
    --------
    >>> zipped_image("zarr:///data/em.ozx"), zipped_image("em.ome.zarr")
    (ZippedImage(path='/data/em.ozx'), None)
    """
    if not isinstance(url, (str, os.PathLike)) or not is_zipped(os.fspath(url).rstrip("/")):
        return None
    text = NAME.stripped(url)
    if ZIP in text or not text.lower().endswith(SUFFIX):
        raise UnsupportedError(
            f"{text}: a new zip needs a name that ends with {SUFFIX}; a zip that exists is not "
            "changed"
        )
    is_in_bucket = is_bucket(dirname(text))
    return ZippedImage(normpath(text) if is_in_bucket else local_path(text).removesuffix(ZIP))


def _zip(folder: str, path: str) -> int:
    """Zip a group, and return its number of files."""
    stored = read_attributes(folder)
    if stored is None or stored[0] != 3:
        raise CorruptError(
            f"{folder}: expected a group of Zarr v3, found "
            f"{'none' if stored is None else 'Zarr v2'}"
        )
    version = stored[1].get("ome", {}).get("version")
    names = _ordered_names(folder)
    # RFC-9, "OME-Zarr Zip Comment Structure"
    comment = {
        "ome": {"version": str(version), "zipFile": {"centralDirectory": {"jsonFirst": True}}}
    }
    write_zip(path, folder, names, json.dumps(comment).encode())
    return len(names)


def _ordered_names(folder: str) -> list[str]:
    """List the files of a group: its ``zarr.json``, those of its members breadth-first, then all
    others. Records of jobs are left out."""
    names = []
    for path, folders, found in store_at(folder).walk():
        folders[:] = [name for name in folders if not name.startswith(".")]
        names += [f"{path}/{name}"[len(folder) + 1 :] for name in found if not name.startswith(".")]
    return sorted(
        names,
        key=lambda name: (
            basename(name) != FILE_NAME,
            name.count("/") if basename(name) == FILE_NAME else 0,
            name,
        ),
    )
