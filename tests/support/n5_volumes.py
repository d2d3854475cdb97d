"""N5 datasets in folders, written block by block: whole or cut off at the upper ends, in either
mode; oracles pair them with what other software writes."""

from __future__ import annotations

import itertools
import json
import struct
from pathlib import Path

import numpy as np

from wkwdask.formats.n5.attributes import N5Dataset
from wkwdask.formats.n5.block import (
    VARLENGTH,
    compress,
    encode_block,
    format_header,
    make_compression,
)


def write_attributes(folder, **attributes):
    """Write an ``attributes.json``."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / "attributes.json").write_text(json.dumps(attributes))


def n5_dataset(array, block, compression="gzip"):
    """Describe an array whose axes are those of N5, x first."""
    return N5Dataset(array.shape, tuple(block), array.dtype, make_compression(compression))


def encoded_blocks(array, dataset, *, cut=True, mode=0):
    """Go through the blocks of an array that are not all zero: place and bytes."""
    for cell in itertools.product(*map(range, dataset.grid)):
        part = tuple(
            slice(n * edge, n * edge + edge)
            for n, edge in zip(cell, dataset.block_size, strict=True)
        )
        block = array[part]
        if not block.any():
            continue
        if not cut:
            block = np.pad(
                block,
                [(0, edge - n) for edge, n in zip(dataset.block_size, block.shape, strict=True)],
            )
        data = encode_block(block, dataset.compression, "test")
        if mode == VARLENGTH:
            data = format_header(block.shape, VARLENGTH) + data[4 + 4 * block.ndim :]
        yield cell, data


def write_dataset(
    folder, array, block=(16, 16, 8), compression="gzip", *, cut=True, mode=0, **attributes
):
    """Write an array, whose axes are those of N5, as a dataset."""
    dataset = n5_dataset(array, block, compression)
    write_attributes(folder, **dataset.to_json(), **attributes)
    for cell, data in encoded_blocks(array, dataset, cut=cut, mode=mode):
        path = Path(folder, *map(str, cell))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return dataset


def java_lz4(data, piece_nbytes=64, *, raw_from=None):
    """Compress as ``net.jpountz.lz4.LZ4BlockOutputStream`` does: in pieces, uncompressed from a
    number on."""
    import lz4.block

    from wkwdask.kernels.codecs.xxh32_compiled import xxh32

    out = b""
    for number, first in enumerate(range(0, len(data), piece_nbytes)):
        piece = data[first : first + piece_nbytes]
        packed = lz4.block.compress(piece, store_size=False)
        is_raw = raw_from is not None and number >= raw_from
        checksum = int(xxh32(np.frombuffer(piece, np.uint8), np.uint64(0x9747B28C))) & 0x0FFFFFFF
        out += struct.pack(
            "<8sBIII",
            b"LZ4Block",
            (0x10 if is_raw else 0x20) | 6,
            len(piece) if is_raw else len(packed),
            len(piece),
            checksum,
        )
        out += piece if is_raw else packed
    return out + struct.pack("<8sBIII", b"LZ4Block", 0x16, 0, 0, 0)


def compressed(values, name):
    """Compress the values of a block as another writer does; for tests of damage."""
    compression = make_compression(name)
    return compress(
        values.astype(values.dtype.newbyteorder(">")).tobytes(order="F"),
        compression,
        values.dtype.itemsize,
        "test",
    )
