"""The codec ``n5_default`` in zarr-python: arrays over N5 blocks of all kinds, read and written,
found by its name."""

from __future__ import annotations

import asyncio
import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.n5_volumes import n5_dataset, write_dataset

import wkwdask
from wkwdask.errors import CorruptError, TruncatedError
from wkwdask.formats.as_zarr.n5_view import inner_codecs, n5_array_document, to_zarr_codec
from wkwdask.formats.n5.attributes import DTYPES
from wkwdask.formats.n5.block import make_compression
from wkwdask.formats.n5.layer import find_n5_layers

zarr = pytest.importorskip("zarr", reason="the extra zarr")
pytest.importorskip("imagecodecs", reason="the extra zarr")

from zarr.registry import register_codec  # noqa: E402

from wkwdask.formats.as_zarr.n5_codec import N5DefaultCodec  # noqa: E402

# as its entry point does, which an older installation does not have
register_codec("n5_default", N5DefaultCodec)

COMPRESSIONS = ("raw", "gzip", "zlib", "bzip2", "xz", "zstd", "blosc")
ARRAY = np.random.default_rng(0).integers(0, 1000, (50, 37, 23)).astype(np.uint16)


def codec_of_rank(num_axes, compressor=None):
    """Make the codec of an array of so many axes, with a compressor as Zarr writes it."""
    return N5DefaultCodec(codecs=inner_codecs(num_axes, compressor))


def create(folder, shape, chunks, dtype, compression="gzip"):
    """Make an array with the codec."""
    codec = codec_of_rank(
        len(shape), to_zarr_codec(make_compression(compression), np.dtype(dtype).itemsize, "test")
    )
    return zarr.create_array(
        folder,
        shape=shape,
        chunks=chunks,
        dtype=dtype,
        serializer=codec,
        compressors=None,
        filters=None,
        fill_value=0,
        chunk_key_encoding={"name": "v2", "separator": "/"},
    )


def described(folder, dataset):
    """Write the ``zarr.json`` of a dataset and open it."""
    (folder / "zarr.json").write_text(json.dumps(n5_array_document(dataset, "test")))
    return zarr.open_array(folder)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize(("cut", "mode"), [(True, 0), (False, 0), (True, 1)])
def test_reading(tmp_path, compression, cut, mode):
    """Blocks that are whole or cut off, in either mode."""
    array = described(
        tmp_path, write_dataset(tmp_path, ARRAY, compression=compression, cut=cut, mode=mode)
    )
    np.testing.assert_array_equal(array[...], ARRAY)
    np.testing.assert_array_equal(array[3:20:4, 5, ::2], ARRAY[3:20:4, 5, ::2])
    np.testing.assert_array_equal(
        array.oindex[[1, 40], :, [3, 20]], ARRAY[np.ix_([1, 40], range(37), [3, 20])]
    )


@given(st.data())
def test_writing(tmp_path_factory, data):
    """Any type, shape and compression; what is written in parts is read back, by zarr and as N5."""
    shape = tuple(data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=3)))
    chunks = tuple(data.draw(st.integers(1, n + 2)) for n in shape)
    dtype, compression = (
        np.dtype(data.draw(st.sampled_from(DTYPES))),
        data.draw(st.sampled_from(COMPRESSIONS)),
    )
    folder = tmp_path_factory.mktemp("n5")
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    expected = np.asarray(rng.integers(0, 100, shape), dtype)
    array = create(folder, shape, chunks, dtype, compression)
    array[...] = expected
    part = tuple(slice(data.draw(st.integers(0, n - 1)), None) for n in shape)
    array[part] = expected[part] = expected[part] // 2  # reads, changes and writes blocks
    np.testing.assert_array_equal(zarr.open_array(folder, mode="r")[...], expected)
    (folder / "attributes.json").write_text(
        json.dumps(n5_dataset(expected, chunks, compression).to_json())
    )
    volume = find_n5_layers(folder)[0].volume()
    out = np.empty((1, *volume.box.size), dtype)
    volume.read_into(out, (0, 0, 0))
    np.testing.assert_array_equal(out.reshape(shape), expected)


def test_broken_blocks(tmp_path):
    array = described(tmp_path, write_dataset(tmp_path, ARRAY, compression="raw"))
    block = tmp_path / "0" / "0" / "0"
    block.write_bytes(block.read_bytes()[:50])
    with pytest.raises(TruncatedError, match="N5 block: byte 16: raw data of 34 bytes"):
        array[0, 0, 0]
    block.write_bytes(b"\0\0\0\2" + bytes(50))
    with pytest.raises(CorruptError, match="N5 block: byte 2: an N5 block of 2 axes, expected 3"):
        array[0, 0, 0]


def test_absent_blocks(tmp_path):
    array = described(tmp_path, write_dataset(tmp_path, ARRAY))
    (tmp_path / "1" / "1" / "1").unlink()
    assert not array[16:32, 16:32, 8:16].any()


def test_what_it_says_of_itself():
    codec = codec_of_rank(2, {"name": "zstd", "configuration": {"level": 0, "checksum": False}})
    document = {  # as in the README of codecs/n5_default in zarr-extensions
        "name": "n5_default",
        "configuration": {
            "codecs": [
                {"name": "transpose", "configuration": {"order": [1, 0]}},
                {"name": "bytes", "configuration": {"endian": "big"}},
                {"name": "zstd", "configuration": {"level": 0, "checksum": False}},
            ]
        },
    }
    assert codec.to_dict() == document
    assert N5DefaultCodec.from_dict(document) == codec
    assert pickle.loads(pickle.dumps(codec)) == codec
    assert hash(codec) == hash(N5DefaultCodec.from_dict(document))
    assert N5DefaultCodec(
        codecs=[zarr.codecs.TransposeCodec(order=(1, 0)), zarr.codecs.BytesCodec(endian="big")]
    ) == codec_of_rank(2)
    # a codec may be written as its name alone
    assert N5DefaultCodec(codecs=[document["configuration"]["codecs"][0], "bytes"]).num_axes == 2


REFUSED = [
    # codecs, message
    (
        [{"name": "bytes", "configuration": {"endian": "big"}}],
        "expected the codecs transpose, bytes, and a compressor or none",
    ),
    (
        [{"name": "transpose", "configuration": {"order": [0, 1]}}, {"name": "bytes"}],
        r"must reverse all axes, such as \[2, 1, 0\], got \[0, 1\]",
    ),
    (
        [
            {"name": "transpose", "configuration": {"order": [1, 0]}},
            {"name": "bytes", "configuration": {"endian": "little"}},
        ],
        'must have "endian": "big"',
    ),
    (
        [
            {"name": "transpose", "configuration": {"order": [0]}},
            {"name": "bytes"},
            {"name": "crc32c"},
        ],
        "N5 has no equivalent of the Zarr codec 'crc32c'",
    ),
]


@pytest.mark.parametrize(("codecs", "message"), REFUSED)
def test_refused(codecs, message):
    with pytest.raises(ValueError, match=message):
        N5DefaultCodec.from_dict({"name": "n5_default", "configuration": {"codecs": codecs}})


def test_arrays_that_n5_cannot_hold(tmp_path):
    for shape, dtype, message in (
        ((4, 4, 4), "uint8", "an array of 3 axes"),
        ((4, 4), "bool", "N5 has no type for bool"),
    ):
        with pytest.raises(ValueError, match=message):
            zarr.create_array(
                tmp_path / dtype,
                shape=shape,
                chunks=shape,
                dtype=dtype,
                serializer=codec_of_rank(2),
                compressors=None,
                filters=None,
                fill_value=0,
            )
    codec = N5DefaultCodec(
        codecs=[{"name": "transpose", "configuration": {"order": [0]}}, {"name": "bytes"}]
    )
    with pytest.raises(ValueError, match='must say "endian": "big" for uint16'):
        zarr.create_array(
            tmp_path / "b",
            shape=(4,),
            chunks=(4,),
            dtype="uint16",
            serializer=codec,
            compressors=None,
            filters=None,
            fill_value=0,
        )


def test_sizes():
    spec = type("Spec", (), {"shape": (4, 5)})
    assert codec_of_rank(2).compute_encoded_size(40, spec) == 52
    with pytest.raises(NotImplementedError):
        codec_of_rank(2, {"name": "gzip", "configuration": {"level": 1}}).compute_encoded_size(
            40, spec
        )


def test_store(tmp_path):
    """A store in which every zarr.json is made when it is asked for, with groups that have no
    attributes."""
    write_dataset(tmp_path / "c.n5" / "volumes" / "raw", ARRAY, axes=["x", "y", "z"], mine=5)
    store = wkwdask.n5_store(tmp_path / "c.n5")
    group = zarr.open_group(store, mode="r")
    assert sorted(key for key, _ in group.members(max_depth=None)) == ["volumes", "volumes/raw"]
    array = group["volumes/raw"]
    np.testing.assert_array_equal(array[10:30, 4, :], ARRAY[10:30, 4, :])
    assert (
        array.metadata.dimension_names,
        array.attrs["mine"],
        array.attrs["_n5"]["blockSize"],
    ) == (("x", "y", "z"), 5, [16, 16, 8])
    np.testing.assert_array_equal(
        zarr.open_array(wkwdask.n5_store(f"n5://{tmp_path}/c.n5/volumes/raw"), mode="r")[0],
        ARRAY[0],
    )
    assert "0" not in dict(zarr.open_group(store, mode="r")["volumes"].members())
    assert not list(tmp_path.rglob("zarr.json"))

    async def listed(prefix):
        return sorted(
            [key async for key in (store.list() if prefix is None else store.list_prefix(prefix))]
        )

    names = asyncio.run(listed(None))
    assert {name for name in names if name.endswith(".json")} == {"volumes/raw/zarr.json"}
    assert asyncio.run(listed("volumes/raw/zarr")) in ([], ["volumes/raw/zarr.json"])
    assert not asyncio.run(store.exists("volumes/raw/0/zarr.json"))
    assert asyncio.run(store.exists("volumes/zarr.json"))
    with pytest.raises((ValueError, zarr.errors.BaseZarrError)):
        zarr.open_group(store, mode="w")


def test_the_form_of_the_proposal(tmp_path):
    """Blocks that are all whole, in either mode: transpose, bytes, compressor and ``offset`` read
    the same, and write what is N5."""
    from wkwdask.formats.zarr.codecs.offset import OffsetCodec

    register_codec("offset", OffsetCodec)
    for mode in (0, 1):
        folder = tmp_path / f"{mode}"
        write_dataset(folder, ARRAY, cut=False, mode=mode)
        wkwdask.n5_as_zarr(folder, form="offset", write=True)
        array, expected = zarr.open_array(folder), ARRAY.copy()
        np.testing.assert_array_equal(array[...], ARRAY)
        array[10:45, 30:, 5] = expected[10:45, 30:, 5] = 77
        np.testing.assert_array_equal(wkwdask.open(folder)[0], expected)


def test_the_fused_pipeline(tmp_path):
    path = "zarr.core.codec_pipeline.FusedCodecPipeline"
    if not hasattr(zarr.core.codec_pipeline, "FusedCodecPipeline"):
        pytest.skip(f"zarr {zarr.__version__} has no fused pipeline")
    with zarr.config.set({"codec_pipeline.path": path}):
        array = create(tmp_path, ARRAY.shape, (16, 16, 8), ARRAY.dtype, "zstd")
        assert type(array._async_array.codec_pipeline).__name__ == "FusedCodecPipeline"
        array[...] = ARRAY
        np.testing.assert_array_equal(
            zarr.open_array(tmp_path, mode="r")[3:40, ::2, 5], ARRAY[3:40, ::2, 5]
        )
