"""Small ``zarr.json`` files beside the files of WKW mags, by which zarr-python reads these with the codec ``wkw``; no voxel is copied.

An array begins at absolute voxel 0 of its mag and ends with the layer's bounding box. Files that were not made here are never replaced or removed.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wkwdask.errors import ExistsError, MissingError, UnsupportedError
from wkwdask.formats.webknossos.dataset import wkw_volume
from wkwdask.formats.wkw.layout import header_of
from wkwdask.formats.zarr.documents import FILE_NAME, MARK, array_document, format_document, group_document, is_view, wkw_codecs
from wkwdask.formats.zarr.ngff import LABELS, label_attributes, level_of
from wkwdask.formats.zarr.views import labels_of, layer_attributes
from wkwdask.store import files
from wkwdask.store.new_files import publish_bytes
from wkwdask.store.paths import basename, dirname, is_below, is_remote, relpath

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wkwdask.geometry.mag import Mag
    from wkwdask.model.image import Found, Image
    from wkwdask.model.stored_array import StoredArray


@dataclass
class ViewPlan:
    """What a view consists of."""

    documents: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What is written, by folder, in this order."""
    links: dict[str, str] = field(default_factory=dict)
    """Symbolic links and where they lead: arrays of segmentations, among the labels of an image."""


def plan_view(located: Found, layer: str | None, *, allow_external: bool) -> ViewPlan:
    """Say what the view of a dataset, layer or mag consists of."""
    is_dataset = located.mag is None and any(one.container.dataset_folder == located.path for one in located.layers)
    if is_dataset and is_view(f"{located.path}/{FILE_NAME}"):
        layer = None  # the group of the dataset says of all layers what they are
    layers = [one for one in located.layers if layer in (None, one.name)]
    if not layers:
        raise MissingError(f"{located.path}: no layer {layer!r}; there are {', '.join(one.name for one in located.layers) or 'none'}")
    plan = ViewPlan()
    groups = {}
    for one in layers:
        volumes = _volumes(one, located.mag)
        for mag, volume in volumes.items():
            _check_inside(one, volume.folder, allow_external=allow_external)
            plan.documents[volume.folder] = _array(volume, mag)
        if located.mag is None:
            groups[one.name] = _group_folder(one, volumes)
            plan.documents[groups[one.name]] = _image(one, volumes)
    if located.mag is None:
        for image in layers:
            labels = labels_of(image, layers)
            if labels:
                _add_labels(plan, groups[image.name], labels, image.mags)
    if is_dataset and layer is None:
        plan.documents[located.path] = _root(plan, located.path)
    return plan


def _root(plan: ViewPlan, folder: str) -> dict[str, Any]:
    """Describe the group of a dataset with all that is below it, so that nobody has to list its folder, where there are other files too."""
    below = dict(plan.documents)
    for link, target in plan.links.items():
        below[link] = plan.documents[target]
    members = {relpath(path, folder): document for path, document in sorted(below.items())}
    inside = {path: document for path, document in members.items() if not path.startswith("..")}
    return {**group_document({MARK: 1}), "consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": inside}}


def _volumes(layer: Image, mag: Mag | None) -> dict[Mag, StoredArray]:
    """Open the mags of a layer that have voxels."""
    found = {}
    for one in layer.mags if mag is None else (mag,):
        if is_remote(layer.mags[one]):
            raise UnsupportedError(f"{layer.folder}: mag {one} is at {layer.mags[one]}; files can be put beside local ones only")
        with contextlib.suppress(MissingError):
            volume = wkw_volume(layer, one)
            if not volume.box.is_empty:
                found[one] = volume
    if not found:
        raise MissingError(f"{layer.folder}: no mag of layer {layer.name} has voxels")
    return found


def _array(volume: StoredArray, mag: Mag) -> dict[str, Any]:
    header = header_of(volume)
    attributes = {"mag": list(mag.factors), "box_vx": [list(volume.box.topleft), list(volume.box.size)], MARK: 1}
    codecs = wkw_codecs(header.block_len, header.block_type.label)
    document = array_document(volume.box.bottomright, header.num_channels, header.dtype, volume.shard_shape, codecs, attributes)
    return document | {"chunk_key_encoding": {"name": "wkw"}}


def _image(layer: Image, volumes: dict[Mag, StoredArray]) -> dict[str, Any]:
    levels = [level_of(basename(volume.folder), mag, (0, 0, 0), layer.voxel_size_nm) for mag, volume in volumes.items()]
    return group_document({**layer_attributes(layer, levels, next(iter(volumes.values()))), MARK: 1})


def _group_folder(layer: Image, volumes: dict[Mag, StoredArray]) -> str:
    """Name the folder that holds all mags of a layer."""
    folders = {dirname(volume.folder) for volume in volumes.values()}
    if len(folders) != 1:
        raise UnsupportedError(
            f"{layer.folder}: the mags of layer {layer.name} are in several folders ({', '.join(sorted(folders))}), and a Zarr group is one: "
            "zarr_view sees it without writing files"
        )
    return folders.pop()


def _check_inside(layer: Image, folder: str, *, allow_external: bool) -> None:
    """Refuse to write where links lead out of the dataset."""
    root = files.realpath(layer.container.dataset_folder or layer.folder)
    real = files.realpath(folder)
    if not allow_external and not is_below(real, root):
        raise UnsupportedError(f"{folder}: lies outside of {root}, at {real}; allow_external=True writes there too")


def _add_labels(plan: ViewPlan, image_folder: str, labels: list[Image], mags: Iterable[Mag]) -> None:
    """Add the segmentations to an image, by links to their arrays."""
    folder = f"{image_folder}/{LABELS}"
    plan.documents[folder] = group_document({**label_attributes([one.name for one in labels], "0.5"), MARK: 1})
    for one in labels:
        found = _volumes(one, None)
        volumes = {mag: found[mag] for mag in mags if mag in found}
        plan.documents[f"{folder}/{one.name}"] = _image(one, volumes)
        for volume in volumes.values():
            plan.links[f"{folder}/{one.name}/{basename(volume.folder)}"] = volume.folder


def write_view(plan: ViewPlan) -> tuple[str, ...]:
    """Write the files of a view; those that are there and the same stay."""
    for folder in plan.documents:
        path = f"{folder}/{FILE_NAME}"
        if files.lexists(path) and not is_view(path):
            raise ExistsError(f"{path}: already exists and was made by something else; it is not replaced")
    for link in plan.links:
        if files.lexists(link) and not files.islink(link):
            raise ExistsError(f"{link}: already exists, and is no link to the array of a segmentation")
    _remove_stale_labels(plan)
    paths = []
    for folder, document in plan.documents.items():
        files.makedirs(folder)
        path = f"{folder}/{FILE_NAME}"
        data = format_document(document).encode()
        if not _holds(path, data):
            publish_bytes(path, data)
        paths.append(path)
    for link, target in plan.links.items():
        relative = relpath(files.realpath(target), files.realpath(dirname(link)))
        if not files.islink(link) or files.readlink(link) != relative:
            with contextlib.suppress(FileNotFoundError):
                files.unlink(link)
            files.symlink(relative, link)
        paths.append(link)
    return tuple(paths)


def _remove_stale_labels(plan: ViewPlan) -> None:
    """Remove labels that an earlier view had and this one has not."""
    for group in list(plan.documents):
        folder = f"{group}/{LABELS}"
        if not is_view(f"{folder}/{FILE_NAME}"):
            continue
        if folder not in plan.documents:
            _remove_labels(folder, [])
            continue
        for path in [
            f"{folder}/{name}/{below}" for name in files.listdir(folder) if files.isdir(f"{folder}/{name}") for below in files.listdir(f"{folder}/{name}")
        ]:
            if files.islink(path) and path not in plan.links and is_view(f"{dirname(path)}/{FILE_NAME}"):
                files.unlink(path)


def _holds(path: str, data: bytes) -> bool:
    try:
        return files.read_bytes(path) == data
    except FileNotFoundError:
        return False


def remove_view(located: Found, layer: str | None) -> tuple[str, ...]:
    """Remove the files of a view, whatever it consisted of, also of layers that the dataset has no more; nothing else."""
    removed: list[str] = []
    for one in (one for one in located.layers if layer in (None, one.name)):
        folders = [folder for mag, folder in one.mags.items() if located.mag in (None, mag) and not is_remote(folder)]
        for folder in folders:
            _remove(folder, removed)
        if located.mag is None:
            for group in dict.fromkeys(dirname(folder) for folder in folders):
                _remove_labels(f"{group}/{LABELS}", removed)
                _remove(group, removed)
    if located.mag is None:
        if layer is None and is_view(f"{located.path}/{FILE_NAME}"):
            _remove_orphans(located.path, removed)
        _remove(located.path, removed)
    return tuple(removed)


def _remove_orphans(folder: str, removed: list[str]) -> None:
    """Remove what a view put into folders of layers that were removed since."""
    for layer in sorted(f"{folder}/{name}" for name in files.listdir(folder)):
        if files.islink(layer) or not files.exists(f"{layer}/{FILE_NAME}"):
            continue
        _remove_labels(f"{layer}/{LABELS}", removed)
        _remove(layer, removed)
        with contextlib.suppress(OSError):
            files.rmdir(layer)


def _remove(folder: str, removed: list[str]) -> bool:
    path = f"{folder}/{FILE_NAME}"
    if not is_view(path):
        return False
    files.remove_file(path)
    removed.append(path)
    return True


def _remove_labels(folder: str, removed: list[str]) -> None:
    """Remove the groups of labels with their links."""
    if not is_view(f"{folder}/{FILE_NAME}"):
        return
    for name in sorted(files.listdir(folder)):
        group = f"{folder}/{name}"
        if not is_view(f"{group}/{FILE_NAME}"):
            continue
        for entry in sorted(files.listdir(group)):
            if files.islink(f"{group}/{entry}"):
                files.unlink(f"{group}/{entry}")
                removed.append(f"{group}/{entry}")
        _remove(group, removed)
        with contextlib.suppress(OSError):
            files.rmdir(group)
    _remove(folder, removed)
    with contextlib.suppress(OSError):
        files.rmdir(folder)
        files.fsync(dirname(folder))
