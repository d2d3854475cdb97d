"""Documents of Zarr arrays that must not be read, or that cannot be: zarr-python 3 and tensorstore
0.1 refuse them too."""

from __future__ import annotations

import copy
import json
import warnings

import numpy as np
import pytest

pytest.importorskip("tensorstore", reason="the oracle tensorstore is not installed")
pytest.importorskip("zarr", reason="the oracle zarr-python is not installed")

import numcodecs
import tensorstore as ts
import zarr

import wkwdask

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
ARRAY = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [8, 8, 8],
    "data_type": "uint16",
    "fill_value": 0,
    "attributes": {},
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8, 8, 8]}},
    "dimension_names": ["z", "y", "x"],
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "codecs": [LITTLE, {"name": "zstd", "configuration": {"level": 1}}],
}
SHARDED = ARRAY | {"codecs": [{"name": "sharding_indexed", "configuration": {
    "chunk_shape": [8, 8, 8], "codecs": [LITTLE], "index_codecs": [LITTLE, {"name": "crc32c"}],
}}]}  # fmt: skip


def changed(document, *path, **members):
    """Return a copy of a document with other members in one of its objects."""
    new = copy.deepcopy(document)
    inner = new
    for key in path:
        inner = inner[key]
    inner.update(members)
    return new


REFUSED = {
    "member": changed(ARRAY, other={"a": 1}),
    "member that must be understood": changed(ARRAY, other={"must_understand": True}),
    "member that is no object": changed(ARRAY, other=1),
    "grid": changed(ARRAY, "chunk_grid", "configuration", other=1),
    "other grid": changed(ARRAY, "chunk_grid", name="rectilinear"),
    "names of chunks": changed(ARRAY, "chunk_key_encoding", "configuration", other=1),
    "other names of chunks": changed(ARRAY, "chunk_key_encoding", name="other"),
    "bytes": changed(ARRAY, "codecs", 0, "configuration", other=1),
    "compressor": changed(ARRAY, "codecs", 1, "configuration", other=1),
    "threads of Blosc": changed(
        ARRAY,
        "codecs",
        1,
        name="blosc",
        configuration={
            "cname": "lz4",
            "clevel": 5,
            "shuffle": "noshuffle",
            "typesize": 2,
            "blocksize": 0,
            "nthreads": 1,
        },
    ),
    "compressor in Blosc": changed(
        ARRAY,
        "codecs",
        1,
        name="blosc",
        configuration={
            "cname": "other",
            "clevel": 5,
            "shuffle": "noshuffle",
            "typesize": 2,
            "blocksize": 0,
        },
    ),
    "other codec": changed(ARRAY, "codecs", 1, name="other"),
    "storage transformers": changed(ARRAY, storage_transformers=[{"name": "other"}]),
    "shards": changed(SHARDED, "codecs", 0, "configuration", other=1),
    "codec in shards": changed(
        SHARDED, "codecs", 0, "configuration", "codecs", 0, "configuration", other=1
    ),
    "codec of the index": changed(
        SHARDED, "codecs", 0, "configuration", "index_codecs", 0, "configuration", other=1
    ),
}
OUT_OF_RANGE = {
    "too large": changed(ARRAY, fill_value=70000),
    "negative": changed(ARRAY, fill_value=-1),
    "fraction": changed(ARRAY, fill_value=1.5),
    "not a number": changed(ARRAY, fill_value="NaN"),
    "object": changed(ARRAY, fill_value={}),
    "too large for 64 bits": changed(ARRAY, data_type="uint64", fill_value=2**64),
}
READ = {
    "plain": ARRAY, "sharded": SHARDED,
    "member that need not be understood": changed(ARRAY, other={"must_understand": False}),
    "no storage transformers": changed(ARRAY, storage_transformers=[]),
    "fill value": changed(ARRAY, fill_value=7),
    "whole fill value": changed(ARRAY, fill_value=7.0),
    "hexadecimal fill value": changed(ARRAY, data_type="float32", fill_value="0x7fc00000"),
    "infinite fill value": changed(ARRAY, data_type="float16", fill_value="-Infinity"),
    "largest fill value": changed(ARRAY, data_type="uint64", fill_value=2**64 - 1),
}  # fmt: skip


def write(folder, document):
    folder.mkdir()
    (folder / "zarr.json").write_text(json.dumps(document))
    return folder


def read_by_tensorstore(folder):
    return (
        ts.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder}/"}}, open=True)
        .result()
        .read()
        .result()
    )


@pytest.mark.parametrize(
    ("name", "error"),
    [
        *((name, wkwdask.UnsupportedError) for name in REFUSED),
        *((name, wkwdask.CorruptError) for name in OUT_OF_RANGE),
    ],
)
def test_documents_that_no_reader_accepts(tmp_path, name, error):
    folder = write(tmp_path / "array", (REFUSED | OUT_OF_RANGE)[name])
    for read in (lambda: zarr.open_array(folder, mode="r"), lambda: read_by_tensorstore(folder)):
        with pytest.raises(Exception, match=r"."):
            read()
    with pytest.raises(error, match="array"):
        wkwdask.open(f"zarr://{folder}")


@pytest.mark.parametrize("name", READ)
def test_documents_that_all_read_alike(tmp_path, name):
    folder = write(tmp_path / "array", READ[name])
    expected = zarr.open_array(folder, mode="r")[...]
    np.testing.assert_array_equal(read_by_tensorstore(folder), expected)
    np.testing.assert_array_equal(wkwdask.open(f"zarr://{folder}").compute()[0].T, expected)


def test_groups_with_members_that_must_be_understood_are_not_read(tmp_path):
    zarr.create_array(tmp_path / "group" / "a", shape=(8, 8, 8), chunks=(8, 8, 8), dtype="uint8")[
        ...
    ] = 1
    for value, is_read in (({"a": 1}, False), ({"must_understand": False}, True)):
        document = {"zarr_format": 3, "node_type": "group", "attributes": {}, "other": value}
        (tmp_path / "group" / "zarr.json").write_text(json.dumps(document))
        if is_read:
            assert wkwdask.open(f"zarr://{tmp_path}/group").compute().all()
            continue
        for call in (
            wkwdask.open,
            wkwdask.verify,
            lambda url: wkwdask.to_zarr(np.ones((8, 8, 8), "u1"), url, voxel_size=(4, 4, 4)),
        ):
            with pytest.raises(
                wkwdask.UnsupportedError, match=r"group/zarr\.json: unknown member 'other'"
            ):
                call(f"zarr://{tmp_path}/group")


def _image_v2(folder, **members):
    """Write an image of Zarr v2, and change the document of its array."""
    voxels = np.random.default_rng(0).integers(1, 200, (16, 16, 16)).astype("uint16")
    array = zarr.create_array(
        folder / "0",
        shape=voxels.shape,
        chunks=(8, 8, 8),
        dtype="uint16",
        zarr_format=2,
        compressors=numcodecs.Blosc(),
    )
    array[...] = voxels
    scale = [{"type": "scale", "scale": [4.0, 4.0, 4.0]}]
    axes = [{"name": name, "type": "space", "unit": "nanometer"} for name in "zyx"]
    image = {
        "multiscales": [
            {
                "version": "0.4",
                "axes": axes,
                "datasets": [{"path": "0", "coordinateTransformations": scale}],
            }
        ]
    }
    for name, document in ((".zgroup", {"zarr_format": 2}), (".zattrs", image)):
        (folder / name).write_text(json.dumps(document))
    path = folder / "0" / ".zarray"
    path.write_text(json.dumps(json.loads(path.read_text()) | members))
    return folder


@pytest.mark.parametrize("members", [
    {"compressor": {"id": "missing"}},
    {"compressor": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "nthreads": 1}},
    {"compressor": {"id": "zstd", "level": 1, "numThreads": 2}},
    {"filters": [{"id": "missing"}]},
    {"filters": [{"id": "delta", "dtype": "<u2", "other": 1}]},
], ids=["compressor", "threads of Blosc", "threads of Zstandard", "filter", "setting of a filter"])  # fmt: skip  # noqa: E501
def test_a_missing_codec_is_no_damage(tmp_path, members):
    folder = _image_v2(tmp_path / "image.ome.zarr", **members)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    url = f"zarr://{folder}"
    with pytest.raises(Exception, match=r"."):
        zarr.open_array(folder / "0", mode="r")
    with pytest.raises(wkwdask.UnsupportedError, match=r"missing|unknown setting|other"):
        wkwdask.open(url)
    report = wkwdask.verify(url)
    assert [(fault.kind, fault.severity) for fault in report.faults] == [
        ("level.unsupported", "warning")
    ]
    assert "NOT CHECKED" in str(report)
    assert not wkwdask.repair(url, quarantine=True, salvage=True).actions
    assert wkwdask.info(url).scales[0].problem
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_shards_that_only_a_transpose_divides_are_no_damage(tmp_path):
    shards = {
        "chunk_shape": [2, 8, 5],  # of shards of 4 x 8 x 15 after the transpose
        "codecs": [LITTLE],
        "index_codecs": [LITTLE, {"name": "crc32c"}],
    }
    metadata = {
        "shape": [15, 8, 4],
        "data_type": "uint16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [15, 8, 4]}},
        "codecs": [
            {"name": "transpose", "configuration": {"order": [2, 1, 0]}},
            {"name": "sharding_indexed", "configuration": shards},
        ],
    }
    store = {"driver": "file", "path": str(tmp_path / "a")}
    array = ts.open(
        {"driver": "zarr3", "kvstore": store, "metadata": metadata}, create=True
    ).result()
    array[...].write(np.ones((15, 8, 4), np.uint16)).result()
    with pytest.raises(wkwdask.UnsupportedError, match="without the codec 'transpose'"):
        wkwdask.open(tmp_path / "a")
    (fault,) = wkwdask.verify(tmp_path / "a").faults
    assert fault.kind == "level.unsupported"


def test_views_of_arrays_that_zarr_python_reads_do_not_block_its_threads(tmp_path):
    codecs = pytest.importorskip("zarr.codecs.numcodecs", reason="an older zarr-python")
    voxels = np.random.default_rng(0).integers(1, 200, (24, 24, 24)).astype("uint16")
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="Numcodecs codecs are not in the Zarr version 3 specification"
        )
        zarr.create_array(
            tmp_path / "array",
            shape=voxels.shape,
            chunks=(8, 8, 8),
            dtype="uint16",
            filters=[codecs.Delta(dtype="uint16")],
        )[...] = voxels
        view = zarr.open_group(
            wkwdask.zarr_view(f"zarr://{tmp_path}/array", chunk_shape=(6, 6, 6)), mode="r"
        )
        np.testing.assert_array_equal(view["1"][...], voxels)
