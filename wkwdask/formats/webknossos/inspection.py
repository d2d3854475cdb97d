"""Inspect a dataset for verify and repair: list its layers and mags, and compare them with the
JSON.

Readers stop at a missing or broken JSON; this module continues and relies on the folders. It never
writes.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from wkwdask.errors import CorruptError, FormatError, MissingError
from wkwdask.formats import inspection
from wkwdask.formats.inspection import LevelScope, contradictions, folder_faults
from wkwdask.formats.leftovers import leftovers_in
from wkwdask.formats.marks import HEADER_NAME
from wkwdask.formats.roots import Root
from wkwdask.formats.webknossos.dataset import (
    dataset_of,
    find_listed_arrays,
    is_arrays_layer,
    listed_layer,
    listed_mag,
    locate,
    mag_from_name,
    make_layer,
    open_arrays,
    stored_format,
    with_folders,
)
from wkwdask.formats.webknossos.datasource import (
    FILE_NAME,
    DataSource,
    LayerRecord,
    largest_segment_id,
)
from wkwdask.formats.webknossos.document import dataset_above, read_datasource
from wkwdask.formats.wkw.array import list_remote_mag, open_mag, wkw_array, wkw_target
from wkwdask.formats.wkw.file_check import WkwCheck, check_mag_header
from wkwdask.formats.wkw.folder import Listing, file_name, file_path, list_mag, open_data_file
from wkwdask.formats.wkw.header import (
    HEADER_NBYTES,
    WkwHeader,
    format_header,
    make_header,
    parse_header,
)
from wkwdask.formats.wkw.options import level_number
from wkwdask.formats.wkw.repair import WkwRepair
from wkwdask.geometry.bounding_box import MAG_1, BoundingBox, moved
from wkwdask.geometry.mag import Mag, mag_order, vec3
from wkwdask.model.faults import Fault, Findings
from wkwdask.model.image import Level
from wkwdask.model.stored_array import without_listing
from wkwdask.model.voxel_type import element_class
from wkwdask.store.paths import any_path, basename, dirname, is_remote
from wkwdask.store.records import read_provenance
from wkwdask.store.store import check_folder, numbered, store_at

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.chunk_grid import Vec4
    from wkwdask.model.image import Image
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.model.writing.target_array import TargetArray

_SAMPLED_HEADERS = 200
_MIN_VOTES = 2  # agreeing data files needed to overrule header.wkw
_HEADER_KINDS = (
    "other_block_type",
    "missing",
    "short",
    "magic",
    "version",
    "block_type",
    "voxel_type",
    "voxel_size",
    "block_nbytes",
    "data_offset",
    "differs",
)
_UNKNOWN_HEADER = make_header("uint8")  # in place of one that is unknown
_ALSO_WRITTEN = {"float64": "double"}  # by the webknossos library, for two channels of float32
_METHOD_OF_CATEGORY = {"color": "median", "segmentation": "mode"}


@dataclass(frozen=True)
class MagScope(LevelScope):
    """One mag to check, stored as WKW; its array has the expected header of its files."""

    stated_box: BoundingBox | None
    """Box of the layer in the JSON [voxels of the mag]; None without a JSON."""
    category: str
    """Category of the layer in the JSON, empty without one."""
    header: WkwHeader | None
    """Expected header: ``header.wkw``, or that of most files if it is missing, broken or overruled
    by them. Without one, the layout of the array is not that of the files."""
    listing: Listing
    recorded_box: BoundingBox | None = None
    """Box of the layer in the provenance of its mags [voxels of mag 1]."""
    recorded_size: ClassVar[str] = "{} bytes"

    @property
    def mag(self) -> Mag:
        assert self.level.mag is not None
        return self.level.mag

    @property
    def box(self) -> BoundingBox | None:
        return self.stated_box

    def stored(self) -> Iterator[tuple[Vec4, int, str]]:
        return (((0, *shard), 0, file_path(self.folder, shard)) for shard in self.shards())

    def shards(self) -> list[Vec3]:
        return [(x, y, z) for x, y, z in self.listing.shards.tolist()]

    def _stored_sizes(self) -> dict[Vec3, int]:
        states = self.array.store.states(map(file_name, self.shards()))
        return {
            shard: 0 if state is None else state.nbytes
            for shard, state in zip(self.shards(), states, strict=True)
        }

    def name_faults(self, listed: AbstractSet[str], known_names: Sequence[str]) -> Iterator[Fault]:
        del listed, known_names
        return iter(self.listing.faults)

    def check(self, *, decode: bool) -> WkwCheck | None:
        if self.header is None:
            return None
        recorded_box = None if self.recorded_box is None else self.recorded_box.in_mag(self.mag)
        return WkwCheck(
            without_listing(self.array),
            decode,
            decode and self.category == "segmentation" and self.array.dtype.kind in "iu",
            box=self.box,
            recorded_box=recorded_box,
        )

    @property
    def voxel_type(self) -> tuple[np.dtype[Any], int] | None:
        return None if self.header is None else super().voxel_type

    @property
    def can_be_read(self) -> bool:
        return self.header is not None and (
            bool(len(self.listing.shards)) or (self.box is not None and bool(self._lost))
        )

    def target(
        self, box: BoundingBox, staging_folder: str, folder: str | None = None
    ) -> TargetArray:
        assert self.header is not None
        level = level_number(read_provenance(self.folder).get("settings", {}).get("level"))
        return replace(
            wkw_target(folder or self.folder, self.header, level, box, staging_folder),
            is_in_place=True,
        )

    def repairer(self) -> WkwRepair | None:
        check = self.check(decode=True)
        return None if check is None else WkwRepair(check)

    def document_faults(self, faults: Sequence[Fault]) -> list[Fault]:
        return [fault for fault in faults if fault.kind.removeprefix("header.") in _HEADER_KINDS]

    def repaired_document(self, faults: Sequence[Fault]) -> tuple[bytes, str] | None:
        if self.header is None:
            return None
        votes = sum(1 for _ in header_votes(self.folder, self.listing))
        how = (
            "other fields are unchanged"
            if faults[0].kind == "header.data_offset"
            else f"as in {votes} data files"
        )
        return format_header(self.header.for_header_file()), how

    def is_as_checked(self, *, is_document_good: bool) -> bool:
        again: list[Fault] = []
        header = check_header(self.folder, list_mag(self.folder), again)
        return header == self.header and is_document_good == (not self.document_faults(again))


@dataclass(frozen=True)
class LayerScope(inspection.LayerScope):
    """One layer to check."""

    record: LayerRecord | None = None
    """Record of the layer; None if the JSON does not list it."""
    missing_mags: tuple[Fault, ...] = ()
    """Faults of the mags that the JSON lists and that have no data."""

    @property
    def wkw_mags(self) -> tuple[MagScope, ...]:
        """Mags that are stored as WKW."""
        return _mag_scopes(self.mags)

    def nonzero_outside(self, findings: Mapping[str, Findings]) -> BoundingBox | None:
        """Return the box around all nonzero voxels outside of the layer's box [voxels of mag 1];
        None without any."""
        # Only the finest mag counts: voxels of coarser mags extend beyond the box by rounding.
        outside = findings.get(self.mags[0].key, Findings()).outside if self.mags else None
        return None if outside is None else outside.in_mag(MAG_1)

    def box_from_files(self, findings: Mapping[str, Findings]) -> BoundingBox:
        """Return the box of an unlisted layer [voxels of mag 1]: the box in the provenance,
        extended to all nonzero voxels."""
        readable = [scope for scope in self.wkw_mags if scope.header is not None]
        recorded_box = read_recorded_box(readable)
        if recorded_box is None:
            return readable[0].array.box.in_mag(MAG_1)
        outside = (findings.get(scope.key, Findings()).outside for scope in readable)
        return reduce(
            BoundingBox.union,
            (box.in_mag(MAG_1) for box in outside if box is not None),
            recorded_box,
        )

    def faults(self, json_path: str, findings: Mapping[str, Findings]) -> Iterator[Fault]:
        """Compare largest id and box in the JSON with the contents of the files."""
        if self.record is None:
            return
        values = (findings.get(scope.key, Findings()).largest for scope in self.mags)
        largest = max((n for n in values if n is not None), default=None)
        stated = largest_segment_id(self.record.attributes)
        if largest is not None and stated is not None and stated < largest:
            yield Fault(
                "json.largest_id",
                json_path,
                f"layer {self.name}: largestSegmentId {stated}",
                str(largest),
            )
        outside = self.nonzero_outside(findings)
        if outside is not None:
            box = self.record.bounding_box
            yield Fault(
                "json.box_smaller",
                json_path,
                f"layer {self.name}: box {box}",
                f"nonzero voxels in {outside}",
            )


@dataclass(frozen=True)
class Scope(inspection.Scope):
    """Layers and mags to check, and the JSON."""

    layers: tuple[LayerScope, ...]
    dataset_folder: str | None = None
    """Folder in which the JSON is or should be; None for layers and mags without one."""
    datasource: DataSource | None = None

    @property
    def json_path(self) -> str:
        return f"{self.dataset_folder}/{FILE_NAME}"

    def copies(
        self, path: str, layer: LayerScope
    ) -> Iterator[tuple[StoredArray, StoredArray] | None]:
        originals = {scope.mag: scope for scope in layer.wkw_mags if scope.header is not None}
        copies = list(_mags_in(path))
        for mag, folder in copies:
            yield (
                None if mag is None or mag not in originals else _open_pair(originals[mag], folder)
            )
        if not copies:
            yield None

    def conclude(self, findings: Mapping[str, Findings]) -> Iterator[Fault]:
        for layer in self.layers:
            yield from layer.faults(self.json_path, findings)


def inspect_dataset(
    url: str | os.PathLike[str],
    layers: Sequence[str] | None = None,
    mags: Sequence[Mag] | None = None,
) -> Scope:
    """Collect the layers and mags of a path, with all faults that show without reading data files
    beyond their headers."""
    path = any_path(url)
    faults: list[Fault] = []
    known, dataset, datasource, only = _find(path, faults)
    chosen = [layer for layer in known if layers is None or layer.name in layers]
    missing = set(layers or ()) - {layer.name for layer in known}
    if missing:
        raise MissingError(
            f"{path}: no layer {sorted(missing)[0]!r}; there are "
            f"{', '.join(layer.name for layer in known) or 'none'}"
        )
    selected = mags if only is None else [only]
    folders = [(path, False)] if dataset == path else []
    folders += [
        (layer.folder, True)
        for layer in chosen
        if selected is None and store_at(layer.folder).is_folder()
    ]
    folders = [] if is_remote(path) else folders  # jobs work in local folders only
    for folder, _ in folders:
        faults += leftovers_in(folder)
    scopes = tuple(_inspect_layer(layer, selected, faults) for layer in chosen)
    _check_mags(path, mags or (), {only} if only is not None else _known_mags(chosen, scopes))
    around = dataset or (
        None if is_remote(path) else next((dataset_above(layer.folder) for layer in chosen), None)
    )
    root = Root(around, f"{around}/{FILE_NAME}", noun="dataset")
    return Scope(
        path, scopes, faults, tuple(folders), root, dataset_folder=dataset, datasource=datasource
    )


def _known_mags(layers: Sequence[Image], scopes: Sequence[LayerScope]) -> set[Mag]:
    """Return the mags that the JSON lists, and those that were found."""
    found = {level.mag for scope in scopes for level in scope.mags if level.mag is not None}
    return found.union(*(layer.mags for layer in layers))


def _check_mags(path: str, mags: Sequence[Mag], known: set[Mag]) -> None:
    """Raise MissingError for a mag that no layer has."""
    for mag in mags:
        if mag not in known:
            there = ", ".join(map(str, sorted(known, key=mag_order)))
            raise MissingError(f"{path}: no mag {mag}; there are {there or 'none'}")


def _find(
    path: str, faults: list[Fault]
) -> tuple[list[Image], str | None, DataSource | None, Mag | None]:
    """Resolve a path to its layers, the dataset folder, the JSON (None without one) and, if the
    path names a mag, this mag."""
    if not is_remote(path):
        check_folder(path)
    try:
        datasource = read_datasource(path)
    except CorruptError as error:
        faults.append(
            Fault(
                "json.broken",
                f"{path}/{FILE_NAME}",
                str(error).removeprefix(f"{path}/{FILE_NAME}: "),
            )
        )
        return _layers_in(path, None), path, None, None
    if datasource is not None:
        num_named = Counter(invalid.name for invalid in datasource.invalid_layers)
        faults += [
            Fault(
                "layer.twice" if num_named[invalid.name] > 1 else "json.broken",
                f"{path}/{FILE_NAME}",
                invalid.problem.removeprefix(f"{path}/{FILE_NAME}: "),
            )
            for invalid in datasource.invalid_layers
        ]
        listed = [listed_layer(path, datasource, record) for record in datasource.layers]
        listed_folders = {store_at(layer.folder).real() for layer in listed}
        listed_folders |= {
            store_at(dirname(folder)).real()
            for layer in listed
            for folder in layer.mags.values()
            if not is_remote(folder)
        }
        unlisted = [
            layer
            for layer in _layers_in(path, datasource)
            if store_at(layer.folder).real() not in listed_folders
        ]
        names = {invalid.name for invalid in datasource.invalid_layers}
        faults += [
            Fault(
                "layer.unlisted",
                layer.folder,
                f"mags {', '.join(sorted(m.name for m, _ in _mag_folders(layer.folder)))}",
            )
            for layer in unlisted
            if layer.name not in names
        ]
        return listed + unlisted, path, datasource, None
    arrays = find_listed_arrays(path)
    if arrays is not None:
        (layer,) = arrays.layers
        return [layer], dataset_of(layer).dataset_folder, dataset_of(layer).datasource, arrays.mag
    if looks_like_mag(path):
        return _find_mag(path)
    if not is_remote(path) and not any(True for _ in _mag_folders(path)):
        layers = _layers_in(path, None)
        if layers:
            faults.append(Fault("json.missing", f"{path}/{FILE_NAME}", "no such file"))
            return layers, path, None, None
    located = locate(path)
    (layer,) = located.layers
    return [layer], dataset_of(layer).dataset_folder, dataset_of(layer).datasource, None


def _find_mag(path: str) -> tuple[list[Image], str | None, DataSource | None, Mag | None]:
    if store_at(path).is_file(HEADER_NAME):
        located = locate(path)
        (layer,), mag = located.layers, located.mag or MAG_1
        return [layer], dataset_of(layer).dataset_folder, dataset_of(layer).datasource, mag
    parent = dirname(path)
    listed = listed_mag(path)
    if listed is not None:
        layer, mag = listed
        return [layer], dataset_of(layer).dataset_folder, dataset_of(layer).datasource, mag
    mag = {folder: mag for mag, folder in _mag_folders(parent)}.get(path, MAG_1)
    return [with_folders(make_layer(parent, basename(parent)), {mag: path})], None, None, mag


def looks_like_mag(folder: str) -> bool:
    """Return whether a folder is that of a mag, even of one without header or without files."""
    return store_at(folder).is_file(HEADER_NAME) or (
        not is_remote(folder) and next(numbered(store_at(folder), "z"), None) is not None
    )


def _mag_folders(layer_folder: str) -> Iterator[tuple[Mag, str]]:
    """Yield the folders of a layer that are named like a mag and look like one; none of a remote
    layer, whose mags the JSON lists."""
    if is_remote(layer_folder):
        return
    try:
        entries = sorted(store_at(layer_folder).scandir(), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        mag = mag_from_name(entry.name)
        if mag is not None and looks_like_mag(entry.path):
            yield mag, entry.path


def _layers_in(path: str, datasource: DataSource | None) -> list[Image]:
    """List the folders of a local dataset that contain mags."""
    if is_remote(path):
        return []
    folders = sorted(
        entry.path
        for entry in store_at(path).scandir()
        if not entry.name.startswith(".") and entry.is_dir()
    )
    invalid = set() if datasource is None else {layer.name for layer in datasource.invalid_layers}
    names = {
        folder: basename(folder) for folder in folders if any(True for _ in _mag_folders(folder))
    }
    return [
        make_layer(folder, name, path, None if name in invalid else datasource)
        for folder, name in names.items()
    ]


def _inspect_layer(layer: Image, only: Sequence[Mag] | None, faults: list[Fault]) -> LayerScope:
    record = dataset_of(layer).record
    is_arrays = is_arrays_layer(layer)
    if record is not None and not is_arrays and dataset_of(layer).data_format != "wkw":
        faults.append(Fault("layer.format", layer.folder, record.data_format))
        return LayerScope(layer.name, layer.folder, (), record)
    stored = stored_format(layer)
    levels = open_arrays(layer).levels if is_arrays else _wkw_levels(layer, only, faults)
    scopes: list[LevelScope] = []
    missing_mags = []
    for level in levels:
        what, folder = f"mag {level.key}", level.folder
        if only is not None and level.mag not in only:
            continue
        if is_remote(folder) and not is_remote(layer.folder):
            faults.append(Fault("mag.remote", folder, what))
        elif not (
            is_remote(folder)
            or stored.level_folders.record_of(folder)
            or stored.level_folders.is_level(folder)  # also without voxels
            or _has_files(folder)
            if is_arrays
            else looks_like_mag(folder)
        ):
            found = "an empty folder" if store_at(folder).is_folder() else "no folder"
            missing_mags.append(Fault("mag.missing", folder, found, what))
        elif is_arrays:
            method = _METHOD_OF_CATEGORY.get(layer.category or "")
            scopes += stored.level_scopes(layer, level, method, faults)
        else:
            scopes.append(_inspect_mag(layer, level, faults))
    faults += missing_mags
    recorded_box = read_recorded_box(_mag_scopes(scopes))
    scopes = [
        replace(scope, recorded_box=recorded_box) if isinstance(scope, MagScope) else scope
        for scope in scopes
    ]
    faults += folder_faults(scopes, stored)
    if is_arrays:
        faults += contradictions(scopes)
    if only is None:
        faults += _gaps(layer, [scope.mag for scope in scopes if scope.mag is not None])
    if record is not None and dataset_of(layer).datasource is not None:
        faults += _check_record(f"{dataset_of(layer).dataset_folder}/{FILE_NAME}", record, scopes)
    return LayerScope(layer.name, layer.folder, tuple(scopes), record, tuple(missing_mags))


def _wkw_levels(layer: Image, only: Sequence[Mag] | None, faults: list[Fault]) -> Iterator[Level]:
    """Yield the mags of a layer in WKW, finest first: those that the JSON lists, and others in the
    folder of the layer."""
    existing = list(_mag_folders(layer.folder))
    if only is None and store_at(layer.folder).is_folder():
        faults += _duplicate_mags(existing)
    folders = dict(layer.mags)
    for mag, folder in existing:
        if mag not in folders:
            folders[mag] = folder
            if dataset_of(layer).record is not None and (only is None or mag in only):
                faults.append(Fault("mag.unlisted", folder, f"mag {mag.name}"))
    stated = {level.folder: level.stated for level in layer.levels}
    for mag in sorted(folders, key=mag_order):
        folder = folders[mag]
        yield Level(mag.name, folder, mag=mag, stated=stated.get(folder))


def _mag_scopes(scopes: Sequence[LevelScope]) -> tuple[MagScope, ...]:
    return tuple(scope for scope in scopes if isinstance(scope, MagScope))


def _has_files(folder: str) -> bool:
    return store_at(folder).is_folder() and any(
        not name.startswith(".") for name in store_at(folder).names()
    )


def _duplicate_mags(existing: list[tuple[Mag, str]]) -> Iterator[Fault]:
    counts = Counter(mag for mag, _ in existing)
    for mag, count in counts.items():
        if count > 1:
            folders = [folder for other, folder in existing if other == mag]
            yield Fault(
                "mag.twice", folders[1], f"mag {mag.name} is also at {folders[0]}", "one folder"
            )


def _gaps(layer: Image, mags: Sequence[Mag]) -> Iterator[Fault]:
    for finer, coarser in itertools.pairwise(mags):
        if coarser.maximum > 2 * finer.maximum:
            yield Fault(
                "mag.gap",
                layer.folder,
                f"mag {coarser.name} comes after mag {finer.name}",
                "steps of 2",
            )


def _inspect_mag(layer: Image, level: Level, faults: list[Fault]) -> MagScope:
    assert level.mag is not None
    mag, folder = level.mag, level.folder
    box = None if layer.stated_box is None else layer.stated_box.in_mag(mag)
    listing, store = (
        list_remote_mag(folder, box) if is_remote(folder) else (list_mag(folder), store_at(folder))
    )
    header = check_header(folder, listing, faults)
    category, known = layer.category or "", header or _UNKNOWN_HEADER
    array = wkw_array(folder, known, _extent(listing, known, mag) if box is None else box)
    return MagScope(
        layer.name,
        level,
        array.at(store),
        _METHOD_OF_CATEGORY.get(category),
        f"{folder}/{HEADER_NAME}",
        box,
        category,
        header,
        listing,
    )


def check_header(folder: str, listing: Listing, faults: list[Fault]) -> WkwHeader | None:
    """Check ``header.wkw``, and return the expected header of the data files.

    The headers of sampled data files overrule a missing or broken ``header.wkw``, and one that
    contradicts more than half of them.
    """
    path = f"{folder}/{HEADER_NAME}"
    header = None
    try:
        if store_at(path).exists() and not store_at(path).is_file():  # reading a pipe would block
            raise OSError("not a file")
        with store_at(path).open_stream() as file:
            header, header_faults = check_mag_header(file.read(1 << 16), path)
            faults += header_faults
    except FileNotFoundError:
        faults.append(Fault("header.missing", path, "no such file"))
    except OSError as error:
        faults.append(Fault("header.unreadable", path, error.strerror or str(error), "a file"))
    votes = Counter(header_votes(folder, listing))
    if not votes:
        return header
    # A header.wkw written by hand or by another job is more likely wrong than most of the data
    # files, which readers decode by their own headers.
    (most, count), total = votes.most_common(1)[0], votes.total()
    if header is None:
        return most if 2 * count > total else None
    if most == header.for_header_file() or count < _MIN_VOTES or 2 * count <= total:
        return header
    if most != header.with_block_type(most.block_type):
        faults.append(
            Fault(
                "header.differs",
                path,
                _describe(header),
                f"{_describe(most)} as in {count} of {total} files",
            )
        )
    elif most.is_compressed != header.is_compressed:
        faults.append(
            Fault(
                "header.other_block_type",
                path,
                header.block_type.label,
                f"{most.block_type.label} as in {count} of {total} files",
                offset=5,
            )
        )
    return most


def header_votes(folder: str, listing: Listing) -> Iterator[WkwHeader]:
    """Yield the headers of evenly sampled data files, without broken ones."""
    shards = listing.shards
    for number in (
        np.unique(
            np.linspace(0, len(shards) - 1, min(len(shards), _SAMPLED_HEADERS)).astype(int)
        ).tolist()
        if len(shards)
        else []
    ):
        x, y, z = shards[number].tolist()
        path = file_path(folder, (x, y, z))
        try:
            with open_data_file(store_at(folder), (x, y, z)) as file:
                header = parse_header(file.read_some(HEADER_NBYTES, 0), path, is_data_file=True)
        except (OSError, FormatError, NotImplementedError):
            continue
        yield header.for_header_file()


def _describe(header: WkwHeader) -> str:
    channels = f" x {header.num_channels}" if header.num_channels > 1 else ""
    return (
        f"{header.dtype.name}{channels}, {header.block_type.label}, block_len {header.block_len}, "
        f"file_len {header.file_len}"
    )


def _check_record(path: str, record: LayerRecord, scopes: Sequence[LevelScope]) -> Iterator[Fault]:
    """Compare the record of a layer with the types, headers and files of its mags."""
    # Documents of the group of arrays are not compared: boxes are those of the JSON, and arrays
    # extend beyond them to whole shards. An array may hold some of the channels.
    yield from _check_types(
        path,
        record,
        [
            scope
            for scope in scopes
            if isinstance(scope, MagScope) or scope.array.num_channels == record.num_channels
        ],
    )
    mags = _mag_scopes(scopes)
    lengths = {
        entry.mag: entry.cube_length for entry in record.mags if entry.cube_length is not None
    }
    for scope in mags:
        if (
            scope.header is not None
            and lengths.get(scope.mag, scope.header.file_len_vx) != scope.header.file_len_vx
        ):
            yield Fault(
                "json.cube_length",
                path,
                f"layer {record.name}, mag {scope.mag.name}: {lengths[scope.mag]}",
                str(scope.header.file_len_vx),
            )
    finest = next(
        (scope for scope in mags if scope.header is not None and len(scope.listing.shards)), None
    )
    if finest is not None and finest.box is not None and finest.header is not None:
        extent = _extent(finest.listing, finest.header, finest.mag)
        box = finest.box
        if not extent.intersection(box).is_empty and not extent.contains(box):
            yield Fault(
                "json.box_larger", path, f"layer {record.name}: box {box}", f"files in {extent}"
            )


def _check_types(path: str, record: LayerRecord, mags: Sequence[LevelScope]) -> Iterator[Fault]:
    """Compare the record of a layer with the types of its mags."""
    # each type with the finest mag that has it
    types = {
        scope.voxel_type: scope.name for scope in reversed(mags) if scope.voxel_type is not None
    }
    for (dtype, num_channels), mag in types.items():
        expected = element_class(dtype, num_channels)
        if record.element_class not in (expected, _ALSO_WRITTEN.get(expected)):
            yield Fault(
                "json.element_class",
                path,
                f"layer {record.name}: {record.element_class}",
                f"{expected} as in mag {mag}",
            )
        if record.num_channels != num_channels:
            yield Fault(
                "json.num_channels",
                path,
                f"layer {record.name}: {record.num_channels}",
                f"{num_channels} as in mag {mag}",
            )


def _extent(listing: Listing, header: WkwHeader, mag: Mag) -> BoundingBox:
    edge, shards = (
        header.file_len_vx,
        listing.shards if len(listing.shards) else np.array([[0, 0, 0], [-1, -1, -1]]),
    )
    return BoundingBox.from_corners(
        (shards.min(axis=0) * edge).tolist(), ((shards.max(axis=0) + 1) * edge).tolist(), mag
    )


def read_recorded_box(mags: Sequence[MagScope]) -> BoundingBox | None:
    """Read the box of a layer from the provenance of its mags [voxels of mag 1]; None if no mag has
    one."""
    return next((box for scope in mags if (box := _read_recorded_box(scope)) is not None), None)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"-?\d+", text)]


def _read_recorded_box(scope: MagScope) -> BoundingBox | None:
    """Read the box in the provenance of a mag. Commands record it in different mags and frames;
    that of a merge covers only one source and is ignored."""
    settings: Any = read_provenance(scope.folder).get("settings")
    try:
        command, numbers = settings["command"], _numbers(settings["box"])
        mag = (
            scope.mag
            if command in ("to_wkw", "convert", "apply")
            else Mag.parse(settings["source"])
        )
        box = BoundingBox(vec3(numbers[:3]), vec3(numbers[3:6]), mag).in_mag(MAG_1)
        if command in ("rechunk", "copy"):
            return moved(box, vec3(_numbers(settings["translate"])))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return None if command == "merge" else box


def _mags_in(folder: str) -> Iterator[tuple[Mag | None, str]]:
    """Yield the mags in a leftover folder; None for a folder that is not named like a mag."""
    for path, _, _ in store_at(folder).walk():
        if looks_like_mag(path):
            yield mag_from_name(basename(path)), path


def _open_pair(original: MagScope, copy: str) -> tuple[StoredArray, StoredArray] | None:
    """Open a mag and its copy, both cropped to the extent of the copy; None if they cannot be
    compared."""
    try:
        copied = open_mag(copy, None, original.mag)
        stored = open_mag(original.folder, copied.box, original.mag)
    except (FormatError, OSError):
        return None
    is_comparable = (stored.dtype, stored.num_channels) == (copied.dtype, copied.num_channels)
    return (stored, copied) if is_comparable else None
