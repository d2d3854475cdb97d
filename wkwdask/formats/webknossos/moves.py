"""Layers and mags that are stored anew: which ones a path means, where they go, and what stays behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wkwdask.errors import MissingError
from wkwdask.formats.webknossos.dataset import locate, read_datasource, update_datasource
from wkwdask.formats.webknossos.datasource import FILE_NAME, with_name
from wkwdask.formats.wkw.array import filled_box
from wkwdask.formats.wkw.folder import files_box
from wkwdask.formats.wkw.layout import header_of
from wkwdask.formats.wkw.stored_file import open_if_stored
from wkwdask.geometry.mag import Mag
from wkwdask.model.place import Destination, Move
from wkwdask.store import files
from wkwdask.store.paths import basename, dirname, is_remote, local_path

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterator, Sequence

    from wkwdask.model.image import Found, Image
    from wkwdask.model.stored_array import StoredArray

_MUCH = 2
_NAMED = 5


def find_moves(
    url: str | os.PathLike[str],
    target: str | os.PathLike[str] | None,
    layers: Sequence[str] | None,
    mags: Sequence[Mag] | None,
    *,
    allow_external: bool = False,
) -> list[Move]:
    """List the mags that a user means, and where they go: a dataset becomes a dataset, a layer a layer, a mag a mag."""
    located = locate(url, allow_external=allow_external)
    root = None if target is None else local_path(target)
    if root is not None and files.realpath(root) == files.realpath(located.path):
        raise ValueError(f"{root}: is the source; give another place (rechunk and compress take none to work in place)")
    moves = [
        Move(layer, layer.find(mag), None if root is None else Destination(_place_in(root, located, layer, mag), image=layer, needs_container=False))
        for layer in _chosen_layers(located, layers)
        for mag in _chosen_mags(located, layer, mags)
    ]
    if not moves:
        raise MissingError(f"{located.path}: no mags found")
    return moves


def _chosen_layers(located: Found, names: Sequence[str] | None) -> list[Image]:
    if names is None and located.odd:
        located.odd[0].refuse()
    return list(located.layers) if names is None else [located.pick(name) for name in names]


def _chosen_mags(located: Found, layer: Image, mags: Sequence[Mag] | None) -> list[Mag]:
    there = [located.mag] if located.mag is not None else [mag for mag, folder in layer.mags.items() if not is_remote(folder)]
    missing = [mag for mag in mags or () if mag not in there]
    if missing:
        raise MissingError(f"{located.path}: layer {layer.name} has no mag {missing[0]}; there are {', '.join(map(str, there)) or 'none'}")
    return there if mags is None else [mag for mag in there if mag in mags]


def _place_in(root: str, located: Found, layer: Image, mag: Mag) -> str:
    if located.mag is not None:
        _check_name(root, located, mag)
        return root
    return f"{root}/{mag.name}" if layer.container.dataset_folder != located.path else f"{root}/{layer.name}/{mag.name}"


def _check_name(folder: str, located: Found, mag: Mag) -> None:
    """Refuse to let voxels of one mag appear as another one."""
    try:
        named, _ = Mag.parse(basename(folder)), Mag.parse(basename(located.path))
    except ValueError:  # one of the names says nothing
        return
    if named != mag:
        raise ValueError(f"{folder}: has the name of mag {named}, but {located.path} is mag {mag}; name it {mag.name}")


def prepare_dataset(url: str | os.PathLike[str], target: str | os.PathLike[str] | None) -> None:
    """Make the JSON of a new dataset, with the voxel size and no layers, where a whole dataset goes somewhere else."""
    located = locate(url)
    datasource = read_datasource(located.path)
    if target is None or datasource is None:
        return
    root = local_path(target)
    if read_datasource(root) is None:
        files.makedirs(root)
        update_datasource(root, lambda document: document, with_name(datasource.document, basename(root)))


def with_all_files(source: StoredArray) -> StoredArray:
    """Give a mag with all that its files hold: what lies outside of the layer's box must not be lost where it is replaced."""
    stored = files_box(source.folder, header_of(source), source.box.mag)
    is_mostly_outside = stored.volume > _MUCH * source.box.volume  # then files are few, and most of their blocks are likely to be zeros
    return source.cropped(filled_box(source) if is_mostly_outside else source.box.union(stored))


def is_stored_alike(source: StoredArray) -> bool:
    """Tell whether all files are encoded as ``header.wkw`` says; those of other software need not be."""
    header = header_of(source)
    for index in source.stored_states()[:, :3].tolist():
        file = open_if_stored(source.shard_path((index[0], index[1], index[2])), header)
        if file is not None and file.header.block_type is not header.block_type:
            return False
    return True


def _other_voxel_sizes(moves: Sequence[Move]) -> Iterator[str]:
    """Name datasets that layers come into, and whose voxels are of another size."""
    for folder in {dirname(dirname(move.wanted.url)) for move in moves if move.wanted is not None}:
        there, here = read_datasource(folder), moves[0].image.container.datasource
        if there is not None and here is not None and None not in (there.voxel_size_nm, here.voxel_size_nm) and there.voxel_size_nm != here.voxel_size_nm:
            yield f"voxels of {folder} are {there.voxel_size_nm} nm, those that were copied {here.voxel_size_nm} nm"


def data_format(layer: Image) -> str:
    """Say how a layer is stored."""
    return "wkw" if layer.container.record is None else layer.container.record.data_format


def _left_behind(located: Found, taken: Sequence[Image], names: Sequence[str] | None) -> Iterator[str]:
    """Name layers of other formats, mags at other places, and whatever else is in the folders."""
    for layer in located.layers:
        if data_format(layer) != "wkw":
            yield f"layer {layer.name} ({data_format(layer)})"
    yield from (f"layer {odd.name} (of which the JSON makes no sense)" for odd in located.odd)
    for layer in {layer.folder: layer for layer in taken}.values():
        yield from (folder for folder in layer.mags.values() if is_remote(folder))
        yield from other_files(layer.folder, {basename(folder) for folder in layer.mags.values()})
    if names is None and taken and taken[0].folder != located.path:
        yield from other_files(located.path, {layer.name for layer in located.layers})


def other_files(folder: str, known: Collection[str]) -> Iterator[str]:
    """Go through what is in a folder of a dataset and neither hidden, nor its JSON, nor known by its name."""
    names = sorted(files.listdir(folder)) if files.isdir(folder) else []
    return (f"{folder}/{name}" for name in names if name not in known and name != FILE_NAME and not name.startswith("."))


def copied_layers(url: str | os.PathLike[str]) -> list[str] | None:
    """Name the layers that a copy takes of a dataset which has others too; None for all."""
    located = locate(url)
    stored = [layer.name for layer in located.layers if data_format(layer) == "wkw"]
    return stored if 0 < len(stored) < len(located.layers) + len(located.odd) else None


def not_moved(url: str | os.PathLike[str], moves: Sequence[Move], layers: Sequence[str] | None) -> list[str]:
    """Say what a copy leaves behind, and where voxels have another size."""
    located = locate(url)
    left = [] if located.mag is not None else list(_left_behind(located, [move.image for move in moves], layers))
    more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
    return [*_other_voxel_sizes(moves), *([f"not copied: {', '.join(left[:_NAMED])}{more}"] if left else [])]
