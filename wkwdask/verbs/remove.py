"""Removal of levels: the selection, the checks, and the job that deletes.

Levels are first renamed into a job folder and dropped from the metadata, so that readers never see
half of one; then their files are deleted in parallel.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from wkwdask.errors import FormatError, MissingError, ResumeError, UnsupportedError
from wkwdask.formats.container import container_of
from wkwdask.formats.edits import lists_places
from wkwdask.formats.opening import format_of_documents
from wkwdask.formats.record_paths import dataset_around, job_folders
from wkwdask.formats.registry import (
    default_format,
    formats,
    location_of,
    opening_format,
)
from wkwdask.formats.replaceable import check_targets
from wkwdask.formats.roots import Root, check_alone, external_location, root_of
from wkwdask.model.image import describe_level
from wkwdask.runs.drive import Phase, Work
from wkwdask.runs.job import FlatJob, Result, Task
from wkwdask.runs.job_folder import (
    InterruptedRemoval,
    JobFolder,
    discard_dead_jobs,
    end_removal,
    find_removals,
    removal_command,
)
from wkwdask.runs.job_records import check_no_job
from wkwdask.runs.staged import settings_of
from wkwdask.store import by_path
from wkwdask.store.locks import Owner, is_lock, read_owner
from wkwdask.store.paths import (
    TEMPORARY_SUFFIX,
    basename,
    dirname,
    is_below,
    is_bucket,
    is_remote,
    join,
    target_path,
)
from wkwdask.store.store import folders_of, store_at

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Generator, Iterable, Iterator, Sequence

    from wkwdask.formats.format import ArrayFormat
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.image import Container, Image, ResolvedUrl
    from wkwdask.model.metadata_edit import MetadataEdit
    from wkwdask.model.store import StoredEntry

_FOLDERS_PER_TASK = 16
_FILES_PER_TASK = 4096
# of the folders that one task deletes, below the job folder: the level, then the first two numbers
# of its files
_DEPTH = 3


@dataclass(frozen=True, slots=True)
class RemoveSpec:
    """Task that deletes a group of folders or files."""

    paths: tuple[str, ...]

    def task(self) -> Task:
        return Task(f"deletion of {self.paths[0]}", f"delete {self.paths[0]}", RemoveSpec.run, self)

    def run(self) -> Result:
        counts = [_delete(path) for path in self.paths]
        return Result(
            (), value=(sum(count for count, _ in counts), sum(nbytes for _, nbytes in counts))
        )


def _delete(path: str) -> tuple[int, int]:
    """Delete a file or folder; return the number of deleted files and their bytes."""
    store, folders = store_at(path), folders_of(path)
    if store.is_folder() and not store.link_target():
        return by_path.delete_tree(path)
    with contextlib.suppress(FileNotFoundError):
        nbytes = folders.lstat(path).st_size
        folders.unlink(path)
        return 1, nbytes
    return 0, 0


class RemoveJob(FlatJob):
    """Job that deletes the contents of job folders."""

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = roots
        folders: list[str] = []
        single_files: list[str] = []
        for root in roots:
            for path, is_folder in _below(root, _DEPTH):
                (folders if is_folder else single_files).append(path)
        groups = [*_groups(folders, _FOLDERS_PER_TASK), *_groups(single_files, _FILES_PER_TASK)]
        super().__init__(
            lambda: (RemoveSpec(group).task() for group in groups),
            len(groups),
            lambda _, result: self._count(*result.value),
        )
        self.files = 0
        self.nbytes = 0

    def finish(self) -> None:
        """Delete the rest of the levels. Files directly in the job folders stay: they are the job's
        record."""
        for root in self._roots:
            for path, is_folder in _below(root, 1):
                if is_folder:
                    self._count(*by_path.delete_tree(path))

    def _count(self, count: int, nbytes: int) -> None:
        self.files += count
        self.nbytes += nbytes


def _groups(paths: Sequence[str], size: int) -> list[tuple[str, ...]]:
    return [tuple(paths[n : n + size]) for n in range(0, len(paths), size)]


def _below(folder: str, depth: int, *, is_root: bool = True) -> Iterator[tuple[str, bool]]:
    """Yield folders at some depth below a root, and files above that depth, except those in the
    root itself, as (path, whether it is a folder)."""
    with contextlib.suppress(FileNotFoundError):
        for entry in list(store_at(folder).entries()):
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

    image: Image
    names: tuple[str, ...]
    parent: str
    """Folder that contains the levels; their job folder is created in it."""
    folders: tuple[str, ...]
    """Folders of the levels."""
    edit: MetadataEdit | None
    """Metadata edit that drops the levels."""
    is_whole: bool
    """Whether the folder of the image is removed too, once it is empty."""
    links: tuple[str, ...] = ()
    """Links to the levels from elsewhere, which dangle afterwards."""
    request: tuple[str, ...] | None = None
    """Mags that the call names, None for all."""
    others: tuple[str, ...] = ()
    """Folders of the image that are no levels."""

    @property
    def paths(self) -> tuple[str, ...]:
        return (*self.folders, *self.others)

    def start(self) -> JobFolder:
        """Lock the levels, rename them into the job folder and drop them from the metadata."""
        owner = Owner.this_process(removal_command(self.image.folder, self.request))
        folder = JobFolder(
            self.parent,
            owner,
            self.paths,
            datasets=[*filter(None, [root_of(self.image).folder])],
            check=partial(check_targets, self.folders),
        )
        folder.start("restart", settings_of("rm", mags=",".join(self.names)))
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
        unlink_dangling((*self.links, self.image.folder))

    def count(self) -> tuple[int, int]:
        """Return the number of files of the levels and their bytes."""
        counts = [by_path.count_tree(folder) for folder in self.paths]
        return sum(count for count, _ in counts), sum(nbytes for _, nbytes in counts)


@dataclass(frozen=True, slots=True)
class Removals:
    """Removal of all levels that a user selects."""

    container: Container
    """Container of images of the format."""
    staged: tuple[Removal, ...]
    """Removals, one per image and parent folder."""
    left: tuple[str, ...]
    """Paths beside the levels that are not removed."""
    roots: tuple[str, ...]
    """Job folders of killed removals, which are deleted first."""
    whole: str | None
    """Folder of the dataset or image, if all of it is removed."""
    links: tuple[str, ...] = ()
    """Links to levels that killed removals removed."""
    ended_images: tuple[str, ...] = ()
    """Folders of images that killed removals removed whole."""

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(folder for staged in self.staged for folder in staged.paths)

    def clear(self) -> None:
        """Remove the selected folder and its metadata, which list no level any more, if the folder
        contains nothing else."""
        unlink_dangling(self.links)
        for folder in self.ended_images:
            remove_if_empty(folder)
        if self.whole is not None:
            if not self.staged:
                # of images whose removal was killed just before its end
                _remove_empty_folders(self.whole)
            self.container.remove_image_files(self.whole)
            remove_if_empty(self.whole)


class RemovalWork(Work[tuple[int, int]]):
    """Removal of levels, after the completion of killed removals; returns the number of deleted
    files and their bytes."""

    def __init__(self, removals: Removals) -> None:
        self._removals = removals
        self._files = self._nbytes = 0

    def phases(self) -> Generator[Phase, str, tuple[int, int]]:
        if self._removals.roots:
            yield from self._delete(self._removals.roots)
        for root in self._removals.roots:
            if (folder_of_image := dirname(root)) in self._removals.ended_images:
                for its_format in formats():  # of the image of a layer, and of the dataset
                    its_format.container.remove_image_files(folder_of_image)
            end_removal(root)
        started: dict[int, JobFolder] = {}
        try:
            # All levels are hidden before the first job folder is removed: after a kill, that of
            # another one shows which levels this call removes.
            for number, removal in enumerate(self._removals.staged):
                # from here on readers see the image without its levels
                started[number] = removal.start()
            for number, removal in enumerate(self._removals.staged):
                folder = started[number]
                yield from self._delete([folder.root])
                if removal.is_whole:
                    # before the job folder, which marks the removal as unfinished, is removed
                    container_of(removal.image).remove_image_files(removal.parent)
                folder.end()
                del started[number]
                removal.clear()
        except BaseException:
            for folder in started.values():
                folder.suspend()
            raise
        return self._files, self._nbytes

    def _delete(self, roots: Sequence[str]) -> Generator[Phase, str, None]:
        job = RemoveJob(roots)
        yield Phase(job, f"deleting in {dirname(roots[0])}")
        job.finish()
        self._files += job.files
        self._nbytes += job.nbytes


def unlink_dangling(links: Iterable[str]) -> None:
    for link in links:
        store = store_at(link)
        if store.link_target() and not store.exists():
            store_at(dirname(link)).delete(basename(link))


def remove_if_empty(folder: str) -> None:
    with contextlib.suppress(OSError):
        if not is_bucket(folder) and not store_at(folder).link_target():
            folders_of(folder).rmdir(folder)


def lay_out_removals(
    url: str | os.PathLike[str],
    layers: Sequence[str] | None,
    mags: Sequence[Mag] | None,
    *,
    dry_run: bool = False,
    allow_external: bool = False,
) -> Removals:
    """Plan a removal, and check that all of it is allowed."""
    its_format = opening_format(url)
    location = location_of(url)
    if is_remote(location) and not is_bucket(location):
        raise UnsupportedError(f"{location}: is not on this file system; nothing is removed there")
    path = target_path(location)
    store = store_at(path)
    # of a root, which may be a link as for other verbs
    is_part = (layers is not None or mags is not None) and not its_format.level_folders.is_level(
        path
    )
    if store.link_target() and not allow_external and not is_part:
        raise UnsupportedError(f"{path}: is a symbolic link; remove the link itself, or its target")
    container = its_format.container
    around = Root(container.outermost(path), allow_external=allow_external)
    around.check(path)  # before killed removals there are completed
    # A layer in a dataset may be a link too. It leads out of that dataset, which the check of
    # each mag refuses.
    is_in_container = around.outside(path) is not None or dataset_around(path) != path
    if store.link_target() and is_part and not is_in_container:
        path = store.real()
        url = path if its_format is default_format() else f"{its_format.name}://{path}"
    links = _links_to_levels(path) if allow_external else {}
    parents = [*_job_parents(its_format, path), *map(dirname, links.values())]
    unfinished = (
        []
        if dry_run
        else [
            _unfinished(folder, path, allow_external=allow_external)
            for folder in dict.fromkeys(parents)
        ]
    )
    interrupted = [removal for removals in unfinished for removal in removals]
    job_roots = tuple(removal.root for removal in interrupted if removal.root is not None)
    removed = {store_at(target).real() for removal in interrupted for target in removal.targets}
    dangling = tuple(link for link, target in links.items() if target in removed)
    is_all = layers is None and mags is None
    ended_images = _ended_images(interrupted, layers, mags, store.real())
    try:
        its_format.check_writable(url)
        resolved = its_format.find(url).allowing_external(allow=allow_external)
    except (FormatError, MissingError) as error:
        if not _is_unfinished(path, interrupted) and not (
            is_all
            and isinstance(error, MissingError)
            and _is_left_over(path, container.image_files)
        ):
            raise
        return Removals(
            container, (), (), job_roots, path if is_all else None, dangling, tuple(ended_images)
        )
    is_level = resolved.mag is not None or any(image.key is not None for image in resolved.layers)
    holds_images = not is_level and all(image.folder != path for image in resolved.layers)
    request = None if mags is None else tuple(map(str, mags))
    is_repeated = request is not None and any(
        removal.mags == set(request) for removal in interrupted
    )
    staged: list[Removal] = []
    for image in _selected_images(resolved, layers, ended_images, is_repeated=is_repeated):
        rest = None if mags is None else _not_removed(image, mags, interrupted)
        if rest is not None and is_repeated:
            rest = [mag for mag in rest if any(level.mag == mag for level in image.selected)]
        if rest is None or rest:
            staged += (
                replace(removal, request=request) for removal in _stage(resolved, image, rest)
            )
    left = (
        []
        if mags is not None or is_level
        else list(
            _remaining_paths(container, path, staged, holds_images=holds_images and layers is None)
        )
    )
    whole = path if is_all and not is_level and (holds_images or not staged) else None
    return Removals(
        container, tuple(staged), tuple(left), job_roots, whole, dangling, tuple(ended_images)
    )


def _ended_images(
    interrupted: Sequence[InterruptedRemoval],
    layers: Sequence[str] | None,
    mags: Sequence[Mag] | None,
    real: str,
) -> list[str]:
    """Return the folders of images below a folder that interrupted removals remove as a whole, and
    of those that they have left empty."""
    if mags is not None:
        return []
    ended = [
        store_at(removal.image).real()
        for removal in interrupted
        if not removal.mags and (layers is None or basename(removal.image) in layers)
    ]
    names = (f"{real}/{name}" for name in layers or () if basename(name) == name)
    return [*(folder for folder in ended if is_below(folder, real)), *filter(_is_left_over, names)]


def _is_unfinished(path: str, interrupted: Sequence[InterruptedRemoval]) -> bool:
    """Return whether a killed removal below a folder may have dropped the levels from the documents
    already: it is completed, and nothing else is left to remove."""
    places = path, join(store_at(dirname(path)).real(), basename(path))
    return any(
        is_below(folder, place)
        for removal in interrupted
        for folder in removal.targets
        for place in places
    ) or any(
        # of its records only that of the owner was left
        is_below(removal.image, place) or is_below(place, removal.image)
        for removal in interrupted
        if not removal.targets
        for place in places
    )


def _is_left_over(folder: str, documents: Sequence[str] = ()) -> bool:
    """Return whether a folder contains only some documents, locks of dead processes, and folders
    without files, so that no job works there."""
    store = store_at(folder)
    if store.link_target() or not store.is_folder():
        return False
    return all(_is_remainder(entry, documents) for entry in list(store.entries()))


def _is_remainder(entry: StoredEntry, documents: Sequence[str]) -> bool:
    if entry.is_dir(follow_symlinks=False):
        return not entry.name.startswith(".") and _is_left_over(entry.path)
    if is_lock(entry.name):
        owner = read_owner(entry.path)
        return owner is None or owner.is_gone()
    return entry.name in documents or (
        entry.name.startswith(".") and entry.name.endswith(TEMPORARY_SUFFIX)
    )


def _remove_empty_folders(folder: str) -> None:
    """Remove the folders below a folder that contain no files."""
    store = store_at(folder)
    for name in store.names() if store.is_folder() else ():
        if not name.startswith(".") and store.is_folder(name) and not store.link_target(name):
            _remove_empty_folders(store.path_of(name))
            remove_if_empty(store.path_of(name))


def _job_parents(its_format: ArrayFormat, path: str) -> list[str]:
    """Return the folders in which jobs that remove levels of a path work."""
    store, folders = store_at(path), [dirname(path), path]
    if store.is_folder() and its_format.level_folders.is_level(path):
        # a group of N5 whose levels are gone may look like a level
        return folders if next(job_folders(path), None) is not None else folders[:1]
    with contextlib.suppress(OSError):
        inside = [
            entry.path
            for entry in store.entries()
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
        ]
        folders += [
            folder
            for folder in inside
            if its_format.level_folders.record_of(folder) is None
            or not its_format.level_folders.is_level(folder)
        ]
    return folders


def _links_to_levels(path: str) -> dict[str, str]:
    """Return the links in a folder and its folders, with their targets: jobs on levels work beside
    these, and links to levels that they remove dangle."""
    folders = [path]
    with contextlib.suppress(OSError):
        folders += [
            entry.path
            for entry in store_at(path).entries()
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
        ]
    links: list[str] = []
    for folder in folders:
        with contextlib.suppress(OSError):
            links += [entry.path for entry in store_at(folder).entries() if entry.is_symlink()]
    return {link: store_at(link).real() for link in links}


def _not_removed(
    image: Image,
    mags: Sequence[Mag],
    interrupted: Sequence[InterruptedRemoval],
) -> list[Mag]:
    """Return the mags that no interrupted removal has removed from an image already."""
    folder = store_at(image.folder).real()
    done = {
        mag
        for removal in interrupted
        if store_at(removal.image).real() == folder
        for mag in removal.mags
    }
    rest = [mag for mag in mags if str(mag) not in done]
    if done and rest and image.counts_from_finest:
        names = ",".join(sorted(done))
        raise ResumeError(
            f"{image.folder}: an interrupted removal of mags {names} is completed first, by rm "
            f"with mags={names!r}; mags count from the finest level, "
            f"so mag {rest[0]} may be another one now"
        )
    return rest


def _unfinished(folder: str, path: str, *, allow_external: bool) -> list[InterruptedRemoval]:
    """Find unfinished removals in a folder; those of levels of another dataset are completed only
    with ``allow_external``."""
    dataset = dataset_around(folder)
    if allow_external:
        return find_removals(folder, [dataset, dataset_around(path), path])
    return find_removals(folder) if external_location(dataset, folder) is None else []


def _selected_images(
    resolved: ResolvedUrl,
    names: Sequence[str] | None,
    ended: Sequence[str],
    *,
    is_repeated: bool,
) -> list[Image]:
    """Return the selected images; those that the same call has removed whole before it was
    interrupted are left out."""
    if names is not None:
        listed = {image.name for image in resolved.layers}
        # if one of the layers was being removed, others may be gone without a trace
        is_interrupted = not set(names).isdisjoint(map(basename, ended))
        return [
            resolved.choose_listed(name)
            for name in names
            if name in listed or not (is_repeated or is_interrupted)
        ]
    return [
        image for image in resolved.layers if not container_of(image).why_not_removable(image)
    ] or list(resolved.layers)


def _stage(resolved: ResolvedUrl, image: Image, mags: Sequence[Mag] | None) -> Iterator[Removal]:
    """Yield the removals of an image's levels, one per parent folder; usually there is only one."""
    container = container_of(image)
    why = container.why_not_removable(image)
    if why:
        raise UnsupportedError(f"{image.folder}: {why}")
    by_key = {
        level.key: level
        for level in image.selected[::-1]
        if (not is_remote(level.folder) or is_bucket(level.folder))
        and resolved.mag in (None, level.mag)
    }
    available = list(by_key.values())[::-1]
    missing = [mag for mag in mags or () if mag not in {level.mag for level in available}]
    if missing:
        listed = (
            ", ".join(
                str(level.mag) if level.mag is not None else describe_level(level)
                for level in available
            )
            or "none"
        )
        name = f"layer {image.name}" if image.is_layer else image.name
        raise MissingError(f"{resolved.path}: {name} has no mag {missing[0]}; there are {listed}")
    selected = [level for level in available if mags is None or level.mag in mags]
    links = tuple({level.folder for level in selected if store_at(level.folder).link_target()})
    folders = {level.key: container.check_removable(image, level.folder) for level in selected}
    others = [level for level in image.levels if level not in selected]
    for folder in dict.fromkeys(folders.values()):
        check_alone(image, folder, others, "removed")
    is_whole = mags is None and resolved.mag is None and image.key is None
    for parent in dict.fromkeys(_parent(image, folder) for folder in folders.values()):
        levels = [level for level in selected if _parent(image, folders[level.key]) == parent]
        if is_whole:
            check_no_job(parent)
        names = tuple(str(level.mag or level.key) for level in levels)
        edit = container.removal_edit(image, levels)
        if is_bucket(parent) and not lists_places(edit):
            raise UnsupportedError(
                f"{folders[levels[0].key]}: in a bucket, levels are removed from the document that "
                "lists them, and none lists this one; delete its objects with the tool of the "
                "provider"
            )
        unique_folders = tuple(dict.fromkeys(folders[level.key] for level in levels))
        has_others = is_whole and parent == image.folder
        beside = format_of_documents(image).other_folders(image) if has_others else ()
        yield Removal(
            image,
            names,
            parent,
            unique_folders,
            edit,
            is_whole,
            links,
            others=tuple(beside),
        )


def _parent(image: Image, folder: str) -> str:
    """Return the folder of the job folder of a level: its image, or the parent of the level inside
    a dataset."""
    return (
        image.folder
        if not image.is_layer and is_below(folder, image.folder) and folder != image.folder
        else dirname(folder)
    )


def _remaining_paths(
    container: Container, path: str, staged: Sequence[Removal], *, holds_images: bool
) -> Iterator[str]:
    """Yield the paths beside removed levels, and those beside removed images, that are not
    removed."""
    removed = {
        folder[len(removal.parent) + 1 :].split("/")[0]
        for removal in staged
        for folder in removal.paths
    }
    for parent in dict.fromkeys(removal.parent for removal in staged):
        yield from _unlisted(container, parent, removed)
    if holds_images:
        yield from _unlisted(container, path, {basename(removal.parent) for removal in staged})


def _unlisted(container: Container, folder: str, known: Collection[str]) -> Iterator[str]:
    """Yield the paths in a folder that are neither hidden, nor known by name, nor metadata of the
    format."""
    store = store_at(folder)
    for name in store.names() if store.is_folder() else ():
        if name not in known and name not in container.image_files and not name.startswith("."):
            yield f"{folder}/{name}"
