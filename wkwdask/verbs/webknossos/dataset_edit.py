"""Edits of both the folders and the JSON of a dataset: renaming a layer, and listing layers of
other datasets.

At any moment, even after an interruption, all mags are readable under the names in the JSON.
"""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Any

from wkwdask.errors import ExistsError, LockedError, MissingError, UnsupportedError
from wkwdask.formats.webknossos.dataset import dataset_of, make_layer
from wkwdask.formats.webknossos.datasource import (
    FILE_NAME,
    is_folder_name,
    layer_entry,
    path_holders,
    with_entry,
    with_explicit_paths,
    with_new_name,
    with_paths,
)
from wkwdask.formats.webknossos.document import (
    check_own_datasource,
    read_datasource,
    update_datasource,
)
from wkwdask.runs.cleaning import remove_unused
from wkwdask.runs.job_records import JobState, job_states
from wkwdask.store.locks import GUARD_NAME, guarded, lock_holder
from wkwdask.store.paths import (
    dirname,
    is_absolute,
    is_below,
    is_bucket,
    is_remote,
    join,
    normpath,
    relpath,
)
from wkwdask.store.store import folders_of, store_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wkwdask.formats.webknossos.datasource import DataSource
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.image import Image


def datasource_of(dataset: str) -> DataSource:
    """Read the JSON of a dataset; raise MissingError if it has none."""
    datasource = read_datasource(dataset)
    if datasource is None:
        raise MissingError(f"{dataset}/{FILE_NAME}: not found")
    return datasource


def stored_layer(dataset: str, name: str, datasource: DataSource | None = None) -> Image:
    """Return a layer of a dataset."""
    datasource = datasource_of(dataset) if datasource is None else datasource
    if datasource.layer(name) is None:
        names = [layer.name for layer in datasource.layers] + [
            layer.name for layer in datasource.invalid_layers
        ]
        raise MissingError(f"{dataset}: no layer {name!r}; there are {', '.join(names) or 'none'}")
    return make_layer(f"{dataset}/{name}", name, dataset, datasource)


@contextlib.contextmanager
def kept_idle(layer: Image) -> Iterator[None]:
    """Keep jobs from starting in a layer; raise LockedError if a job is running there or can
    resume."""
    _check_idle(layer)
    with contextlib.ExitStack() as guards:
        for folder in sorted({store_at(folder).real() for folder in _folders_of(layer)}):
            store = store_at(folder)
            if store.is_folder() and store.is_writable():
                guards.enter_context(guarded(folder))
        _check_idle(layer)
        yield


def _folders_of(layer: Image) -> list[str]:
    """Return the folders in which jobs on a layer work."""
    return sorted(
        {layer.folder}
        | {dirname(folder) for folder in layer.mags.values() if not is_remote(folder)}
    )


def _check_idle(layer: Image) -> None:
    for folder in _folders_of(layer):
        for root, state in job_states(folder) if store_at(folder).is_folder() else ():
            if state is not JobState.DEAD:
                raise LockedError(
                    f"{root}: a job is running in this layer, or can resume ({state.value}); wait "
                    "for its end, or let repair remove it"
                )
    for mag, folder in layer.mags.items():
        holder = None if is_remote(folder) else lock_holder(folder)
        if holder is not None:
            raise LockedError(f"{folder}: another job writes mag {mag}: {holder}")


# ----------------------------------------------------------------------------- renaming


def rename_layer(dataset: str, old: str, new: str) -> None:
    """Rename a layer and its folder so that the paths in the JSON are valid at any moment.

    1. The new name becomes a link to the folder.
    2. The JSON gets the new name and paths in one atomic write.
    3. Link and folder swap names atomically. If the file system cannot swap two names, the folder
       keeps the old one.

    The same call completes an interrupted rename. In a bucket, all objects keep their names.
    """
    datasource = datasource_of(dataset)
    if is_bucket(dataset):
        _rename_listed(dataset, old, new, stored_layer(dataset, old, datasource))
        return
    check_own_datasource(dataset)
    old_path, new_path = f"{dataset}/{old}", f"{dataset}/{new}"
    is_renamed = (
        is_folder_name(old) and datasource.layer(old) is None and datasource.layer(new) is not None
    )
    if is_renamed and (_leads_to(new_path, old) or _leads_to(old_path, old)):
        _swap(dataset, old, new)
        return
    layer = stored_layer(dataset, old, datasource)
    with_new_name(datasource.document, old, new, str)  # raises before anything changes
    with kept_idle(layer):
        if not store_at(old_path).is_folder():
            update_datasource(dataset, lambda document: with_new_name(document, old, new, str))
            return
        if not _leads_to(new_path, old):
            remove_unused(new_path)
            try:
                folders_of(dataset).symlink(old, new_path)
            except FileExistsError:
                raise ExistsError(
                    f"{new_path}: already exists, but is not a layer of the JSON; move it away or "
                    "choose another name"
                ) from None
        update_datasource(
            dataset,
            lambda document: with_new_name(document, old, new, _path_mover(dataset, old, new)),
        )
        _swap(dataset, old, new)
        for folder in _folders_of(stored_layer(dataset, new)):
            with contextlib.suppress(OSError):
                folders_of(folder).unlink(f"{folder}/{GUARD_NAME}")


def _rename_listed(dataset: str, old: str, new: str, layer: Image) -> None:
    """Rename a layer in the JSON, whose paths lead to the folders with the old name."""
    with kept_idle(layer):
        paths = {
            mag: f"./{relpath(folder, dataset)}" if is_below(folder, dataset) else folder
            for mag, folder in layer.mags.items()
        }
        update_datasource(
            dataset,
            lambda document: with_new_name(
                with_explicit_paths(document, old, paths), old, new, str
            ),
        )


def _leads_to(path: str, target: str) -> bool:
    return store_at(path).link_target() == target


def _swap(dataset: str, old: str, new: str) -> None:
    """Swap folder and link, after the JSON has the new name."""
    old_path, new_path = f"{dataset}/{old}", f"{dataset}/{new}"
    folders = folders_of(dataset)
    if _leads_to(new_path, old):
        # undoes _keep_old_folder of an earlier call
        update_datasource(
            dataset, lambda document: with_paths(document, _path_mover(dataset, old, new))
        )
        if not folders.exchange(old_path, new_path):
            _keep_old_folder(dataset, old, new)
            store_at(dataset).delete(new)
            return
        folders.fsync(dataset)
    if _leads_to(old_path, old):  # after the swap the old name is a link to itself
        store_at(dataset).delete(old)


def _keep_old_folder(dataset: str, old: str, new: str) -> None:
    """Let the paths of the renamed layer in the JSON lead to the folder with the old name."""
    mags = stored_layer(dataset, new).mags
    back = _path_mover(dataset, new, old)
    paths = {
        mag: f"./{relpath(folder, dataset)}"
        for mag, folder in mags.items()
        if not is_remote(folder)
    }
    inside = {mag: back(path) for mag, path in paths.items() if path.startswith(f"./{new}/")}
    update_datasource(
        dataset, lambda document: with_explicit_paths(with_paths(document, back), new, inside)
    )


def _path_mover(dataset: str, old: str, new: str) -> Callable[[str], str]:
    """Return a function that moves paths below one folder of a dataset to another folder, and
    returns other paths unchanged."""

    def moved(path: str) -> str:
        if is_remote(path):
            return path
        prefix = "file://" if path.startswith("file://") else ""
        text = path.removeprefix(prefix)
        absolute = normpath(join(dataset, text))
        for root in (normpath(dataset), store_at(dataset).real()):
            rest = absolute.removeprefix(f"{root}/{old}")
            if rest != absolute and (not rest or rest.startswith("/")):
                return f"{prefix}{root}/{new}{rest}" if is_absolute(text) else f"./{new}{rest}"
        return path

    return moved


# ----------------------------------------------------------------------------- layers of other
# datasets


def reference_entry(source: Image, dataset: str, name: str, *, relative: bool) -> dict[str, Any]:
    """Return the JSON entry of a layer whose mags and attachments stay in another dataset."""
    folder, record = dataset_of(source).dataset_folder, dataset_of(source).record
    if record is None or folder is None:
        raise UnsupportedError(
            f"{source.folder}: no {FILE_NAME} describes this layer; only layers of a dataset can "
            "be listed in another one"
        )

    def reference(folder: str) -> str:
        if is_remote(folder):
            return folder
        real = store_at(folder).real()
        return relpath(real, store_at(dataset).real()) if relative else real

    document = {"dataLayers": [copy.deepcopy(record.entry)]}
    paths: dict[Mag, str] = {mag: reference(folder) for mag, folder in source.mags.items()}
    entry = layer_entry(with_explicit_paths(document, source.name, paths), source.name)
    attachments = {"attachments": entry.get("attachments")}
    for holder in path_holders(attachments):
        path = holder["path"]
        holder["path"] = (
            path if is_remote(path) else reference(join(folder, path.removeprefix("file://")))
        )
    return {**entry, "name": name}


def list_layer(dataset: str, entry: dict[str, Any]) -> None:
    update_datasource(dataset, lambda document: with_entry(document, entry))
