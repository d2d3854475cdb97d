"""Verify a precomputed volume: its ``info``, and the files of its scales. Reports all faults, where
readers stop at the first. Never writes."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.errors import CorruptError, FormatError, MissingError
from wkwdask.formats.array_check import ArrayCheck, CheckedChunk
from wkwdask.formats.inspection import LevelScope, by_written_units
from wkwdask.formats.leftovers import temporary_fault
from wkwdask.formats.precomputed.array import with_stored_suffix
from wkwdask.formats.precomputed.info import FILE_NAME, VolumeInfo, listed_scales, sorted_scales
from wkwdask.formats.precomputed.layouts import OpenShard, PrecomputedShards, nbytes_of
from wkwdask.formats.precomputed.naming import ShardNaming, SpanNaming
from wkwdask.formats.precomputed.sharding import INDEX_ENTRY_NBYTES
from wkwdask.geometry import compressed_morton
from wkwdask.model.faults import Fault, FaultList, Findings
from wkwdask.model.stored_array import with_listing
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from wkwdask.array_types import BoolArray, IntArray, UintArray
    from wkwdask.formats.array_repair import ArrayRepair
    from wkwdask.formats.precomputed.info import Scale
    from wkwdask.formats.precomputed.layer import VolumeSource
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.model.chunk_grid import Vec4
    from wkwdask.model.image import Level
    from wkwdask.model.store import StoredFile
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.model.writing.target_array import TargetArray


def list_scale(
    array: StoredArray, others: Sequence[StoredArray]
) -> tuple[list[tuple[Vec4, int]], list[Fault]]:
    """List the files of a scale, and the faults of its folder."""
    # `others` are the same scale in other chunk sizes, whose files share the folder
    folder, naming = array.folder, array.naming
    store = store_at(folder)
    if store.link_target() and not store.exists():
        found = f"a symbolic link to {store.link_target()}"
        return [], [Fault("folder.dangling", folder, found, "a folder")]
    if array.store.can.states and not array.store.is_folder():
        if store.is_taken():
            return [], [Fault("folder.no_folder", folder, "a file", "a folder")]
        return [], [Fault("mag.empty", folder, "no folder")]
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
            files = [((0, x, y, z), suffix) for (z, y, x), suffix in rows]
            faults = [
                Fault(
                    "chunk.twice",
                    f"{folder}/{naming.names(cell)[suffix]}",
                    f"chunk {cell[1:]} is also stored with another suffix",
                    "one file",
                )
                for (previous, _), (cell, suffix) in pairwise(files)
                if cell == previous
            ]
            expected = "the name of a chunk of the grid"
        else:
            assert isinstance(naming, ShardNaming)
            shards = naming.files(array.store)
            known |= {entry.name for entries in shards.values() for entry in entries}
            files = [(naming.index(number), 0) for number in sorted(shards)]
            faults = [
                Fault(
                    "shard.twice",
                    min(entry.path for entry in entries),
                    f"shard {shard} is also stored in the obsolete layout",
                    "one of them",
                )
                for shard, entries in shards.items()
                if len(entries) > 1 and any(entry.name.endswith(".shard") for entry in entries)
            ]
            expected = "the name of a shard"
        faults += _strays(folder, known, expected) if array.store.can.states else ()
    except OSError as error:
        known, files = set(), []
        faults = [Fault("folder.unreadable", folder, os.strerror(error.errno or 0))]
    if not known:
        faults.append(Fault("mag.empty", folder, "0 files" if store.is_folder() else "no folder"))
    return files, faults


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

    def name_of(self, file: Vec4, variant: int) -> str:
        # the two files of a shard in the obsolete layout are checked together
        is_sharded = isinstance(self.array.naming, ShardNaming)
        return super().name_of(file, 0 if is_sharded else variant)

    def opened(self, name: str) -> AbstractContextManager[StoredFile | None]:
        layout, store = self.array.layout, self.array.store
        if isinstance(layout, PrecomputedShards):
            return layout.opened(store, name)
        return super().opened(name)

    def unopened(self, path: str, error: FormatError | OSError) -> Fault:
        fault = super().unopened(path, error)
        is_half = isinstance(error, MissingError) and "symbolic link" not in fault.found
        return replace(fault, kind="shard.half") if is_half else fault

    def check_opened(self, file: Vec4, opened: StoredFile) -> Findings:
        findings = super().check_opened(file, opened)
        return (
            replace(findings, nbytes=opened.total_nbytes)
            if isinstance(opened, OpenShard)
            else findings
        )

    def chunks(
        self,
        file: Vec4,
        opened: StoredFile,
        faults: FaultList,
        cells: IntArray | None = None,
    ) -> Iterator[CheckedChunk]:
        naming = self.array.naming
        if isinstance(naming, ShardNaming) and isinstance(opened, OpenShard) and cells is None:
            return _ShardCheck(self, opened, naming.number(file), faults).chunks()
        return super().chunks(file, opened, faults, cells)

    def chunk_fault(
        self,
        kind: str,
        cell: Vec4,
        path: str,
        offset: int | None,
        found: str,
        expected: str = "",
    ) -> Fault:
        fault = super().chunk_fault(kind, cell, path, offset, found, expected)
        layout = self.array.layout
        if not isinstance(layout, PrecomputedShards):
            return fault
        return replace(fault, block=int(layout.ids(np.array([cell]))[0]))


class _ShardCheck:
    def __init__(
        self, check: PrecomputedCheck, shard: OpenShard, number: int, faults: FaultList
    ) -> None:
        self._check, self._shard, self._number, self._faults = check, shard, number, faults
        self._used = [np.zeros((0, 2), np.int64)]  # (start, end) of every chunk and index [bytes]

    def _add_fault(
        self, kind: str, found: str, expected: str, offset: int, chunk: int | None = None
    ) -> None:
        self._faults.add(Fault(kind, self._shard.name, found, expected, chunk, offset=offset))

    def chunks(self) -> Iterator[CheckedChunk]:
        """Decode all chunks that a reader finds, and list all faults."""
        shard, sharding = self._shard, self._shard.layout.sharding
        path, index_nbytes = shard.index_file.name, nbytes_of(shard.index_file)
        if index_nbytes < sharding.index_nbytes:
            expected = f"at least the {sharding.index_nbytes} of its index"
            self._faults.add(Fault("shard.short", path, f"{index_nbytes} bytes", expected))
        elif shard.is_unreferenced():
            what = "an empty shard index before chunks", "places of minishards"
            self._faults.add(Fault("shard.index", path, *what, offset=0))
        else:
            for minishard in range(1 << sharding.minishard_bits):
                yield from self._minishard_chunks(minishard)
            self._check_overlaps()

    def _minishard_chunks(self, minishard: int) -> Iterator[CheckedChunk]:
        shard = self._shard
        try:
            span = shard.minishard_range(minishard)
        except CorruptError as error:
            self._faults.add(
                Fault(
                    "shard.index",
                    shard.index_file.name,
                    str(error).rpartition(": ")[2],
                    "a place in the file",
                    offset=INDEX_ENTRY_NBYTES * minishard,
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
            found = f"minishard {minishard}: {str(error).rpartition(f'byte {offset}: ')[2]}"
            self._add_fault("minishard.broken", found, "", offset)
            return
        begins = starts.astype(np.int64) + shard.first_byte
        places = np.stack([begins, begins + sizes.astype(np.int64), np.arange(len(ids))], axis=1)
        self._used.append(places[:, :2])
        cells, is_found = self._members(ids, minishard, offset)
        for n in np.flatnonzero(is_found & (sizes == 0)).tolist():
            self._faults.add(
                self._check.chunk_fault(
                    "chunk.empty",
                    tuple(cells[n].tolist()),
                    shard.name,
                    int(begins[n]),
                    "0 bytes",
                    "an encoded chunk",
                )
            )
        yield from self._check.decoded(cells, places[is_found & (sizes > 0)], shard, self._faults)

    def _members(self, ids: UintArray, minishard: int, offset: int) -> tuple[IntArray, BoolArray]:
        """Return the cells of the chunks of a minishard, shape (n, 4), and which of them belong
        there; report all others, which no reader finds."""
        grid, sharding = self._shard.layout.counts, self._shard.layout.sharding
        positions = compressed_morton.decode(ids, grid)
        cells = np.pad(positions.astype(np.int64), ((0, 0), (1, 0)))
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
            self._faults.add(
                self._check.chunk_fault(
                    "minishard.foreign",
                    tuple(cells[n].tolist()),
                    self._shard.name,
                    offset,
                    f"chunk {ids[n]} in minishard {minishard}",
                    f"minishard {minishards[n]} of {sharding.shard_name(int(shards[n]))}",
                )
            )
        return cells, ~outside & ~misplaced

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
class ScaleScope(LevelScope):
    """One scale in one chunk size."""

    title: str
    listing: Sequence[tuple[Vec4, int]]
    """Files as :func:`list_scale` lists them."""
    folder_faults: tuple[Fault, ...]
    """Faults of the folder, which is the same for all chunk sizes."""
    is_alone: bool
    """Whether it is the only chunk size, as in scales that jobs write."""

    @property
    def name(self) -> str:
        """Mag or key, and the chunk size if there are several."""
        return self.title

    def files(self) -> Sequence[tuple[Vec4, int]]:
        return self.listing

    def faults(self, known_names: Sequence[str]) -> Iterator[Fault]:
        del known_names
        yield from self.folder_faults
        if self.is_alone and store_at(self.folder).is_folder():
            yield from self.record_faults()

    def repairer(self) -> ArrayRepair | None:
        naming = self.array.naming
        # each shard in two files
        is_obsolete = isinstance(naming, ShardNaming) and any(
            variant for _, variant, _ in self.stored()
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
        return PrecomputedCheck(*self._check_fields(decode=decode))


def scale_scopes(
    source: VolumeSource, level: Level, name: str, method: str | None
) -> list[ScaleScope]:
    """List the files of a scale in each of its chunk sizes."""
    scale: Scale = level.details
    volumes = [
        with_listing(replace(source, chunk_size=size).open_scale(scale, level.mag))
        for size in scale.chunk_sizes or (scale.chunk_size,)
    ]
    title = scale.key if level.mag is None else level.mag.name
    scopes: list[ScaleScope] = []
    for volume in volumes:
        files, faults = list_scale(volume, [other for other in volumes if other is not volume])
        size = f" in chunks of {'x'.join(map(str, volume.chunk_shape))}" if len(volumes) > 1 else ""
        scopes.append(
            ScaleScope(
                name,
                level,
                by_written_units(volume),
                method,
                f"{source.store.url}/{FILE_NAME}",
                title + size,
                files,
                () if scopes else tuple(faults),
                len(volumes) == 1,
            )
        )
    return scopes


def info_faults(info: VolumeInfo, path: str) -> Iterator[Fault]:
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
