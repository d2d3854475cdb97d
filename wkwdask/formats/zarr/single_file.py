"""OME-NGFF images in one file (RFC-9 of OME-NGFF, "Zipped OME-Zarr"): a zip of the files of a
group, with the suffix ``.ozx``."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError, ExistsError, MissingError, UnsupportedError
from wkwdask.formats.replaceable import replaces
from wkwdask.formats.zarr.documents import FILE_NAME
from wkwdask.formats.zarr.ngff import zarr_format_of
from wkwdask.formats.zarr.ngff_edit import read_attributes
from wkwdask.formats.zarr.target import PREFIX
from wkwdask.store import by_path
from wkwdask.store.locks import locked_file
from wkwdask.store.paths import ZIP, basename, dirname, is_zipped, local_path
from wkwdask.store.store import folders_of, store_at
from wkwdask.store.zip_writer import write_zip

if TYPE_CHECKING:
    from collections.abc import Mapping

SUFFIX = ".ozx"


@dataclass(frozen=True, slots=True)
class ZippedImage:
    """New zip; implements :class:`wkwdask.formats.format.SingleFile`."""

    path: str

    @property
    def _hidden(self) -> str:
        return f"{dirname(self.path)}/.wkwdask-{basename(self.path).replace('.', '-')}"

    @property
    def folder(self) -> str:
        return f"{self._hidden}/{basename(self.path)[: -len(SUFFIX)]}.ome.zarr"

    @property
    def folder_url(self) -> str:
        return PREFIX + self.folder

    def check(self, existing: str, options: Mapping[str, Any]) -> None:
        path, version = self.path, options.get("ngff")
        if version is not None and zarr_format_of(version) != 3:
            raise UnsupportedError(
                f"{path}: OME-NGFF {version} is not stored in one file, which needs Zarr v3; write "
                "version 0.5 or later"
            )
        if store_at(path).is_folder():
            raise ExistsError(f"{path}: is a folder, expected nothing or a file")
        if not replaces(existing) and store_at(path).is_taken():
            raise ExistsError(f'{path}: already exists; existing="overwrite" replaces it whole')
        if not store_at(dirname(path)).is_folder():
            raise MissingError(f"{dirname(path)}: no such folder")

    def can_pack(self, folder: str) -> bool:
        stored = read_attributes(folder)
        return stored is not None and stored[0] == 3 and isinstance(stored[1].get("ome"), dict)

    def pack(self, folder: str) -> tuple[int, int]:
        return _zip(folder, self.path)

    def pack_built(self, call: str) -> None:
        _zip(self.folder, self._complete(call))
        self.finish(call)

    def _complete(self, call: str) -> str:
        """Return where the zip of a call is complete before it gets its final name: its hidden
        folder is removed in between."""
        return f"{self._hidden}.{blake2b(call.encode(), digest_size=8).hexdigest()}.zip"

    def finish(self, call: str) -> bool:
        above = dirname(self.path)
        names = store_at(above).names() if store_at(above).is_folder() else []
        complete = [
            f"{above}/{name}"
            for name in names
            if name.startswith(f"{basename(self._hidden)}.") and name.endswith(".zip")
        ]
        for zipped in complete:
            with locked_file(zipped, f"convert to {self.path}"):
                store_at(self._hidden).delete_folder()
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                # the last change, so an existing zip needs no more work
                folders_of(above).rename(zipped, self.path)
            folders_of(above).fsync(above)
        return self._complete(call) in complete

    def path_inside(self, path: str) -> str:
        return f"{self.path}{ZIP}{path.removeprefix(self.folder)}"


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
    text = os.fspath(url).removeprefix(PREFIX)
    if ZIP in text or not text.lower().endswith(SUFFIX):
        raise UnsupportedError(
            f"{text}: a new zip needs a name that ends with {SUFFIX}; a zip that exists is not "
            "changed"
        )
    return ZippedImage(local_path(text).removesuffix(ZIP))


def _zip(folder: str, path: str) -> tuple[int, int]:
    """Zip a group, and return the number of files and the size of the zip."""
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
    with locked_file(path, f"convert to {path}"):
        by_path.remove_temporaries(dirname(path), basename(path))
        return len(names), write_zip(path, folder, names, json.dumps(comment).encode())


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
