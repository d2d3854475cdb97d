"""One N5 dataset as a stored array.

A dataset may contain blocks in default and in varlength mode; blocks at its upper ends may be whole
or truncated. An absent block is zero. New blocks are truncated (N5 specification 4.0.0, rule 8),
and all-zero blocks are not stored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import FormatError, UnsupportedError
from wkwdask.formats.identity import FileIdentity, read_record_state
from wkwdask.formats.n5.attributes import FILE_NAME, parse_dataset
from wkwdask.formats.n5.block import (
    compress,
    decode_block,
    decode_block_part,
    encode_block,
    format_header,
    header_nbytes,
    last_axis,
    parse_header,
)
from wkwdask.geometry.bounding_box import MAG_1
from wkwdask.model.chunk_grid import ChunkGrid, from_cxyz, grouped_unit, pick_cxyz, to_cxyz
from wkwdask.model.codec import ChunkCodec, Encoding, blosc_kind
from wkwdask.model.json_text import parse_object
from wkwdask.model.layout import SingleFiles
from wkwdask.model.naming import GridNaming
from wkwdask.model.stored_array import StoredArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.array_types import AnyArray
    from wkwdask.formats.n5.attributes import N5Dataset
    from wkwdask.formats.n5.block import Compression
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.chunk_grid import Vec4
    from wkwdask.model.levels import Lengths
    from wkwdask.model.store import Store

_MAX_ATTRIBUTES_NBYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class N5Codec(ChunkCodec):
    dtype: np.dtype[Any]
    block_size: tuple[int, ...]
    compression: Compression
    axes: str

    decodes_chunks = True

    @property
    def name(self) -> str:
        return self.compression.type

    @property
    def shared_encoding(self) -> Encoding | None:
        kind = {"bzip2": "bz2"}.get(self.compression.stream, self.compression.stream)
        if kind == "lz4":  # the stream of lz4-java, which nobody else writes
            return None
        if kind == "blosc":
            kind = blosc_kind(
                self.compression.option("cname", "blosclz"),
                int(self.compression.option("shuffle", 1)),
                self.dtype.itemsize,
            )
        return Encoding.of(
            self.dtype.newbyteorder(">"),
            pick_cxyz(self.block_size, self.axes),
            self.axes[::-1],
            kind,
        )

    def without_header(self, data: bytes, source: str) -> bytes | None:
        header = parse_header(data, len(self.axes), source)
        return (
            data[header.nbytes :]
            if header.shape == self.block_size and header.num_values == math.prod(self.block_size)
            else None
        )

    def with_header(self, values: bytes) -> bytes:
        return format_header(self.block_size) + values

    def largest_nbytes(self, shape: Sequence[int]) -> int:
        return int(np.prod(shape, dtype=object)) * self.dtype.itemsize + header_nbytes(
            len(self.axes), 1
        )

    def decode(self, data: bytes, shape: Vec4, source: str, offset: int = 0) -> AnyArray:
        """Decode a block, truncated or whole at the upper ends: its header states its shape."""
        del shape, offset
        block = self._decode_whole(data, (0, self.block_size[last_axis(self.block_size)]))
        if block is None:
            block = decode_block(
                data,
                self.dtype,
                self.compression,
                source,
                num_axes=len(self.axes),
                largest=self.block_size,
            )
        return to_cxyz(block, self.axes) if block.size else np.zeros((0, 0, 0, 0), self.dtype)

    def decode_part(
        self, data: bytes, shape: Vec4, part: tuple[slice, ...], source: str, offset: int = 0
    ) -> AnyArray:
        letter = self.axes[last_axis(self.block_size)]
        if letter in "cxyz":
            wanted = part["cxyz".index(letter)]
            block = self._decode_whole(data, (wanted.start, wanted.stop))
            if block is not None:
                return to_cxyz(block, self.axes)[part]
        return self.decode(data, shape, source, offset)[part]

    def _decode_whole(self, data: bytes, wanted: tuple[int, int]) -> AnyArray | None:
        return decode_block_part(data, self.dtype, self.compression, self.block_size, wanted)

    def check_packages(self, source: str) -> None:
        compress(b"", self.compression, self.dtype.itemsize, source)

    def encode(self, voxels: AnyArray, source: str) -> bytes:
        return encode_block(from_cxyz(voxels, self.axes), self.compression, source)


@dataclass(frozen=True, slots=True)
class N5Description(FileIdentity):
    dataset: N5Dataset

    @property
    def token(self) -> tuple[Any, ...]:
        """Attributes, and for a local dataset the inode of its folder."""
        return (
            "n5",
            repr(self.dataset.document),
            None if self.opened is None else self.opened.folder,
        )

    def content(self, box: BoundingBox) -> tuple[Any, ...]:
        """Return the storage and the box: a job can rename a level and change its other
        attributes."""
        return self.dataset, box

    def is_still_described(self) -> bool:
        try:
            document = read_attributes(self.store)
            return document is not None and parse_dataset(document, self.path) == self.dataset
        except (FormatError, UnsupportedError):
            return False


def n5_array(
    store: Store,
    dataset: N5Dataset,
    axes: str,
    mag: Mag = MAG_1,
    lengths_nm: Lengths | None = None,
    *,
    is_new: bool = False,
) -> StoredArray:
    """Return the dataset of a folder as a stored array that starts at voxel 0; ``is_new`` if it is
    being written."""
    size, block = pick_cxyz(dataset.dimensions, axes), pick_cxyz(dataset.block_size, axes)
    grid = ChunkGrid(
        size, block, block, grouped_unit(size, block, dataset.dtype.itemsize), truncates=True
    )
    codec = N5Codec(dataset.dtype, dataset.block_size, dataset.compression, axes)
    identity = N5Description(
        store,
        FILE_NAME,
        read_record_state(store, FILE_NAME) if store.can.states and not is_new else None,
        dataset,
    )
    return StoredArray(
        store,
        grid,
        GridNaming(axes),
        SingleFiles(),
        codec,
        dataset.dtype,
        identity,
        mag,
        lengths_nm=lengths_nm,
    )


def dataset_of(array: StoredArray) -> N5Dataset:
    assert isinstance(array.identity, N5Description)
    return array.identity.dataset


def read_attributes(store: Store, key: str = "") -> dict[str, Any] | None:
    """Read the ``attributes.json`` of a group or dataset, or None."""
    (raw,) = read_documents(store, [key])
    return None if raw is None else parse_object(raw, store.path_of(_name(key)))


def read_documents(store: Store, keys: Sequence[str]) -> list[bytes | None]:
    """Read the ``attributes.json`` of several groups or datasets at the same time, None for each
    absent one."""
    return store.read_whole(list(map(_name, keys)), _MAX_ATTRIBUTES_NBYTES)


def _name(key: str) -> str:
    return f"{key}/{FILE_NAME}" if key else FILE_NAME
