"""Boxes of chunks that are decoded in part equal the voxels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wkwdask
from wkwdask.model import decompression

zarr = pytest.importorskip(
    "zarr", minversion="3.1.4", reason="zarr, of the extra zarr, is not installed"
)
pytest.importorskip("imagecodecs", reason="imagecodecs, of the extra zarr, is not installed")

SHAPE, CHUNK = (70, 80, 150), 64
"""Shape (x, y, z): chunks at the upper ends reach beyond it."""


def _voxels(dtype):
    random = np.random.default_rng(5)
    return np.repeat(random.integers(0, 200, (70, 80, 15)), 10, axis=2).astype(dtype)


def _write_zarr(url, voxels, compressor, *, order="zyx", sharded=False):
    axes = ["xyz".index(letter) for letter in order]
    array = zarr.create_array(
        str(url),
        shape=[SHAPE[n] for n in axes],
        dtype=voxels.dtype,
        chunks=(CHUNK,) * 3,
        shards=(2 * CHUNK,) * 3 if sharded else None,
        compressors=compressor,
        dimension_names=list(order),
    )
    array[...] = voxels.transpose(axes)
    return f"zarr://{url}"


def _write_n5(url, voxels, compression):
    wkwdask.to_n5(
        voxels, url / "s0", compression=compression, chunk_shape=(CHUNK,) * 3, voxel_size=(4, 4, 4)
    )
    return f"n5://{url}/s0"


def _zstd(**options):
    return zarr.codecs.ZstdCodec(**options)


def _blosc(cname, **options):
    return zarr.codecs.BloscCodec(cname=cname, **options)


FORMS = {
    "zarr-zstd": ("u4", lambda url, voxels: _write_zarr(url, voxels, _zstd(level=3))),
    "zarr-zstd-xyz-shards": (
        "u2",
        lambda url, voxels: _write_zarr(url, voxels, _zstd(), order="xyz", sharded=True),
    ),
    "zarr-zstd-checksum": (
        "u4",
        lambda url, voxels: _write_zarr(url, voxels, _zstd(checksum=True)),
    ),
    "zarr-blosc-lz4": (
        "u4",
        lambda url, voxels: _write_zarr(url, voxels, _blosc("lz4", shuffle="shuffle")),
    ),
    "zarr-blosc-blocks": (
        "f4",
        lambda url, voxels: _write_zarr(
            url, voxels, _blosc("zstd", shuffle="bitshuffle", blocksize=1 << 17), sharded=True
        ),
    ),
    "n5-blosc": ("u4", lambda url, voxels: _write_n5(url, voxels, "blosc")),
    "n5-zstd": ("i2", lambda url, voxels: _write_n5(url, voxels, "zstd")),
}


@pytest.fixture(scope="module", params=FORMS)
def volume(request, tmp_path_factory):
    """Return the name of a form, a reader of it, and the voxels."""
    dtype, write = FORMS[request.param]
    voxels = _voxels(dtype)
    url = write(tmp_path_factory.mktemp(request.param) / "image", voxels)
    return request.param, wkwdask.reader(url), voxels


@given(data=st.data())
def test_boxes_equal_the_voxels(volume, data):
    _, reader, voxels = volume
    ends = [
        sorted(data.draw(st.lists(st.integers(0, n), min_size=2, max_size=2, unique=True)))
        for n in SHAPE
    ]
    box = [a for a, _ in ends], [b for _, b in ends]
    assert np.array_equal(reader.read(box)[0], voxels[tuple(slice(*end) for end in ends)])


def test_only_a_checksum_and_axes_in_another_order_need_whole_chunks(volume, monkeypatch):
    name, reader, voxels = volume
    whole = []

    def decompress(kind, data, memory):
        whole.append(kind)
        return decompression.decompress(kind, data, memory)

    monkeypatch.setattr("wkwdask.formats.zarr.codec.decompress", decompress)
    monkeypatch.setattr("wkwdask.formats.n5.block.decompress", decompress)
    assert np.array_equal(reader.read(((0, 0, 64), (70, 80, 80)))[0], voxels[:, :, 64:80])
    # of the four chunks, two are also cut along x
    assert len(whole) == {"zarr-zstd-checksum": 4, "zarr-zstd-xyz-shards": 2}.get(name, 0)
