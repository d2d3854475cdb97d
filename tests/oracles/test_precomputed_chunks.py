"""Oracles of single chunks and shards: tensorstore 0.1.86, cloud-volume 12.15.2,
compressed-segmentation 2.3.3, compresso 3.3.3, mmh3 5.3.1.

Volumes are written and read here with nothing but the records and codecs of the format: a loop over
chunks is all that is between them and files.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.precomputed_volumes import (
    assemble_shard,
    chunk_id,
    chunk_name,
    parse_shard_index,
    sharding_for,
)
from support.strategies import voxel_array

from wkwdask.formats.compressed_streams import compress_gzip, decompress_gzip
from wkwdask.formats.precomputed import compressed_segmentation, compresso
from wkwdask.formats.precomputed.chunk import PrecomputedCodec
from wkwdask.formats.precomputed.compressed_segmentation import BlockShapes
from wkwdask.formats.precomputed.info import Scale, new_document, parse_info, with_scales
from wkwdask.formats.precomputed.sharding import Sharding, murmurhash3, parse_minishard_index
from wkwdask.formats.precomputed.writable import check_writable
from wkwdask.model.json_text import format_json

# the last chunks are cut, and the first voxel lies below 0
SIZE, OFFSET, CHUNK = (21, 13, 6), (-7, 3, 5), (8, 8, 4)
ALL_DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "float32")
FEW = settings.get_profile("few")


def _cells(scale):
    return product(*(range(n) for n in scale.grid))


def _part(scale, cell):
    return (
        slice(None),
        *(
            slice(g * edge, min((g + 1) * edge, n))
            for g, edge, n in zip(cell, scale.chunk_size, scale.size, strict=True)
        ),
    )


def write_volume(folder, scale, array, kind="image"):
    """Write a volume of one scale."""
    check_writable(replace(scale, sharding=None), array.dtype, len(array), kind)
    document = with_scales(new_document(kind, array.dtype, len(array)), [scale])
    (folder / "info").write_text(format_json(document))
    (folder / scale.key).mkdir()
    info = parse_info(format_json(document), "info")
    codec = PrecomputedCodec.of(info, info.scales[0])
    chunks = {cell: codec.encode(array[_part(scale, cell)], "chunk") for cell in _cells(scale)}
    if scale.sharding is None:
        for cell, data in chunks.items():
            (folder / scale.key / chunk_name(scale, cell)).write_bytes(data)
        return
    pack = compress_gzip if scale.sharding.data_encoding == "gzip" else bytes
    by_id = {chunk_id(scale, cell): pack(data) for cell, data in chunks.items()}
    ids = np.array(sorted(by_id), np.uint64)
    shards = scale.sharding.locate(ids)[0]
    for shard in np.unique(shards).tolist():
        members = {chunk: by_id[chunk] for chunk in ids[shards == shard].tolist()}
        (folder / scale.key / scale.sharding.shard_name(shard)).write_bytes(
            b"".join(assemble_shard(members, scale.sharding))
        )


def read_shard(raw, sharding):
    """Read all chunks of a shard by their identifiers."""
    chunks = {}
    first = sharding.index_nbytes
    for start, end in zip(*parse_shard_index(raw, sharding), strict=True):
        index = raw[first + int(start) : first + int(end)]
        if index and sharding.minishard_index_encoding == "gzip":
            index = decompress_gzip(index, 1 << 16, "shard", int(start))
        for chunk, at, size in zip(
            *parse_minishard_index(index, "shard", int(start), len(raw) - first), strict=True
        ):
            data = raw[first + int(at) : first + int(at + size)]
            chunks[int(chunk)] = (
                decompress_gzip(data, 1 << 20, "shard", int(at))
                if sharding.data_encoding == "gzip"
                else data
            )
    return chunks


def read_volume(folder):
    """Read a volume of one scale; chunks that are not stored are zeros."""
    info = parse_info((folder / "info").read_text(), "info")
    (scale,) = info.scales
    codec = PrecomputedCodec.of(info, scale)
    out = np.zeros((info.num_channels, *scale.size), info.dtype)
    stored = {}
    if scale.sharding is not None:
        for file in (folder / scale.key).glob("*.shard"):
            stored |= read_shard(file.read_bytes(), scale.sharding)
    for cell in _cells(scale):
        file = folder / scale.key / chunk_name(scale, cell)
        data = (
            stored.get(chunk_id(scale, cell))
            if scale.sharding
            else file.read_bytes()
            if file.exists()
            else None
        )
        if data is not None:
            corner = [g * edge for g, edge in zip(cell, scale.chunk_size, strict=True)]
            shape = [
                min(edge, size - low)
                for low, edge, size in zip(corner, scale.chunk_size, scale.size, strict=True)
            ]
            codec.decode_into(data, (info.num_channels, *shape), out, (0, *corner), str(file))
    return out


SHARDINGS = [None] + [
    Sharding(*bits, function, index, data)
    for bits, function in (
        ((1, 1, 3), "identity"),
        ((0, 2, 1), "identity"),
        ((1, 2, 1), "murmurhash3_x86_128"),
    )
    for index, data in (("raw", "raw"), ("gzip", "gzip"))
]
FORMS = [
    # encoding, type, channels, sharding
    *[("raw", dtype, 1, None) for dtype in ALL_DTYPES],
    ("raw", "uint16", 3, SHARDINGS[1]),
    *[
        ("compressed_segmentation", dtype, channels, None)
        for dtype in ("uint32", "uint64")
        for channels in (1, 2)
    ],
    *[("compressed_segmentation", "uint64", 1, sharding) for sharding in SHARDINGS[1:]],
    *[("png", dtype, channels, None) for dtype in ("uint8", "uint16") for channels in (1, 2, 3, 4)],
    ("png", "uint16", 1, SHARDINGS[2]),
    ("jpeg", "uint8", 1, None),
    ("jpeg", "uint8", 3, None),
    ("jpeg", "uint8", 1, SHARDINGS[1]),
]
IDS = [
    f"{encoding}-{dtype}-{channels}-{sharding and (sharding.hash, sharding.data_encoding)}"
    for encoding, dtype, channels, sharding in FORMS
]


def _scale(encoding, sharding):
    return Scale(
        "8_8_40",
        SIZE,
        OFFSET,
        CHUNK,
        (8, 8, 40),
        encoding,
        sharding,
        (8, 8, 8) if encoding == "compressed_segmentation" else None,
    )


def _voxels(encoding, dtype, channels):
    array = voxel_array(
        dtype, (channels, *SIZE), 1, "few" if encoding == "compressed_segmentation" else "noise"
    )
    if encoding == "jpeg":
        array = np.cumsum(array % 3, axis=2, dtype=np.uint8)
    return array


def _as_czyx(store):
    return np.asarray(store.read().result()).transpose(3, 0, 1, 2)


@pytest.mark.needs("tensorstore")
@pytest.mark.parametrize(("encoding", "dtype", "channels", "sharding"), FORMS, ids=IDS)
def test_tensorstore_reads_what_we_write(tmp_path, encoding, dtype, channels, sharding):
    import tensorstore as ts

    array = _voxels(encoding, dtype, channels)
    write_volume(tmp_path, _scale(encoding, sharding), array)
    store = ts.open(
        {"driver": "neuroglancer_precomputed", "kvstore": {"driver": "file", "path": str(tmp_path)}}
    ).result()
    assert store.domain.origin[:3] == OFFSET
    found = _as_czyx(store)
    if encoding == "jpeg":
        assert np.abs(found.astype(int) - array).mean() < 8
        np.testing.assert_array_equal(found, read_volume(tmp_path))
    else:
        np.testing.assert_array_equal(found, array)


def _tensorstore_volume(ts, folder, encoding, dtype, channels, sharding):
    scale = {
        "size": SIZE,
        "voxel_offset": OFFSET,
        "chunk_size": CHUNK,
        "resolution": (8, 8, 40),
        "encoding": encoding,
        "key": "8_8_40",
    }
    if encoding == "compressed_segmentation":
        scale["compressed_segmentation_block_size"] = (8, 8, 8)
    if sharding is not None:
        scale["sharding"] = {
            "@type": "neuroglancer_uint64_sharded_v1",
            "preshift_bits": sharding.preshift_bits,
            "minishard_bits": sharding.minishard_bits,
            "shard_bits": sharding.shard_bits,
            "hash": sharding.hash,
            "minishard_index_encoding": sharding.minishard_index_encoding,
            "data_encoding": sharding.data_encoding,
        }
    return ts.open(
        {
            "driver": "neuroglancer_precomputed",
            "kvstore": {"driver": "file", "path": str(folder)},
            "scale_metadata": scale,
            "multiscale_metadata": {"type": "image", "data_type": dtype, "num_channels": channels},
        },
        create=True,
    ).result()


@pytest.mark.needs("tensorstore")
@pytest.mark.parametrize(("encoding", "dtype", "channels", "sharding"), FORMS, ids=IDS)
def test_we_read_what_tensorstore_writes(tmp_path, encoding, dtype, channels, sharding):
    import tensorstore as ts

    array = _voxels(encoding, dtype, channels)
    store = _tensorstore_volume(ts, tmp_path, encoding, dtype, channels, sharding)
    store.write(array.transpose(1, 2, 3, 0)).result()
    found = read_volume(tmp_path)
    np.testing.assert_array_equal(found, _as_czyx(store) if encoding == "jpeg" else array)


@pytest.mark.needs("tensorstore")
@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
def test_tensorstore_encodes_the_same_segmentation(tmp_path, dtype):
    """Bytes are equal, not only voxels: with truncated chunks, padded blocks, and two channels."""
    import tensorstore as ts

    array = _voxels("compressed_segmentation", dtype, 2)
    _tensorstore_volume(ts, tmp_path, "compressed_segmentation", dtype, 2, None).write(
        array.transpose(1, 2, 3, 0)
    ).result()
    scale = _scale("compressed_segmentation", None)
    for cell in _cells(scale):
        stored = (tmp_path / scale.key / chunk_name(scale, cell)).read_bytes()
        assert compressed_segmentation.encode(array[_part(scale, cell)], (8, 8, 8), "f") == stored


@pytest.mark.needs("tensorstore")
def test_worked_example_of_tensorstore(tmp_path):
    """tensorstore stores and reads the bytes of the worked example."""
    import tensorstore as ts

    array = np.array([[0xA0, 0xB0], [0xA1, 0xB1], [0xA2, 0xB2]], np.uint8).reshape(1, 3, 2, 1)
    write_volume(
        tmp_path,
        Scale("1_1_1", (3, 2, 1), (0, 0, 0), (1, 1, 1), (1, 1, 1), "raw", Sharding(1, 1, 1)),
        array,
    )
    raw = (tmp_path / "1_1_1" / "1.shard").read_bytes()
    assert raw == struct.pack("<4Q", 1, 25, 26, 50) + b"\xa2" + struct.pack(
        "<3Q", 4, 0, 1
    ) + b"\xb2" + struct.pack("<3Q", 6, 25, 1)
    store = ts.open(
        {"driver": "neuroglancer_precomputed", "kvstore": {"driver": "file", "path": str(tmp_path)}}
    ).result()
    np.testing.assert_array_equal(_as_czyx(store), array)


@pytest.mark.needs("compressed_segmentation")
@given(
    st.lists(st.sampled_from([1, 2, 3, 7, 8, 9, 17]), min_size=3, max_size=3),
    st.sampled_from([(8, 8, 8), (3, 4, 5), (16, 16, 16)]),
    st.sampled_from(["uint32", "uint64"]),
    st.sampled_from([1, 2, 6, 400]),
    st.integers(0, 2**32 - 1),
)
def test_compressed_segmentation_both_ways(shape, block_size, dtype, kinds, seed):
    import compressed_segmentation as package

    rng = np.random.default_rng(seed)
    ids = np.frombuffer(rng.bytes(kinds * np.dtype(dtype).itemsize), dtype)
    array = rng.choice(ids, shape)
    data = compressed_segmentation.encode(array[None], block_size, "f")
    assert data == package.compress(np.asfortranarray(array)[..., None], block_size, order="F")
    np.testing.assert_array_equal(
        package.decompress(data, tuple(shape), dtype, block_size, order="F").reshape(
            shape, order="F"
        ),
        array,
    )
    np.testing.assert_array_equal(
        compressed_segmentation.decode(
            data, BlockShapes(tuple(shape), block_size), np.dtype(dtype), 1, "f", 0
        )[0],
        array,
    )


@pytest.mark.needs("compresso")
@given(
    st.lists(st.integers(1, 20), min_size=3, max_size=3),
    st.sampled_from(["uint8", "uint16", "uint32", "uint64"]),
    st.integers(0, 2**32 - 1),
)
def test_compresso_reads_what_we_write(shape, dtype, seed):
    import compresso as package

    array = np.random.default_rng(seed).integers(0, 3, shape).astype(dtype)
    np.testing.assert_array_equal(package.decompress(compresso.encode(array[None], "f")), array)


@pytest.mark.needs("mmh3")
@given(st.lists(st.integers(0, 2**64 - 1), max_size=50))
def test_murmurhash(keys):
    import mmh3

    expected = [
        mmh3.hash64(struct.pack("<Q", key), seed=0, x64arch=False, signed=False)[0] for key in keys
    ]
    assert murmurhash3(np.array(keys, np.uint64)).tolist() == expected


CLOUD_VOLUME = [
    # encoding, type; of one channel, since its images of several are transposed; its png needs
    # another package
    ("raw", "uint16"),
    ("raw", "float32"),
    ("compressed_segmentation", "uint32"),
    ("compressed_segmentation", "uint64"),
    ("compresso", "uint8"),
    ("compresso", "uint32"),
    ("compresso", "uint64"),
    ("jpeg", "uint8"),
    ("jxl", "uint8"),
]


@pytest.mark.needs("cloudvolume")
@pytest.mark.parametrize(("encoding", "dtype"), CLOUD_VOLUME)
def test_chunks_of_cloud_volume(encoding, dtype):
    """Its encoder with our decoder, and the reverse."""
    from cloudvolume import chunks

    kind = "few" if encoding in ("compresso", "compressed_segmentation") else "noise"
    array = voxel_array(dtype, (1, 12, 9, 5), 2, kind)
    codec = PrecomputedCodec(encoding, np.dtype(dtype), 1)
    theirs = np.asfortranarray(array[0])[..., None]
    options = {"compression_params": {"level": 100 if encoding in ("jpeg", "jxl") else None}}
    data = chunks.encode(theirs, encoding, block_size=(8, 8, 8), **options)
    for raw in (data, codec.encode(array, "f")):
        ours = codec.decode(bytes(raw), (1, 12, 9, 5), "f")
        back = chunks.decode(bytes(raw), encoding, (12, 9, 5, 1), dtype, block_size=(8, 8, 8))[
            ..., 0
        ]
        assert np.abs(ours[0].astype(float) - back).max() <= (2 if encoding == "jpeg" else 0)
        if encoding != "jpeg":
            np.testing.assert_array_equal(ours, array)


@pytest.mark.needs("cloudvolume")
@pytest.mark.parametrize("sharding", SHARDINGS[1:], ids=str)
def test_shards_of_cloud_volume(tmp_path, sharding):
    """Each reads the shards that the other writes of the same chunks."""
    import cloudvolume
    from cloudvolume.datasource.precomputed import sharding as module

    array = _voxels("compressed_segmentation", "uint64", 1)
    scale = _scale("compressed_segmentation", sharding)
    write_volume(tmp_path, scale, array, "segmentation")
    volume = cloudvolume.CloudVolume(f"file://{tmp_path}", progress=False, cache=False)
    np.testing.assert_array_equal(np.asarray(volume[:])[..., 0], array[0])
    spec = module.ShardingSpecification(
        "neuroglancer_uint64_sharded_v1",
        sharding.preshift_bits,
        sharding.hash,
        sharding.minishard_bits,
        sharding.shard_bits,
        sharding.minishard_index_encoding,
        sharding.data_encoding,
    )
    for file in (tmp_path / scale.key).iterdir():
        chunks = read_shard(file.read_bytes(), sharding)
        assert read_shard(module.synthesize_shard_file(spec, chunks), sharding) == chunks


@pytest.mark.needs("tensorstore")
@settings(FEW)
@given(
    st.tuples(*[st.integers(1, 30)] * 3),
    st.tuples(*[st.integers(-50, 50)] * 3),
    st.tuples(*[st.sampled_from([1, 3, 8, 16])] * 3),
    st.sampled_from([0, 64, 1 << 12]),
)
def test_any_geometry(tmp_path_factory, size, offset, chunk, target):
    """tensorstore and we agree on the place of every voxel, for chunks and for chosen shards."""
    import tensorstore as ts

    folder = tmp_path_factory.mktemp("volume")
    scale = Scale(
        "1_1_1",
        size,
        offset,
        tuple(max(edge, n // 8) for edge, n in zip(chunk, size, strict=True)),
        (1, 1, 1),
        "raw",
    )
    if target:
        scale = replace(
            scale,
            sharding=sharding_for(
                scale.grid, int(np.prod(scale.chunk_size)), target_shard_nbytes=target
            ),
        )
    array = voxel_array("uint8", (1, *size), 5, "noise")
    write_volume(folder, scale, array)
    store = ts.open(
        {"driver": "neuroglancer_precomputed", "kvstore": {"driver": "file", "path": str(folder)}}
    ).result()
    assert store.domain.origin[:3] == offset
    np.testing.assert_array_equal(_as_czyx(store), array)
    np.testing.assert_array_equal(read_volume(folder), array)
