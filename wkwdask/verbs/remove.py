"""Removal of levels: the selection, the checks, and the job that deletes.

Levels are first renamed into a job folder and dropped from the metadata, so that readers never see half of one; then their files are deleted in parallel.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wkwdask.errors import FormatError, MissingError, UnsupportedError
from wkwdask.formats.record_paths import dataset_around, external_location
from wkwdask.formats.registry import default_format, format_of, location_of
from wkwdask.runs.drive import Phase, Work
from wkwdask.runs.job import FlatJob, Result, Task
from wkwdask.runs.job_folder import REMOVAL, JobFolder, discard_dead_jobs, end_removal, find_removals
from wkwdask.runs.job_records import check_no_job
from wkwdask.runs.staged import settings_of
from wkwdask.store import files
from wkwdask.store.locks import Owner
from wkwdask.store.paths import basename, dirname, is_below, is_remote, join, local_path

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Generator, Iterator, Sequence

    from wkwdask.formats.format import ArrayFormat, MetadataEdit
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.image import Image, ResolvedUrl

_FOLDERS_PER_TASK = 16
_FILES_PER_TASK = 4096
_DEPTH = 3  # in the folder of a job: a level, and the first two numbers of its files


@dataclass(frozen=True, slots=True)
class RemoveSpec:
    """Task that deletes some folders or files."""

    paths: tuple[str, ...]

    def task(self) -> Task:
        return Task(f"deletion of {self.paths[0]}", f"delete {self.paths[0]}", RemoveSpec.run, self)

    def run(self) -> Result:
        counts = [_delete(path) for path in self.paths]
        return Result((), value=(sum(count for count, _ in counts), sum(nbytes for _, nbytes in counts)))


def _delete(path: str) -> tuple[int, int]:
    if files.isdir(path) and not files.islink(path):
        return files.delete_tree(path)
    with contextlib.suppress(FileNotFoundError):
        nbytes = files.lstat(path).st_size
        files.unlink(path)
        return 1, nbytes
    return 0, 0


class RemoveJob(FlatJob):
    """Job that deletes the contents of job folders."""

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = roots
        folders: list[str] = []
        single: list[str] = []
        for path, is_folder in (found for root in roots for found in _below(root, _DEPTH)):
            (folders if is_folder else single).append(path)
        groups = [*_groups(folders, _FOLDERS_PER_TASK), *_groups(single, _FILES_PER_TASK)]
        super().__init__(lambda: (RemoveSpec(group).task() for group in groups), len(groups), lambda _, result: self._count(*result.value))
        self.files = 0
        self.nbytes = 0

    def finish(self) -> None:
        """Delete the rest of the levels. Files directly in the job folders stay: they are the job's record."""
        for root in self._roots:
            for path, is_folder in _below(root, 1):
                if is_folder:
                    self._count(*files.delete_tree(path))

    def _count(self, count: int, nbytes: int) -> None:
        self.files += count
        self.nbytes += nbytes


def _groups(paths: Sequence[str], size: int) -> list[tuple[str, ...]]:
    return [tuple(paths[n : n + size]) for n in range(0, len(paths), size)]


def _below(folder: str, depth: int, *, is_root: bool = True) -> Iterator[tuple[str, bool]]:
    """Yield (path, is it a folder) for folders at some depth below a root, and for files above that depth, except for files in the root itself."""
    with contextlib.suppress(FileNotFoundError), files.scandir(folder) as entries:
        for entry in list(entries):
            if not entry.is_dir(follow_symlinks=False):
                if not is_root:
                    yield entry.path, False
            elif depth == 1:
                yield entry.path, True
            else:
                yield from _below(entry.path, depth - 1, is_root=False)


@dataclass(frozen=True, slots=True)
class Removal:
    """Removable levels of one image."""

    format: ArrayFormat
    image: Image
    names: tuple[str, ...]
    parent: str
    """Folder of the job folder into which the levels are renamed."""
    folders: tuple[str, ...]
    edit: MetadataEdit | None
    """Metadata edit that drops the levels."""
    is_whole: bool
    """Whether the folder of the image is removed too, once it is empty."""
    links: tuple[str, ...] = ()
    """Links to the levels from elsewhere, which dangle afterwards."""

    def start(self) -> JobFolder:
        """Lock the levels, rename them into the job folder and drop them from the metadata."""
        owner = Owner.this_process(f"{REMOVAL}{self.image.folder}")
        dataset = None if self.image.container is None else self.image.container.dataset_folder
        folder = JobFolder(self.parent, owner, self.folders, datasets=[*filter(None, [dataset])])
        folder.start("overwrite", settings_of("rm", mags=",".join(self.names)))
        try:
            folder.remove(self.edit)
        except BaseException:
            folder.suspend()
            raise
        return folder

    def clear(self) -> None:
        """Remove the image's folder if it is empty, and dangling links."""
        if self.is_whole:
            discard_dead_jobs(self.parent)
            remove_if_empty(self.parent)
        for link in (*self.links, self.image.folder):
            if files.islink(link) and not files.exists(link):
                files.unlink(link)

    def count(self) -> tuple[int, int]:
        counts = [files.count_tree(folder) for folder in self.folders]
        return sum(count for count, _ in counts), sum(nbytes for _, nbytes in counts)


@dataclass(frozen=True, slots=True)
class Removals:
    """All levels that a user selects."""

    format: ArrayFormat
    staged: tuple[Removal, ...]
    """Removals, one per image and parent folder."""
    left: tuple[str, ...]
    """Paths beside the levels that stay."""
    roots: tuple[str, ...]
    """Job folders of killed removals, which are deleted first."""
    whole: str | None
    """Folder of the dataset or image, if all of it is removed."""

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(folder for staged in self.staged for folder in staged.folders)

    def clear(self) -> None:
        """Remove the selected folder, with metadata that list nothing any more, if nothing else is in it."""
        for root in self.roots:
            remove_if_empty(dirname(root))
        if self.whole is not None:
            self.format.remove_image_files(self.whole)
            remove_if_empty(self.whole)


class RemovalWork(Work[tuple[int, int]]):
    """Removal of levels, and completion of earlier removals that were killed; returns the number of deleted files and their bytes."""

    def __init__(self, removals: Removals) -> None:
        self._removals = removals
        self._files = self._nbytes = 0

    def phases(self) -> Generator[Phase, str, tuple[int, int]]:
        if self._removals.roots:
            yield from self._delete(self._removals.roots)
        for root in self._removals.roots:
            end_removal(root)
        for removal in self._removals.staged:
            folder = removal.start()  # from here on readers see the image without its levels
            try:
                yield from self._delete([folder.root])
                if removal.is_whole:
                    removal.format.remove_image_files(removal.parent)  # while the job's folder says that more is to be done
            except BaseException:
                folder.suspend()
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
    with contextlib.suppress(OSError):
        if not files.islink(folder):
            files.rmdir(folder)


def lay_out_removals(
    url: str | os.PathLike[str], layers: Sequence[str] | None, mags: Sequence[Mag] | None, *, dry_run: bool = False, allow_external: bool = False
) -> Removals:
    """Plan a removal, and check that all of it is allowed."""
    one = format_of(url) or default_format()
    location = location_of(url)
    if is_remote(location):
        raise UnsupportedError(f"{location}: is not on this file system; nothing is removed there")
    path = local_path(location)
    if files.islink(path) and not allow_external:
        raise UnsupportedError(f"{path}: is a symbolic link; remove the link itself, or its target")
    unfinished = [] if dry_run else [_unfinished(folder, allow_external=allow_external) for folder in _parents(one, path)]
    roots = tuple(root for found, _ in unfinished for root in found)
    is_all = layers is None and mags is None
    try:
        found = one.find_removable(url, allow_external=allow_external)
    except (FormatError, MissingError):
        real = join(files.realpath(dirname(path)), basename(path))
        if not any(folder in (path, real) or folder.startswith((f"{path}/", f"{real}/")) for _, folders in unfinished for folder in folders):
            raise
        return Removals(one, (), (), roots, path if is_all else None)
    is_level = found.mag is not None or any(image.key is not None for image in found.layers)
    holds_images = not is_level and all(image.folder != path for image in found.layers)
    staged = [stage for image in _chosen(one, found, layers) for stage in _stage(one, found, image, mags)]
    left = [] if mags is not None or is_level else list(_leftovers(one, path, staged, whole=holds_images and layers is None))
    return Removals(one, tuple(staged), tuple(left), roots, path if is_all and not is_level and (holds_images or not staged) else None)


def _parents(one: ArrayFormat, path: str) -> list[str]:
    """Return the folders in which jobs that removed levels of a path have worked."""
    folders = [dirname(path), path]
    if files.isdir(path) and one.is_level_folder(path):
        return folders[:1]
    with contextlib.suppress(OSError), files.scandir(path) as entries:
        inside = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")]
        folders += [folder for folder in inside if one.record_of(folder) is None or not one.is_level_folder(folder)]
    return folders


def _unfinished(folder: str, *, allow_external: bool) -> tuple[list[str], list[str]]:
    """Find unfinished removals in a folder. A folder that is only linked from a dataset belongs to another dataset."""
    around = dataset_around(folder)
    if external_location(around, folder) is None:
        return find_removals(folder)
    return find_removals(folder, [around]) if allow_external else ([], [])


def _chosen(one: ArrayFormat, found: ResolvedUrl, names: Sequence[str] | None) -> list[Image]:
    if names is not None:
        return [found.choose_listed(name) for name in names]
    return [image for image in found.layers if not one.why_not_removable(image)] or list(found.layers)


def _stage(one: ArrayFormat, found: ResolvedUrl, image: Image, mags: Sequence[Mag] | None) -> Iterator[Removal]:
    """Yield the removals of an image's levels, grouped by their parent folders, most often one."""
    why = one.why_not_removable(image)
    if why:
        raise UnsupportedError(f"{image.folder}: {why}")
    there = {level.key: level for level in image.selected[::-1] if not is_remote(level.folder) and found.mag in (None, level.mag)}
    levels = list(there.values())[::-1]
    missing = [mag for mag in mags or () if mag not in {level.mag for level in levels}]
    if missing:
        listed = ", ".join(str(level.mag or level.key) for level in levels) or "none"
        name = image.name if image.container is None else f"layer {image.name}"
        raise MissingError(f"{found.path}: {name} has no mag {missing[0]}; there are {listed}")
    chosen = [level for level in levels if mags is None or level.mag in mags]
    links = tuple({level.folder for level in chosen if files.islink(level.folder)})
    real = {level.key: one.check_removable(image, level.folder) for level in chosen}
    is_whole = mags is None and found.mag is None and image.key is None
    for parent in dict.fromkeys(_parent(image, folder) for folder in real.values()):
        here = [level for level in chosen if _parent(image, real[level.key]) == parent]
        if is_whole:
            check_no_job(parent)
        folders = tuple(dict.fromkeys(real[level.key] for level in here))
        edit = one.removal_edit(image, here)
        yield Removal(one, image, tuple(str(level.mag or level.key) for level in here), parent, folders, edit, is_whole, links)


def _parent(image: Image, folder: str) -> str:
    """Return the folder of the job folder of a level: its image, or the parent of the level inside a dataset."""
    return image.folder if image.container is None and is_below(folder, image.folder) and folder != image.folder else dirname(folder)


def _leftovers(one: ArrayFormat, path: str, staged: Sequence[Removal], *, whole: bool) -> Iterator[str]:
    """Yield the paths that stay beside removed levels, and beside removed images."""
    for parent in dict.fromkeys(stage.parent for stage in staged):
        yield from _unlisted(one, parent, {folder[len(stage.parent) + 1 :].split("/")[0] for stage in staged for folder in stage.folders})
    if whole:
        yield from _unlisted(one, path, {basename(stage.parent) for stage in staged})


def _unlisted(one: ArrayFormat, folder: str, known: Collection[str]) -> Iterator[str]:
    """Return the paths in a folder that are not hidden, known by name, or metadata of the format."""
    names = sorted(files.listdir(folder)) if files.isdir(folder) else []
    return (f"{folder}/{name}" for name in names if name not in known and name not in one.image_files and not name.startswith("."))
