"""Verify a precomputed volume: its ``info``, and the files of its scales. Reports all faults, where
readers stop at the first. Never writes."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError, FormatError, MissingError, UnsupportedError
from wkwdask.formats.array_check import ArrayCheck
from wkwdask.formats.inspection import ArrayScope, LayerScope, Scope, by_written_units
from wkwdask.formats.leftovers import temporary_fault
from wkwdask.formats.precomputed.array import with_stored_suffix
from wkwdask.formats.precomputed.info import FILE_NAME, VolumeInfo, listed_scales, sorted_scales
from wkwdask.formats.precomputed.layer import location_of, open_precomputed_layer
from wkwdask.formats.precomputed.layouts import OpenShard, PrecomputedShards
from wkwdask.formats.precomputed.naming import ShardNaming, SpanNaming
from wkwdask.formats.precomputed.sharding import INDEX_ENTRY_NBYTES
from wkwdask.formats.roots import root_of
from wkwdask.geometry import compressed_morton
from wkwdask.model.faults import Fault, FaultList, Findings
from wkwdask.model.stored_array import with_listing, without_listing
from wkwdask.store.paths import basename
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.formats.precomputed.info import Scale
    from wkwdask.formats.precomputed.layer import VolumeSource
    from wkwdask.formats.repair import LevelRepair
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.chunk_grid import Vec4
    from wkwdask.model.image import Level
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.model.writing.target_array import TargetArray


def list_scale(array: StoredArray, others: Sequence[StoredArray]) -> tuple[list[Any], list[Fault]]:
    """List the files of a scale, and faults of names that do not belong there."""
    # Unsharded files are pairs of a chunk's cell and the index of its suffix in `SUFFIXES`; shards
    # are their numbers. `others` are the same scale in other chunk sizes, whose files share the
    # folder.
    folder, naming = array.folder, array.naming
    if store_at(folder).link_target() and not store_at(folder).exists():
        return [], [
            Fault(
                "folder.dangling",
                folder,
                f"a symbolic link to {store_at(folder).link_target()}",
                "a folder",
            )
        ]
    if array.store.can.states and not array.store.is_folder():
        is_taken = store_at(folder).is_taken()
        return [], [Fault("folder.no_folder", folder, "a file", "a folder")] if is_taken else []
    found: list[Any]
    try:
        known = {
            entry.name
            for other in others
            if isinstance(other.naming, SpanNaming)
            for entry in other.naming.files(other.store).entries
        }
        if isinstance(naming, SpanNaming):
            chunks = naming.files(array.store)
            known |= {entry.name for entry in chunks.entries}
            rows = sorted(
                zip(chunks.cells[:, ::-1].tolist(), chunks.suffixes.tolist(), strict=True)
            )
            found = [((0, x, y, z), suffix) for (z, y, x), suffix in rows]
            twice = [
                Fault(
                    "chunk.twice",
                    f"{folder}/{naming.names(cell)[suffix]}",
                    f"chunk {cell[1:]} is also stored with another suffix",
                    "one file",
                )
                for (previous, _), (cell, suffix) in pairwise(found)
                if cell == previous
            ]
        else:
            assert isinstance(naming, ShardNaming)
            shards = naming.files(array.store)
            known |= {entry.name for entries in shards.values() for entry in entries}
            found = sorted(shards)
            twice = [
                Fault(
                    "shard.twice",
                    min(entry.path for entry in entries),
                    f"shard {shard} is also stored in the obsolete layout",
                    "one of them",
                )
                for shard, entries in shards.items()
                if len(entries) > 1 and any(entry.name.endswith(".shard") for entry in entries)
            ]
        expected = (
            "the name of a chunk of the grid"
            if isinstance(naming, SpanNaming)
            else "the name of a shard"
        )
        strays = list(_strays(folder, known, expected)) if array.store.can.states else []
    except OSError as error:
        return [], [Fault("folder.unreadable", folder, os.strerror(error.errno or 0))]
    return found, strays + twice


def _strays(folder: str, known: set[str], expected: str) -> Iterator[Fault]:
    for name in sorted(set(store_at(folder).names()) - known):
        path = f"{folder}/{name}"
        leftover = temporary_fault(path)
        if leftover is not None:
            yield leftover
        elif name.endswith((".shard", ".index", ".data")) or (
            name.count("_") == 2 and name.count("-") >= 3 and name[-1:].isalnum()
        ):
            # it resembles a shard or a name such as 0-64_0-64_0-64, but no reader requests it
            yield Fault("name.unread", path, name, expected)
        elif not name.startswith(".wkwdask"):
            yield Fault("name.stray", path, "a folder" if store_at(path).is_folder() else "a file")


@dataclass(frozen=True)
class PrecomputedCheck(ArrayCheck):
    """Check of the files of one scale; small to pickle."""

    def check_files(self, files: Sequence[Any]) -> Findings:
        return sum(
            (
                self._check_shard(file) if isinstance(file, int) else self.check_file(*file)
                for file in files
            ),
            Findings(),
        )

    def check_file(self, file: Vec4, variant: int) -> Findings:
        naming = self.array.naming
        if isinstance(naming, ShardNaming):
            return self._check_shard(int(naming.key(file).removesuffix(".shard"), 16))
        return super().check_file(file, variant)

    def largest_of(self, voxels: npt.NDArray[Any]) -> int | None:
        """Return the largest value, None if it is not searched for."""
        return int(voxels.max()) if self.find_largest and voxels.size else None

    def _check_shard(self, number: int) -> Findings:
        layout, store = self.array.layout, self.array.store
        assert isinstance(layout, PrecomputedShards)
        name = layout.sharding.shard_name(number)
        path = store.path_of(name)
        with ExitStack() as stack:
            try:
                shard = stack.enter_context(layout.opened(store, name))
            except CorruptError as error:
                return Findings(
                    (Fault("file.no_file", path, str(error).removeprefix(f"{path}: "), "a file"),),
                    1,
                )
            except MissingError as error:
                kind = "file.dangling" if "symbolic link" in str(error) else "shard.half"
                return Findings((Fault(kind, path, str(error).removeprefix(f"{path}: ")),), 1)
            except OSError as error:
                return Findings((Fault("file.unreadable", path, os.strerror(error.errno or 0)),), 1)
            # None: removed meanwhile
            return Findings() if shard is None else _ShardCheck(self, shard, number).run()


class _ShardCheck:
    def __init__(self, check: PrecomputedCheck, shard: OpenShard, number: int) -> None:
        self._check, self._shard, self._number = check, shard, number
        self._faults = FaultList()
        self._blocks = 0
        self._largest: int | None = None
        self._used = [np.zeros((0, 2), np.int64)]  # (start, end) of every chunk and index [bytes]

    def _add_fault(
        self,
        kind: str,
        found: str,
        expected: str,
        offset: int,
        chunk: int | None = None,
        cell: Vec4 | None = None,
    ) -> None:
        self._faults.add(
            Fault(
                kind,
                self._shard.name,
                found,
                expected,
                chunk,
                None if cell is None else self._check._voxel(cell),
                offset,
            )
        )

    def run(self) -> Findings:
        shard, sharding, index_file = (
            self._shard,
            self._shard.layout.sharding,
            self._shard.index_file,
        )
        index_nbytes = (
            store_at(index_file.name).status().st_size
            if index_file.nbytes is None
            else index_file.nbytes
        )
        nbytes = (
            index_nbytes
            if index_file is shard.file
            else index_nbytes + (shard.nbytes or store_at(shard.name).status().st_size)
        )
        if index_nbytes < sharding.index_nbytes:
            self._faults.add(
                Fault(
                    "shard.short",
                    index_file.name,
                    f"{index_nbytes} bytes",
                    f"at least the {sharding.index_nbytes} of its index",
                )
            )
        elif shard.is_unreferenced():
            self._faults.add(
                Fault(
                    "shard.index",
                    index_file.name,
                    "an empty shard index before chunks",
                    "places of minishards",
                    offset=0,
                )
            )
        else:
            for minishard in range(1 << sharding.minishard_bits):
                self._check_minishard(minishard)
            self._check_overlaps()
        return Findings(self._faults.to_tuple(), 1, nbytes, self._blocks, self._largest)

    def _check_minishard(self, minishard: int) -> None:
        shard = self._shard
        try:
            span = shard.minishard_range(minishard)
        except CorruptError as error:
            offset = INDEX_ENTRY_NBYTES * minishard
            self._faults.add(
                Fault(
                    "shard.index",
                    shard.index_file.name,
                    str(error).rpartition(": ")[2],
                    "a place in the file",
                    offset=offset,
                )
            )
            return
        if span is None or span[0] == span[1]:
            return
        offset = shard.first_byte + span[0]
        self._used.append(np.array([[offset, shard.first_byte + span[1]]], np.int64))
        try:
            ids, starts, sizes = shard.read_minishards({minishard: span})[minishard]
        except FormatError as error:
            self._add_fault(
                "minishard.broken",
                f"minishard {minishard}: {str(error).rpartition(f'byte {offset}: ')[2]}",
                "",
                offset,
            )
            return
        begins = starts.astype(np.int64) + shard.first_byte
        self._used.append(np.stack([begins, begins + sizes.astype(np.int64)], axis=1))
        for n, cell in self._members(ids, minishard, offset):
            self._check_chunk(int(ids[n]), cell, int(begins[n]), int(sizes[n]))

    def _members(
        self, ids: npt.NDArray[np.uint64], minishard: int, offset: int
    ) -> list[tuple[int, Vec4]]:
        """List the rows and cells of chunks that belong to a minishard; report all others, which no
        reader finds."""
        grid, sharding = self._shard.layout.counts, self._shard.layout.sharding
        positions = compressed_morton.decode(ids, grid)
        cells: list[Vec4] = [(0, x, y, z) for x, y, z in positions.tolist()]
        bits = len(compressed_morton.bit_axes(grid))
        outside = (positions >= np.array(grid)).any(axis=1)
        if bits < compressed_morton.MAX_BITS:
            outside |= ids >> np.uint64(bits) > 0
        shards, minishards = sharding.locate(ids)
        misplaced = ~outside & (
            (shards != np.uint64(self._number)) | (minishards != np.uint64(minishard))
        )
        for n in np.flatnonzero(outside).tolist():
            self._add_fault(
                "minishard.outside",
                f"chunk {ids[n]} in minishard {minishard}",
                f"chunks of a grid of {grid}",
                offset,
                int(ids[n]),
            )
        for n in np.flatnonzero(misplaced).tolist():
            correct_place = f"minishard {minishards[n]} of {sharding.shard_name(int(shards[n]))}"
            self._add_fault(
                "minishard.foreign",
                f"chunk {ids[n]} in minishard {minishard}",
                correct_place,
                offset,
                int(ids[n]),
                cells[n],
            )
        return [(n, cells[n]) for n in np.flatnonzero(~outside & ~misplaced).tolist()]

    def _check_chunk(self, chunk: int, cell: Vec4, offset: int, size: int) -> None:
        if not size:
            self._add_fault("chunk.empty", "0 bytes", "an encoded chunk", offset, chunk, cell)
        elif self._check.decode:
            array, name = self._check.array, self._shard.name
            try:
                (data,) = self._shard.read([(offset, offset + size)]) or [b""]
                largest = self._check.largest_of(
                    array.codec.decode(data, array.grid.shape_at(cell), name, offset)
                )
            except (FormatError, UnsupportedError) as error:
                self._add_fault(
                    "chunk.undecodable",
                    str(error).removeprefix(f"{name}: byte {offset}: "),
                    "",
                    offset,
                    chunk,
                    cell,
                )
                return
            self._blocks += 1
            self._largest = largest if self._largest is None else max(self._largest, largest or 0)

    def _check_overlaps(self) -> None:
        """Report bytes that belong to two parts of the file."""
        parts = np.concatenate(self._used)
        parts = parts[parts[:, 1] > parts[:, 0]]
        parts = parts[np.argsort(parts[:, 0], kind="stable")]
        # sorted by start, a part overlaps one before it if it starts before their largest end
        ends = np.maximum.accumulate(parts[:, 1])
        for n in np.flatnonzero(parts[1:, 0] < ends[:-1]).tolist():
            self._add_fault(
                "shard.overlap",
                f"a part that begins inside the one before it, which ends at byte {ends[n]}",
                "",
                int(parts[n + 1, 0]),
            )


@dataclass(frozen=True)
class ScaleScope(ArrayScope):
    """One scale in one chunk size."""

    title: str
    listing: Sequence[Any]
    """Files as :func:`list_scale` lists them."""

    @property
    def name(self) -> str:
        """Mag or key, and the chunk size if there are several."""
        return self.title

    def files(self) -> Sequence[Any]:
        return self.listing

    def files_of(self, shard: Vec3) -> list[Any]:
        if isinstance(self.array.naming, SpanNaming):
            return super().files_of(shard)
        paths = set(self.paths_of(shard))
        numbers = {
            int(basename(path).partition(".")[0], 16)
            for listed in self._listed()
            if (path := listed.entry.path) in paths
        }
        return [number for number in self.listing if number in numbers]

    def repairer(self) -> LevelRepair | None:
        naming = self.array.naming
        # each shard in two files
        is_obsolete = isinstance(naming, ShardNaming) and any(
            listed.variant for listed in self._listed()
        )
        is_box = (
            not isinstance(naming, ShardNaming)
            or naming.sharding.shard_cells(naming.counts) is not None
        )
        return super().repairer() if is_box and not is_obsolete else None

    def target(
        self, box: BoundingBox, staging_folder: str, folder: str | None = None
    ) -> TargetArray:
        target = super().target(box, staging_folder, folder)
        suffixed = with_stored_suffix(self.array)
        return replace(
            target, array=replace(target.array, naming=suffixed.naming, codec=suffixed.codec)
        )

    def check(self, *, decode: bool) -> PrecomputedCheck:
        return PrecomputedCheck(
            without_listing(self.array),
            decode,
            self._find_largest(decode=decode),
            self._lost if decode else frozenset(),
        )


def inspect_volume(
    url: str | os.PathLike[str],
    layers: Sequence[str] | None,
    mags: Sequence[Mag] | None,
) -> Scope:
    """List the scales and files to verify, and report the faults of ``info``."""
    path = location_of(url)
    faults: list[Fault] = []
    try:
        image = open_precomputed_layer(url)
    except FormatError as error:
        faults.append(
            Fault(
                "info.broken",
                f"{path}/{FILE_NAME}",
                str(error).removeprefix(f"{path}/{FILE_NAME}: "),
            )
        )
        return Scope(path, (), faults)
    path = image.folder
    for layer in layers or ():
        if layer != image.name:
            raise MissingError(
                f"{path}: no layer {layer!r}; a precomputed volume has one, {image.name!r}"
            )
    is_whole = image.key is None and mags is None
    if is_whole:
        faults += _info_faults(image.details.info, f"{path}/{FILE_NAME}")
    unknown = [mag for mag in mags or () if mag not in image.mags]
    if unknown:
        raise MissingError(
            f"{path}: no mag {unknown[0]}; there are {', '.join(map(str, image.mags)) or 'none'}"
        )
    selected = [
        level
        for level in image.selected
        if not level.problem and (mags is None or level.mag in mags)
    ]
    method = None if image.category is None else image.method_of(image.category)
    scopes = [
        scope
        for level in selected
        for scope in scale_scopes(image.details, level, basename(path), method, faults)
    ]
    folders = ((path, True),) if is_whole and image.details.store.can.states else ()
    return Scope(
        path, (LayerScope(basename(path), path, tuple(scopes)),), faults, folders, root_of(image)
    )


def scale_scopes(
    source: VolumeSource, level: Level, name: str, method: str | None, faults: list[Fault]
) -> list[ScaleScope]:
    """List the files of a scale in each of its chunk sizes, and append the faults of its folder to
    ``faults``."""
    scale: Scale = level.details
    mag = level.mag
    sizes = scale.chunk_sizes or (scale.chunk_size,)
    volumes = [
        with_listing(replace(source, chunk_size=size).open_scale(scale, mag)) for size in sizes
    ]
    scopes = []
    for number, volume in enumerate(volumes):
        listing, misplaced = list_scale(volume, [other for other in volumes if other is not volume])
        if not number:  # the folder is the same for every chunk size
            faults += misplaced
        size = f" in chunks of {'x'.join(map(str, volume.chunk_shape))}" if len(volumes) > 1 else ""
        title, document = (
            (scale.key if mag is None else mag.name) + size,
            f"{source.store.url}/{FILE_NAME}",
        )
        scopes.append(
            ScaleScope(name, level, by_written_units(volume), method, document, title, listing)
        )
    # jobs write scales with one chunk size
    if len(scopes) == 1 and store_at(volumes[0].folder).is_folder():
        faults += scopes[0].record_faults()
    folder = volumes[0].folder
    if not any(scope.listing for scope in scopes) and (
        store_at(folder).is_folder() or not store_at(folder).is_taken()
    ):
        faults.append(
            Fault("mag.empty", folder, "0 files" if store_at(folder).is_folder() else "no folder")
        )
    return scopes


def _info_faults(info: VolumeInfo, path: str) -> Iterator[Fault]:
    """Yield the faults of ``info``: unusable scales, and fields that other readers need."""
    for bad in info.unusable:
        kind = "info.unsupported" if bad.is_unsupported else "info.scale"
        yield Fault(kind, path, bad.problem.removeprefix(f"{path}: "))
    document = info.document
    for name in ("@type", "type", "num_channels"):
        if name not in document:
            yield Fault("info.absent", path, f"no {name}")
    keys = [scale.key for scale in info.scales]
    for key in sorted({key for key in keys if keys.count(key) > 1}):
        yield Fault("info.twice", path, f"{keys.count(key)} scales in the folder {key!r}", "one")
    listed, expected = (
        ", ".join(scale.key for scale in scales)
        for scales in (listed_scales(info), sorted_scales(info))
    )
    if listed != expected:
        yield Fault("image.order", path, f"scales {listed}", f"{expected}, by their resolutions")
    for scale in info.scales:
        if "sharding" in scale.entry and scale.entry["sharding"] is None:
            yield Fault(
                "info.null", path, f"scales[{scale.index}].sharding: null", "an object, or nothing"
            )
