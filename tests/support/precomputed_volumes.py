"""Precomputed volumes in folders, written chunk by chunk with the codecs of the package; oracles
pair them with what other software writes."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

import numpy as np

from wkwdask.formats.compressed_streams import compress_gzip
from wkwdask.formats.precomputed.chunk import PrecomputedCodec
from wkwdask.formats.precomputed.info import parse_info
from wkwdask.formats.precomputed.sharding import (
    choose_sharding,
    format_minishard_index,
    format_shard_index,
    format_sharding,
)
from wkwdask.geometry import compressed_morton


def scale_entry(
    key="4_4_40",
    size=(50, 37, 23),
    offset=(0, 0, 0),
    chunk=(16, 16, 8),
    resolution=(4, 4, 40),
    encoding="raw",
    sharding=None,
    **others,
):
    """One scale of an ``info``."""
    entry = {
        "key": key,
        "size": list(size),
        "voxel_offset": list(offset),
        "chunk_sizes": [list(chunk)],
        "resolution": list(resolution),
        "encoding": encoding,
    }
    if encoding == "compressed_segmentation":
        entry["compressed_segmentation_block_size"] = [8, 8, 8]
    if sharding is not None:
        entry["sharding"] = format_sharding(sharding)
    return {**entry, **others}


def write_info(folder, scales, dtype="uint8", num_channels=1, kind="image", **others):
    """Write an ``info`` and give what it says."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    document = {
        "@type": "neuroglancer_multiscale_volume",
        "type": kind,
        "data_type": dtype,
        "num_channels": num_channels,
        "scales": scales,
        **others,
    }
    path = Path(folder) / "info"
    path.write_text(json.dumps(document))
    return parse_info(path.read_text(), str(path))


def encoded_chunks(scale, array):
    """Go through the chunks of an array (c, x, y, z) that are not zero: their cells and bytes."""
    codec = PrecomputedCodec.of_scale(scale, array.dtype, len(array))
    for cell in itertools.product(*(range(n) for n in scale.grid)):
        part = tuple(
            slice(g * edge, g * edge + edge) for g, edge in zip(cell, scale.chunk_size, strict=True)
        )
        voxels = array[(slice(None), *part)]
        if voxels.any():
            yield cell, codec.encode(voxels, "test")


def chunk_name(scale, cell):
    """The name of the file of a chunk that is stored by itself."""
    lows = [
        first + n * edge
        for n, edge, first in zip(cell, scale.chunk_size, scale.voxel_offset, strict=True)
    ]
    ends = [first + size for first, size in zip(scale.voxel_offset, scale.size, strict=True)]
    return "_".join(
        f"{low}-{min(low + edge, end)}"
        for low, edge, end in zip(lows, scale.chunk_size, ends, strict=True)
    )


def chunk_id(scale, cell):
    """The identifier of a chunk in a shard."""
    return int(compressed_morton.encode([cell], scale.grid)[0])


def write_scale(folder, scale, array, suffix="", pack=lambda data: data):
    """Write the files of a scale."""
    place = Path(folder) / scale.key
    place.mkdir(parents=True, exist_ok=True)
    if scale.sharding is None:
        for cell, data in encoded_chunks(scale, array):
            (place / (chunk_name(scale, cell) + suffix)).write_bytes(pack(data))
        return
    shards = {}
    for cell, data in encoded_chunks(scale, array):
        chunk = chunk_id(scale, cell)
        shard = int(scale.sharding.locate(np.array([chunk], np.uint64))[0][0])
        shards.setdefault(shard, {})[chunk] = (
            compress_gzip(data) if scale.sharding.data_encoding == "gzip" else data
        )
    for shard, chunks in shards.items():
        write_shard(place / scale.sharding.shard_name(shard), chunks, scale.sharding)


def write_shard(path, chunks, sharding):
    """Write a shard of chunks by their identifiers."""
    path.write_bytes(b"".join(assemble_shard(chunks, sharding)))


def write_minishards(path, minishards):
    """Write a shard whose minishards hold these chunks, right or wrong: pairs of identifier and
    bytes; nothing is compressed."""
    data, index = b"", []
    for chunks in minishards:
        ids, sizes = (
            np.array([chunk for chunk, _ in chunks], np.int64),
            np.array([len(part) for _, part in chunks], np.int64),
        )
        starts = len(data) + np.cumsum(sizes) - sizes
        data += b"".join(part for _, part in chunks)
        table = np.array(
            [
                np.diff(ids, prepend=0),
                np.diff(starts, prepend=0) - np.append(0, sizes[:-1])[: len(sizes)],
                sizes,
            ],
            "<i8",
        ).tobytes()
        index += [len(data), len(data) + len(table)]
        data += table
    path.write_bytes(np.array(index, "<u8").tobytes() + data)


def read_shard(path, sharding):
    """Split a shard into its stored chunks by identifier."""
    raw, chunks, head = path.read_bytes(), {}, 16 << sharding.minishard_bits
    for start, end in (
        np.frombuffer(raw, "<u8", 2 << sharding.minishard_bits).reshape(-1, 2).tolist()
    ):
        part = raw[head + start : head + end]
        table = np.frombuffer(
            gzip.decompress(part) if sharding.minishard_index_encoding == "gzip" and part else part,
            "<u8",
        ).reshape(3, -1)
        sizes = table[2]
        starts = np.cumsum(table[1]) + np.cumsum(sizes) - sizes
        for chunk, first, size in zip(
            np.cumsum(table[0]).tolist(), starts.tolist(), sizes.tolist(), strict=True
        ):
            chunks[chunk] = raw[head + first : head + first + size]
    return chunks


def write_volume(folder, array, kind="image", others=None, **scale):
    """Write a volume with one scale, which holds an array (c, x, y, z)."""
    info = write_info(
        folder,
        [scale_entry(size=array.shape[1:], **scale)],
        array.dtype.name,
        len(array),
        kind,
        **(others or {}),
    )
    write_scale(folder, info.scales[0], array)
    return info


def labels(shape=(50, 37, 23), dtype=np.uint64, seed=0):
    """Blobs of ids, with chunks that are all zero, shape (1, x, y, z)."""
    rng = np.random.default_rng(seed)
    small = rng.integers(
        0, 1 << 8 * np.dtype(dtype).itemsize - 1, [-(-n // 7) for n in shape], dtype=np.uint64
    ).astype(dtype)
    small[small % dtype(3) == 0] = 0
    array = small.repeat(7, 0).repeat(7, 1).repeat(7, 2)[: shape[0], : shape[1], : shape[2]]
    array[:33, :20] = 0
    return np.asfortranarray(array[np.newaxis])


def split_shard(path, sharding):
    """Put a shard into the two files of the obsolete layout."""
    raw = path.read_bytes()
    path.with_suffix(".index").write_bytes(raw[: sharding.index_nbytes])
    path.with_suffix(".data").write_bytes(raw[sharding.index_nbytes :])
    path.unlink()


def assemble_shard(chunks, sharding):
    """Put a shard together, in memory."""
    ids = np.array(sorted(chunks), np.uint64)
    minishards = sharding.locate(ids)[1]
    starts = np.zeros(1 << sharding.minishard_bits, np.uint64)
    ends = starts.copy()
    pieces = [b""]
    at = 0
    for minishard in np.unique(minishards).tolist():
        members = ids[minishards == minishard]
        parts = [chunks[chunk] for chunk in members.tolist()]
        sizes = np.array([len(part) for part in parts], np.uint64)
        first = np.uint64(at) + np.cumsum(sizes, dtype=np.uint64) - sizes
        index = format_minishard_index(members, first, sizes, sharding.minishard_index_encoding)
        at += int(sizes.sum())
        starts[minishard], ends[minishard] = at, at + len(index)
        at += len(index)
        pieces += [*parts, index]
    pieces[0] = format_shard_index(starts, ends)
    return pieces


def parse_shard_index(raw, sharding):
    """Read a shard index: where the index of each minishard starts and ends."""
    return (
        np.frombuffer(raw, "<u8", 2 << sharding.minishard_bits).astype(np.uint64).reshape(-1, 2).T
    )


def sharding_for(grid, chunk_nbytes, **options):
    """Choose the sharding of a grid of chunks of so many bytes."""
    return choose_sharding(grid, (1, 1, 1), num_channels=chunk_nbytes, **options)
