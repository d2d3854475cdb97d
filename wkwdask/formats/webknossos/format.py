"""Datasets of WEBKNOSSOS, layers and mags, with their files in WKW."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from wkwdask.errors import CorruptError
from wkwdask.formats.format import ArrayFormat
from wkwdask.formats.webknossos.dataset import listed_arrays, locate, read_datasource, recent_volume
from wkwdask.formats.webknossos.datasource import FILE_NAME
from wkwdask.formats.webknossos.layer_edit import LayerEdit, MagRemoval
from wkwdask.formats.webknossos.place import LayerPlace, mag_place
from wkwdask.formats.wkw.options import WkwOptions
from wkwdask.formats.wkw.volume import HEADER_NAME, is_mag, what_else
from wkwdask.geometry.mag import Mag
from wkwdask.model.place import Destination
from wkwdask.store import files
from wkwdask.store.paths import dirname, is_remote, local_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.formats.format import Summary, Url
    from wkwdask.model.image import Found, Image
    from wkwdask.model.place import Place
    from wkwdask.model.volume import StoredVolume


class WebknossosFormat(ArrayFormat):
    """A dataset with a JSON, a layer, or a mag."""

    name = "webknossos"
    options = WkwOptions
    edits = (LayerEdit, MagRemoval)

    def recognise(self, path: str) -> bool:
        """Tell whether a folder is a dataset with a JSON, or a mag; a layer is known by the folders in it alone, of which there may be many."""
        return files.exists(f"{path}/{FILE_NAME}") or files.exists(f"{path}/{HEADER_NAME}")

    def guess(self, url: object) -> bool:
        """Tell whether a path is a mag, a layer or a dataset with at least one layer in WKW."""
        if not isinstance(url, (str, os.PathLike)) or not os.fspath(url) or is_remote(os.fspath(url)):
            return False
        path = local_path(url)
        if not files.isdir(path):
            return False
        try:
            datasource = read_datasource(path)
        except CorruptError:
            return True  # ours, and opening it says what is wrong
        if datasource is not None and (datasource.layers or datasource.odd):
            return bool(datasource.odd) or any(record.data_format == "wkw" for record in datasource.layers)
        with files.scandir(path) as entries:
            return any(entry.name == HEADER_NAME or files.isfile(f"{entry.path}/{HEADER_NAME}") for entry in entries)

    def claims(self, path: str) -> bool:
        """Tell whether the JSON of a dataset lists a folder as a layer in another format, or a mag of one."""
        return listed_arrays(path) is not None

    def find(self, url: Url, chunk_size: Sequence[int] | None = None) -> Found:
        """Find the layers that a path can mean."""
        return listed_arrays(local_path(url)) or locate(url)

    def recent(self, url: Url, layer: str | None, mag: Mag | str | None, *, anew: bool) -> StoredVolume | None:
        """Open a mag in WKW, or give it again where no record has changed since."""
        return recent_volume(url, layer, None if mag is None else Mag.parse(mag), anew=anew)

    def summarize(self, url: Url) -> Summary:
        """Summarise a dataset, a layer or a mag."""
        from wkwdask.formats.webknossos.summary import summarize

        return summarize(url)

    def source_of(self, image: Image) -> str:
        """Give the folder."""
        return image.folder

    def place(self, wanted: Destination) -> Place:
        """Find out what is where levels are wanted."""
        return mag_place(wanted)

    def place_in(self, image: Image, *, allow_external: bool) -> Place:
        """Give the place of new mags in a layer."""
        return LayerPlace(image, Destination(image.folder, allow_external=allow_external))

    def is_level_folder(self, folder: str) -> bool:
        """Tell whether a folder is a mag in WKW and nothing else."""
        return is_mag(folder)

    def record_of(self, folder: str) -> str | None:
        """Name the header."""
        path = f"{folder}/{HEADER_NAME}"
        return path if files.exists(path) else None

    def stray(self, folder: str) -> str:
        """Say what else a folder holds than a mag."""
        return f"holds something else than one mag{what_else(folder)}, and is not replaced; name a mag's folder, such as DATASET/LAYER/1"

    def container_around(self, folder: str) -> str | None:
        """Name the dataset: the folder, or the one above it."""
        return next((path for path in (folder, dirname(folder)) if files.isfile(f"{path}/{FILE_NAME}")), None)


FORMAT = WebknossosFormat()
