"""Oracles: tensorstore 0.1.86 and cloud-volume 12.15.2 read the precomputed volumes that are
written here, voxel for voxel and at their absolute places.

Each knows encodings that the other does not. cloud-volume reads pictures of several channels wrong,
its own too, so these are tensorstore's alone.
"""

from __future__ import annotations

import os
import warnings

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

import wkwdask
from wkwdask import Sharding, choose_sharding
from wkwdask.errors import ViewerWarning

SHAPE = (50, 33, 21)
CHUNK = (16, 16, 8)
OFFSET = (-20, 7, -3)
DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "float32")
# encoding, type, channels
LOSSLESS = [
    *(("raw", dtype, channels) for dtype in DTYPES for channels in (1, 2)),
    *(
        ("compressed_segmentation", dtype, channels)
        for dtype in ("uint32", "uint64")
        for channels in (1, 2)
    ),
    *(("png", dtype, channels) for dtype in ("uint8", "uint16") for channels in (1, 2, 3, 4)),
]
# png is left out, for which cloud-volume needs one more package: tensorstore reads it
FOR_CLOUDVOLUME = [
    *(("raw", dtype, channels) for dtype in DTYPES for channels in (1, 3)),
    ("compressed_segmentation", "uint32", 1), ("compressed_segmentation", "uint64", 1),
    *(("compresso", dtype, 1) for dtype in ("uint8", "uint16", "uint32", "uint64")),
    ("jxl", "uint8", 1),
]  # fmt: skip
NEEDS = {
    "png": "imagecodecs",
    "jpeg": "imagecodecs",
    "jxl": "imagecodecs",
    "compresso": "compresso",
}


def voxels(dtype, channels, shape=SHAPE, seed=0):
    """Blobs of the type's whole range, and a corner of zeros that leaves chunks out."""
    random = np.random.default_rng(seed)
    coarse = [-(-n // 3) for n in shape]
    if dtype == "float32":
        values = random.normal(0, 1e5, (channels, *coarse)).astype(dtype)
    else:
        limits = np.iinfo(dtype)
        values = random.integers(limits.min, limits.max, (channels, *coarse), dtype, endpoint=True)
    array = np.kron(values, np.ones((1, 3, 3, 3), dtype))[:, : shape[0], : shape[1], : shape[2]]
    array[:, :32, :16, :16] = 0
    return np.ascontiguousarray(array)


def smooth(channels):
    """A picture in which a lossy encoding changes little."""
    x, y, z = np.meshgrid(*(np.arange(n) for n in SHAPE), indexing="ij")
    return np.stack([100 + 50 * np.sin((x + 2 * y + z) / 15 + c) for c in range(channels)]).astype(
        np.uint8
    )


def write(array, folder, **options):
    """Write, where the packages of the encoding are there; what the viewer would show wrong is no
    matter here."""
    package = NEEDS.get(options.get("encoding", ""))
    if package:
        pytest.importorskip(package, reason=f"{options['encoding']} needs the extra precomputed")
    with warnings.catch_warnings(), dask.config.set(scheduler="synchronous"):
        warnings.simplefilter("ignore", ViewerWarning)
        options = {"voxel_size": (4, 4, 40), "offset": OFFSET, "chunk_shape": CHUNK, **options}
        return wkwdask.to_precomputed(array, folder, **options)


def sharding_of(size, chunk, within=4, **options):
    """Shards of a few chunks, in several minishards."""
    grid = tuple(-(-n // edge) for n, edge in zip(size, chunk, strict=True))
    total = sum((n - 1).bit_length() for n in grid)
    preshift = min(within // 2, total)
    minishard = min(within - preshift, total - preshift)
    return Sharding(preshift, minishard, total - preshift - minishard, **options)


def by_tensorstore(folder, scale=0):
    """The domain's corner, and the voxels (c, x, y, z)."""
    ts = pytest.importorskip("tensorstore", reason="the oracle tensorstore 0.1.86 is not installed")
    store = ts.open(
        {
            "driver": "neuroglancer_precomputed",
            "kvstore": {"driver": "file", "path": str(folder)},
            "scale_index": scale,
        }
    ).result()
    return tuple(store.domain.origin[:3]), store.read().result().transpose(3, 0, 1, 2)


def by_cloudvolume(folder, mip=0):
    """The same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its dependencies
        cloudvolume = pytest.importorskip(
            "cloudvolume", reason="the oracle cloud-volume 12.15.2 is not installed"
        )
        volume = cloudvolume.CloudVolume(
            f"file://{folder}", mip=mip, fill_missing=True, progress=False
        )
        found = np.asarray(volume[:, :, :])
    return tuple(int(n) for n in volume.voxel_offset), found.transpose(3, 0, 1, 2)


@pytest.mark.parametrize("sharded", [False, True, "raw"])
def test_tensorstore_reads_lossless_encodings(tmp_path, sharded):
    for encoding, dtype, channels in LOSSLESS:
        array = voxels(dtype, channels)
        how = {
            False: False,
            True: choose_sharding(SHAPE, CHUNK, dtype),
            "raw": sharding_of(SHAPE, CHUNK),
        }[sharded]
        kind = (
            "segmentation" if encoding == "compressed_segmentation" and channels == 1 else "image"
        )
        folder = tmp_path / f"{encoding}-{dtype}-{channels}"
        write(array, folder, encoding=encoding, shard_shape=how, type=kind)
        origin, found = by_tensorstore(folder)
        assert origin == OFFSET
        np.testing.assert_array_equal(found, array, err_msg=f"{encoding} {dtype} {channels}")


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
def test_tensorstore_reads_jpeg(tmp_path, sharded, channels):
    array = smooth(channels)
    write(array, tmp_path / "em", encoding="jpeg", quality=95, shard_shape=sharded)
    origin, found = by_tensorstore(tmp_path / "em")
    assert origin == OFFSET
    assert np.abs(found.astype(int) - array).max() < 12
    ours = wkwdask.open(tmp_path / "em").compute()
    assert np.abs(found.astype(int) - ours).max() <= 2


@pytest.mark.parametrize("how", ["files", "gzip", "shards"])
def test_cloudvolume_reads_its_encodings(tmp_path, how):
    for encoding, dtype, channels in FOR_CLOUDVOLUME:
        array = voxels(dtype, channels)
        options = {
            "files": {},
            "gzip": {"compression": "gzip"},
            "shards": {"shard_shape": sharding_of(SHAPE, CHUNK, data_encoding="gzip")},
        }[how]
        kind = "segmentation" if encoding in ("compressed_segmentation", "compresso") else "image"
        folder = tmp_path / f"{encoding}-{dtype}-{channels}"
        write(array, folder, encoding=encoding, type=kind, **options)
        assert all(
            name.endswith(".gz")
            for name in os.listdir(folder / "4_4_40")
            if not name.startswith(".")
        ) is (how == "gzip")
        origin, found = by_cloudvolume(folder)
        assert origin == OFFSET
        np.testing.assert_array_equal(found, array, err_msg=f"{encoding} {dtype} {channels}")


@pytest.mark.parametrize("sharded", [False, True])
def test_both_read_sections_that_became_a_volume(tmp_path, sharded):
    """Pictures become a scale in one step, with chunks that are no powers of two; a box of them
    too."""
    array = voxels("uint8", 1)
    (tmp_path / "sections").mkdir()
    for z, section in enumerate(array[0].T):
        Image.fromarray(section).save(tmp_path / "sections" / f"s{z}.png")
    options = {
        "voxel_size": (4, 4, 40),
        "offset": OFFSET,
        "chunk_shape": (10, 6, 5),
        "shard_shape": sharded,
    }
    with dask.config.set(scheduler="synchronous"):
        wkwdask.convert(tmp_path / "sections", f"precomputed://{tmp_path}/em", **options)
        wkwdask.convert(
            tmp_path / "sections",
            f"precomputed://{tmp_path}/part",
            bounding_box=(-13, 12, 0, 30, 10, 100),
            **options,
        )
    for read in (by_tensorstore, by_cloudvolume):
        origin, found = read(tmp_path / "em")
        assert origin == OFFSET
        np.testing.assert_array_equal(found, array)
        origin, found = read(tmp_path / "part")
        assert origin == (-13, 12, 0)
        np.testing.assert_array_equal(found, array[:, 7:37, 5:15, 3:])


def test_both_read_a_volume_of_several_scales(tmp_path):
    """Further scales are found by resolution and place; a chunk larger than the volume is cut
    off."""
    array = voxels("uint64", 1)
    write(array, tmp_path / "seg", shard_shape=True)
    write(
        array[:, ::2, ::2],
        tmp_path / "seg",
        voxel_size=None,
        mag="2-2-1",
        offset=(-10, 4, -3),
        chunk_shape=(64, 64, 64),
    )
    for read in (by_tensorstore, by_cloudvolume):
        for scale, (offset, expected) in enumerate(
            [(OFFSET, array), ((-10, 4, -3), array[:, ::2, ::2])]
        ):
            origin, found = read(tmp_path / "seg", scale)
            assert origin == offset
            np.testing.assert_array_equal(found, expected)


sizes = st.tuples(*(st.integers(1, 40),) * 3)


@given(
    size=sizes,
    chunk=st.tuples(*(st.integers(1, 24),) * 3),
    cuts=sizes,
    offset=st.tuples(*(st.integers(-50, 50),) * 3),
    within=st.none() | st.integers(0, 9),
    channels=st.integers(1, 2),
    is_gzip=st.booleans(),
    seed=st.integers(0, 5),
    in_memory=st.booleans(),
)
@example(
    size=(40, 1, 40),
    chunk=(3, 7, 5),
    cuts=(7, 1, 40),
    offset=(-1, 0, 0),
    within=5,
    channels=1,
    is_gzip=True,
    seed=0,
    in_memory=False,
)
@settings(max_examples=int(os.environ.get("WKWDASK_GEOMETRIES", "15")))
def test_tensorstore_reads_any_geometry(
    tmp_path_factory, size, chunk, cuts, offset, within, channels, is_gzip, seed, in_memory
):
    """Chunks of any size, shards of any bits, arrays in any chunks."""
    # thousands of files show nothing more
    chunk = tuple(max(edge, -(-n // 12)) for edge, n in zip(chunk, size, strict=True))
    array = voxels("uint16", channels, size, seed)
    sharded = False
    if within is not None:
        sharded = sharding_of(
            size,
            chunk,
            within,
            data_encoding="gzip" if is_gzip else "raw",
            minishard_index_encoding="gzip" if is_gzip else "raw",
        )
    folder = tmp_path_factory.mktemp("any") / "em"
    write(
        array if in_memory else da.from_array(array, chunks=(1, *cuts)),
        folder,
        chunk_shape=chunk,
        shard_shape=sharded,
        offset=offset,
    )
    origin, found = by_tensorstore(folder)
    assert origin == offset
    np.testing.assert_array_equal(found, array)
    np.testing.assert_array_equal(wkwdask.open(folder).compute(), array)
