"""Check the data files of one mag, page by page and batch by batch, and list every fault.

Readers stop at the first fault of a file; this module continues behind it. It never writes.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from wkwdask.errors import FormatError, TruncatedError, UnsupportedError
from wkwdask.formats.array_check import ArrayCheck, IntactChunks
from wkwdask.formats.wkw.file import ENTRY_NBYTES, decode_block, decoded_nbytes, table_range
from wkwdask.formats.wkw.folder import open_data_file
from wkwdask.formats.wkw.header import (
    HEADER_NBYTES,
    INTEROPERABLE_LEN,
    BlockType,
    WkwHeader,
    parse_header,
)
from wkwdask.formats.wkw.layout import header_of, layout_of
from wkwdask.formats.wkw.stored_file import PAGE_LEN, read_buffer
from wkwdask.geometry import morton
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.grid import cell_box
from wkwdask.geometry.vectors import minus, times
from wkwdask.kernels.blocks.batch import compress_bound, decode_into
from wkwdask.kernels.blocks.layout import CODE, OFFSET, SIZE, START, Z
from wkwdask.model.faults import NOTE, Fault, FaultList, Findings
from wkwdask.model.voxel_type import by_wkw_code
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from wkwdask.array_types import AnyArray, BoolArray, ByteArray, IntArray, UintArray
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.chunk_grid import Vec4
    from wkwdask.model.store import OpenFile, StoredFile

VALID, IN_TABLE, DECREASING, PAST_END, EMPTY = range(5)
"""Verdicts on the boundaries of a block."""

_TABLE_KINDS = {
    IN_TABLE: "table.inside",
    DECREASING: "table.falls",
    PAST_END: "table.beyond",
    EMPTY: "table.empty_block",
}


def check_mag_header(raw: bytes, path: str) -> tuple[WkwHeader | None, list[Fault]]:
    """Check ``header.wkw``; returns its header, None if it is unusable, and all faults."""
    header, faults = _check_header(raw, path, "header")
    if header is None:
        return None, faults
    if max(header.block_len, header.file_len) > INTEROPERABLE_LEN:
        lengths = f"block_len {header.block_len}, file_len {header.file_len}"
        faults.append(
            Fault("header.lengths", path, lengths, f"at most {INTEROPERABLE_LEN}", offset=4)
        )
    if header.data_offset:
        faults.append(
            Fault("header.data_offset", path, f"data offset {header.data_offset}", "0", offset=8)
        )
    if len(raw) > HEADER_NBYTES:
        faults.append(Fault("header.long", path, f"{len(raw)} bytes", f"{HEADER_NBYTES} bytes"))
    return header.for_header_file(), faults


def check_file_header(
    raw: bytes, nbytes: int, mag_header: WkwHeader, path: str
) -> tuple[WkwHeader | None, list[Fault]]:
    """Check the header of a data file; returns it, None if the file cannot be read with it, and all
    faults."""
    if nbytes == 0:
        return None, [
            Fault("file.empty", path, "0 bytes", f"at least {mag_header.smallest_data_offset}")
        ]
    header, faults = _check_header(raw, path, "file")
    if header is None:
        return None, faults
    for offset, kind, expected, found in (
        (4, "file.block_len", mag_header.block_len, header.block_len),
        (4, "file.file_len", mag_header.file_len, header.file_len),
        (6, "file.voxel_type", mag_header.dtype.name, header.dtype.name),
        (7, "file.channels", mag_header.num_channels, header.num_channels),
    ):
        if expected != found:
            faults.append(
                Fault(kind, path, str(found), f"{expected} as in header.wkw", offset=offset)
            )
    if header.data_offset < header.smallest_data_offset:
        faults.append(
            Fault(
                "file.data_offset",
                path,
                f"data offset {header.data_offset}",
                str(header.smallest_data_offset),
                offset=8,
            )
        )
    if faults:
        return None, faults
    if header.block_type is not mag_header.block_type:
        kind = (
            "file.lz4_level"
            if header.is_compressed == mag_header.is_compressed
            else "file.block_type"
        )
        faults.append(
            Fault(
                kind,
                path,
                header.block_type.label,
                f"{mag_header.block_type.label} as in header.wkw",
                offset=5,
            )
        )
    if header.data_offset > header.smallest_data_offset:
        faults.append(
            Fault(
                "file.padding",
                path,
                f"data offset {header.data_offset}",
                str(header.smallest_data_offset),
                offset=8,
            )
        )
    return header, faults


def _check_header(raw: bytes, path: str, prefix: str) -> tuple[WkwHeader | None, list[Fault]]:
    """Check the fields that all headers share; ``prefix`` is ``header`` or ``file`` and starts the
    kind of each fault."""
    if len(raw) < HEADER_NBYTES:
        return None, [
            Fault(f"{prefix}.short", path, f"{len(raw)} bytes", f"at least {HEADER_NBYTES}")
        ]
    bad = "bad_" if prefix == "file" else ""
    faults = []
    if raw[:3] != b"WKW":
        faults.append(Fault(f"{prefix}.magic", path, repr(raw[:3]), repr(b"WKW"), offset=0))
    if raw[3] != 1:
        faults.append(Fault(f"{prefix}.version", path, f"version {raw[3]}", "1", offset=3))
    if raw[5] not in BlockType.__members__.values():
        faults.append(
            Fault(
                f"{prefix}.{bad}block_type",
                path,
                f"block type {raw[5]}",
                "1 (raw), 2 (lz4) or 3 (lz4hc)",
                offset=5,
            )
        )
    voxel_type = by_wkw_code(raw[6])
    if voxel_type is None:
        faults.append(
            Fault(f"{prefix}.{bad}voxel_type", path, f"voxel type {raw[6]}", "1 to 10", offset=6)
        )
    elif raw[7] == 0 or raw[7] % voxel_type.dtype.itemsize:
        expected = f"a multiple of {voxel_type.dtype.itemsize} ({voxel_type.dtype.name})"
        faults.append(
            Fault(f"{prefix}.{bad}voxel_size", path, f"{raw[7]} bytes a voxel", expected, offset=7)
        )
    if faults:
        return None, faults
    try:
        return parse_header(raw, path, is_data_file=False), []
    except (FormatError, UnsupportedError) as error:
        return None, [
            Fault(f"{prefix}.block_nbytes", path, str(error).removeprefix(f"{path}: "), offset=4)
        ]


def classify_bounds(bounds: UintArray, header: WkwHeader, nbytes: int) -> ByteArray:
    """Return a verdict on each pair of boundaries of a jump table.

    Examples
    --------
    >>> from wkwdask.formats.wkw.header import make_header
    >>> header = make_header("uint8", block_len=8, file_len=1)
    >>> classify_bounds(np.array([24, 30, 30, 28, 99, 5], np.uint64), header, 40).tolist()
    [0, 4, 2, 3, 1]
    """
    starts, ends = bounds[:-1], bounds[1:]
    first = header.smallest_data_offset
    conditions = ((starts < first) | (ends < first), ends < starts, ends > nbytes, ends == starts)
    return np.select(conditions, [IN_TABLE, DECREASING, PAST_END, EMPTY], VALID).astype(np.uint8)


def table_fault(
    code: int, verdict: int, bounds: UintArray, at: int, nbytes: int, path: str
) -> Fault:
    """Return the fault of a block with invalid boundaries."""
    start, end = int(bounds[at]), int(bounds[at + 1])
    expected = (
        f"within the file's {nbytes} bytes"
        if verdict == PAST_END
        else "boundaries that increase from the end of the table"
    )
    return Fault(
        _TABLE_KINDS[verdict],
        path,
        f"bytes {start} to {end}",
        expected,
        block=code,
        offset=HEADER_NBYTES + ENTRY_NBYTES * code,
    )


_PAGE_ENTRIES = PAGE_LEN**3
_BATCH_NBYTES = 8 << 20
# in a file to repair: eight times as many as the interoperable maximum of 128^3
_MAX_BLOCKS = 1 << 24


@dataclass(frozen=True)
class WkwCheck(ArrayCheck):
    """Check of the files of one mag; small to pickle."""

    box: BoundingBox | None = None
    """Box of the layer [voxels of the mag]; None if unknown."""
    recorded_box: BoundingBox | None = None
    """Box in the provenance [voxels of the mag]; it replaces an unknown ``box`` in the search for
    nonzero voxels outside."""

    @cached_property
    def header(self) -> WkwHeader:
        """Expected header of the files."""
        return header_of(self.array)

    def unopened(self, path: str, error: FormatError | OSError) -> Fault:
        fault, store = super().unopened(path, error), store_at(path)
        if fault.kind == "file.dangling":
            found = f"a symbolic link to {store.link_target()}"
            return replace(fault, found=found, expected="a file")
        if fault.kind == "file.no_file":
            return replace(fault, found="a folder" if store.is_folder() else "a special file")
        return fault

    def check_opened(self, file: Vec4, opened: StoredFile) -> Findings:
        return _FileCheck(self, file[1:], cast("OpenFile", opened)).run()

    def intact(self, file: Vec4, opened: StoredFile, head: Any = None) -> IntactChunks:
        del opened
        blocks = self.intact_blocks(file[1:], head)
        codes = np.arange(len(blocks.bounds), dtype=np.uint64)
        corner = np.array(file[1:], np.int64) * self.header.file_len
        cells = np.pad(morton.decode(codes).astype(np.int64) + corner, ((0, 0), (1, 0)))
        is_intact = blocks.bounds[:, 1] > 0
        header = (blocks.header or self.header).for_data_file()
        layout = replace(layout_of(self.array), header=header)
        return IntactChunks(cells[is_intact], blocks.bounds[is_intact], cells[~is_intact], layout)

    def open_damaged(self, shard: Vec3) -> DamagedFile:
        """Open a file with broken blocks, for reading its intact ones."""
        return DamagedFile(self, shard)

    def intact_blocks(self, shard: Vec3, header: WkwHeader | None = None) -> IntactBlocks:
        """Find the blocks of a file that can be decoded, by its own header or by a given one."""
        if self.header.blocks_per_file > _MAX_BLOCKS:
            return IntactBlocks(None, np.zeros((0, 2), np.int64), is_whole=False)
        with open_data_file(self.array.store, shard) as file:
            check = _FileCheck(replace(self, decode=True), shard, file, header)
            bounds = check.intact_bounds = np.zeros((self.header.blocks_per_file, 2), np.int64)
            faults = check.run().faults
        return IntactBlocks(
            check.header, bounds, is_whole=not [fault for fault in faults if fault.severity != NOTE]
        )


@dataclass(frozen=True, slots=True)
class IntactBlocks:
    """The blocks of a file that can be decoded."""

    header: WkwHeader | None
    """Header used for decoding; None if it is broken or belongs to another mag."""
    bounds: IntArray
    """Start and end of each block [bytes], (0, 0) for a broken one; shape (blocks_per_file, 2)."""
    is_whole: bool
    """Whether the file has no fault under that header."""

    @property
    def num_intact(self) -> int:
        """Number of intact blocks."""
        return int((self.bounds[:, 1] > 0).sum())


class DamagedFile:
    """Reader of the intact blocks of a broken file."""

    def __init__(self, check: WkwCheck, shard: Vec3) -> None:
        self._store, self._shard = check.array.store, shard
        self._intact = check.intact_blocks(shard)
        self._corner = times(shard, (check.header.file_len,) * 3)

    def intact_parts(self, block: Vec3) -> Iterator[tuple[int, AnyArray]]:
        """Yield channel 0 and the voxels (c, x, y, z) of a block, given by its index in the mag,
        unless it is broken."""
        header = self._intact.header
        if header is None or not self._intact.num_intact:
            return
        code = int(morton.encode([minus(block, self._corner)])[0])
        start, end = self._intact.bounds[code].tolist()
        if not end:
            return
        with open_data_file(self._store, self._shard) as file:
            (data,) = file.read([(start, end)])
            yield 0, decode_block(data, header, file.name, code, start)


class _FileCheck:
    """Check of one open file."""

    def __init__(
        self, check: WkwCheck, shard: Vec3, file: OpenFile, header: WkwHeader | None = None
    ) -> None:
        self._check = check
        self._path = file.name
        self._file = file
        self._nbytes = file.nbytes
        edge = check.header.file_len_vx
        self._corner = (shard[0] * edge, shard[1] * edge, shard[2] * edge)
        self._cube = (
            None
            if check.box is None
            else cell_box(shard, (check.header.file_len_vx,) * 3, check.box)
        )
        self._faults = FaultList()
        self._blocks = self._nonzero = 0
        self._largest: int | None = None
        self._outside: BoundingBox | None = None
        self.intact_bounds: IntArray | None = None
        self.header = header

    def run(self) -> Findings:
        if self.header is None:
            self.header, faults = check_file_header(
                self._file.read_some(HEADER_NBYTES, 0), self._nbytes, self._check.header, self._path
            )
            self._faults.add(*faults)
        if self.header is not None:
            try:
                self._check_blocks(self.header)
            except (OSError, TruncatedError) as error:
                self._faults.add(
                    Fault("file.unreadable", self._path, str(error).removeprefix(f"{self._path}: "))
                )
        if (
            self._cube is not None
            and self._check.box is not None
            and self._cube.intersection(self._check.box).is_empty
        ):
            self._faults.add(
                Fault(
                    "file.outside",
                    self._path,
                    "voxels from {}, {}, {} on".format(*self._corner),
                    str(self._check.box),
                )
            )
        return Findings(
            self._faults.to_tuple(), 1, self._nbytes, self._blocks, self._largest, self._outside
        )

    def _check_blocks(self, header: WkwHeader) -> None:
        if header.is_compressed and self._nbytes < header.smallest_data_offset:
            self._faults.add(
                Fault(
                    "table.truncated",
                    self._path,
                    f"{self._nbytes} bytes",
                    f"{header.smallest_data_offset} for header and jump table",
                )
            )
            return
        end = self._end(header)
        self._check_bounds(header, end)
        if header.smallest_data_offset <= end < self._nbytes:
            self._faults.add(
                Fault(
                    "file.trailing", self._path, f"{self._nbytes} bytes", f"{end} bytes", offset=end
                )
            )
        if self._check.decode and not self._nonzero and not self._faults:
            self._faults.add(
                Fault("file.zeros", self._path, f"{self._nbytes} bytes, all voxels are zero")
            )

    def _check_bounds(self, header: WkwHeader, end: int) -> None:
        """Check the boundaries of every block, and decode blocks whose boundaries are valid."""
        count = header.blocks_per_file
        if not header.is_compressed:  # only blocks that end within the file
            count = min(count, max(0, self._nbytes - header.data_offset) // header.block_nbytes)
        lost, first_lost = header.blocks_per_file - count, count
        # Only one page of the jump table is in memory at a time, for files of any size.
        for first, bounds in self._pages(header, count):
            verdicts = classify_bounds(bounds, header, self._nbytes)
            if end > self._nbytes:  # a truncated file: report all blocks past its end as one fault
                beyond = np.flatnonzero(verdicts == PAST_END)
                first_lost = min(first_lost, first + int(beyond[0])) if len(beyond) else first_lost
                lost += len(beyond)
            for at in np.flatnonzero(
                (verdicts != VALID) & ((verdicts != PAST_END) | (end <= self._nbytes))
            ).tolist():
                fault = table_fault(
                    first + at, int(verdicts[at]), bounds, at, self._nbytes, self._path
                )
                if self._faults.count(fault.kind):
                    self._faults.append_counted(replace(fault, voxel=self._voxel(first + at)))
            if self._check.decode:
                self._decode_valid(header, first, bounds.astype(np.int64), verdicts == VALID)
        if lost:
            found = (
                f"{self._nbytes} bytes, {lost} of {header.blocks_per_file} blocks end past the end "
                "of the file"
            )
            self._faults.add(
                self._at_block("file.truncated", first_lost, found, f"{end} bytes", None)
            )

    def _end(self, header: WkwHeader) -> int:
        """Return the expected end of the last block [bytes]."""
        if not header.is_compressed:
            return header.data_offset + header.blocks_per_file * header.block_nbytes
        return int.from_bytes(
            self._file.read_some(ENTRY_NBYTES, header.smallest_data_offset - ENTRY_NBYTES), "little"
        )

    def _pages(self, header: WkwHeader, num_blocks: int) -> Iterator[tuple[int, UintArray]]:
        """Yield the boundaries of the first ``num_blocks`` blocks by page: number of the first
        block, boundaries."""
        for first in range(0, num_blocks, _PAGE_ENTRIES):
            count = min(_PAGE_ENTRIES, num_blocks - first)
            if header.is_compressed:
                offset, nbytes = table_range(first, count)
                raw = np.empty(nbytes, np.uint8)
                self._file.read_into(raw, offset)
                bounds = raw.view("<u8").astype(np.uint64)
                if first == 0:
                    bounds[0] = header.data_offset
                yield first, bounds
            else:
                yield (
                    first,
                    (
                        header.data_offset
                        + np.arange(first, first + count + 1) * header.block_nbytes
                    ).astype(np.uint64),
                )

    def _decode_valid(
        self,
        header: WkwHeader,
        first: int,
        bounds: IntArray,
        is_valid: BoolArray,
    ) -> None:
        """Decode the blocks of a page that have valid boundaries, in runs of consecutive blocks."""
        sizes = np.diff(bounds)
        # No LZ4 block exceeds its bound. A size of more than twice the bound is a wrong boundary,
        # and no memory may be allocated for it.
        too_long = is_valid & (sizes > 2 * compress_bound(header.block_nbytes))
        for at in np.flatnonzero(too_long).tolist():
            self._faults.add(
                self._at_block(
                    "block.undecodable",
                    first + at,
                    f"{sizes[at]} stored bytes",
                    "an LZ4 block",
                    int(bounds[at]),
                )
            )
        decodable = np.flatnonzero(is_valid & ~too_long)
        for run in np.split(decodable, np.flatnonzero(np.diff(decodable) != 1) + 1):
            for batch in _batches(run, sizes[run], header.block_nbytes):
                self._decode_batch(header, first + batch, bounds[batch], sizes[batch])

    def _decode_batch(
        self,
        header: WkwHeader,
        codes: IntArray,
        starts: IntArray,
        sizes: IntArray,
    ) -> None:
        memory = read_buffer(int(sizes.sum()))
        self._file.read_into(memory, int(starts[0]))
        edge, count = header.block_len, len(codes)
        # Stack the blocks along z of one array, so that one compiled call decodes them all and each
        # stays a contiguous slice.
        table = np.zeros((count, Z + 1), np.int64)
        table[:, CODE], table[:, OFFSET], table[:, SIZE], table[:, START] = (
            codes,
            starts,
            sizes,
            starts - starts[0],
        )
        table[:, Z] = np.arange(count) * edge
        out = np.empty(
            (header.num_channels, edge, edge, edge * count),
            header.dtype.newbyteorder("="),
            order="F",
        )
        is_valid = np.ones(count, np.bool_)
        first = 0
        while first < count:
            # a call stops at the first broken block: note it, zero it, and continue behind it
            decoded = decode_into(
                memory,
                table[first:],
                out,
                block_len=edge,
                num_channels=header.num_channels,
                block_type=header.block_type,
            )
            self._nonzero += decoded.nonzero
            if decoded.broken < 0:
                break
            at = first + decoded.broken
            is_valid[at] = False
            out[..., at * edge : (at + 1) * edge] = 0
            self._add_broken(header, table[at], decoded.broken_nbytes, memory)
            first = at + 1
        self._blocks += int(is_valid.sum())
        if self.intact_bounds is not None:
            self.intact_bounds[codes[is_valid]] = np.stack([starts, starts + sizes], axis=1)[
                is_valid
            ]
        if self._check.find_largest:
            self._largest = max(int(out.max()), self._largest or 0)
        self._find_outside(out, table, edge)

    def _add_broken(
        self,
        header: WkwHeader,
        row: IntArray,
        nbytes: int,
        memory: ByteArray,
    ) -> None:
        stored = memory[row[START] : row[START] + row[SIZE]].tobytes()
        if nbytes < 0:
            # a block larger than expected fails like a broken one: decode it with more room to tell
            # them apart
            nbytes = decoded_nbytes(stored, 4 * header.block_nbytes)
        kind = (
            "block.undecodable"
            if nbytes < 0
            else "block.too_few"
            if nbytes < header.block_nbytes
            else "block.too_many"
        )
        found = (
            f"{row[SIZE]} stored bytes are not an LZ4 block"
            if nbytes < 0
            else f"{row[SIZE]} stored bytes decode to {nbytes} bytes"
        )
        self._faults.add(
            self._at_block(
                kind, int(row[CODE]), found, f"{header.block_nbytes} bytes", int(row[OFFSET])
            )
        )

    def _at_block(
        self, kind: str, code: int, found: str, expected: str, offset: int | None
    ) -> Fault:
        return Fault(
            kind, self._path, found, expected, block=code, voxel=self._voxel(code), offset=offset
        )

    def _voxel(self, code: int) -> Vec3:
        x, y, z = (
            int(n) * self._check.header.block_len + corner
            for n, corner in zip(morton.decode([code])[0], self._corner, strict=True)
        )
        return x, y, z

    def _find_outside(self, out: AnyArray, table: IntArray, edge: int) -> None:
        """Extend the box of nonzero voxels outside the layer's box, from blocks that are not
        completely inside."""
        box = self._check.recorded_box if self._check.box is None else self._check.box
        if box is None or box.contains(
            BoundingBox(self._corner, (self._check.header.file_len_vx,) * 3, box.mag)
        ):
            return
        corners = morton.decode(table[:, CODE]) * edge + self._corner
        is_cut = (corners < box.topleft).any(axis=1) | (corners + edge > box.bottomright).any(
            axis=1
        )
        for at in np.flatnonzero(is_cut).tolist():
            corner = corners[at].tolist()
            nonzero = (out[..., at * edge : (at + 1) * edge] != 0).any(axis=0)
            low = [min(max(a - c, 0), edge) for a, c in zip(box.topleft, corner, strict=True)]
            high = [min(max(b - c, 0), edge) for b, c in zip(box.bottomright, corner, strict=True)]
            nonzero[tuple(slice(a, b) for a, b in zip(low, high, strict=True))] = False
            if nonzero.any():
                places = np.argwhere(nonzero)
                outside = BoundingBox.from_corners(
                    (places.min(axis=0) + corner).tolist(),
                    (places.max(axis=0) + corner + 1).tolist(),
                    box.mag,
                )
                self._outside = outside if self._outside is None else self._outside.union(outside)


def _batches(
    blocks: npt.NDArray[np.intp], sizes: IntArray, block_nbytes: int
) -> Iterator[npt.NDArray[np.intp]]:
    """Split consecutive blocks into batches that are bounded in stored and in decoded bytes."""
    if not len(blocks):
        return
    most = max(1, _BATCH_NBYTES // block_nbytes)
    ends = np.cumsum(sizes)
    cuts = [0]
    while cuts[-1] < len(blocks):
        before = ends[cuts[-1] - 1] if cuts[-1] else 0
        fits = int(np.searchsorted(ends, before + _BATCH_NBYTES, side="right"))
        cuts.append(max(cuts[-1] + 1, min(fits, cuts[-1] + most)))
    for a, b in itertools.pairwise(cuts):
        yield blocks[a:b]
