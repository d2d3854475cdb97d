"""Scales whose chunks are images are stored anew without being decoded: not a bit of a voxel
changes, however lossy they are."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from faults.trees import contents, leftovers
from support.inside import limited
from support.precomputed_volumes import scale_entry, split_shard, write_info, write_scale

import wkwdask
from wkwdask import Sharding
from wkwdask.errors import CorruptError, TaskFailedError

pytest.importorskip("imagecodecs", reason="encodes images")

SIZE, CHUNK, OFFSET = (83, 50, 37), (16, 16, 8), (-5, 0, 3)
# a grid of 6 x 4 x 5 chunks: shards of 2 x 2 x 2 of them
FEW = Sharding(1, 2, 5, minishard_index_encoding="gzip")
SOURCES = {
    "files": None,
    "shards": FEW,
    "obsolete": Sharding(2, 0, 6),
    "murmur": Sharding(1, 2, 2, "murmurhash3_x86_128", "gzip", "gzip"),
}


def voxels(channels=1):
    """Noise, with chunks that are absent."""
    array = np.random.default_rng(0).integers(0, 256, (channels, *SIZE), dtype=np.uint8)
    array[:, 32:64, :32] = 0
    return array


@pytest.fixture(params=SOURCES)
def volume(request, tmp_path):
    """A jpeg of which nothing says how good it is, as others write them."""
    sharding = SOURCES[request.param]
    info = write_info(
        tmp_path / "v",
        [scale_entry(size=SIZE, offset=OFFSET, chunk=CHUNK, encoding="jpeg", sharding=sharding)],
        num_channels=3,
    )
    write_scale(tmp_path / "v", info.scales[0], voxels(3))
    if request.param == "obsolete":
        for path in (tmp_path / "v" / "4_4_40").iterdir():
            split_shard(path, sharding)
    return tmp_path / "v"


@pytest.mark.parametrize("sharded", [False, True, FEW])
def test_in_place_and_elsewhere(volume, sharded):
    before = wkwdask.read(volume)
    with limited(shard_nbytes=3 * 16 * 16 * 8 * 4):  # pieces of four chunks
        wkwdask.rechunk(volume, f"precomputed://{volume}-too", shard_shape=sharded)
        wkwdask.rechunk(volume, shard_shape=sharded)
    for folder in (volume, f"{volume}-too"):
        np.testing.assert_array_equal(wkwdask.read(folder), before)
        found = wkwdask.verify(folder)
        assert not found.faults
        assert found.mags[0].blocks == 100  # of 120, twenty are absent
    assert leftovers(volume.parent) == []


def test_tensorstore_reads_what_was_copied(volume):
    ts = pytest.importorskip("tensorstore", reason="the oracle tensorstore 0.1.86 is not installed")
    before = wkwdask.read(volume)
    wkwdask.rechunk(volume, shard_shape=FEW)
    found = ts.open({"driver": "neuroglancer_precomputed", "kvstore": f"file://{volume}/"}).result()
    assert tuple(found.domain.inclusive_min[:3]) == OFFSET
    # decoders differ by so much
    assert np.abs(found.read().result().transpose(3, 0, 1, 2).astype(int) - before).max() <= 3


def test_what_has_to_be_encoded_says_so(tmp_path):
    wkwdask.to_precomputed(
        voxels(),
        tmp_path / "v",
        voxel_size=(4, 4, 40),
        chunk_shape=CHUNK,
        encoding="jpeg",
        quality=90,
    )
    before = contents(tmp_path / "v" / "4_4_40")
    for options in ({"chunk_shape": (16, 16, 16)}, {"quality": 50}):
        with pytest.warns(
            UserWarning,
            match="'4_4_40' is decoded and encoded as jpeg again, which changes its voxels",
        ):
            wkwdask.rechunk(
                tmp_path / "v", f"precomputed://{tmp_path}/{'_'.join(options)}", **options
            )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wkwdask.rechunk(tmp_path / "v", f"precomputed://{tmp_path}/raw", encoding="raw")
        wkwdask.rechunk(tmp_path / "v", f"precomputed://{tmp_path}/same")
    assert contents(tmp_path / "same" / "4_4_40") == before
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "raw"), wkwdask.read(tmp_path / "v"))


def test_a_plan_of_what_is_copied(tmp_path):
    wkwdask.to_precomputed(
        voxels(), tmp_path / "v", voxel_size=(4, 4, 40), chunk_shape=CHUNK, encoding="png"
    )
    plan = wkwdask.plan_convert(tmp_path / "v", f"precomputed://{tmp_path}/w", shard_shape=True)
    report = wkwdask.convert(tmp_path / "v", f"precomputed://{tmp_path}/w", shard_shape=True)
    (planned,), (made,) = plan.mags, report.mags
    assert planned.files == made.files == 1
    assert 0.8 < planned.nbytes / made.nbytes < 1.5


@pytest.mark.filterwarnings("default::wkwdask.errors.DiscardWarning")
def test_damage_is_not_carried_on_in_place(tmp_path):
    """In its place all of it is compared first; of a copy elsewhere only chunks without a byte are
    noticed."""
    wkwdask.to_precomputed(
        voxels(), tmp_path / "v", voxel_size=(4, 4, 40), chunk_shape=CHUNK, encoding="png"
    )
    path = tmp_path / "v" / "4_4_40" / "0-16_0-16_8-16"
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    before = contents(tmp_path / "v")
    with pytest.raises((CorruptError, TaskFailedError), match="0-16_0-16_8-16"):
        wkwdask.rechunk(tmp_path / "v", shard_shape=True)
    assert contents(tmp_path / "v") == before
    path.write_bytes(b"")
    with pytest.raises(
        (CorruptError, TaskFailedError),
        match=r"0-16_0-16_8-16.*expected an encoded chunk, found 0 bytes",
    ):
        wkwdask.rechunk(tmp_path / "v", f"precomputed://{tmp_path}/w", shard_shape=True)
    path.write_bytes(whole)
    wkwdask.rechunk(tmp_path / "v", shard_shape=True, existing="restart")
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "v"), voxels())
    assert json.loads((tmp_path / "v" / "info").read_text())["scales"][0]["sharding"]
