"""Open Neuroglancer precomputed volumes by URL or folder, and recognise local ones. Redirects of
``info`` are followed."""

from __future__ import annotations

import json
import posixpath
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError, FormatError, ReplacedError, UnsupportedError
from wkwdask.formats.marks import contains_wkw
from wkwdask.formats.precomputed.array import scale_array, scale_identity
from wkwdask.formats.precomputed.info import FILE_NAME, TYPE, base_resolution, mag_of
from wkwdask.formats.precomputed.info_file import read_info
from wkwdask.formats.publication import read_publication
from wkwdask.formats.record_paths import RecordPaths, job_folders
from wkwdask.geometry.bounding_box import MAG_1
from wkwdask.geometry.mag import vec3
from wkwdask.model.image import Image, Level
from wkwdask.model.placement import plain_name
from wkwdask.store.paths import UrlName, is_remote, split, stated_path
from wkwdask.store.store import open_store, store_at, with_witness

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from wkwdask.formats.precomputed.info import Scale, VolumeInfo
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.store import Store
    from wkwdask.model.stored_array import StoredArray


def check_published(volume: str, folder: str) -> None:
    """Raise ReplacedError while a job replaces a scale where two folders cannot be exchanged: then
    its folder is missing for a moment."""
    real = store_at(folder).real()
    if store_at(real).is_taken():
        return
    for root, _ in job_folders(store_at(volume).real()):
        publication = read_publication(RecordPaths(root))
        if publication is not None and real in (scale for _, scale in publication.mags):
            raise ReplacedError(
                f"{folder}: is being replaced; open it in a moment, or repeat the call that was "
                "killed during the replacement (wkwdask status names it)"
            )


PREFIX = "precomputed://"
NAME = UrlName((PREFIX,), ("neuroglancer-precomputed",))
stripped, location_of = NAME.stripped, NAME.location
_MAX_REDIRECTS = 10
_RECOGNITION_NBYTES = 16 << 20  # of a file named info, read to recognise a volume
_MAX_KEY_FOLDERS = 3  # a scale is opened by its path if its key has no more parts


@dataclass(frozen=True, slots=True)
class VolumeSource:
    """Store and ``info`` of a volume; the ``details`` of its image."""

    store: Store
    info: VolumeInfo
    # chunk size to read if there are several; None for the first of each scale
    chunk_size: Vec3 | None = None
    # path or URL of the volume from which redirects led here; empty without redirects
    opened: str = ""

    def image(self, key: str | None = None) -> Image:
        """Return the volume as an image; ``key`` selects one scale."""
        folder = self.store.url
        category = "segmentation" if self.info.type == "segmentation" else "color"
        name = folder.rstrip("/").rpartition("/")[2]
        document = f"{self.opened or folder}/{FILE_NAME}"
        return Image(
            "precomputed",
            folder,
            name,
            self.levels,
            key,
            category,
            base_resolution(self.info),
            "scale",
            None,
            self,
            document,
            self.opened,
            counts_from_finest=True,
            color_method="mean",  # as igneous and Neuroglancer do
            in_chunks=partial(self._image_in_chunks, key),
        )

    def _image_in_chunks(self, key: str | None, size: Sequence[int]) -> Image:
        return replace(self, chunk_size=vec3(size, "chunk_size")).image(key)

    def levels(self) -> Iterator[Level]:
        """Yield the usable scales, finest first, then the unusable ones."""
        for scale in self.info.scales:
            mag, folder = mag_of(self.info, scale), self.store.below(scale.key).url
            yield Level(
                scale.key,
                folder,
                partial(self.open_scale, scale, mag),
                mag,
                scale.resolution,
                details=scale,
                stated=scale.key,
            )
        for bad in self.info.unusable:
            error, folder = (
                UnsupportedError if bad.is_unsupported else CorruptError,
                self.store.below(bad.key).url,
            )
            yield Level(
                bad.key,
                folder,
                None,
                mag_of(self.info, bad),
                bad.resolution,
                bad.problem,
                error,
                bad,
                bad.key,
            )

    def open_scale(self, scale: Scale, mag: Mag | None) -> StoredArray:
        """Open one scale in absolute voxels."""
        if self.chunk_size is not None:
            scale = scale.with_chunk_size(self.chunk_size)
        try:
            array = scale_array(self.store, self.info, scale, mag or MAG_1)
        except CorruptError as error:
            raise CorruptError(f"{self.store.path_of(FILE_NAME)}: {error}") from None
        if scale_identity(array).opened is not None:
            check_published(self.store.url, array.folder)
            if not scale_identity(array).is_still_described():
                raise ReplacedError(
                    f"{array.folder}: {FILE_NAME} describes another scale since it was read; open "
                    "it again"
                )
        return array


def open_precomputed_layer(url: str | os.PathLike[str]) -> Image:
    location = location_of(url)
    key = None
    store: Store = open_store(location)
    if not store.is_remote and not store.exists(FILE_NAME):
        above = enclosing_volume(store.url)
        if above is not None:
            store, key = open_store(above[0]), above[1]
    opened, (store, info) = store.url, _follow_redirects(store)
    source = VolumeSource(store, info, opened="" if store.url == opened else opened)
    image = source.image(key)
    if key is not None and not image.selected[0].opener:
        image.selected[0].open()  # raises the error of an unusable scale
    return image


def _follow_redirects(store: Store) -> tuple[Store, VolumeInfo]:
    """Return store and ``info`` of the volume at the end of a chain of redirects."""
    seen = [store.url]
    while True:
        info = read_info(store)
        if info.redirect is None:
            return with_witness(store, FILE_NAME), info
        store = open_store(_redirect_location(store, info.redirect))
        if store.url in seen:
            raise CorruptError(
                f"{seen[0]}/{FILE_NAME}: redirects lead in a circle: "
                f"{' -> '.join([*seen, store.url])}"
            )
        seen.append(store.url)
        if len(seen) > _MAX_REDIRECTS + 1:
            raise CorruptError(
                f"{seen[0]}/{FILE_NAME}: more than {_MAX_REDIRECTS} redirects: {' -> '.join(seen)}"
            )


def _redirect_location(store: Store, redirect: str) -> str:
    """Resolve a redirect: a URL, or a path relative to the volume."""
    location = stripped(redirect)
    if "://" not in location and not location.startswith(("/", "~")):
        return stated_path(store.url, location)
    # A remote file must not choose which local files are read.
    if not is_remote(location) and store.is_remote:
        raise UnsupportedError(
            f"{store.path_of(FILE_NAME)}: redirects from a remote volume to the local path "
            f"{location}, which is not followed"
        )
    return location


def is_volume(path: str) -> bool:
    """Check whether a local folder is a precomputed volume or a scale of one. A folder that holds
    WKW data is not."""
    return (_is_info(path) and not contains_wkw(path)) or enclosing_volume(path) is not None


def _is_info(folder: str) -> bool:
    """Check whether a file is the ``info`` of a volume, valid, damaged or unreadable, and not that
    of meshes, skeletons or annotations."""
    try:
        raw = store_at(folder).read_document(FILE_NAME, _RECOGNITION_NBYTES)
    except PermissionError:  # opening it raises the error
        return store_at(folder).is_file(FILE_NAME)
    except (FormatError, OSError):
        return False
    if raw is None:
        return False
    try:
        document: Any = json.loads(raw)
    except (ValueError, RecursionError):
        return b'"scales"' in raw or TYPE.encode() in raw
    return (
        isinstance(document, dict)
        and document.get("@type", TYPE) == TYPE
        and ("scales" in document or "redirect" in document)
    )


def enclosing_volume(path: str) -> tuple[str, str] | None:
    """Return the folder of the volume that lists a local folder as a scale, and the scale's key,
    which may contain slashes."""
    folder, rest = path, ""
    for _ in range(_MAX_KEY_FOLDERS):
        folder, name = split(folder)
        rest = f"{name}/{rest}" if rest else name
        if not name:
            return None
        if _is_info(folder) and not contains_wkw(folder):
            try:
                info = read_info(open_store(folder))
            except (FormatError, OSError):
                return None
            keys = [*(scale.key for scale in info.scales), *(scale.key for scale in info.unusable)]
            by_path = {posixpath.normpath(key): key for key in reversed(keys)}
            # a level is also known without the job that wrote it
            by_path = {plain_name(path): key for path, key in by_path.items()} | by_path
            return (folder, by_path[rest]) if rest in by_path else None
    return None
