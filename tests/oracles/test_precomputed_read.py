"""Volumes that tensorstore (0.1.86) and cloud-volume (12.15) write: every type and encoding that
they know, sharded and not, read here voxel for voxel."""

from __future__ import annotations

import contextlib
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.buckets import gs_bucket
from support.precomputed_volumes import labels
from support.range_server import range_server

import wkwdask

ts = pytest.importorskip("tensorstore", reason="the oracle")

DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "float32")
TYPES_OF = {
    "raw": DTYPES,
    "compressed_segmentation": ("uint32", "uint64"),
    "png": ("uint8", "uint16"),
    "jpeg": ("uint8",),
}
CHANNELS_OF = {
    "raw": (1, 3),
    "compressed_segmentation": (1, 2),
    "png": (1, 2, 3, 4),
    "jpeg": (1, 3),
}
SHAPE = (45, 33, 21)
OFFSET = (-7, 12, 300)
SHARDINGS = (
    None,
    {
        "preshift_bits": 1,
        "minishard_bits": 2,
        "shard_bits": 5,
        "hash": "identity",
        "minishard_index_encoding": "gzip",
        "data_encoding": "gzip",
    },
    {
        "preshift_bits": 2,
        "minishard_bits": 1,
        "shard_bits": 2,
        "hash": "murmurhash3_x86_128",
        "minishard_index_encoding": "raw",
        "data_encoding": "raw",
    },
)


def voxels(dtype, channels, shape=SHAPE, seed=0):
    """Noise for small types, blobs of ids for large ones, zeros in between; shape (c, x, y, z)."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        array = rng.normal(size=(channels, *shape)).astype(dtype)
    elif dtype in ("uint32", "uint64"):
        array = np.concatenate(
            [labels(shape, np.dtype(dtype).type, seed + n) for n in range(channels)]
        )
    else:
        info = np.iinfo(dtype)
        array = rng.integers(info.min, info.max, (channels, *shape), dtype, endpoint=True)
    array[:, : shape[0] // 2, : shape[1] // 2] = 0
    return array


def write_with_tensorstore(
    folder, array, encoding, sharding, offset=OFFSET, chunk=(16, 16, 8), **scale
):
    spec = {
        "driver": "neuroglancer_precomputed",
        "kvstore": {"driver": "file", "path": str(folder)},
        "create": True,
        "multiscale_metadata": {
            "type": "image",
            "data_type": array.dtype.name,
            "num_channels": len(array),
        },
        "scale_metadata": {
            "size": array.shape[1:],
            "voxel_offset": offset,
            "chunk_size": chunk,
            "encoding": encoding,
            "resolution": [4, 4.5, 40],
            **scale,
            **(
                {}
                if sharding is None
                else {"sharding": {"@type": "neuroglancer_uint64_sharded_v1", **sharding}}
            ),
            **(
                {"compressed_segmentation_block_size": [8, 7, 4]}
                if encoding == "compressed_segmentation"
                else {}
            ),
        },
    }
    opened = ts.open(spec).result()
    opened.write(array.transpose(1, 2, 3, 0)).result()
    return opened


CASES = [
    (encoding, dtype, channels, sharding)
    for encoding, dtypes in TYPES_OF.items()
    for dtype in dtypes
    for channels in CHANNELS_OF[encoding]
    for sharding in range(len(SHARDINGS))
]


@pytest.mark.parametrize(("encoding", "dtype", "channels", "sharding"), CASES)
def test_tensorstore(tmp_path, encoding, dtype, channels, sharding):
    if encoding in ("png", "jpeg"):
        pytest.importorskip("imagecodecs", reason="decodes images")
    array = voxels(dtype, channels)
    opened = write_with_tensorstore(tmp_path, array, encoding, SHARDINGS[sharding])
    stored = array if encoding != "jpeg" else opened.read().result().transpose(3, 0, 1, 2)
    found = wkwdask.read(tmp_path)
    if encoding == "jpeg":  # decoders may round in other ways
        assert np.abs(found.astype(int) - stored).max() <= 2
        return
    np.testing.assert_array_equal(found, stored)
    assert wkwdask.verify(tmp_path).faults == ()
    part = wkwdask.open(tmp_path, chunks="block")[:, 3:40, ::-2, 5].compute()
    np.testing.assert_array_equal(part, array[:, 3:40, ::-2, 5])


@given(st.data())
def test_any_geometry(tmp_path_factory, data):
    size, chunk = (
        data.draw(st.tuples(*[st.integers(1, 60)] * 3)),
        data.draw(st.tuples(*[st.integers(5, 40)] * 3)),
    )
    bits = sum((-(-n // edge) - 1).bit_length() for n, edge in zip(size, chunk, strict=True))
    preshift, minishard = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
    sharding = {
        "preshift_bits": preshift,
        "minishard_bits": minishard,
        "shard_bits": data.draw(st.integers(0, max(0, bits - preshift - minishard) + 1)),
        "hash": data.draw(st.sampled_from(["identity", "murmurhash3_x86_128"])),
        "minishard_index_encoding": data.draw(st.sampled_from(["raw", "gzip"])),
        "data_encoding": data.draw(st.sampled_from(["raw", "gzip"])),
    }
    array = voxels(
        data.draw(st.sampled_from(["uint16", "uint64"])), data.draw(st.integers(1, 2)), size
    )
    encoding = (
        "raw"
        if array.dtype == np.uint16
        else data.draw(st.sampled_from(["raw", "compressed_segmentation"]))
    )
    offset = data.draw(st.tuples(*[st.integers(-1000, 1000)] * 3))
    folder = tmp_path_factory.mktemp("ts")
    write_with_tensorstore(
        folder, array, encoding, data.draw(st.sampled_from([None, sharding])), offset, chunk
    )
    assert wkwdask.info(folder).scales[0].box.topleft == offset
    np.testing.assert_array_equal(wkwdask.read(folder), array)


def test_a_second_scale_and_chunk_size(tmp_path):
    """tensorstore adds scales to an info; mags are told by their resolutions."""
    array = voxels("uint8", 1)
    write_with_tensorstore(tmp_path, array, "raw", None)
    write_with_tensorstore(
        tmp_path, array[:, ::2, ::2, ::1], "raw", SHARDINGS[1], (-4, 6, 300), resolution=[8, 9, 40]
    )
    np.testing.assert_array_equal(wkwdask.read(tmp_path, mag="2-2-1"), array[:, ::2, ::2])
    np.testing.assert_array_equal(wkwdask.read(tmp_path, mag="4_4.5_40"), array)


# ------------------------------------------------------------------------------------------------
# cloud-volume


def write_with_cloud_volume(
    folder, array, encoding, *, sharding=None, compress=None, offset=OFFSET, chunk=(16, 16, 8)
):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it uses what others have deprecated
        cloudvolume = pytest.importorskip("cloudvolume", reason="the oracle")
        info = cloudvolume.CloudVolume.create_new_info(
            num_channels=len(array),
            layer_type="segmentation" if array.dtype.itemsize > 2 else "image",
            data_type=array.dtype.name,
            encoding=encoding,
            resolution=[4, 4, 40],
            voxel_offset=list(offset),
            volume_size=list(array.shape[1:]),
            chunk_size=list(chunk),
        )
        volume = cloudvolume.CloudVolume(
            f"file://{folder}",
            info=info,
            compress=compress,
            progress=False,
            non_aligned_writes=False,
            fill_missing=True,
        )
        if sharding is not None:
            spec = {"@type": "neuroglancer_uint64_sharded_v1", **sharding}
            volume.scale["sharding"] = spec
        volume.commit_info()
        volume[:, :, :] = np.asfortranarray(array.transpose(1, 2, 3, 0))
        return volume


@pytest.mark.parametrize(
    ("dtype", "encoding"),
    [
        ("uint8", "raw"),
        ("uint16", "raw"),
        ("float32", "raw"),
        ("uint64", "compressed_segmentation"),
        ("uint32", "compresso"),
    ],
)
@pytest.mark.parametrize("compress", [False, "gzip", "br", "zstd", "xz", "bz2"])
def test_cloud_volume(tmp_path, dtype, encoding, compress):
    """Files with and without an ending; all zeros are stored too."""
    if compress in ("br", "zstd"):
        pytest.importorskip("imagecodecs", reason="decompresses")
    array = voxels(dtype, 1)
    write_with_cloud_volume(tmp_path, array, encoding, compress=compress)
    ending = {False: "", "gzip": ".gz"}.get(compress, f".{compress}")
    names = os.listdir(tmp_path / "4_4_40")
    assert any(name.endswith(ending) if ending else "." not in name for name in names)
    np.testing.assert_array_equal(wkwdask.read(tmp_path), array)
    report = wkwdask.verify(tmp_path)
    assert report.is_sound, str(report)
    # it writes no @type
    assert not [fault for fault in report.faults if fault.kind != "info.absent"], str(report)


@pytest.mark.parametrize("sharding", SHARDINGS[1:])
@pytest.mark.parametrize(
    ("dtype", "encoding"), [("uint8", "raw"), ("uint64", "compressed_segmentation")]
)
def test_cloud_volume_shards(tmp_path, sharding, dtype, encoding):
    shape = (64, 32, 16)
    array = voxels(dtype, 1, shape)
    array[array == 0] = 1
    bits = 2 + 1 + 1  # a grid of 4 x 2 x 2 chunks
    if sharding["hash"] != "identity":
        sharding = {**sharding, "shard_bits": 0}
    # one shard is one write
    sharding = {**sharding, "shard_bits": 0, "minishard_bits": bits - sharding["preshift_bits"]}
    with contextlib.suppress(NotImplementedError):
        write_with_cloud_volume(tmp_path, array, encoding, sharding=sharding, offset=(0, 0, 0))
    np.testing.assert_array_equal(wkwdask.read(tmp_path), array)
    assert wkwdask.verify(tmp_path).is_sound


# ------------------------------------------------------------------------------------------------
# remote


@pytest.mark.parametrize("sharding", [0, 1, 2])
def test_over_http(tmp_path, sharding):
    pytest.importorskip("obstore", reason="reads http")
    array = voxels("uint64", 1)
    write_with_tensorstore(tmp_path / "v", array, "compressed_segmentation", SHARDINGS[sharding])
    with range_server(tmp_path) as server:
        np.testing.assert_array_equal(
            wkwdask.open(f"{server.url}/v/|neuroglancer-precomputed:", chunks="file").compute(
                scheduler="threads"
            ),
            array,
        )


@pytest.fixture(scope="module")
def s3():
    """A client of a bucket of moto's S3 server, in a thread of the tests."""
    pytest.importorskip("obstore", reason="reads s3")
    server_of = pytest.importorskip("moto.server", reason="serves S3")
    boto3 = pytest.importorskip("boto3", reason="writes to S3")
    before = {
        name: os.environ.get(name)
        for name in (
            "AWS_ENDPOINT_URL",
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_DEFAULT_REGION",
        )
    }
    server = server_of.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ.update(
        AWS_ENDPOINT_URL=f"http://{host}:{port}",
        AWS_ACCESS_KEY_ID="x",
        AWS_SECRET_ACCESS_KEY="y",
        AWS_DEFAULT_REGION="us-east-1",
    )
    try:
        client = boto3.client("s3")
        client.create_bucket(Bucket="bucket")
        yield client
    finally:
        server.stop()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


def upload(client, folder, prefix):
    for path in filter(Path.is_file, folder.rglob("*")):
        client.put_object(
            Bucket="bucket", Key=f"{prefix}/{path.relative_to(folder)}", Body=path.read_bytes()
        )


@pytest.mark.parametrize("sharding", [0, 1])
def test_s3(tmp_path, s3, sharding):
    array = voxels("uint64", 1)
    write_with_tensorstore(tmp_path, array, "compressed_segmentation", SHARDINGS[sharding])
    upload(s3, tmp_path, f"v{sharding}")
    np.testing.assert_array_equal(wkwdask.read(f"precomputed://s3://bucket/v{sharding}"), array)
    with pytest.raises(wkwdask.errors.MissingError, match="s3://bucket/none/info: not found"):
        wkwdask.read("precomputed://s3://bucket/none")


@pytest.mark.parametrize("sharding", [0, 1])
def test_gs(tmp_path, monkeypatch, sharding):
    pytest.importorskip("obstore", reason="reads gs")
    array = voxels("uint64", 1)
    array[:, :32, :32, :32] = 0  # a chunk that is absent
    write_with_tensorstore(tmp_path, array, "compressed_segmentation", SHARDINGS[sharding])
    with gs_bucket() as bucket:
        for name, value in bucket.environment(bucket.server).items():
            monkeypatch.setenv(name, value)
        for path in filter(Path.is_file, tmp_path.rglob("*")):
            bucket.put(f"v{sharding}/{path.relative_to(tmp_path)}", path.read_bytes())
        read = wkwdask.read(f"precomputed://gs://bucket/v{sharding}")
        np.testing.assert_array_equal(read, array)
        with pytest.raises(wkwdask.errors.MissingError, match="gs://bucket/none/info: not found"):
            wkwdask.read("precomputed://gs://bucket/none")


def test_s3_that_may_not_be_listed(tmp_path, monkeypatch):
    """S3 answers 403 for absent objects if readers may not list the bucket."""
    pytest.importorskip("obstore", reason="reads s3")
    array = voxels("uint64", 1)
    array[:, :32, :32, :32] = 0
    write_with_tensorstore(
        tmp_path / "bucket" / "v", array, "compressed_segmentation", SHARDINGS[0]
    )
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "x"),
        ("AWS_SECRET_ACCESS_KEY", "y"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    with range_server(tmp_path, absent=403) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        with pytest.warns(wkwdask.errors.AccessWarning, match="treated as absent"):
            np.testing.assert_array_equal(wkwdask.read("precomputed://s3://bucket/v"), array)
        with pytest.raises(
            PermissionError, match=r"credentials of the environment.*s3://bucket/none/info"
        ):
            wkwdask.read("precomputed://s3://bucket/none")
