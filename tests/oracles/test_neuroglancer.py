"""Volumes that we write, as the real Neuroglancer client decodes them in a headless browser.

Volumes that the client is known to show wrong are not read back; the writer must warn of them.
"""

from __future__ import annotations

import io
import os

import dask.array as da
import numpy as np
import pytest
from oracles.neuroglancer_client import missing, reading
from PIL import Image

import wkwdask
from wkwdask import Sharding

pytestmark = pytest.mark.needs("neuroglancer", "compressed_segmentation")

SHAPE = (41, 37, 26)
CHUNK = (16, 24, 16)
OFFSET = (7, -5, 3)
NM = (8, 8, 8)  # cubes: the client chooses the blocks in which it keeps labels by the voxel size
MANY_SHARDS = Sharding(1, 1, 3, minishard_index_encoding="gzip", data_encoding="gzip")
PLAIN_SHARD = Sharding(2, 1, 2)
WRONG = "Neuroglancer (shows|truncates)"


@pytest.fixture(scope="session")
def client(tmp_path_factory):
    """The client in a browser, once for all tests."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("neuroglancer")
    with reading(folder) as running:
        running.folder = folder
        yield running


def _labels(
    dtype: str, channels: int = 1, largest: int | None = None, shape: tuple[int, int, int] = SHAPE
) -> np.ndarray:
    """Draw cells of labels with a few voxels of noise, and a chunk that is all zero."""
    random = np.random.default_rng(3)
    most = np.iinfo(dtype).max if largest is None else largest
    coarse = random.integers(
        0, most, (channels, *(-(-n // 5) for n in shape)), dtype=dtype, endpoint=True
    )
    voxels = (
        coarse.repeat(5, 1).repeat(5, 2).repeat(5, 3)[:, : shape[0], : shape[1], : shape[2]].copy()
    )
    voxels[:, ::7, ::5, ::3] = random.integers(0, 9, voxels[:, ::7, ::5, ::3].shape, dtype=dtype)
    voxels[:, : CHUNK[0], : CHUNK[1], : CHUNK[2]] = 0
    return voxels


def _image(dtype: str, channels: int = 1) -> np.ndarray:
    random = np.random.default_rng(4)
    shape = (channels, *SHAPE)
    if dtype == "float32":
        return random.standard_normal(shape, dtype=np.float32)
    return random.integers(
        np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype=dtype, endpoint=True
    )


def _smooth(channels: int) -> np.ndarray:
    """Draw what jpeg keeps well."""
    x, y, z = np.meshgrid(*map(np.arange, SHAPE), indexing="ij")
    return np.stack(
        [
            (120 + 60 * np.sin(x / 9 + n) + 40 * np.cos(y / 11) + z).astype(np.uint8)
            for n in range(channels)
        ]
    )


def _write(client, name: str, voxels: np.ndarray, **options: object) -> None:
    settings = {"voxel_size": NM, "chunk_shape": CHUNK, "offset": OFFSET} | options
    wkwdask.to_precomputed(voxels, client.folder / name, **settings)


def _read_back(client, request, voxels: np.ndarray, **options: object) -> np.ndarray:
    name = request.node.name.replace("[", "-").strip("]")
    _write(client, name, voxels, **options)
    return client.read(name)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("sharded", [False, MANY_SHARDS], ids=["files", "shards"])
@pytest.mark.parametrize(
    "dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "float32"]
)
def test_raw(client, request, dtype, sharded):
    voxels = _image(dtype)
    kind = "segmentation" if dtype == "uint64" else "image"
    np.testing.assert_array_equal(
        _read_back(client, request, voxels, encoding="raw", shard_shape=sharded, type=kind), voxels
    )


def test_raw_channels(client, request):
    voxels = _image("uint16", 2)
    np.testing.assert_array_equal(
        _read_back(client, request, voxels, encoding="raw", shard_shape=PLAIN_SHARD), voxels
    )


@pytest.mark.parametrize("compress", [None, "gzip"])
@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
def test_compressed_segmentation(client, request, dtype, compress):
    voxels = _labels(dtype)
    np.testing.assert_array_equal(_read_back(client, request, voxels, compression=compress), voxels)


@pytest.mark.parametrize(
    "sharded", [True, MANY_SHARDS, PLAIN_SHARD], ids=["default", "many", "plain"]
)
def test_compressed_segmentation_in_shards(client, request, sharded):
    voxels = _labels("uint64")
    np.testing.assert_array_equal(_read_back(client, request, voxels, shard_shape=sharded), voxels)


@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
def test_compressed_segmentation_channels(client, request, dtype):
    voxels = _labels(dtype, 2)
    np.testing.assert_array_equal(
        _read_back(client, request, voxels, encoding="compressed_segmentation", type="image"),
        voxels,
    )


@pytest.mark.parametrize(
    ("dtype", "channels"), [("uint8", 1), ("uint8", 2), ("uint8", 3), ("uint8", 4), ("uint16", 1)]
)
def test_png(client, request, dtype, channels):
    pytest.importorskip("imagecodecs", reason="png needs imagecodecs")
    voxels = _image(dtype, channels)
    sharded = MANY_SHARDS if channels == 3 else False
    np.testing.assert_array_equal(
        _read_back(client, request, voxels, encoding="png", shard_shape=sharded), voxels
    )


@pytest.mark.parametrize(("channels", "most"), [(1, 4), (3, 8)])
def test_jpeg(client, request, channels, most):
    pytest.importorskip("imagecodecs", reason="jpeg needs imagecodecs")
    voxels = _smooth(channels)
    found = _read_back(client, request, voxels, encoding="jpeg", quality=98)
    assert np.abs(found.astype(int) - voxels).max() <= most


def test_jxl(client, request):
    pytest.importorskip("imagecodecs", reason="jxl needs imagecodecs")
    voxels = _image("uint8")
    np.testing.assert_array_equal(_read_back(client, request, voxels, encoding="jxl"), voxels)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_compresso(client, request, dtype):
    pytest.importorskip("compresso", reason="compresso needs the package of that name")
    voxels = _labels(dtype)
    sharded = MANY_SHARDS if dtype == "uint32" else False
    np.testing.assert_array_equal(
        _read_back(
            client, request, voxels, encoding="compresso", type="segmentation", shard_shape=sharded
        ),
        voxels,
    )


def test_compresso_of_small_ids(client, request):
    pytest.importorskip("compresso", reason="compresso needs the package of that name")
    voxels = _labels("uint64", largest=2**32 - 1)
    with pytest.warns(UserWarning, match=WRONG):
        found = _read_back(client, request, voxels, encoding="compresso")
    np.testing.assert_array_equal(found, voxels)


@pytest.mark.parametrize(
    ("voxels", "encoding"),
    [(_image("uint16", 2), "png"), (_smooth(3), "jxl"), (_labels("uint64"), "compresso")],
    ids=["png of uint16 with channels", "jxl of RGB", "compresso of large ids"],
)
def test_the_writer_warns_of_volumes_that_the_client_shows_wrong(voxels, encoding, tmp_path):
    pytest.importorskip("imagecodecs", reason="png and jxl need imagecodecs")
    pytest.importorskip("compresso", reason="compresso needs the package of that name")
    with pytest.warns(UserWarning, match=WRONG):
        wkwdask.to_precomputed(voxels, tmp_path / "volume", encoding=encoding, voxel_size=NM)


@pytest.mark.parametrize("sharded", [False, True], ids=["files", "shards"])
def test_scales(client, request, sharded):
    voxels = _labels("uint64", shape=(72, 68, 52))[0]
    name = request.node.name.replace("[", "-").strip("]")
    for mag in (1, 2, 4):
        offset = np.floor_divide((8, -8, 4), mag)
        _write(
            client, name, voxels[::mag, ::mag, ::mag], shard_shape=sharded, offset=offset, mag=mag
        )
    for scale, mag in enumerate((1, 2, 4)):
        np.testing.assert_array_equal(client.read(name, scale)[0], voxels[::mag, ::mag, ::mag])


def test_absent_chunks_are_zeros(client, request):
    voxels = da.zeros(SHAPE, dtype="uint8", chunks=CHUNK)
    found = _read_back(client, request, voxels, shard_shape=True)
    assert found.shape == (1, *SHAPE)
    assert not found.any()


def test_a_wrong_voxel_is_seen(client, request):
    voxels = _image("uint8")
    name = request.node.name
    _write(client, name, voxels, encoding="raw")
    (path,) = (client.folder / name).glob("*/23-39_-5-19_3-19")
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    os.unlink(path)
    path.write_bytes(bytes(data))
    assert (client.read(name) != voxels).sum() == 1


def test_a_picture_of_real_data(client, shared_data, tmp_path):
    image_of = pytest.importorskip("PIL.Image", reason="the picture is looked at by Pillow")
    for layer in ("color", "segmentation"):
        wkwdask.convert(
            shared_data / "l4_sample",
            f"precomputed://{client.folder / layer}",
            layer=layer,
            shard_shape=layer == "segmentation",
        )
    (tmp_path / "picture.png").write_bytes(
        client.screenshot("color", "segmentation", (600, 450), 0.9)
    )
    picture = np.asarray(image_of.open(tmp_path / "picture.png").convert("RGB"), int)
    saturated = np.ptp(picture, axis=2) > 20
    assert saturated.mean() > 0.1  # labels in colours
    # with the image's grey values below them
    assert len(np.unique(picture[saturated], axis=0)) > 1000


@pytest.mark.parametrize("version", ["0.5", "0.4"])
def test_zarr_images(client, version):
    """Pixels of an OME-NGFF image, in shards of Zarr 3 or files of Zarr 2, at their places:
    coordinates are those of the centers of voxels."""
    pytest.importorskip(
        "zarr", minversion="3.1.4", reason="zarr, of the extra zarr, is not installed"
    )
    import neuroglancer

    voxels = np.random.default_rng(5).integers(0, 255, (64, 48, 40), np.uint8)
    name = f"em-{version}.ome.zarr"
    wkwdask.to_zarr(
        voxels,
        client.folder / name,
        voxel_size=NM,
        offset=(100, -20, 7),
        chunk_shape=(16, 16, 16),
        ngff=version,
    )
    with client.viewer.txn() as state:
        state.dimensions = neuroglancer.CoordinateSpace(
            names=["x", "y", "z"], units="m", scales=[length / 1e9 for length in NM]
        )
        state.layers.clear()
        source = (
            f"zarr{'3' if version == '0.5' else '2'}://{client.source(name).partition('://')[2]}"
        )
        shader = "void main() { emitGrayscale(toNormalized(getDataValue())); }"
        state.layers["em"] = neuroglancer.ImageLayer(source=source, shader=shader)
        state.layout, state.cross_section_scale, state.show_axis_lines, state.show_scale_bar = (
            "xy",
            1,
            False,
            False,
        )
        state.position = [100 + 32 - 0.5, -20 + 24 - 0.5, 7 + 21]
    picture = client.viewer.screenshot(size=[40, 30]).screenshot.image
    found = np.asarray(Image.open(io.BytesIO(picture)).convert("L"))
    np.testing.assert_array_equal(found, voxels[12:52, 9:39, 21].T)


@pytest.mark.parametrize("compression", ["gzip", "raw"])
def test_n5(client, compression):
    """Pixels of an N5 group; the client chooses the resolution. Blocks are truncated at the upper
    ends, and voxel 0 is shown at 0."""
    import neuroglancer

    voxels = np.random.default_rng(5).integers(0, 255, (60, 45, 37), np.uint8)
    name = f"em-{compression}.n5"
    for number, step in enumerate((1, 2)):
        part = voxels[::step, ::step, ::step]
        wkwdask.to_n5(
            part,
            client.folder / name / "em" / f"s{number}",
            chunk_shape=(16, 16, 16),
            compression=compression,
            voxel_size=NM,
            mag=step,
        )
    with client.viewer.txn() as state:
        state.dimensions = neuroglancer.CoordinateSpace(
            names=["x", "y", "z"], units="m", scales=[length / 1e9 for length in NM]
        )
        state.layers.clear()
        source = f"n5://{client.source(name).partition('://')[2]}/em"
        shader = "void main() { emitGrayscale(toNormalized(getDataValue())); }"
        state.layers["em"] = neuroglancer.ImageLayer(source=source, shader=shader)
        state.layout, state.cross_section_scale, state.show_axis_lines, state.show_scale_bar = (
            "xy",
            1,
            False,
            False,
        )
        state.position = [32, 24, 35.5]
    picture = client.viewer.screenshot(size=[40, 30]).screenshot.image
    found = np.asarray(Image.open(io.BytesIO(picture)).convert("L"))
    np.testing.assert_array_equal(found, voxels[12:52, 9:39, 35].T)


@pytest.mark.parametrize(
    ("dtype", "compression"),
    [("uint8", "lz4"), ("uint16", "lz4hc"), ("uint32", "raw"), ("float32", "lz4")],
)
def test_blocks_of_wkw_as_chunks_of_zarr(client, tmp_path, dtype, compression):
    voxels, name = _image(dtype)[0], f"{dtype}.ome.zarr"
    wkwdask.create_dataset(tmp_path / "ds", NM)
    wkwdask.to_wkw(
        voxels,
        tmp_path / "ds" / "color" / "1",
        offset=(5, 20, 3),
        block_len=8,
        file_len=2,
        compression=compression,
        category="color",
    )
    wkwdask.convert(tmp_path / "ds", client.folder / name, layer="color")
    found = client.read_zarr(name)
    x, y, z = np.subtract(found.shape, voxels.shape)  # the array begins at the corner of a file
    assert (x, y, z, found.dtype) == (5, 4, 3, voxels.dtype)
    np.testing.assert_array_equal(found, np.pad(voxels, [(x, 0), (y, 0), (z, 0)]))
