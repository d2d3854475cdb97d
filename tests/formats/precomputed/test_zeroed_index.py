"""Shards of precomputed volumes whose index was zeroed, or of which a server sends nothing: errors,
never zeros."""

from __future__ import annotations

import numpy as np
import pytest
from support.range_server import range_server

import wkwdask
from wkwdask.errors import CorruptError, TruncatedError


def voxels():
    array = np.random.default_rng(0).integers(1, 200, (1, 32, 32, 16), np.uint8)
    array[:, 16:, 16:] = 0
    return array


@pytest.fixture
def volume(tmp_path):
    """A volume of 4 shards, one of them absent; return its folder and a shard."""
    folder = tmp_path / "volume"
    wkwdask.save(
        voxels(),
        f"precomputed://{folder}",
        voxel_size=(4, 4, 4),
        chunk_shape=(8, 8, 8),
        shard_shape=(16, 16, 16),
    )
    return folder, sorted(folder.rglob("*.shard"))[0]


def zero_index(shard):
    """Set the index of a shard to zeros, as file systems leave it after a power loss."""
    raw = shard.read_bytes()
    shard.write_bytes(bytes(16) + raw[16:])


@pytest.mark.needs("zarr")
def test_zeroed_index_is_an_error_of_every_verb(volume, tmp_path):
    folder, shard = volume
    zero_index(shard)
    url = f"precomputed://{folder}"
    with pytest.raises(CorruptError, match=r"0\.shard: byte 0: the shard index lists no minishard"):
        wkwdask.read(url)
    with pytest.raises(CorruptError, match="lists no minishard"):
        wkwdask.read(url, ((3, 3, 3), (5, 5, 5)))
    with pytest.raises(Exception, match="lists no minishard"):
        wkwdask.convert(url, f"zarr://{tmp_path / 'converted'}")
    report = wkwdask.verify(url)
    assert report.kinds() == {"shard.index": 1}
    assert not report.is_sound
    np.testing.assert_array_equal(wkwdask.read(url, ((16, 0, 0), (32, 32, 16))), voxels()[:, 16:])


def test_other_software_refuses_it_too(volume):
    cloudvolume = pytest.importorskip("cloudvolume", reason="cloud-volume is not installed")
    folder, shard = volume
    opened = cloudvolume.CloudVolume(f"precomputed://file://{folder}", progress=False)
    np.testing.assert_array_equal(opened[:16, :16, :16][..., 0], voxels()[0, :16, :16, :16])
    zero_index(shard)
    opened = cloudvolume.CloudVolume(f"precomputed://file://{folder}", progress=False)
    with pytest.raises(cloudvolume.exceptions.EmptyVolumeException):
        opened[:16, :16, :16]


def test_quarantine_sets_it_aside(volume):
    folder, shard = volume
    zero_index(shard)
    wkwdask.repair(f"precomputed://{folder}", quarantine=True)
    assert not wkwdask.read(f"precomputed://{folder}", ((0, 0, 0), (16, 16, 16))).any()
    assert wkwdask.verify(f"precomputed://{folder}").is_sound


@pytest.mark.needs("obstore")
def test_server_with_a_zeroed_index_or_an_empty_body_is_an_error(volume):
    folder, shard = volume
    zero_index(shard)
    with range_server(folder) as server, pytest.raises(CorruptError, match="lists no minishard"):
        wkwdask.read(f"precomputed://{server.url}")
    shard.write_bytes(b"")
    with range_server(folder) as server, pytest.raises(TruncatedError, match=r"0\.shard"):
        wkwdask.read(f"precomputed://{server.url}")


@pytest.mark.needs("obstore")
def test_absent_shards_and_empty_shards_are_zeros(volume):
    folder, shard = volume
    with range_server(folder) as server:
        for url in (str(folder), server.url):
            np.testing.assert_array_equal(wkwdask.read(f"precomputed://{url}"), voxels())
    shard.write_bytes(bytes(16))
    expected = voxels()
    expected[:, :16, :16] = 0
    with range_server(folder) as server:
        for url in (str(folder), server.url):
            np.testing.assert_array_equal(wkwdask.read(f"precomputed://{url}"), expected)
