"""What a copy of mags takes along, and what it leaves behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wkwdask.formats.webknossos.dataset import locate, read_datasource
from wkwdask.formats.webknossos.datasource import FILE_NAME
from wkwdask.store import files
from wkwdask.store.paths import basename, dirname, is_remote
from wkwdask.verbs.wkw.rechunk import find_moves

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterator, Sequence

    from wkwdask.geometry.mag import Mag
    from wkwdask.model.image import Found, Image
    from wkwdask.verbs.wkw.rechunk import Move

_NAMED = 5


def find_copies(
    url: str | os.PathLike[str], target: str | os.PathLike[str], layers: Sequence[str] | None, mags: Sequence[Mag] | None
) -> tuple[list[Move], str]:
    """List the mags that are copied, and say what is not."""
    located = locate(url)
    if layers is None:
        stored = [layer.name for layer in located.layers if data_format(layer) == "wkw"]
        layers = stored if 0 < len(stored) < len(located.layers) + len(located.odd) else None
    moves = find_moves(url, target, layers, mags)
    left = [] if located.mag is not None else list(_left_behind(located, [move.layer for move in moves], layers))
    notes = list(_other_voxel_sizes(moves))
    more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
    return moves, "; ".join([*notes, *([f"not copied: {', '.join(left[:_NAMED])}{more}"] if left else [])])


def _other_voxel_sizes(moves: Sequence[Move]) -> Iterator[str]:
    """Name datasets that layers come into, and whose voxels are of another size."""
    for folder in {dirname(dirname(str(move.folder))) for move in moves}:
        there, here = read_datasource(folder), moves[0].layer.container.datasource
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
