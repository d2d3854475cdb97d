"""Images that jobs write to buckets of S3, Google and Azure, and which other software reads."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import dask
import numpy as np
import pytest
from faults.drivers import rechunks_of
from support.buckets import azure_container, gs_bucket, s3_bucket

import wkwdask
from wkwdask import BoundingBox, Mag
from wkwdask.api import conversion
from wkwdask.errors import ExistsError, UnsupportedError
from wkwdask.formats.opening import find, format_of_image
from wkwdask.model.placement import job_in
from wkwdask.model.store import Conflict, Expected
from wkwdask.model.writing.target_array import InPlaceWrite
from wkwdask.store import leases
from wkwdask.store.objects import memory_bucket, object_store
from wkwdask.store.objects.access import access_of
from wkwdask.store.store import store_at
from wkwdask.verbs.write import encode_part

pytestmark = pytest.mark.needs("obstore", "zarr")
VOXELS = np.random.default_rng(1).integers(1, 255, (1, 70, 60, 40), np.uint8)
IMAGES = ("precomputed://{}/v", "{}/v.ome.zarr")


@pytest.fixture(scope="module", params=["s3", "gs", "azure"])
def server(request, tmp_path_factory):
    start = {
        "s3": s3_bucket,
        "gs": gs_bucket,
        "azure": lambda: azure_container(tmp_path_factory.mktemp("azurite")),
    }
    with start[request.param]() as bucket:
        yield bucket


@pytest.fixture
def bucket(server, tmp_path):
    with server.reached():
        store = store_at(f"{server.url}/{tmp_path.name}")
        yield store.url
        store.delete_folder()


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_and_its_pyramid(bucket, image):
    url = image.format(bucket)
    wkwdask.save(VOXELS, url, voxel_size=(4, 4, 8), chunk_shape=(16, 16, 16))
    with pytest.raises(ExistsError):
        wkwdask.save(VOXELS[..., ::-1], url, voxel_size=(4, 4, 8), chunk_shape=(16, 16, 16))
    report = wkwdask.build_pyramid(url, method="max")
    assert len(report.mags) >= 2
    again = wkwdask.build_pyramid(url, method="max")
    assert "nothing to do" in again.note
    np.testing.assert_array_equal(wkwdask.read(url, mag=1), VOXELS)
    replaced = wkwdask.rechunk(url, chunk_shape=(32, 32, 32))
    assert len(wkwdask.clean(url, grace_seconds=0)) == len(replaced.mags)
    np.testing.assert_array_equal(wkwdask.read(url, mag=1), VOXELS)
    assert wkwdask.verify(url).is_sound
    records = ("job-", "lock", "clock", "probe", "garbage", ".parts")
    names = [f"{folder}/{name}" for folder, _, found in store_at(bucket).walk() for name in found]
    assert [name for name in names if any(word in name for word in records)] == []


@pytest.mark.needs("zmesh", "DracoPy", "pyfqmr")
def test_meshes(bucket, tmp_path):
    labels = np.zeros((1, 40, 30, 20), np.uint32)
    labels[:, 3:35, 4:12, 4:16], labels[:, 3:40, 15:25, 4:16] = 1, 2**30
    url, local = f"precomputed://{bucket}/v", f"precomputed://{tmp_path / 'v'}"
    for volume in (url, local):
        wkwdask.save(labels, volume, voxel_size=(4, 4, 8), category="segmentation")
        wkwdask.meshes(volume, cell=12)
    expected = {p.name: p.read_bytes() for p in (tmp_path / "v" / "mesh").iterdir()}

    def stored():
        (info,) = store_at(f"{bucket}/v").read_whole(["info"], 1 << 20)
        store = store_at(f"{bucket}/v/{json.loads(info)['mesh']}")
        names = [name for name in store.names() if not name.startswith(".")]
        return store.url, dict(zip(names, store.read_whole(names, 1 << 20), strict=True))

    folder, files = stored()
    assert files == expected
    assert job_in(folder)
    verified = wkwdask.verify(url)
    assert verified.is_sound
    assert verified.mags[-1].nbytes == sum(map(len, expected.values())) - len(expected["info"])
    with pytest.raises(ExistsError, match=r"mesh.*: already exists"):
        wkwdask.meshes(url, cell=12)
    with pytest.raises(ExistsError, match="info: names the meshes in 'mesh"):
        wkwdask.meshes(url, f"{url}/other", cell=12)
    wkwdask.meshes(url, cell=14, existing="overwrite")
    assert stored()[0] != folder
    assert store_at(folder).names()  # for readers that opened the volume before
    assert wkwdask.clean(url, grace_seconds=0) == [folder]
    assert not store_at(folder).names()
    assert wkwdask.verify(url).is_sound
    left = stored()[0]
    wkwdask.rm(url)
    assert left in wkwdask.clean(url, grace_seconds=0)
    assert not store_at(left).names()


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("shards", [None, False])
def test_regions(bucket, image, shards):
    url, expected = image.format(bucket), VOXELS.copy()
    wkwdask.save(VOXELS, url, voxel_size=(4, 4, 8), chunk_shape=(16, 16, 16), shard_shape=shards)
    expected[:, 5:60, 6:50, 7:30] = 7
    expected[:, :16, :16, :16] = 0
    before = store_at(bucket).names()
    box = ((5, 6, 7), (60, 50, 30))
    wkwdask.save(np.full((1, 55, 44, 23), 7, np.uint8), url, region=box)
    wkwdask.save(np.zeros((1, 16, 16, 16), np.uint8), url, region=((0, 0, 0), (16, 16, 16)))
    np.testing.assert_array_equal(wkwdask.read(url), expected)
    assert wkwdask.verify(url).is_sound
    assert store_at(bucket).names() == before


@pytest.mark.parametrize("image", IMAGES)
def test_an_update(bucket, image):
    url = image.format(bucket)
    stored = {"chunk_shape": (16, 16, 16), "shard_shape": (32, 32, 32)}
    wkwdask.save(VOXELS, url, voxel_size=(4, 4, 8), **stored)
    wkwdask.build_pyramid(url, method="max", mags=["2-2-1", "4-4-2"], shard_shape=(16, 16, 16))
    assert "nothing to do" in wkwdask.build_pyramid(url, update=True).note
    wkwdask.save(np.zeros((1, 9, 9, 9), np.uint8), url, region=((0, 0, 0), (9, 9, 9)), mag=1)
    report = wkwdask.build_pyramid(url, update=True)
    assert "3 files rebuilt, 19 copied by the server" in report.note
    assert "nothing to do" in wkwdask.build_pyramid(url, update=True).note
    levels = [wkwdask.read(url, mag=mag) for mag in ("2-2-1", "4-4-2")]
    wkwdask.clean(url, grace_seconds=0)
    wkwdask.build_pyramid(url, method="max", mags=["2-2-1", "4-4-2"], existing="overwrite")
    for mag, voxels in zip(("2-2-1", "4-4-2"), levels, strict=True):
        np.testing.assert_array_equal(wkwdask.read(url, mag=mag), voxels)
    assert wkwdask.verify(url).is_sound


@pytest.mark.needs("cloudvolume", "boto3", "tensorstore")
@pytest.mark.parametrize("server", ["s3"], indirect=True)
def test_other_software_reads_replaced_levels_from_the_bucket(bucket, monkeypatch):
    import tensorstore
    import zarr
    from cloudvolume import CloudVolume
    from obstore.store import S3Store

    monkeypatch.setenv(
        "AWS_SESSION_TOKEN", "tests"
    )  # else cloud-volume takes no keys from variables
    volume, image = f"precomputed://{bucket}/v", f"{bucket}/v.ome.zarr"
    for voxels, existing in ((VOXELS, "error"), (VOXELS[..., ::-1], "overwrite")):
        options = {"voxel_size": (4, 4, 8), "chunk_shape": (16, 16, 16), "existing": existing}
        for url in (volume, image):
            wkwdask.save(voxels, url, **options)
        found = np.asarray(CloudVolume(volume, progress=False)[:, :, :])
        np.testing.assert_array_equal(found.transpose(3, 0, 1, 2), voxels)
        kvstore = {
            "driver": "s3",
            "bucket": "bucket",
            "path": f"{bucket[len('s3://bucket/') :]}/v/",
        }
        kvstore["endpoint"] = os.environ["AWS_ENDPOINT_URL"]
        spec = {"driver": "neuroglancer_precomputed", "kvstore": kvstore}
        found = tensorstore.open(spec).result().read().result()
        np.testing.assert_array_equal(found.transpose(3, 0, 1, 2), voxels)
        store = S3Store.from_url(image, client_options={"allow_http": True})
        group = zarr.open_group(zarr.storage.ObjectStore(store, read_only=True), mode="r")
        (level,) = group.attrs["ome"]["multiscales"][0]["datasets"]
        found = group[level["path"]][...]
        np.testing.assert_array_equal(found.reshape(found.shape[-3:]).T, voxels[0])


@pytest.mark.parametrize("image", IMAGES)
def test_writers_of_one_shard_keep_all_parts(bucket, image):
    url, expected = image.format(bucket), VOXELS.copy()
    wkwdask.save(VOXELS, url, voxel_size=(4, 4, 8), chunk_shape=(16, 16, 16))
    layer = find(url).layers[0]
    volume = layer.levels[0].open()

    def write(number):
        corner = (2 * number, 3, 5)
        target = format_of_image(layer).in_place_target(
            volume,
            InPlaceWrite(
                volume.store.url, f"{bucket}/p", BoundingBox(corner, (2, 2, 2)), merges=True
            ),
        )
        voxels = np.full((1, 2, 2, 2), number, np.uint8)
        encode_part(target, (0, 0, 0), target.shard_shape, voxels, corner)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(8)))
    for number in range(8):
        expected[:, 2 * number : 2 * number + 2, 3:5, 5:7] = number
    np.testing.assert_array_equal(wkwdask.read(url), expected)


@pytest.mark.parametrize("memory_nbytes", [256 << 20, 1 << 10])
def test_a_zipped_image(bucket, monkeypatch, memory_nbytes):
    """One object, which a large image makes of parts unless it replaces another."""
    for module in ("store.by_path", "store.objects.new_objects"):
        monkeypatch.setattr(f"wkwdask.{module}.MEMORY_NBYTES", memory_nbytes)
    source, target = f"precomputed://{bucket}/v", f"{bucket}/em.ozx"
    for voxels, existing in ((VOXELS, "error"), (VOXELS[..., ::-1], "overwrite")):
        wkwdask.save(
            voxels, source, voxel_size=(4, 4, 8), existing=existing, chunk_shape=(16, 16, 16)
        )
        wkwdask.convert(source, target, existing=existing)
        np.testing.assert_array_equal(wkwdask.read(target), voxels)
    with pytest.raises(ExistsError):
        wkwdask.convert(source, target)
    assert [name for name in store_at(bucket).names() if "em" in name] == ["em.ozx"]


def test_a_dataset_and_its_pyramid(bucket):
    url = f"{bucket}/dataset"
    dataset = wkwdask.create_dataset(url, (4, 4, 8))
    dataset = dataset.add_layer(
        "zarr", "color", "uint8", (0, 0, 0, 70, 60, 40), data_format="zarr3"
    )
    for layer, options in (
        ("wkw", {"block_len": 8, "file_len": 2}),
        ("zarr", {"chunk_shape": (8, 8, 8)}),
    ):
        wkwdask.save(VOXELS, f"{url}/{layer}/1", **options)
        with pytest.raises(ExistsError):
            wkwdask.save(VOXELS, f"{url}/{layer}/1", existing="error", category="color", **options)
    wkwdask.build_pyramid(url, layer="wkw", method="max")
    wkwdask.build_pyramid(url, layer="zarr", method="max")
    np.testing.assert_array_equal(
        *(wkwdask.read(url, layer=each, mag="2-2-1") for each in ("wkw", "zarr"))
    )
    wkwdask.compress(url, layer="wkw", compression="lz4", mags=[1])
    wkwdask.clean(url, grace_seconds=0)
    for layer in ("wkw", "zarr"):
        np.testing.assert_array_equal(wkwdask.read(url, layer=layer, mag=1), VOXELS)
    assert wkwdask.verify(url).is_sound
    wkwdask.rm(url, layer="wkw")
    assert list(dataset.refreshed().rename_layer("zarr", "em").layers) == ["em"]
    np.testing.assert_array_equal(wkwdask.read(url, mag=1), VOXELS)


@pytest.mark.filterwarnings("ignore::wkwdask.errors.MetadataWarning")
def test_levels_that_are_created_once(bucket):
    """A group of N5, and mags that belong to no dataset."""
    for url, finest, options in (
        (f"n5://{bucket}/v.n5", f"n5://{bucket}/v.n5/s0", {"voxel_size": (4, 4, 8)}),
        (f"{bucket}/v", f"{bucket}/v/1", {}),
    ):
        wkwdask.save(VOXELS, finest, **options)
        wkwdask.build_pyramid(url, method="max", mags=["2-2-1"])
        np.testing.assert_array_equal(wkwdask.read(url, mag=1), VOXELS)
        assert wkwdask.read(url, mag="2-2-1").any()
        with pytest.raises(UnsupportedError, match="only created"):
            wkwdask.save(VOXELS, finest, existing="overwrite", **options)
        assert wkwdask.verify(url).is_sound
    names = [f"{folder}/{name}" for folder, _, found in store_at(bucket).walk() for name in found]
    assert [name for name in names if any(map(job_in, name.split("/")))] == []


def test_copies_keep_what_is_there(bucket):
    store = store_at(bucket)
    store.put("a/one", b"1")
    store.put("a/two", b"2")
    store.put("b/two", b"3")
    store_at(f"{bucket}/b").copy(f"{bucket}/a", ["one", "two"])
    assert store.read_whole(["b/one", "b/two"], 10) == [b"1", b"3"]
    with pytest.raises(FileNotFoundError):
        store_at(f"{bucket}/b").copy(f"{bucket}/a", ["three"])


def test_scales_are_sharded_unless_the_call_says_otherwise(bucket):
    for name, options, is_sharded in (("a", {}, True), ("b", {"shard_shape": False}, False)):
        url = f"precomputed://{bucket}/{name}"
        wkwdask.save(VOXELS, url, voxel_size=(4, 4, 8), chunk_shape=(16, 16, 16), **options)
        shards = "in shards of 64 x 32 x 64 (up to 131.1 kB before compression)"
        files = shards if is_sharded else "each a file"
        stored = f"stored as raw, chunks of 16 x 16 x 16 voxels, {files}\n"
        assert stored in str(wkwdask.plan_pyramid(url))
        wkwdask.build_pyramid(url)
        info = json.loads(store_at(f"{bucket}/{name}").read_document("info", 1 << 20))
        assert [("sharding" in scale) for scale in info["scales"]] == [is_sharded] * 3
        np.testing.assert_array_equal(wkwdask.read(url, mag=1), VOXELS)


@pytest.mark.needs("zarr")
def test_shards_of_zarr_are_smaller_than_on_a_disk(bucket, tmp_path):
    """One request stores a shard from memory."""
    shapes = []
    for folder in (bucket, str(tmp_path)):
        url = f"{folder}/large.ome.zarr"
        wkwdask.create(url, ((0, 0, 0), (2048,) * 3), "uint8", voxel_size=(4, 4, 8))
        (image,) = find(url).layers
        (document,) = store_at(image.levels[0].folder).read_whole(["zarr.json"], 1 << 20)
        shapes.append(json.loads(document)["chunk_grid"]["configuration"]["chunk_shape"])
    assert [math.prod(shape) >> 20 for shape in shapes] == [256, 512]


def test_conditions_are_honoured(bucket):
    store = store_at(bucket)
    first = store.put("a", b"1", Expected.ABSENT)
    with pytest.raises(Conflict):
        store.put("a", b"2", Expected.ABSENT)
    second = store.put("a", b"2", first)
    with pytest.raises(Conflict):
        store.put("a", b"3", first)
    with pytest.raises(Conflict):
        store.put("b", b"3", second)
    assert store.read_state("a", 10) == (b"2", second)
    store.delete("a")
    store.delete("a")
    assert store.read_state("a", 10) is None
    with pytest.raises(Conflict):
        store.put("a", b"3", second)


def test_conditions_of_copies_are_honoured(bucket, monkeypatch):
    monkeypatch.setattr(leases, "_probed_copies", set())
    leases.check_copies(bucket)
    assert leases._probed_copies
    assert store_at(bucket).names() == []


def test_a_single_writer_copies_nothing_over_another_object(bucket):
    store = replace(store_at(bucket), access=replace(access_of(bucket), single_writer=True))
    for name in ("a/n", "a/o", "b/n"):
        store.put(name, name.encode())
    store.below("b").copy(f"{bucket}/a", ["n", "o"])
    assert store.read_whole(["b/n", "b/o"], 10) == [b"b/n", b"a/o"]


def test_a_server_that_copies_over_other_objects_is_refused(monkeypatch):
    def copy(source, url, access):
        found = memory_bucket._objects[source]
        memory_bucket.put_once(url, found.data, Expected.ANY, "", access)

    monkeypatch.setattr(leases, "_probed_copies", set())
    monkeypatch.setattr(memory_bucket, "copy_once", copy)
    with pytest.raises(UnsupportedError, match=r"memory://careless: .* conditional copies"):
        leases.check_copies("memory://careless/v")
    assert store_at("memory://careless").names() == []


def test_objects_that_s3_cannot_store_on_condition_are_refused_early(bucket, server, monkeypatch):
    """Before anything is written or built; other servers have no such limit."""
    monkeypatch.setattr(object_store, "LARGEST_NBYTES", 20_000)
    source = f"precomputed://{bucket}/v"
    options = {"voxel_size": (4, 4, 8), "chunk_shape": (16, 16, 16)}
    is_s3 = bucket.startswith("s3://")
    refused = pytest.raises(UnsupportedError, match=rf"{bucket}/v/.* 32768 bytes.*at most 20000")
    with refused if is_s3 else contextlib.nullcontext():
        wkwdask.save(VOXELS, source, shard_shape=(32, 32, 32), **options)
    assert store_at(bucket).names() == ([] if is_s3 else ["v"])
    wkwdask.save(VOXELS, source, shard_shape=False, existing="overwrite", **options)
    refused = pytest.raises(UnsupportedError, match=r"em.ozx: .*sample.* about \d+ bytes")
    with refused if is_s3 else contextlib.nullcontext():
        wkwdask.convert(source, f"{bucket}/em.ozx")
    assert ("em.ozx" in store_at(bucket).names()) is not is_s3
    monkeypatch.setattr(object_store, "LARGEST_NBYTES", 2 * VOXELS.nbytes)
    wkwdask.convert(source, f"{bucket}/small.ozx")
    np.testing.assert_array_equal(wkwdask.read(f"{bucket}/small.ozx"), VOXELS)


def test_objects_that_s3_does_not_copy_are_refused_early(bucket, server, monkeypatch):
    """Those that an update keeps, that become levels of N5, and that a repair sets aside."""
    is_s3 = bucket.startswith("s3://")
    url, options = f"precomputed://{bucket}/v", {"chunk_shape": (16, 16, 16)}
    wkwdask.save(VOXELS, url, voxel_size=(4, 4, 8), shard_shape=(32, 32, 32), **options)
    wkwdask.build_pyramid(url, mags=["2-2-1"], shard_shape=(32, 32, 32))
    wkwdask.save(np.zeros((1, 9, 9, 9), np.uint8), url, region=((0, 0, 0), (9, 9, 9)), mag=1)
    monkeypatch.setattr(object_store, "LARGEST_NBYTES", 4000)
    before = sorted(store_at(bucket).walk())
    refused = pytest.raises(UnsupportedError, match=r"S3 stores at most 4000 bytes")
    with refused if is_s3 else contextlib.nullcontext():
        wkwdask.build_pyramid(url, update=True)
    assert (sorted(store_at(bucket).walk()) == before) is is_s3
    with refused if is_s3 else contextlib.nullcontext():
        wkwdask.save(VOXELS, f"n5://{bucket}/em.n5/v", voxel_size=(4, 4, 8), **options)
    level = store_at(find(url).layers[0].find(Mag.parse("2-2-1")).folder)
    shard = next(name for name in level.names() if name.endswith(".shard"))
    (whole,) = level.read_whole([shard], 1 << 20)
    level.put(shard, whole[:-40])
    report = wkwdask.repair(url)
    assert ("copies no object of its size to the quarantine" in str(report)) is is_s3
    assert report.is_sound is not is_s3
    assert level.read_whole([shard], 1 << 20) == ([whole[:-40]] if is_s3 else [whole])


def test_a_zip_that_grows_too_large_for_s3_is_refused_while_it_is_built(
    bucket, server, monkeypatch, tmp_path
):
    """The sample of its voxels said that it fits."""
    source = f"precomputed://{bucket}/v"
    wkwdask.save(VOXELS, source, voxel_size=(4, 4, 8), chunk_shape=(16, 16, 16))
    monkeypatch.setattr(object_store, "LARGEST_NBYTES", 40_000)
    monkeypatch.setattr(conversion, "_check_object", lambda *_: None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    refused = pytest.raises(UnsupportedError, match=r"em.ozx: has already \d+ bytes, and S3 stores")
    is_s3 = bucket.startswith("s3://")
    with (
        dask.config.set(scheduler="synchronous"),
        rechunks_of(32),
        refused if is_s3 else contextlib.nullcontext(),
    ):
        wkwdask.convert(
            source, f"{bucket}/em.ozx", chunk_shape=(16, 16, 16), shard_shape=(32, 32, 32)
        )
    assert ("em.ozx" in store_at(bucket).names()) is not is_s3
    shards = [path for path in tmp_path.rglob("c/*/*/*") if path.is_file()]
    assert bool(shards) is is_s3
    assert sum(path.stat().st_size for path in shards) < VOXELS.nbytes / 2


def test_a_large_object_is_sent_in_parts(bucket, monkeypatch):
    monkeypatch.setattr("wkwdask.store.objects.new_objects.MEMORY_NBYTES", 1 << 20)
    data = np.random.default_rng(2).integers(0, 255, 7 << 20, np.uint8)
    store = store_at(bucket)
    for content in (data, data[::-1].copy()):  # the first one stays
        with store.new_file("large") as file:
            file.write(content[1000:], 1000)
            file.write(content[:1000], 0)
    (found,) = store.read_whole(["large"], 1 << 30)
    assert found == data.tobytes()
    assert store.names() == ["large"]


def test_a_server_that_ignores_conditions_is_refused(monkeypatch):
    real = memory_bucket.put_once
    monkeypatch.setattr(leases, "_probed", set())
    monkeypatch.setattr(
        memory_bucket,
        "put_once",
        lambda url, data, expect, writer, access: real(url, data, Expected.ANY, writer, access),
    )
    with pytest.raises(UnsupportedError, match="does not honour conditional writes"):
        wkwdask.to_precomputed(VOXELS, "precomputed://memory://careless/v", voxel_size=(4, 4, 8))
    assert store_at("memory://careless").names() == []


def test_no_permission_to_write(bucket, server, monkeypatch):
    if not server.url.startswith("az://"):
        pytest.skip("moto does not check who writes")
    for name in server.keys:
        monkeypatch.delenv(name)
    object_store._connections.clear()
    with pytest.raises(OSError, match="cannot be written"):
        store_at(bucket).put("a", b"1")
