"""Staging the removal of WKW mags: what a user means, what must not be touched, and what stays."""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wkwdask.errors import MissingError, UnsupportedError
from wkwdask.formats.record_paths import dataset_around
from wkwdask.formats.webknossos.dataset import check_datasource_writable, elsewhere, locate, read_datasource
from wkwdask.formats.webknossos.datasource import FILE_NAME
from wkwdask.formats.webknossos.layer_edit import MagRemoval
from wkwdask.formats.webknossos.moves import data_format, other_files
from wkwdask.formats.webknossos.place import dataset_of, other_layers_with, outside_of, real_folder
from wkwdask.formats.wkw.volume import HEADER_NAME, is_mag, what_else
from wkwdask.runs.drive import Phase, Work
from wkwdask.runs.job_folder import JobFolder
from wkwdask.runs.job_records import check_no_job
from wkwdask.runs.job_removals import REMOVAL, discard_dead_jobs, end_removal, find_removals
from wkwdask.runs.staged import settings_of
from wkwdask.store import files
from wkwdask.store.locks import locked_file
from wkwdask.store.owner import Owner
from wkwdask.store.paths import basename, dirname, is_remote, join, local_path
from wkwdask.verbs.remove import RemoveJob

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from wkwdask.geometry.mag import Mag
    from wkwdask.model.image import Found, Image


@dataclass(frozen=True, slots=True)
class Removal:
    """Mags of one layer that can be removed."""

    layer: Image
    """The layer."""
    mags: tuple[Mag, ...]
    """The mags."""
    parent: str
    """The folder that their folders are in."""
    folders: tuple[str, ...]
    """Their folders."""
    is_whole: bool
    """Whether the layer's folder goes too, once nothing is in it."""
    links: tuple[str, ...] = ()
    """Links that lead to the mags from elsewhere, and lead nowhere then."""

    def start(self) -> JobFolder:
        """Lock the mags and take them out of sight; what is left is to delete them."""
        owner = Owner.this_process(f"{REMOVAL}{self.layer.folder}")
        folder = JobFolder(self.parent, owner, self.folders, datasets=[*filter(None, [self.layer.container.dataset_folder])])
        folder.start("overwrite", settings_of("rm", mags=",".join(map(str, self.mags))))
        try:
            folder.remove(self._edit())
        except BaseException:
            folder.leave()
            raise
        return folder

    def _edit(self) -> MagRemoval | None:
        if self.layer.container.dataset_folder is None or self.layer.container.record is None:
            return None
        return MagRemoval(self.layer.container.dataset_folder, self.layer.name, self.mags)

    def clear(self) -> None:
        """Remove the layer's folder if nothing is in it, and links that lead nowhere now."""
        if self.is_whole:
            discard_dead_jobs(self.parent)
            remove_if_empty(self.parent)
        for link in (*self.links, self.layer.folder):
            if files.islink(link) and not files.exists(link):
                files.unlink(link)

    def count(self) -> tuple[int, int]:
        """Count the files and their bytes."""
        counts = [files.count_tree(folder) for folder in self.folders]
        return sum(files for files, _ in counts), sum(nbytes for _, nbytes in counts)


@dataclass(frozen=True, slots=True)
class Removals:
    """All that a user means."""

    staged: tuple[Removal, ...]
    """The mags, by their layers."""
    left: tuple[str, ...]
    """What is beside them and stays."""
    roots: tuple[str, ...]
    """Folders of removals that were killed, which are to be deleted first."""
    dataset: str | None
    """The dataset, where all of it is meant."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The folders of all mags."""
        return tuple(folder for staged in self.staged for folder in staged.folders)

    def clear(self) -> None:
        """Remove the dataset's folder, with a JSON that lists no layer any more, if nothing else is in it."""
        for root in self.roots:
            remove_if_empty(dirname(root))
        if self.dataset is None:
            return
        if files.exists(f"{self.dataset}/{FILE_NAME}") and not any(other_files(self.dataset, ())):
            self._clear_json(self.dataset)
        remove_if_empty(self.dataset)

    @staticmethod
    def _clear_json(dataset: str) -> None:
        path = f"{dataset}/{FILE_NAME}"
        with locked_file(files.realpath(path), f"{REMOVAL}{dataset}"):
            datasource = read_datasource(dataset)
            if datasource is not None and not datasource.document.get("dataLayers"):
                files.unlink(path)


class Removing(Work[tuple[int, int]]):
    """Removes mags, and what earlier removals that were killed left behind; gives the files that were deleted, and their bytes."""

    def __init__(self, removals: Removals) -> None:
        self._removals = removals
        self._files = self._nbytes = 0

    def phases(self) -> Generator[Phase, str, tuple[int, int]]:
        """Delete what was left, then take each layer's mags away and delete them."""
        if self._removals.roots:
            yield from self._delete(self._removals.roots)
        for root in self._removals.roots:
            end_removal(root)
        for removal in self._removals.staged:
            folder = removal.start()
            try:
                yield from self._delete([folder.root])
            except BaseException:
                folder.leave()
                raise
            folder.end()
            removal.clear()
        return self._files, self._nbytes

    def _delete(self, roots: Sequence[str]) -> Generator[Phase, str, None]:
        job = RemoveJob(roots)
        yield Phase(job, f"deleting in {dirname(roots[0])}")
        job.finish()
        self._files += job.files
        self._nbytes += job.nbytes


def remove_if_empty(folder: str) -> None:
    """Remove a folder in which there is nothing."""
    with contextlib.suppress(OSError):
        if not files.islink(folder):
            files.rmdir(folder)


def lay_out_removals(
    url: str | os.PathLike[str], layers: Sequence[str] | None, mags: Sequence[Mag] | None, *, dry_run: bool = False, allow_external: bool = False
) -> Removals:
    """Find out what is to be removed, and make sure that all of it can be."""
    path = local_path(url)
    if files.islink(path) and not allow_external:
        raise UnsupportedError(f"{path}: is a symbolic link; remove the link itself, or what it points to")
    unfinished = [] if dry_run else [_unfinished(folder, allow_external=allow_external) for folder in _parents(path)]
    roots = tuple(root for found, _ in unfinished for root in found)
    try:
        located = locate(path, allow_external=allow_external)
    except MissingError:
        real = join(files.realpath(dirname(path)), basename(path))
        if not any(folder in (path, real) or folder.startswith((f"{path}/", f"{real}/")) for _, folders in unfinished for folder in folders):
            raise
        return Removals((), (), roots, None)
    is_dataset = located.mag is None and (not located.layers or located.layers[0].folder != path)
    staged = [stage for layer in _chosen(located, layers) for stage in _stage(located, layer, mags)]
    left = [] if mags is not None or located.mag is not None else list(_left(located, staged, whole=is_dataset and layers is None))
    return Removals(tuple(staged), tuple(left), roots, path if is_dataset and layers is None and mags is None else None)


def _parents(path: str) -> list[str]:
    """List the folders in which jobs that removed a path's mags worked."""
    folders = [dirname(path), path]
    if files.exists(f"{path}/{HEADER_NAME}"):
        return folders[:1]
    with contextlib.suppress(OSError), files.scandir(path) as entries:
        folders += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")]
    return folders


def _unfinished(folder: str, *, allow_external: bool) -> tuple[list[str], list[str]]:
    """Find what dead jobs left in a folder; one that a link leads to from a dataset is another dataset's."""
    around = dataset_around(folder)
    if elsewhere(around, folder) is None:
        return find_removals(folder)
    return find_removals(folder, [around]) if allow_external else ([], [])


def _chosen(located: Found, layers: Sequence[str] | None) -> list[Image]:
    if layers is not None:
        return [located.pick(name) for name in layers]
    wkw = [layer for layer in located.layers if data_format(layer) == "wkw"]
    return wkw or list(located.layers)


def _stage(located: Found, layer: Image, mags: Sequence[Mag] | None) -> Iterator[Removal]:
    """Group the mags of a layer by the folders that they are in, most often one."""
    if data_format(layer) != "wkw":
        raise UnsupportedError(f"{layer.folder}: the layer is stored as {data_format(layer)}, only mags of wkw are removed")
    there = {mag: folder for mag, folder in layer.mags.items() if not is_remote(folder) and located.mag in (None, mag)}
    missing = [mag for mag in mags or () if mag not in there]
    if missing:
        raise MissingError(f"{located.path}: layer {layer.name} has no mag {missing[0]}; there are {', '.join(map(str, there)) or 'none'}")
    chosen = {mag: folder for mag, folder in there.items() if mags is None or mag in mags}
    links = {folder for folder in chosen.values() if files.islink(folder)}
    for mag, folder in chosen.items():
        _check_removable(layer, folder)
        chosen[mag] = real_folder(layer, folder)
        for other in other_layers_with(layer, folder):
            raise UnsupportedError(f"{folder}: layer {other} lists this mag too; take it off the JSON of one of them first")
    is_whole = mags is None and located.mag is None
    for parent in dict.fromkeys(dirname(folder) for folder in chosen.values()):
        here = {mag: folder for mag, folder in chosen.items() if dirname(folder) == parent}
        if is_whole:
            check_no_job(parent)
        yield Removal(layer, tuple(here), parent, tuple(here.values()), is_whole, tuple(links))


def _check_removable(layer: Image, folder: str) -> None:
    for changed in (dirname(folder), layer.container.dataset_folder or dirname(folder)):
        if files.isdir(changed) and not files.is_writable(changed):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), changed)
    if layer.container.dataset_folder is not None:
        check_datasource_writable(layer.container.dataset_folder)
    real = outside_of(layer, folder)
    if real is not None and not layer.container.allow_external:
        raise UnsupportedError(
            f"{folder}: lies outside the dataset {dataset_of(layer)}, at {real}, and may belong to somebody else; wkwdask dataset remove-layer takes the "
            "layer off the JSON and leaves its files, allow_external=True deletes them there"
        )
    folder = real_folder(layer, folder)
    if files.islink(dirname(folder)):
        raise UnsupportedError(f"{dirname(folder)}: is a symbolic link; remove the link itself, or the layer that it points to")
    if files.islink(folder):
        raise UnsupportedError(f"{folder}: is a symbolic link; remove the link itself, or the mag that it points to")
    if files.lexists(folder) and not (files.isdir(folder) and is_mag(folder)):
        raise UnsupportedError(f"{folder}: is not a mag, or holds other files too{what_else(folder)}, and is not removed")


def _left(located: Found, staged: Sequence[Removal], *, whole: bool) -> Iterator[str]:
    """Name what stays in the folders of a layer, or of all layers and their dataset."""
    for parent in dict.fromkeys(stage.parent for stage in staged):
        yield from other_files(parent, {basename(folder) for stage in staged for folder in stage.folders})
    if whole:
        yield from other_files(located.path, {basename(stage.parent) for stage in staged})
