"""WKW files in plain Python, after the README of webknossos-wrap: to write what others write, and
to read and damage what is stored."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

import lz4.block
import numpy as np

RAW, LZ4, LZ4HC = 1, 2, 3
_TYPES = [
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
]
_LAYOUT = struct.Struct("<3sBBBBBQ")


class Header(NamedTuple):
    """The 16 bytes at the start of a file."""

    dtype: np.dtype
    num_channels: int
    block_len: int
    file_len: int
    block_type: int
    data_offset: int = 0

    def to_bytes(self):
        lengths = (self.file_len.bit_length() - 1) << 4 | (self.block_len.bit_length() - 1)
        nbytes = self.num_channels * np.dtype(self.dtype).itemsize
        return _LAYOUT.pack(
            b"WKW",
            1,
            lengths,
            self.block_type,
            1 + _TYPES.index(np.dtype(self.dtype).name),
            nbytes,
            self.data_offset,
        )

    @classmethod
    def of(cls, raw):
        _, _, lengths, block_type, code, nbytes, offset = _LAYOUT.unpack_from(raw)
        dtype = np.dtype(_TYPES[code - 1])
        return cls(
            dtype,
            nbytes // dtype.itemsize,
            1 << (lengths & 15),
            1 << (lengths >> 4),
            block_type,
            offset,
        )

    def places(self):
        """Go through the blocks in the order of the file, which is Morton's: where each begins
        [voxels]."""
        for number in range(self.file_len**3):
            bits = [
                [number >> (3 * n + axis) & 1 for n in range(self.file_len.bit_length())]
                for axis in range(3)
            ]
            yield tuple(
                self.block_len * sum(bit << n for n, bit in enumerate(axis)) for axis in bits
            )

    def bounds(self, raw):
        """Return the first byte of each block of a file, and the end of the last."""
        if self.block_type == RAW:
            nbytes = self.block_len**3 * self.num_channels * self.dtype.itemsize
            return [self.data_offset + number * nbytes for number in range(self.file_len**3 + 1)]
        return [self.data_offset, *np.frombuffer(raw, "<u8", self.file_len**3, 16).tolist()]


def header_of(folder):
    """Read the header of a mag."""
    return Header.of((Path(folder) / "header.wkw").read_bytes())


def encode_file(voxels, block_len, block_type=LZ4):
    """Make the file of a cube (c, x, y, z)."""
    header = Header(voxels.dtype, len(voxels), block_len, voxels.shape[1] // block_len, block_type)
    blocks = [
        voxels[(slice(None), *(slice(n, n + block_len) for n in place))].tobytes(order="F")
        for place in header.places()
    ]
    if block_type == RAW:
        return header._replace(data_offset=16).to_bytes() + b"".join(blocks)
    blocks = [lz4.block.compress(block, store_size=False) for block in blocks]
    start = 16 + 8 * len(blocks)
    ends = start + np.cumsum([len(block) for block in blocks], dtype="<u8")
    return header._replace(data_offset=start).to_bytes() + ends.tobytes() + b"".join(blocks)


def decode_file(raw):
    """Read the cube (c, x, y, z) of a file."""
    header = Header.of(raw)
    bounds, edge = header.bounds(raw), (header.block_len,) * 3
    out = np.zeros((header.num_channels, *[header.block_len * header.file_len] * 3), header.dtype)
    for place, start, end in zip(header.places(), bounds, bounds[1:], strict=False):
        block = raw[start:end]
        if header.block_type != RAW:
            block = lz4.block.decompress(
                block, header.block_len**3 * header.num_channels * header.dtype.itemsize
            )
        out[(slice(None), *(slice(n, n + header.block_len) for n in place))] = np.frombuffer(
            block, header.dtype
        ).reshape(-1, *edge, order="F")
    return out


def stored_voxels(folder, shape):
    """Read the files of a mag from voxel 0 on, without its box: shape (x, y, z), result (c, x, y,
    z)."""
    header = header_of(folder)
    edge = header.block_len * header.file_len
    out = np.zeros((header.num_channels, *(-(-n // edge) * edge for n in shape)), header.dtype)
    for path in Path(folder).rglob("x*.wkw"):
        low = [edge * int(part.strip("xyz.wk")) for part in reversed(path.parts[-3:])]
        if all(n < size for n, size in zip(low, shape, strict=True)):
            out[(slice(None), *(slice(n, n + edge) for n in low))] = decode_file(path.read_bytes())
    return out[(slice(None), *map(slice, shape))]


def spoil_block(path, number):
    """Make a compressed block undecodable without changing the table; returns its bytes."""
    raw = bytearray(path.read_bytes())
    start, end = Header.of(raw).bounds(raw)[number : number + 2]
    raw[start:end] = b"\xff" * (end - start)
    path.write_bytes(raw)
    return bytes(raw[start:end])


def block_bytes(path, number):
    """Return the stored bytes of a block."""
    raw = path.read_bytes()
    start, end = Header.of(raw).bounds(raw)[number : number + 2]
    return raw[start:end]
