"""Oracles of the codecs for zarr: tifffile 2026.3.3 with imagecodecs 2026.3.6, tensorstore 0.1.86,
jsonschema 4.26.0."""

from __future__ import annotations

import io
import json
from importlib.resources import files

import numpy as np
import pytest
from support import zarr_proposal as proposal

import wkwdask

zarr = pytest.importorskip("zarr", reason="zarr is not installed")
tifffile = pytest.importorskip("tifffile", reason="the oracle tifffile 2026.3.3 is not installed")
from zarr.codecs import BytesCodec, TransposeCodec, ZstdCodec  # noqa: E402

TIFF_DTYPES = (
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)
IMAGES = [
    # shape, axes, stack, shape that tifffile sees
    ((6, 9), None, "pages", (6, 9)),
    ((4, 6, 9), None, "pages", (4, 6, 9)),
    ((4, 6, 9), None, "tall", (24, 9)),
    ((6, 9, 3), "yxs", "pages", (6, 9, 3)),
    ((6, 9, 4), "yxs", "pages", (6, 9, 4)),
    ((6, 9, 2), "yxs", "pages", (6, 9, 2)),
    ((2, 6, 9, 3), "zyxs", "pages", (2, 6, 9, 3)),
    ((3, 2, 6, 9), "czyx", "pages", (6, 6, 9)),
]


def _voxels(shape, dtype):
    return np.random.default_rng(0).integers(0, 100, shape).astype(dtype)


@pytest.mark.parametrize("byteorder", ["little", "big"])
@pytest.mark.parametrize("dtype", TIFF_DTYPES)
def test_prefix_is_seen_by_tifffile(dtype, byteorder, caplog):
    for shape, axes, stack, seen in IMAGES:
        voxels = _voxels(shape, dtype)
        prefix = wkwdask.tiff_prefix(shape, dtype, byteorder, axes=axes, stack=stack)
        stored = voxels.astype(
            voxels.dtype.newbyteorder("<" if byteorder == "little" else ">")
        ).tobytes()
        with tifffile.TiffFile(io.BytesIO(prefix + stored)) as tiff:
            found = tiff.asarray()
        assert found.dtype == voxels.dtype
        np.testing.assert_array_equal(found, voxels.reshape(seen))
    assert caplog.records == []  # tifffile found nothing strange


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize(
    ("shape", "axes"), [((4, 6, 9), "zyx"), ((2, 3, 6, 9), "zcyx"), ((5, 2, 3, 6, 9), "tzcyx")]
)
def test_imagej_stacks_are_seen_by_tifffile(dtype, shape, axes):
    voxels = _voxels(shape, dtype)
    with tifffile.TiffFile(
        io.BytesIO(wkwdask.tiff_prefix(shape, dtype, axes=axes, stack="imagej") + voxels.tobytes())
    ) as tiff:
        assert tiff.is_imagej
        assert tiff.series[0].axes.lower() == axes
        np.testing.assert_array_equal(tiff.asarray(), voxels)


def _compressor(name):
    if name == "zstd":
        return ZstdCodec(level=3)
    from zarr.codecs import numcodecs

    return {"zlib": numcodecs.Zlib(level=3), "lzma": numcodecs.LZMA(format=1)}[name]


@pytest.mark.filterwarnings("ignore:(?i).*numcodecs codecs are not in")
@pytest.mark.parametrize("compression", ["zlib", "zstd", "lzma"])
@pytest.mark.parametrize(
    ("shape", "chunks", "dtype"),
    [
        ((40, 50), (32, 16), "uint16"),
        ((9, 40, 50), (4, 32, 16), "float32"),
        ((9, 40, 50), (4, 32, 16), "int8"),
    ],
)
def test_compressed_chunks_are_seen_by_tifffile(tmp_path, compression, shape, chunks, dtype):
    """By the header of each chunk, which says how long its strip is; also after an update through
    an array that was opened again."""
    pytest.importorskip("imagecodecs", reason="imagecodecs is not installed")
    codec = wkwdask.offset_codec(
        header="tiff", header_options={"compression": compression}, strict=True
    )
    array = zarr.create_array(
        tmp_path / "a",
        shape=shape,
        chunks=chunks,
        dtype=dtype,
        compressors=[_compressor(compression), codec],
    )
    voxels = _voxels(shape, dtype)
    array[...] = voxels
    for _ in range(2):
        found = tifffile.imread(tmp_path / "a" / "c" / "/".join("0" * len(shape)))
        np.testing.assert_array_equal(
            found, voxels[tuple(slice(n) for n in chunks)].reshape(found.shape)
        )
        array = zarr.open_array(tmp_path / "a")
        np.testing.assert_array_equal(array[...], voxels)
        array[..., 3] = voxels[..., 3] = 101


@pytest.mark.parametrize("byteorder", ["little", "big"])
def test_turned_chunks_are_images_of_what_is_stored(tmp_path, byteorder):
    """Behind a transpose the header is that of the turned chunk."""
    voxels = _voxels((6, 9, 4), "uint16")
    codec = wkwdask.offset_codec(1024, header="tiff", header_options={"byteorder": byteorder})
    array = zarr.create_array(
        tmp_path / "a",
        shape=voxels.shape,
        chunks=voxels.shape,
        dtype="uint16",
        filters=[TransposeCodec(order=(2, 0, 1))],
        serializer=BytesCodec(endian=byteorder),
        compressors=[codec],
    )
    array[...] = voxels
    np.testing.assert_array_equal(
        tifffile.imread(tmp_path / "a" / "c" / "0" / "0" / "0"), voxels.transpose(2, 0, 1)
    )


SHARDS = [
    # shard, inner chunk, type, axes
    ((32, 48), (32, 48), "uint16", None),
    ((32, 48), (16, 16), "float32", None),
    ((4, 32, 48), (4, 32, 48), "int16", None),
    ((4, 32, 48), (1, 16, 16), "uint8", None),
    ((4, 32, 48), (1, 32, 48), "uint64", None),
    ((32, 32, 3), (16, 16, 3), "uint8", "yxs"),
]


@pytest.mark.filterwarnings("ignore:(?i).*numcodecs codecs are not in")
@pytest.mark.parametrize(
    ("shard", "inner", "dtype", "axes", "compression", "byteorder"),
    [
        (*shard, *stored)
        for shard in SHARDS
        for stored in (("none", "little"), ("none", "big"), ("zstd", "little"), ("zlib", "big"))
        # the planes of a compressed stack are one stream
        if stored[0] == "none" or shard[1] != (4, 32, 48)
    ],
)
def test_tiff_shards_are_seen_by_all(tmp_path, shard, inner, dtype, axes, compression, byteorder):
    """By tifffile as images, by tensorstore and zarr as arrays that need no codec of ours."""
    tensorstore = pytest.importorskip(
        "tensorstore", reason="the oracle tensorstore 0.1.86 is not installed"
    )
    codec = wkwdask.tiff_shard_codec(inner, compression=compression, byteorder=byteorder, axes=axes)
    shape = tuple(n + 9 if n > 4 else n for n in shard)
    voxels = _voxels(shape, dtype) + np.dtype(dtype).type(1)
    array = zarr.create_array(
        tmp_path / "a", shape=shape, chunks=shard, dtype=dtype, serializer=codec, compressors=None
    )
    array[...] = voxels
    found = tifffile.imread(tmp_path / "a" / "c" / "/".join("0" * len(shape)))
    assert found.dtype == voxels.dtype
    np.testing.assert_array_equal(found, voxels[tuple(slice(n) for n in shard)])
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "a")[...], voxels)
    if compression != "zlib":  # which has no name among the registered codecs
        other = tensorstore.open({"driver": "zarr3", "kvstore": f"file://{tmp_path}/a/"}).result()
        np.testing.assert_array_equal(other.read().result(), voxels)


# ----------------------------------------------------------------------------- the third example of
# the proposal


def _n5(tmp_path, block):
    tensorstore = pytest.importorskip(
        "tensorstore", reason="the oracle tensorstore 0.1.86 is not installed"
    )
    metadata = {**proposal.EXAMPLE_3_ATTRIBUTES, "blockSize": block}
    return tensorstore.open(
        {
            "driver": "n5",
            "kvstore": f"file://{tmp_path}/a/",
            "metadata": metadata,
            "create": True,
            "open": True,
        }
    ).result()


def _place(tmp_path, document):
    (tmp_path / "a" / "zarr.json").write_text(json.dumps(document))
    return zarr.open_array(tmp_path / "a")


def test_example_3_needs_a_transpose(tmp_path):
    """As printed, each block is transposed, since N5 stores the first axis fastest. A ``transpose``
    before ``bytes`` corrects reading and writing."""
    other = _n5(tmp_path, [64, 64])
    voxels = np.random.default_rng(0).integers(1, 1 << 16, (1024, 1024)).astype("uint16")
    other[...] = voxels
    printed = _place(tmp_path, proposal.EXAMPLE_3)
    wrong = printed[...] != voxels
    assert wrong.mean() > 0.98
    np.testing.assert_array_equal(printed[:64, :64], voxels[:64, :64].T)

    transpose = {"name": "transpose", "configuration": {"order": [1, 0]}}
    corrected = _place(
        tmp_path, {**proposal.EXAMPLE_3, "codecs": [transpose, *proposal.EXAMPLE_3["codecs"]]}
    )
    np.testing.assert_array_equal(corrected[...], voxels)
    corrected[100:300, 5:9] = voxels[100:300, 5:9] = 7
    np.testing.assert_array_equal(_n5_again(tmp_path), voxels)


@pytest.mark.parametrize(
    "codec", [{"offset": 12, "header": "n5"}, {"offset": 12, "header": "n5", "strict": True}]
)
def test_example_3_with_the_header_n5(tmp_path, codec):
    """The header by its name is right for blocks of any lengths, padded at the border; tensorstore
    reads what is written."""
    _n5(tmp_path, [64, 48])
    first, zstd, _ = proposal.EXAMPLE_3["codecs"]
    codecs = [
        {"name": "transpose", "configuration": {"order": [1, 0]}},
        first,
        zstd,
        {"name": "offset", "configuration": codec},
    ]
    grid = {"name": "regular", "configuration": {"chunk_shape": [64, 48]}}
    array = _place(tmp_path, {**proposal.EXAMPLE_3, "codecs": codecs, "chunk_grid": grid})
    voxels = np.random.default_rng(1).integers(1, 1 << 16, (1024, 1024)).astype("uint16")
    array[...] = voxels
    np.testing.assert_array_equal(_n5_again(tmp_path), voxels)


def _n5_again(tmp_path):
    import tensorstore

    return (
        tensorstore.open({"driver": "n5", "kvstore": f"file://{tmp_path}/a/", "open": True})
        .result()
        .read()
        .result()
    )


# ----------------------------------------------------------------------------- schemas


def _schema(name):
    return json.loads(
        files("wkwdask.formats.zarr.codecs")
        .joinpath("schemas", f"{name}.json")
        .read_text(encoding="utf-8")
    )


def _validator(name):
    jsonschema = pytest.importorskip(
        "jsonschema", reason="the oracle jsonschema 4.26.0 is not installed"
    )
    jsonschema.Draft202012Validator.check_schema(_schema(name))
    return jsonschema.Draft202012Validator(_schema(name))


CODECS = [
    wkwdask.offset_codec(7),
    wkwdask.offset_codec(prefix=b"MY_CUSTOM_HEADER", strict=True),
    wkwdask.offset_codec(header="tiff", header_options={"compression": "zlib"}),
    wkwdask.offset_codec(8, prefix_func=lambda encoded: bytes(8)),
    wkwdask.pad_codec(0, "end"),
    wkwdask.pad_codec(padding=b"ab", location="start", strict=True),
    wkwdask.pad_codec(12, header="n5"),
]


@pytest.mark.parametrize("codec", CODECS)
def test_what_we_write_validates(codec):
    assert list(_validator(codec.name).iter_errors(json.loads(json.dumps(codec.to_dict())))) == []


def test_examples_of_the_proposal_validate():
    for example in (proposal.EXAMPLE_1, proposal.EXAMPLE_2, proposal.EXAMPLE_3):
        assert _validator("offset").is_valid(example["codecs"][-1])


@pytest.mark.parametrize(
    "configuration",
    [
        {},
        {"offset": -1},
        {"offset": "12"},
        {"offset": 2.5},
        {"offset": 2, "prefix": "TVk"},
        {"offset": 2, "prefix": [77]},
        {"offset": 2, "prefx": "TVk="},
        {"offset": 2, "prefix": "TVk=", "header": "n5"},
        {"offset": 2, "header": {"options": {}}},
        {"offset": 2, "strict": "yes"},
    ],
)
def test_schema_and_codec_reject_the_same(configuration):
    entry = {"name": "offset", "configuration": configuration}
    assert not _validator("offset").is_valid(entry)
    with pytest.raises(wkwdask.CorruptError):
        type(wkwdask.offset_codec(1)).from_dict(entry)


def test_printed_schema_of_the_proposal():
    """It has the codec's keys where keywords of a schema belong, and asks for ``offset`` beside
    ``name``: its own examples do not validate."""
    jsonschema = pytest.importorskip(
        "jsonschema", reason="the oracle jsonschema 4.26.0 is not installed"
    )
    printed = jsonschema.Draft202012Validator(proposal.SCHEMA)
    assert not printed.is_valid(proposal.EXAMPLE_1["codecs"][-1])
    assert printed.is_valid({"offset": "nonsense"})


def test_tensorstore_rejects_the_codec(tmp_path):
    """The price of the codec: tensorstore rejects the array with a clear error."""
    tensorstore = pytest.importorskip(
        "tensorstore", reason="the oracle tensorstore 0.1.86 is not installed"
    )
    zarr.create_array(
        tmp_path / "a",
        shape=(4,),
        chunks=(2,),
        dtype="uint8",
        compressors=[wkwdask.offset_codec(4)],
    )
    with pytest.raises(ValueError, match="offset"):
        tensorstore.open({"driver": "zarr3", "kvstore": f"file://{tmp_path}/a/"}).result()
