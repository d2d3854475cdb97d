"""Views of layers as OME-NGFF images, without copying voxels: virtual groups, and ``zarr.json``
files beside the files of WKW mags.

A virtual group decodes its chunks on request. The ``zarr.json`` files let zarr-python read WKW
files in place with the codec ``wkw``: an array begins at absolute voxel 0 of its mag and ends with
the bounding box of the layer. Only files with the mark of wkwdask are replaced or removed.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import ExistsError, MissingError, UnsupportedError
from wkwdask.formats.marks import VIEW_MARK, is_view
from wkwdask.formats.roots import Root, checked_folder, root_of
from wkwdask.formats.wkw.layout import header_of
from wkwdask.formats.zarr.documents import (
    FILE_NAME,
    array_document,
    format_document,
    group_document,
    new_axes,
    raw_codecs,
)
from wkwdask.formats.zarr.ngff import (
    LABELS,
    ImageAxes,
    image_attributes,
    label_attributes,
    multiscale,
    pyramid_level,
    rgb_range,
)
from wkwdask.kernels.arrays import is_zero
from wkwdask.model.volume import relative_to, voxel_nbytes
from wkwdask.store.documents import replace_document
from wkwdask.store.paths import basename, dirname, is_remote, relpath
from wkwdask.store.store import folders_of, store_at
from wkwdask.streams.reading import read_on_threads

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wkwdask.formats.zarr.ngff import PyramidLevel
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.image import Image, ResolvedUrl
    from wkwdask.model.json_text import JsonObject
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.model.volume import Volume


_CHUNK_NBYTES = 1 << 20
_KEY = re.compile(r"c(?:/0)?/(\d+)/(\d+)/(\d+)", re.ASCII)


_WHY_NO_DOCUMENTS = {
    "webknossos": "",
    "zarr": "it is Zarr already",
    "n5": "n5_as_zarr() writes them for N5",
    # A Zarr codec sees neither the name nor the index of a chunk, and raw chunks have no header.
    "precomputed": (
        "chunks at the end of a volume are cut off, and no header tells a Zarr codec their shape; "
        "shards have an index that Zarr does not know"
    ),
}


def why_no_documents(format_name: str) -> str:
    """Return why ``zarr.json`` files beside the data of a format cannot describe it, an empty text
    if they can."""
    return _WHY_NO_DOCUMENTS.get(format_name, "its chunks have no codec in Zarr")


def layer_attributes(layer: Image, levels: Iterable[PyramidLevel], volume: Volume) -> JsonObject:
    """Return the attributes of the image group of a layer; ``volume`` is any of its mags."""
    is_label = layer.category == "segmentation"
    image = multiscale(
        layer.name,
        levels,
        ImageAxes.of_letters(
            new_axes(volume.num_channels), None if layer.voxel_size_nm is None else "nanometer"
        ),
    )
    rgb = None if is_label else rgb_range(volume.dtype, volume.num_channels)
    return image_attributes(image, version="0.5", is_label=is_label, rgb=rgb)


@dataclass(frozen=True, slots=True)
class VirtualArray:
    """One mag as a Zarr array of uncompressed chunks; small to pickle."""

    volume: Volume
    """Voxels of the mag; voxel 0 is element 0."""
    chunk_shape: Vec3

    def document(self, mag: Mag, topleft: Vec3) -> JsonObject:
        volume = self.volume
        attributes = {"mag": list(mag.factors), "offset_vx": list(topleft)}
        return array_document(
            volume.box.size,
            volume.num_channels,
            volume.dtype,
            self.chunk_shape,
            raw_codecs(volume.dtype),
            attributes,
        )

    def read(self, key: str) -> np.ndarray[Any, Any] | None:
        """Decode a chunk, axes (c,) z, y, x; None if it is all zero, or its key is outside of the
        array."""
        match = _KEY.fullmatch(key)
        if match is None:
            return None
        z, y, x = (int(n) for n in match.groups())
        topleft = (x * self.chunk_shape[0], y * self.chunk_shape[1], z * self.chunk_shape[2])
        inside = tuple(
            min(n, high - t)
            for n, high, t in zip(
                self.chunk_shape, self.volume.box.bottomright, topleft, strict=True
            )
        )
        if min(inside) <= 0:
            return None
        dtype = self.volume.dtype.newbyteorder("<")
        shape = (self.volume.num_channels, *reversed(self.chunk_shape))
        out = np.empty(shape, dtype) if inside == self.chunk_shape else np.zeros(shape, dtype)
        part = out.transpose(0, 3, 2, 1)[:, : inside[0], : inside[1], : inside[2]]
        read_on_threads(self.volume, part, topleft, threads=1)
        return None if is_zero(part) else out


@dataclass(frozen=True)
class VirtualGroup:
    documents: dict[str, bytes] = field(default_factory=dict)
    arrays: dict[str, VirtualArray] = field(default_factory=dict)

    def add_group(self, path: str, attributes: JsonObject) -> None:
        self.documents[_joined(path, FILE_NAME)] = format_document(
            group_document(attributes)
        ).encode()

    def add_image(
        self, path: str, layer: Image, chunk_shape: Vec3 | None, mags: Iterable[Mag]
    ) -> None:
        """Add a layer as an image of the given mags; mags without voxels are left out."""
        levels, volumes = [], []
        for mag in mags:
            with contextlib.suppress(MissingError):
                volume = layer.volume(mag)
                if volume.box.is_empty:
                    continue
                self.add_array(_joined(path, mag.name), volume, chunk_shape)
                levels.append(pyramid_level(mag.name, mag, volume.box.topleft, layer.voxel_size_nm))
                volumes.append(volume)
        if not levels:
            raise MissingError(f"{layer.folder}: no mag of layer {layer.name} has voxels")
        self.add_group(path, layer_attributes(layer, levels, volumes[0]))

    def add_array(self, path: str, volume: StoredArray, chunk_shape: Vec3 | None) -> None:
        array = VirtualArray(
            relative_to(volume, volume.box.topleft), chunk_shape or choose_chunk_shape(volume)
        )
        self.documents[_joined(path, FILE_NAME)] = format_document(
            array.document(volume.box.mag, volume.box.topleft)
        ).encode()
        self.arrays[path] = array


def _joined(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def choose_chunk_shape(volume: StoredArray) -> Vec3:
    """Choose chunks of about 1 MiB, multiples of the stored ones. If the box begins inside a stored
    chunk, larger chunks decode fewer stored chunks twice."""
    shape = list(volume.chunk_shape)
    nbytes = voxel_nbytes(volume)
    while True:
        axis = min(range(3), key=lambda n: (shape[n], n))
        if (
            shape[axis] >= max(volume.box.size)
            or 2 * shape[0] * shape[1] * shape[2] * nbytes > _CHUNK_NBYTES
        ):
            return shape[0], shape[1], shape[2]
        shape[axis] *= 2


def virtual_group(
    layers: Sequence[Image], mag: Mag | None, chunk_shape: Vec3 | None, *, as_root: bool
) -> VirtualGroup:
    """Return layers as a virtual group: one image as its root, or a group with an image per layer
    and its labels."""
    group = VirtualGroup()
    if as_root:
        (layer,) = layers
        group.add_image("", layer, chunk_shape, layer.mags if mag is None else (mag,))
        return group
    group.add_group("", {})
    for layer in layers:
        group.add_image(layer.name, layer, chunk_shape, layer.mags)
        labels = labels_of(layer, layers)
        if labels:
            folder = f"{layer.name}/{LABELS}"
            group.add_group(folder, label_attributes([label.name for label in labels], "0.5"))
            for label in labels:
                group.add_image(f"{folder}/{label.name}", label, chunk_shape, layer.mags)
    return group


def labels_of(image: Any, layers: Sequence[Any]) -> list[Any]:
    """Return the segmentations that can be labels of an image: those with all of its mags, because
    OME-NGFF requires equal numbers of levels."""
    if image.category == "segmentation":
        return []
    return [
        layer
        for layer in layers
        if layer.category == "segmentation" and set(image.mags) <= set(layer.mags)
    ]


@dataclass
class ViewPlan:
    documents: dict[str, JsonObject] = field(default_factory=dict)
    """``zarr.json`` of each folder, in the order of writing."""
    links: dict[str, str] = field(default_factory=dict)
    """Symbolic links and their targets: the arrays of segmentations, among the labels of an
    image."""


def plan_view(located: ResolvedUrl, layer: str | None) -> ViewPlan:
    is_dataset = located.mag is None and any(
        root_of(image).folder == located.path for image in located.layers
    )
    if is_dataset and is_view(f"{located.path}/{FILE_NAME}"):
        # the consolidated metadata of the existing dataset group describe all layers, so all are
        # written again
        layer = None
    layers = [image for image in located.layers if layer in (None, image.name)]
    if not layers:
        raise MissingError(
            f"{located.path}: no layer {layer!r}; there are "
            f"{', '.join(image.name for image in located.layers) or 'none'}"
        )
    plan = ViewPlan()
    groups = {}
    for image in layers:
        volumes = _open_mags(image, located.mag)
        for mag, volume in volumes.items():
            _check_inside(image, volume.folder)
            plan.documents[volume.folder] = _array_document(volume, mag)
        if located.mag is None:
            groups[image.name] = _group_folder(image, volumes)
            plan.documents[groups[image.name]] = _group_document(image, volumes)
    if located.mag is None:
        for image in layers:
            labels = labels_of(image, layers)
            if labels:
                _add_labels(plan, groups[image.name], labels, image.mags)
    for folder in plan.documents:
        _check_inside(layers[0], folder)
    if is_dataset and layer is None:
        plan.documents[located.path] = _root_document(plan, located.path)
    return plan


def _root_document(plan: ViewPlan, folder: str) -> JsonObject:
    """Return the ``zarr.json`` of a dataset group, with consolidated metadata, since a listing of
    the folder contains other files too."""
    below = dict(plan.documents)
    for link, target in plan.links.items():
        below[link] = plan.documents[target]
    members = {relpath(path, folder): document for path, document in sorted(below.items())}
    inside = {path: document for path, document in members.items() if not path.startswith("..")}
    return {
        **group_document({VIEW_MARK: 1}),
        "consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": inside},
    }


def _open_mags(layer: Image, mag: Mag | None) -> dict[Mag, StoredArray]:
    """Open the mags of a layer; mags without voxels are left out."""
    volumes = {}
    for candidate in layer.mags if mag is None else (mag,):
        if is_remote(layer.mags[candidate]):
            raise UnsupportedError(
                f"{layer.folder}: mag {candidate} is at {layer.mags[candidate]}; zarr.json files "
                "are written beside local files only"
            )
        with contextlib.suppress(MissingError):
            volume = layer.volume(candidate)
            if not volume.box.is_empty:
                volumes[candidate] = volume
    if not volumes:
        raise MissingError(f"{layer.folder}: no mag of layer {layer.name} has voxels")
    return volumes


def _array_document(volume: StoredArray, mag: Mag) -> JsonObject:
    header = header_of(volume)
    attributes = {
        "mag": list(mag.factors),
        "box_vx": [list(volume.box.topleft), list(volume.box.size)],
        VIEW_MARK: 1,
    }
    codecs = [
        {
            "name": "wkw",
            "configuration": {
                "block_len": header.block_len,
                "compression": header.block_type.label,
            },
        }
    ]
    document = array_document(
        volume.box.bottomright,
        header.num_channels,
        header.dtype,
        volume.shard_shape,
        codecs,
        attributes,
    )
    return document | {"chunk_key_encoding": {"name": "wkw"}}


def _group_document(layer: Image, volumes: dict[Mag, StoredArray]) -> JsonObject:
    levels = [
        pyramid_level(basename(volume.folder), mag, (0, 0, 0), layer.voxel_size_nm)
        for mag, volume in volumes.items()
    ]
    return group_document(
        {**layer_attributes(layer, levels, next(iter(volumes.values()))), VIEW_MARK: 1}
    )


def _group_folder(layer: Image, volumes: dict[Mag, StoredArray]) -> str:
    folders = {dirname(volume.folder) for volume in volumes.values()}
    if len(folders) != 1:
        raise UnsupportedError(
            f"{layer.folder}: the mags of layer {layer.name} are in several folders "
            f"({', '.join(sorted(folders))}), and a Zarr group is one: "
            "zarr_view opens it without writing files"
        )
    return folders.pop()


def _check_inside(layer: Image, folder: str) -> None:
    """Raise UnsupportedError if a path or link leads out of the dataset."""
    if root_of(layer).folder is None:
        Root(layer.folder, allow_external=layer.allow_external, noun="layer").check(folder)
    checked_folder(layer, folder)


def _add_labels(
    plan: ViewPlan, image_folder: str, labels: list[Image], mags: Iterable[Mag]
) -> None:
    """Plan the label images of an image, whose arrays are links to those of the segmentations."""
    folder = f"{image_folder}/{LABELS}"
    plan.documents[folder] = group_document(
        {**label_attributes([label.name for label in labels], "0.5"), VIEW_MARK: 1}
    )
    for label in labels:
        all_volumes = _open_mags(label, None)
        volumes = {mag: all_volumes[mag] for mag in mags if mag in all_volumes}
        plan.documents[f"{folder}/{label.name}"] = _group_document(label, volumes)
        for volume in volumes.values():
            plan.links[f"{folder}/{label.name}/{basename(volume.folder)}"] = volume.folder


def write_view(plan: ViewPlan) -> tuple[str, ...]:
    """Write the files and links of a view, and return their paths; unchanged files are not written
    again."""
    for folder in plan.documents:
        path = f"{folder}/{FILE_NAME}"
        if store_at(path).is_taken() and not is_view(path):
            raise ExistsError(
                f"{path}: already exists, and wkwdask did not write it; it is not replaced"
            )
    for link in plan.links:
        if store_at(link).is_taken() and not store_at(link).link_target():
            raise ExistsError(
                f"{link}: already exists, expected a link to the array of a segmentation"
            )
    _remove_stale_labels(plan)
    paths = []
    # An unchanged file keeps its modification time, by which open arrays detect changes.
    for folder, document in plan.documents.items():
        store = store_at(folder)
        store.make()
        path = store.path_of(FILE_NAME)
        data = format_document(document).encode()
        if not _has_content(path, data):
            replace_document(store, FILE_NAME, data)
        paths.append(path)
    for link, target in plan.links.items():
        # relative, so that a copied or moved dataset keeps its labels
        relative = relpath(store_at(target).real(), store_at(dirname(link)).real())
        if not store_at(link).link_target() or store_at(link).link_target() != relative:
            with contextlib.suppress(FileNotFoundError):
                folders_of(link).unlink(link)
            folders_of(link).symlink(relative, link)
        paths.append(link)
    return tuple(paths)


def _remove_stale_labels(plan: ViewPlan) -> None:
    for group in list(plan.documents):
        folder = f"{group}/{LABELS}"
        if not is_view(f"{folder}/{FILE_NAME}"):
            continue
        if folder not in plan.documents:
            _remove_labels(folder, [])
            continue
        for label in (f"{folder}/{name}" for name in store_at(folder).names()):
            for link in (
                [f"{label}/{name}" for name in store_at(label).names()]
                if is_view(f"{label}/{FILE_NAME}")
                else ()
            ):
                if store_at(link).link_target() and link not in plan.links:
                    store_at(label).delete(basename(link))


def _has_content(path: str, data: bytes) -> bool:
    try:
        with store_at(path).open_stream() as file:
            return file.read() == data
    except FileNotFoundError:
        return False


def remove_view(located: ResolvedUrl, layer: str | None) -> tuple[str, ...]:
    """Remove the files and links of a view, also those of layers that were removed from the
    dataset, and return their paths."""
    removed: list[str] = []
    for image in (image for image in located.layers if layer in (None, image.name)):
        folders = [
            folder
            for mag, folder in image.mags.items()
            if located.mag in (None, mag) and not is_remote(folder)
        ]
        groups = (
            list(dict.fromkeys(dirname(folder) for folder in folders))
            if located.mag is None
            else []
        )
        for folder in (*folders, *groups, *(f"{group}/{LABELS}" for group in groups)):
            if is_view(f"{folder}/{FILE_NAME}"):
                _check_inside(image, folder)
        for folder in folders:
            _remove_document(folder, removed)
        if located.mag is None:
            for group in groups:
                _remove_labels(f"{group}/{LABELS}", removed)
                _remove_document(group, removed)
    if located.mag is None:
        if layer is None and is_view(f"{located.path}/{FILE_NAME}"):
            _remove_orphans(located.path, removed)
        _remove_document(located.path, removed)
    return tuple(removed)


def _remove_orphans(folder: str, removed: list[str]) -> None:
    """Remove the files of a view from folders of layers that no longer exist."""
    for layer in sorted(f"{folder}/{name}" for name in store_at(folder).names()):
        if store_at(layer).link_target() or not store_at(layer).exists(FILE_NAME):
            continue
        _remove_labels(f"{layer}/{LABELS}", removed)
        _remove_document(layer, removed)
        with contextlib.suppress(OSError):
            folders_of(layer).rmdir(layer)


def _remove_document(folder: str, removed: list[str]) -> None:
    path = f"{folder}/{FILE_NAME}"
    if is_view(path):
        store_at(folder).delete(FILE_NAME)
        removed.append(path)


def _remove_labels(folder: str, removed: list[str]) -> None:
    if not is_view(f"{folder}/{FILE_NAME}"):
        return
    for name in sorted(store_at(folder).names()):
        group = f"{folder}/{name}"
        if not is_view(f"{group}/{FILE_NAME}"):
            continue
        for entry in sorted(store_at(group).names()):
            if store_at(group).link_target(entry):
                store_at(group).delete(entry)
                removed.append(f"{group}/{entry}")
        _remove_document(group, removed)
        with contextlib.suppress(OSError):
            folders_of(group).rmdir(group)
    _remove_document(folder, removed)
    with contextlib.suppress(OSError):
        folders_of(folder).rmdir(folder)
        folders_of(folder).fsync(dirname(folder))
