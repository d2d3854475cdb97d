"""Checking what is around the files of mags: which layers and mags are there, what the JSON says of them, and what jobs left behind.

It never writes, and it goes on where the readers give up: without a JSON, or with a broken one, folders are all there is to go by.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.errors import CorruptError, FormatError, LockedError, MissingError
from wkwdask.formats.webknossos.dataset import dataset_above, listed_layer, locate, make_layer, read_datasource, with_mags
from wkwdask.formats.webknossos.datasource import FILE_NAME, DataSource, LayerRecord, cube_lengths
from wkwdask.formats.wkw.check import check_mag_header
from wkwdask.formats.wkw.header import HEADER_NBYTES, WkwHeader, parse_header
from wkwdask.formats.wkw.listing import QUARANTINE_NAME, Listing, describe_age, list_mag, temporary_fault
from wkwdask.formats.wkw.volume import HEADER_NAME, file_path
from wkwdask.geometry.bounding_box import MAG_1, BoundingBox
from wkwdask.geometry.mag import Mag
from wkwdask.model.faults import Fault
from wkwdask.model.voxel_type import element_class
from wkwdask.runs.job_records import JobState, job_states, problem_of
from wkwdask.store import files
from wkwdask.store.locks import is_lock, lock_owner
from wkwdask.store.paths import basename, dirname, is_remote, local_path
from wkwdask.store.records import RECORD_NAME, read_record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.model.image import Image

UNREADABLE_LOCK = "a lock that cannot be read"
_SAMPLED_HEADERS = 200
_LEAST_VOTES = 2  # files that must agree against header.wkw
_LEFT_FOLDER = re.compile(r"\.rechunk-[0-9a-f-]{36}")  # webknossos builds a mag there that is to replace another


@dataclass(frozen=True)
class MagScope:
    """One mag that is to be checked."""

    layer: str
    """Name of its layer."""
    mag: Mag
    """The mag."""
    folder: str
    """Its folder."""
    box: BoundingBox | None
    """Where the JSON says that it has data [voxels of the mag], None without a JSON."""
    category: str
    """What the JSON says of the layer, empty without one."""
    header: WkwHeader | None
    """What its files should be like: by header.wkw, or by most of the files where that is missing, broken or alone with what it says."""
    listing: Listing
    """Its files."""
    record: npt.NDArray[np.int64] | None
    """What it keeps about its files."""


@dataclass(frozen=True)
class LayerScope:
    """One layer that is to be checked."""

    name: str
    """Its name."""
    folder: str
    """Its folder."""
    record: LayerRecord | None
    """What the JSON says, None where it does not know the layer."""
    mags: tuple[MagScope, ...]
    """Its mags, finest first."""


@dataclass(frozen=True)
class Scope:
    """What is to be checked."""

    path: str
    """What the user named."""
    dataset_folder: str | None
    """Where the JSON is or should be; None for layers and mags without one."""
    datasource: DataSource | None
    """What it says."""
    layers: tuple[LayerScope, ...]
    """The layers."""
    faults: list[Fault] = field(default_factory=list)
    """What is wrong with all of it, but for the contents of data files."""

    @property
    def json_path(self) -> str:
        """Name the JSON."""
        return f"{self.dataset_folder}/{FILE_NAME}"


def look_at(url: str | os.PathLike[str], layers: Sequence[str] | None = None, mags: Sequence[Mag] | None = None) -> Scope:
    """Find out what is there: all that can be told without reading a data file beyond its first 16 bytes."""
    path = local_path(url)
    faults: list[Fault] = []
    found, dataset, datasource, only = _find(path, faults)
    chosen = [layer for layer in found if layers is None or layer.name in layers]
    missing = set(layers or ()) - {layer.name for layer in found}
    if missing:
        raise MissingError(f"{path}: no layer {sorted(missing)[0]!r}; there are {', '.join(layer.name for layer in found) or 'none'}")
    wanted = mags if only is None else [only]
    if dataset == path:
        faults += _leftovers(path, is_layer=False)
    scopes = tuple(_look_at_layer(layer, wanted, faults) for layer in chosen)
    return Scope(path, dataset, datasource, scopes, faults)


def is_inside(scope: Scope, path: str) -> bool:
    """Tell whether a file or folder lies in the dataset; what a path in the JSON leads to elsewhere belongs to somebody else."""
    dataset = scope.dataset_folder or next((dataset_above(layer.folder) for layer in scope.layers), None)
    return dataset is None or files.realpath(path).startswith(f"{files.realpath(dataset)}/")


def _find(path: str, faults: list[Fault]) -> tuple[list[Image], str | None, DataSource | None, Mag | None]:
    """Find the layers that a path means, with or without a JSON; a mag where it is one."""
    if not files.isdir(path):
        raise MissingError(f"{path}: no such folder")
    try:
        datasource = read_datasource(path)
    except CorruptError as error:
        faults.append(Fault("json.broken", f"{path}/{FILE_NAME}", str(error).removeprefix(f"{path}/{FILE_NAME}: ")))
        return _layers_in(path, None), path, None, None
    if datasource is not None:
        faults += [Fault("json.broken", f"{path}/{FILE_NAME}", odd.problem.removeprefix(f"{path}/{FILE_NAME}: ")) for odd in datasource.odd]
        known = [listed_layer(path, datasource, record) for record in datasource.layers]
        places = {files.realpath(layer.folder) for layer in known}
        places |= {files.realpath(dirname(folder)) for layer in known for folder in layer.mags.values() if not is_remote(folder)}
        fresh = [layer for layer in _layers_in(path, datasource) if files.realpath(layer.folder) not in places]
        names = {odd.name for odd in datasource.odd}
        faults += [
            Fault("layer.unlisted", layer.folder, f"mags {', '.join(sorted(m.name for m, _ in _mag_folders(layer.folder)))}")
            for layer in fresh
            if layer.name not in names
        ]
        return known + fresh, path, datasource, None
    if looks_like_mag(path):
        return _find_mag(path)
    if not any(True for _ in _mag_folders(path)):
        inside = _layers_in(path, None)
        if inside:
            faults.append(Fault("json.missing", f"{path}/{FILE_NAME}", "no such file"))
            return inside, path, None, None
    located = locate(path)
    (layer,) = located.layers
    return [layer], layer.container.dataset_folder, layer.container.datasource, None


def _find_mag(path: str) -> tuple[list[Image], str | None, DataSource | None, Mag | None]:
    if files.isfile(f"{path}/{HEADER_NAME}"):
        located = locate(path)
        (layer,), mag = located.layers, located.mag or MAG_1
        return [layer], layer.container.dataset_folder, layer.container.datasource, mag
    parent = dirname(path)
    for dataset in (parent, dirname(parent)):  # the same as locate() does where there is a header.wkw
        datasource = read_datasource(dataset)
        for layer in () if datasource is None else [listed_layer(dataset, datasource, record) for record in datasource.layers]:
            for mag, folder in layer.mags.items():
                if files.realpath(folder) == files.realpath(path):
                    return [layer], dataset, datasource, mag
    mag = {folder: mag for mag, folder in _mag_folders(parent)}.get(path, MAG_1)
    return [with_mags(make_layer(parent, basename(parent)), {mag: path})], None, None, mag


def looks_like_mag(folder: str) -> bool:
    """Tell whether a folder holds a mag, even one that lacks its header or all its files."""
    return files.isfile(f"{folder}/{HEADER_NAME}") or next(files.numbered(folder, "z"), None) is not None


def _mag_folders(layer_folder: str) -> Iterator[tuple[Mag, str]]:
    """Go through the folders of a layer that are named as a mag and hold one."""
    try:
        with files.scandir(layer_folder) as scanned:
            entries = sorted(scanned, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        try:
            mag = Mag.parse(entry.name)
        except ValueError:
            continue
        if looks_like_mag(entry.path):
            yield mag, entry.path


def _layers_in(path: str, datasource: DataSource | None) -> list[Image]:
    """List the folders of a dataset that hold mags."""
    with files.scandir(path) as entries:
        folders = sorted(entry.path for entry in entries if not entry.name.startswith(".") and entry.is_dir())
    odd = set() if datasource is None else {layer.name for layer in datasource.odd}
    names = {folder: basename(folder) for folder in folders if any(True for _ in _mag_folders(folder))}
    return [make_layer(folder, name, path, None if name in odd else datasource) for folder, name in names.items()]


def _look_at_layer(layer: Image, only: Sequence[Mag] | None, faults: list[Fault]) -> LayerScope:
    record = layer.container.record
    if record is not None and record.data_format != "wkw":
        faults.append(Fault("layer.format", layer.folder, record.data_format))
        return LayerScope(layer.name, layer.folder, record, ())
    listed = layer.mags
    there = list(_mag_folders(layer.folder))
    if only is None and files.isdir(layer.folder):
        faults += _leftovers(layer.folder, is_layer=True)
        faults += _twice(there)
    folders = dict(listed)
    for mag, folder in there:
        if mag not in folders:
            folders[mag] = folder
            if record is not None and (only is None or mag in only):
                faults.append(Fault("mag.unlisted", folder, f"mag {mag.name}"))
    scopes = []
    for mag in sorted(folders, key=lambda mag: (mag.maximum, mag.factors)):
        if only is not None and mag not in only:
            continue
        if is_remote(folders[mag]):
            faults.append(Fault("mag.remote", folders[mag], f"mag {mag.name}"))
        elif not looks_like_mag(folders[mag]):
            faults.append(Fault("mag.missing", folders[mag], "an empty folder" if files.isdir(folders[mag]) else "no folder", f"mag {mag.name}"))
        else:
            scopes.append(_look_at_mag(layer, mag, folders[mag], faults))
    if only is None:
        faults += _gaps(layer, [scope.mag for scope in scopes])
    if record is not None and layer.container.datasource is not None:
        faults += _check_record(f"{layer.container.dataset_folder}/{FILE_NAME}", layer.container.datasource, record, scopes)
    return LayerScope(layer.name, layer.folder, record, tuple(scopes))


def _twice(there: list[tuple[Mag, str]]) -> Iterator[Fault]:
    counts = Counter(mag for mag, _ in there)
    for mag, count in counts.items():
        if count > 1:
            folders = [folder for other, folder in there if other == mag]
            yield Fault("mag.twice", folders[1], f"mag {mag.name} is also at {folders[0]}", "one folder")


def _gaps(layer: Image, mags: Sequence[Mag]) -> Iterator[Fault]:
    for finer, coarser in itertools.pairwise(mags):
        if coarser.maximum > 2 * finer.maximum:
            yield Fault("mag.gap", layer.folder, f"mag {coarser.name} comes after mag {finer.name}", "steps of 2")


def _look_at_mag(layer: Image, mag: Mag, folder: str, faults: list[Fault]) -> MagScope:
    listing = list_mag(folder)
    faults += listing.faults
    header = check_header(folder, listing, faults)
    if not len(listing.shards):
        faults.append(Fault("mag.empty", folder, "0 files"))
    record = None
    try:
        record = read_record(folder)
    except (CorruptError, OSError) as error:
        faults.append(Fault("record.broken", f"{folder}/{RECORD_NAME}", str(error).removeprefix(f"{folder}/{RECORD_NAME}: ")))
    if record is not None:
        faults += _lost(folder, listing, record)
    box = layer.container.record.bounding_box.in_mag(mag) if layer.container.record is not None else None
    return MagScope(layer.name, mag, folder, box, layer.container.record.category if layer.container.record is not None else "", header, listing, record)


def _lost(folder: str, listing: Listing, record: npt.NDArray[np.int64]) -> Iterator[Fault]:
    there = set(map(tuple, listing.shards.tolist()))
    for x, y, z, nbytes, _, _ in record.tolist():
        if nbytes and (x, y, z) not in there:
            yield Fault("file.lost", file_path(folder, (x, y, z)), "no such file", f"{nbytes} bytes")


def check_header(folder: str, listing: Listing, faults: list[Fault]) -> WkwHeader | None:
    """Check ``header.wkw``, and go by most of the files where it cannot be right."""
    path = f"{folder}/{HEADER_NAME}"
    header = None
    try:
        if files.exists(path) and not files.isfile(path):  # a pipe would be read for ever
            raise OSError("no file")
        with files.open_stream(path) as file:
            header, found = check_mag_header(file.read(1 << 16), path)
            faults += found
    except FileNotFoundError:
        faults.append(Fault("header.missing", path, "no such file"))
    except OSError as error:
        faults.append(Fault("header.unreadable", path, os.strerror(error.errno) if error.errno else str(error), "a file"))
    votes = Counter(header_votes(folder, listing))
    if not votes:
        return header
    (most, count), total = votes.most_common(1)[0], votes.total()
    if header is None:
        return most if 2 * count > total else None
    if most == _as_vote(header) or count < _LEAST_VOTES or 2 * count <= total:
        return header
    if most != replace(_as_vote(header), block_type=most.block_type):
        faults.append(Fault("header.differs", path, _describe(header), f"{_describe(most)} as in {count} of {total} files"))
    elif most.is_compressed != header.is_compressed:
        faults.append(Fault("header.other_block_type", path, header.block_type.label, f"{most.block_type.label} as in {count} of {total} files", offset=5))
    return most


def header_votes(folder: str, listing: Listing) -> Iterator[WkwHeader]:
    """Read what data files say about their mag; broken ones say nothing."""
    shards = listing.shards
    for number in np.unique(np.linspace(0, len(shards) - 1, min(len(shards), _SAMPLED_HEADERS)).astype(int)).tolist() if len(shards) else []:
        x, y, z = shards[number].tolist()
        path = file_path(folder, (x, y, z))
        try:
            if not files.isfile(path):
                continue
            with files.open_stream(path) as file:
                header = parse_header(file.read(HEADER_NBYTES), path, is_data_file=True)
        except (OSError, FormatError, NotImplementedError):
            continue
        yield _as_vote(header)


def _as_vote(header: WkwHeader) -> WkwHeader:
    return replace(header, data_offset=0)


def _describe(header: WkwHeader) -> str:
    channels = f" x {header.num_channels}" if header.num_channels > 1 else ""
    return f"{header.dtype.name}{channels}, {header.block_type.label}, block_len {header.block_len}, file_len {header.file_len}"


def _check_record(path: str, datasource: DataSource, record: LayerRecord, mags: Sequence[MagScope]) -> Iterator[Fault]:
    """Compare what the JSON says of a layer with its mags."""
    lengths = cube_lengths(datasource.document, record.name)
    headers = {scope.mag: scope.header for scope in mags if scope.header is not None}
    where = f"layer {record.name}"
    types = {(header.dtype, header.num_channels): mag for mag, header in reversed(headers.items())}  # each with the finest mag that has it
    for (dtype, num_channels), mag in types.items():
        expected = element_class(dtype, num_channels)
        if record.element_class != expected:
            yield Fault("json.element_class", path, f"{where}: {record.element_class}", f"{expected} as in mag {mag.name}")
        if record.num_channels != num_channels:
            yield Fault("json.num_channels", path, f"{where}: {record.num_channels}", f"{num_channels} as in mag {mag.name}")
    for mag, header in headers.items():
        if mag in lengths and lengths[mag] != header.file_len_vx:
            yield Fault("json.cube_length", path, f"{where}, mag {mag.name}: {lengths[mag]}", str(header.file_len_vx))
    finest = next((scope for scope in mags if scope.header is not None and len(scope.listing.shards)), None)
    if finest is not None and finest.box is not None and finest.header is not None:
        extent = _extent(finest.listing, finest.header, finest.mag)
        box = finest.box
        if not extent.intersection(box).is_empty and not extent.contains(box):
            yield Fault("json.box_larger", path, f"layer {record.name}: box {box}", f"files in {extent}")


def _extent(listing: Listing, header: WkwHeader, mag: Mag) -> BoundingBox:
    edge = header.file_len_vx
    return BoundingBox.from_corners((listing.shards.min(axis=0) * edge).tolist(), ((listing.shards.max(axis=0) + 1) * edge).tolist(), mag)


def _leftovers(folder: str, *, is_layer: bool) -> Iterator[Fault]:
    """Find what jobs of any software left in the folder of a layer or dataset."""
    with files.scandir(folder) as scanned:
        entries = sorted(scanned, key=lambda entry: entry.name)
    for entry in entries:
        fault = temporary_fault(entry.path)
        if fault is not None:
            yield fault
        elif _LEFT_FOLDER.fullmatch(entry.name) and entry.is_dir():
            yield Fault("leftover.folder", entry.path, f"a mag that webknossos builds, last written {describe_age(entry.path)} ago")
        elif entry.name == QUARANTINE_NAME:
            yield Fault("quarantine", entry.path, f"{sum(len(names) for _, _, names in files.walk(entry.path))} files")
        elif is_lock(entry.name):
            yield from _judge_lock(entry.path)
    for root, state in job_states(folder):
        if state is JobState.REFUSED:
            yield Fault(_JOB_KINDS[state], root, problem_of(root).removeprefix(f"{root}/"))
        elif is_layer:
            yield Fault(_JOB_KINDS[state], root, state.value)


_JOB_KINDS = {
    JobState.RUNNING: "job.running",
    JobState.UNPUBLISHED: "job.unpublished",
    JobState.CAN_GO_ON: "job.interrupted",
    JobState.REFUSED: "job.refused",
    JobState.DEAD: "job.dead",
}


def _judge_lock(path: str) -> Iterator[Fault]:
    try:
        owner = lock_owner(path)
    except LockedError:
        yield Fault("leftover.lock", path, UNREADABLE_LOCK)
        return
    if owner is not None:
        yield Fault("leftover.lock" if owner.is_gone() else "job.running", path, str(owner))
