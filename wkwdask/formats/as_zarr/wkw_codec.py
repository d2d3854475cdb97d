"""Zarr v3 codec ``wkw``: a chunk is one WKW data file, with its header, jump table and blocks.

Arrays have the axes z, y, x or c, z, y, x. A partial read fetches the header, the needed pages of
the jump table, and the blocks. Compiled kernels decode many blocks at once without the GIL. All
input is checked as in :mod:`wkwdask.formats.wkw.stored_file`.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from zarr.abc.codec import ArrayBytesCodec, ArrayBytesCodecPartialDecodeMixin
from zarr.abc.store import RangeByteRequest
from zarr.storage import LocalStore

from wkwdask.errors import CorruptError, FormatError, TruncatedError, UnsupportedError
from wkwdask.formats.wkw.file import (
    MAX_LZ4_RATIO,
    block_bounds,
    format_file_head,
    parse_jump_table,
    raw_block_bounds,
    table_range,
)
from wkwdask.formats.wkw.header import (
    HEADER_NBYTES,
    BlockType,
    WkwHeader,
    make_header,
    parse_header,
)
from wkwdask.geometry import morton
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.grid import cell_range
from wkwdask.geometry.mag import vec3
from wkwdask.geometry.vectors import minus, times
from wkwdask.kernels.blocks.batch import compress_bound, decode_into, encode_from
from wkwdask.kernels.blocks.layout import CODE, OFFSET, SIZE, START
from wkwdask.kernels.blocks.levels import USUAL_LEVEL
from wkwdask.kernels.blocks.locate import locate_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from zarr.abc.store import ByteGetter
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer, NDBuffer
    from zarr.core.indexing import SelectorTuple

    from wkwdask.array_types import AnyArray, ByteArray, IntArray
    from wkwdask.geometry.mag import Vec3
    from wkwdask.kernels.blocks.locate import BlockLocations

SOURCE = "<chunk>"
"""Placeholder for the name of a chunk in errors, see :func:`named_errors`."""
_MAX_REQUESTS = 8  # concurrent requests per chunk; zarr reads several chunks at the same time
# a smaller gap between two byte ranges is read too, because another request costs more
_GAP_NBYTES = 64 << 10
_BATCH_NBYTES = 8 << 20
_FEW_BLOCKS = 8  # up to this many blocks are decoded in the event loop: a thread costs more
_PAGE_LEN = 32  # [blocks] longest edge of a page of the jump table
_ANY_NBYTES = 1 << 62  # the size of a file is unknown here


@dataclass(frozen=True)
class WkwCodec(ArrayBytesCodec, ArrayBytesCodecPartialDecodeMixin):  # type: ignore[misc, unused-ignore]
    block_len: int = 32
    compression: str = "lz4hc"
    level: int = USUAL_LEVEL

    is_fixed_size = False

    def __post_init__(self) -> None:
        BlockType.parse(self.compression)
        if (
            not isinstance(self.block_len, int)
            or not 1 <= self.block_len <= 1 << 15
            or self.block_len & (self.block_len - 1)
        ):
            raise ValueError(
                f"codec wkw: block_len must be a power of two in 1..{1 << 15}, got "
                f"{self.block_len!r}"
            )
        if not isinstance(self.level, int) or not 1 <= self.level <= 12:
            raise ValueError(f"codec wkw: level must be in 1..12, got {self.level!r}")

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        return cls(**(data.get("configuration") or {}))

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": "wkw",
            "configuration": {
                "block_len": self.block_len,
                "compression": self.compression,
                "level": self.level,
            },
        }

    def validate(self, *, shape: tuple[int, ...], dtype: Any, chunk_grid: Any) -> None:
        chunk_shape = getattr(chunk_grid, "chunk_shape", None)
        if chunk_shape is not None:
            self._header(tuple(chunk_shape), dtype.to_native_dtype())
            if len(shape) == 4 and chunk_shape[0] != shape[0]:
                raise ValueError(
                    f"codec wkw: all {shape[0]} channels must be in one chunk, got chunks of "
                    f"{chunk_shape[0]}"
                )

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        raise NotImplementedError

    def _header(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> WkwHeader:
        edge = shape[-1] if shape else 0
        if len(shape) not in (3, 4) or set(shape[-3:]) != {edge} or edge % self.block_len:
            raise ValueError(
                "codec wkw: chunks must be cubes along z, y, x of a power of two of blocks "
                f"(block_len {self.block_len}), with all channels, got {shape}"
            )
        num_channels = shape[0] if len(shape) == 4 else 1
        block_type = BlockType.parse(self.compression)
        return make_header(
            dtype,
            num_channels,
            block_len=self.block_len,
            file_len=edge // self.block_len,
            block_type=block_type,
            any_length=True,
        )

    def _header_of(self, raw: Any, spec: ArraySpec) -> WkwHeader:
        """Parse the header of a stored file, and check that it belongs to this array."""
        header = parse_header(bytes(raw[:HEADER_NBYTES]), SOURCE, is_data_file=True)
        self._header(spec.shape, spec.dtype.to_native_dtype()).check_same_mag(header, SOURCE)
        return header

    def _decode_sync(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        whole = BoundingBox((0, 0, 0), tuple(reversed(chunk_spec.shape[-3:])))  # type: ignore[arg-type]
        return _buffer(self._decode_box(chunk_data, chunk_spec, whole), chunk_spec)

    async def _decode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        return await asyncio.to_thread(self._decode_sync, chunk_data, chunk_spec)

    def _decode_box(self, chunk_data: Buffer, spec: ArraySpec, box: BoundingBox) -> AnyArray:
        memory = bytes_of(chunk_data)
        raw: Any = memory.data
        header = self._header_of(raw, spec)
        bounds = block_bounds(raw, header, SOURCE)
        out = _empty_array(spec, box)
        for page, count in _table_pages(header, box):
            part = bounds[page.first : page.first + count + 1]
            located = page.locate(part, header, box)
            _check_sizes(located, header, page.first)
            for first, last, _, _ in _batches(located):
                blocks = located.blocks[first:last]
                # the memory is the whole file, not the joined byte ranges of a batch
                blocks[:, START] = blocks[:, OFFSET]
                _decode(memory, blocks, header, out, page.first)
        return out

    def _encode_sync(self, chunk_data: NDBuffer, chunk_spec: ArraySpec) -> Buffer | None:
        array = np.asarray(chunk_data.as_numpy_array())
        voxels = _as_cxyz(array)
        header = self._header(array.shape, array.dtype)
        step = header.block_len
        per_batch = max(1, _BATCH_NBYTES // header.block_nbytes)
        sizes, pieces = [], []
        for first in range(0, header.blocks_per_file, per_batch):
            count = min(per_batch, header.blocks_per_file - first)
            corners = morton.decode(np.arange(first, first + count)).astype(np.int64) * step
            memory = np.empty(count * compress_bound(header.block_nbytes), np.uint8)
            encoded = encode_from(
                voxels,
                corners,
                memory,
                block_len=step,
                block_type=header.block_type,
                level=self.level,
                store_zero=True,
            )
            sizes.append(encoded.sizes)
            pieces.append(memory[: encoded.nbytes].copy())
        head = np.frombuffer(format_file_head(header, np.concatenate(sizes)), np.uint8)
        return chunk_spec.prototype.buffer.from_array_like(np.concatenate([head, *pieces]))

    async def _encode_single(self, chunk_data: NDBuffer, chunk_spec: ArraySpec) -> Buffer | None:
        return await asyncio.to_thread(self._encode_sync, chunk_data, chunk_spec)

    async def _decode_partial_single(
        self, byte_getter: ByteGetter, selection: SelectorTuple, chunk_spec: ArraySpec
    ) -> NDBuffer | None:
        with named_errors(byte_getter):
            return await self._decode_selected(byte_getter, selection, chunk_spec)

    def _decode_partial_sync(
        self, byte_getter: Any, selection: SelectorTuple, chunk_spec: ArraySpec
    ) -> NDBuffer | None:
        """Decode a selection for zarr's synchronous codec pipeline, without an event loop."""
        read: NDBuffer | None = run_to_completion(
            self._decode_partial_single(BlockingGetter(byte_getter), selection, chunk_spec)
        )
        return read

    async def _decode_selected(
        self, getter: Any, selection: SelectorTuple, spec: ArraySpec
    ) -> NDBuffer | None:
        box, rest = enclosing_box(selection, spec.shape)
        edge = spec.shape[-1]
        if box.is_empty:
            return _buffer(_empty_array(spec, box)[rest], spec)
        # a chunk inside a shard; some versions of zarr ignore byte ranges here
        in_memory = hasattr(getter, "shard_dict")
        # on remote storage, one long request costs less than many
        is_large_part = 2 * box.volume >= edge**3 and not is_local(getter)
        if in_memory or is_large_part or edge <= self.block_len:
            data = await getter.get(spec.prototype)
            array = (
                None
                if data is None
                else await run_in_thread(getter, self._decode_box, data, spec, box)
            )
        else:
            array = await self._read_box(getter, spec, box)
        return None if array is None else _buffer(array[rest], spec)

    async def _read_box(self, getter: Any, spec: ArraySpec, box: BoundingBox) -> AnyArray | None:
        """Read and decode the blocks of a box; None if the file is absent."""
        # | header 16 B | jump table: end of each block, Morton order | block | block | ...
        #                 `- page: aligned cube of blocks -'            `- batch: merged byte ranges -'  # noqa: E501
        # The blocks of an aligned cube are contiguous in Morton order, so a page is one byte range
        # of the table.
        expected = self._header(spec.shape, spec.dtype.to_native_dtype())
        pages = list(_table_pages(expected, box))
        page, count = pages[0]
        # the table follows the header: one request fetches the header and a first page
        with_table = expected.is_compressed and page.first == 0
        head = await get(
            getter, spec, 0, sum(table_range(0, count)) if with_table else HEADER_NBYTES
        )
        if head is None:
            return None
        header = self._header_of(head, spec)
        out = _empty_array(spec, box)
        for page, count in pages:
            if header.is_compressed:
                offset, nbytes = table_range(page.first, count)
                table: bytes | None = head[offset : offset + nbytes]
                if page.first or table is None or len(table) < nbytes:
                    table = await get(getter, spec, offset, nbytes)
                bounds = parse_jump_table(
                    b"" if table is None else table, header, page.first, count, _ANY_NBYTES, SOURCE
                )
            else:
                bounds = raw_block_bounds(header, page.first, count, _ANY_NBYTES, SOURCE)
            located = page.locate(bounds, header, box)
            _check_sizes(located, header, page.first)
            for first, last, ranges, nbytes in _batches(located):
                memory = await fetch(getter, spec, ranges, nbytes)
                arguments = (memory, located.blocks[first:last], header, out, page.first)
                if last - first <= _FEW_BLOCKS:
                    _decode(*arguments)
                else:
                    await run_in_thread(getter, _decode, *arguments)
        return out


@dataclass(frozen=True, slots=True)
class _TablePage:
    """Aligned cube of blocks, which is one byte range of the jump table."""

    first: int
    """Number of its first block in Morton order."""
    corner: Vec3
    """Lowest block along x, y, z."""
    edge: int
    """Edge length in blocks."""

    def locate(self, bounds: IntArray, header: WkwHeader, box: BoundingBox) -> BlockLocations:
        """Return the blocks of a box that lie in this page, and their places in an array of that
        box."""
        step = header.block_len
        low, high = [], []
        for axis in range(3):
            low.append(max(0, box.topleft[axis] // step - self.corner[axis]))
            high.append(min(self.edge, -(-box.bottomright[axis] // step) - self.corner[axis]))
        origin = minus(times(self.corner, (step,) * 3), box.topleft)
        return locate_blocks(
            bounds, vec3(low), vec3(high), step, origin, _GAP_NBYTES, _BATCH_NBYTES
        )


def _table_pages(header: WkwHeader, box: BoundingBox) -> Iterator[tuple[_TablePage, int]]:
    """Yield the pages that cover a box, with their numbers of blocks: the smallest page that
    contains it, or several of the largest size."""
    step = header.block_len
    edge = 1
    while edge < min(header.file_len, _PAGE_LEN) and any(
        t // (edge * step) != (b - 1) // (edge * step)
        for t, b in zip(box.topleft, box.bottomright, strict=True)
    ):
        edge *= 2
    x_range, y_range, z_range = cell_range(box, (edge * step,) * 3)
    corners = [(x, y, z) for z in z_range for y in y_range for x in x_range]
    codes = morton.encode(corners).astype(np.int64) * edge**3
    for (x, y, z), first in sorted(
        zip(corners, codes.tolist(), strict=True), key=lambda page: page[1]
    ):
        yield _TablePage(first, (x * edge, y * edge, z * edge), edge), edge**3


def _batches(located: BlockLocations) -> Iterator[tuple[int, int, IntArray, int]]:
    """Yield batches of blocks: first and last (exclusive) row, byte ranges, and their total size in
    bytes."""
    for (first, first_range, nbytes), (last, last_range, _) in pairwise(located.batches.tolist()):
        yield first, last, located.ranges[first_range:last_range], nbytes


def _decode(
    memory: ByteArray, blocks: IntArray, header: WkwHeader, out: AnyArray, page: int
) -> None:
    """Decode blocks into an array with the axes (c,) z, y, x."""
    decoded = decode_into(
        memory,
        blocks,
        _as_cxyz(out),
        block_len=header.block_len,
        num_channels=header.num_channels,
        block_type=int(header.block_type),
    )
    if decoded.broken >= 0:
        row = blocks[decoded.broken]
        problem = (
            "are not an LZ4 block"
            if decoded.broken_nbytes < 0
            else f"decode to {decoded.broken_nbytes} bytes"
        )
        raise CorruptError(
            f"{SOURCE}: block {page + int(row[CODE])} at byte {int(row[OFFSET])}: {int(row[SIZE])} "
            f"stored bytes {problem}, "
            f"expected {header.block_nbytes} decoded bytes"
        )


def _check_sizes(located: BlockLocations, header: WkwHeader, page: int) -> None:
    """Raise CorruptError for stored sizes that LZ4 cannot produce, before memory is allocated for
    them."""
    if not header.is_compressed:
        return
    for n in (located.smallest, located.largest):
        row = located.blocks[n]
        size = int(row[SIZE])
        if not header.block_nbytes <= MAX_LZ4_RATIO * size or size > 2 * compress_bound(
            header.block_nbytes
        ):
            raise CorruptError(
                f"{SOURCE}: block {page + int(row[CODE])} at byte {int(row[OFFSET])}: {size} "
                f"stored bytes cannot be one of {header.block_nbytes} bytes"
            )


def _empty_array(spec: ArraySpec, box: BoundingBox) -> AnyArray:
    return np.empty(
        (*spec.shape[:-3], *reversed(box.size)), spec.dtype.to_native_dtype().newbyteorder("=")
    )


def _as_cxyz(array: AnyArray) -> AnyArray:
    return (array if array.ndim == 4 else array[np.newaxis]).transpose(0, 3, 2, 1)


def _buffer(array: AnyArray, spec: ArraySpec) -> NDBuffer:
    return spec.prototype.nd_buffer.from_numpy_array(
        np.asarray(array, spec.dtype.to_native_dtype())
    )


# --------------------------------------------------------------------------------------------
# selections and byte ranges


def enclosing_box(selection: Any, shape: tuple[int, ...]) -> tuple[BoundingBox, Any]:
    """Return the bounding box of a selection, and the selection relative to it.

    Examples
    --------
    >>> box, rest = enclosing_box((slice(2, 9, 3), 5, slice(0, 4)), (16, 16, 16))
    >>> box.topleft, box.size, rest
    ((0, 5, 2), (4, 1, 7), (slice(0, 7, 3), 0, slice(0, 4, 1)))
    """
    indices = selection if isinstance(selection, tuple) else (selection,)
    ellipsis = next((n for n, index in enumerate(indices) if index is Ellipsis), None)
    if ellipsis is not None:
        indices = (
            *indices[:ellipsis],
            *[slice(None)] * (len(shape) - len(indices) + 1),
            *indices[ellipsis + 1 :],
        )
    indices = (*indices, *[slice(None)] * (len(shape) - len(indices)))
    spans, rest = [], []
    for index, length in zip(indices, shape, strict=True):
        low, high, picked = _axis_span(index, length)
        spans.append((low, high))
        rest.append(picked)
    if len(shape) == 4:  # a file holds all channels, so the box does not restrict them
        rest[0] = indices[0]
    (z, to_z), (y, to_y), (x, to_x) = spans[-3:]
    return BoundingBox.from_corners((x, y, z), (to_x, to_y, to_z)), tuple(rest)


def _axis_span(index: Any, length: int) -> tuple[int, int, Any]:
    """Return the interval of a selection along one axis, and the selection relative to it."""
    if isinstance(index, slice):
        selected = range(length)[index]
        if not selected:
            return 0, 0, slice(0, 0, 1)
        low, high = min(selected[0], selected[-1]), max(selected[0], selected[-1]) + 1
        return (
            low,
            high,
            slice(0, high - low, selected.step)
            if selected.step > 0
            else slice(None, None, selected.step),
        )
    if isinstance(index, (int, np.integer)):
        position = int(index) + (length if index < 0 else 0)
        return position, position + 1, 0
    positions = np.asarray(index)
    if positions.dtype == np.bool_:
        positions = np.flatnonzero(positions).reshape(
            [-1 if n > 1 else 1 for n in positions.shape] if positions.ndim > 1 else -1
        )
    if not positions.size:
        return 0, 0, positions.astype(np.intp)
    positions = np.where(positions < 0, positions + length, positions)
    low = int(positions.min())
    return low, int(positions.max()) + 1, positions - low


class BlockingGetter:
    """Byte getter that reads synchronously: a coroutine that awaits only its methods never
    suspends."""

    def __init__(self, getter: Any) -> None:
        self._getter, self.store, self.path = (
            getter,
            getattr(getter, "store", None),
            getattr(getter, "path", None),
        )
        if hasattr(getter, "shard_dict"):
            self.shard_dict = getter.shard_dict

    async def get(self, prototype: Any, byte_range: Any = None) -> Any:
        return self._getter.get_sync(prototype=prototype, byte_range=byte_range)


@contextlib.contextmanager
def named_errors(getter: Any) -> Iterator[None]:
    """Add the path of a chunk to errors about its content; zarr passes the path to partial reads
    only."""
    try:
        yield
    except (FormatError, UnsupportedError) as error:
        path, root = (
            getattr(getter, "path", None),
            getattr(getter.store, "root", None)
            if is_local(getter)
            else getattr(getter, "store", None),
        )
        if not path or not str(error).startswith(SOURCE):
            raise
        raise type(error)(f"{root}/{path}{str(error).removeprefix(SOURCE)}") from None


def is_local(getter: Any) -> bool:
    """Return whether a chunk is a local file, so that many small reads are cheap."""
    return isinstance(getattr(getter, "store", None), LocalStore)


def run_to_completion(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never suspends, without an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("a read without an event loop was suspended")


async def run_in_thread(getter: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a slow function: in a thread if there is an event loop."""
    return (
        function(*arguments)
        if isinstance(getter, BlockingGetter)
        else await asyncio.to_thread(function, *arguments)
    )


async def fetch(getter: Any, spec: ArraySpec, ranges: IntArray, nbytes: int) -> ByteArray:
    """Read byte ranges into one buffer; the columns of ``ranges`` are offset in the file, offset in
    the buffer, and size."""
    rows = ranges.tolist()
    if len(rows) == 1:
        return await _get_all(getter, spec, rows[0][0], rows[0][2])
    memory = np.empty(nbytes, np.uint8)
    for start in range(0, len(rows), _MAX_REQUESTS):
        batch = rows[start : start + _MAX_REQUESTS]
        reads = [_get_all(getter, spec, offset, length) for offset, _, length in batch]
        parts = (
            [await read for read in reads]
            if isinstance(getter, BlockingGetter)
            else await asyncio.gather(*reads)
        )
        for (_, place, length), part in zip(batch, parts, strict=True):
            memory[place : place + length] = part
    return memory


async def _get_all(getter: Any, spec: ArraySpec, offset: int, nbytes: int) -> ByteArray:
    data = await _get_array(getter, spec, offset, nbytes)
    if data is None or len(data) != nbytes:
        problem = (
            "was removed"
            if data is None
            else f"ends at byte {offset + len(data)}{'' if len(data) else ' or before'}"
        )
        raise TruncatedError(f"{SOURCE}: {problem}, expected {nbytes} bytes from byte {offset} on")
    return data


async def get(getter: Any, spec: ArraySpec, offset: int, nbytes: int) -> bytes | None:
    """Read a byte range of a chunk, shorter if the chunk ends before; None if the chunk is
    absent."""
    data = await _get_array(getter, spec, offset, nbytes)
    return None if data is None else data.tobytes()


async def _get_array(getter: Any, spec: ArraySpec, offset: int, nbytes: int) -> ByteArray | None:
    if not nbytes:
        return np.empty(0, np.uint8)
    data: Buffer | None = await getter.get(
        spec.prototype, RangeByteRequest(offset, offset + nbytes)
    )
    return None if data is None else bytes_of(data)


def bytes_of(data: Buffer) -> ByteArray:
    """Return the memory of a buffer as an array that is marked as writeable: the kernels are
    compiled for such arrays only, although they never write."""
    array: ByteArray = np.ascontiguousarray(data.as_numpy_array()).view(np.uint8).reshape(-1)
    return array if array.flags.writeable or not array.size else np.asarray(_Memory(array))


class _Memory:
    """Read-only memory, declared as writeable by the array interface."""

    def __init__(self, array: ByteArray) -> None:
        self._array = array  # keeps the memory alive
        self.__array_interface__ = {
            **array.__array_interface__,
            "data": (array.__array_interface__["data"][0], False),
        }
