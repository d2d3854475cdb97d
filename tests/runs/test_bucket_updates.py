"""Updates of pyramids in a bucket: new versions of the mags with changes, whose other files the
server copies."""

from __future__ import annotations

import dask
import numpy as np
import pytest
from faults.drivers import regions_of
from runs.test_bucket_jobs import (
    IMAGE,
    KINDS,
    VOXELS,
    change_a_corner,
    levels,
    pyramid,
    records,
    save,
)
from support.bucket_faults import faulty_bucket
from support.commands import run_here

import wkwdask
from wkwdask.errors import DiscardWarning, LockedError, ResumeError
from wkwdask.formats.opening import find
from wkwdask.model.placement import job_in, plain_name
from wkwdask.plans import chunks
from wkwdask.store.objects import memory_bucket, remote
from wkwdask.store.paths import basename, dirname
from wkwdask.store.records import read_creation_settings, read_provenance
from wkwdask.store.store import store_at


@pytest.fixture
def bucket(monkeypatch):
    monkeypatch.setattr(chunks, "_GROUP_CHUNKS", 8)  # several groups in a small mag
    with faulty_bucket() as bucket, dask.config.set(scheduler="synchronous"):
        yield bucket


def start(kind):
    options = {"shard_shape": (16, 16, 16)} if kind == "ngff" else {}
    save(kind, **options)
    pyramid(kind)


def update(kind, **options):
    return pyramid(kind, **{"update": True, **options})


def folders(kind):
    return {level.mag.name: level.folder for level in find(IMAGE[kind]).layers[0].levels}


def built_again(bucket, kind, **options):
    """The levels of a pyramid that is built from the finest mag as it is now."""
    before = bucket.snapshot()
    pyramid(kind, existing="restart", **options)
    found = levels(kind)
    bucket.restore(before)
    return found


def is_equal(seen, expected):
    assert seen.keys() == expected.keys()
    for mag, voxels in expected.items():
        np.testing.assert_array_equal(seen[mag], voxels)


@pytest.mark.parametrize("kind", KINDS)
def test_changed_shards_are_rebuilt_and_others_copied(bucket, kind):
    start(kind)
    before = folders(kind)
    assert "nothing to do" in update(kind).note
    change_a_corner(kind)
    expected = built_again(bucket, kind)
    bucket.requests = []
    report = update(kind)
    copies = [url for name, url in bucket.requests if name == "copy_once"]
    assert f"{len(copies)} copied by the server" in report.note or kind in ("precomputed", "n5")
    assert copies
    is_equal(levels(kind), expected)
    assert records() == []
    assert "nothing to do" in update(kind).note
    after = folders(kind)
    assert after["1"] == before["1"]
    for mag in before.keys() - {"1"}:
        assert plain_name(before[mag]) == plain_name(after[mag])
        assert job_in(before[mag]) != job_in(after[mag])
        settings = read_creation_settings(after[mag], None)
        assert settings == read_creation_settings(before[mag], None)
        documents = [
            name
            for name in store_at(before[mag]).names()
            if name in ("zarr.json", "header.wkw", "attributes.json")
        ]
        old, new = (store_at(each[mag]).read_whole(documents, 1 << 20) for each in (before, after))
        assert old == new
    assert len(wkwdask.clean(IMAGE[kind], grace_seconds=0)) == len(before) - 1
    is_equal(levels(kind), expected)


def test_an_equal_file_of_the_finest_mag_changes_nothing(bucket):
    start("precomputed")
    change_a_corner("precomputed", VOXELS[:, :9, :3, :5])
    assert "nothing to do" in update("precomputed").note


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_others_have_changed_are_rebuilt(bucket, kind):
    """Also coarser ones, and those that are gone."""
    start(kind)
    expected, coarse = levels(kind), folders(kind)["2-2-1"]
    files = [
        name
        for name in memory_bucket._objects
        if name.startswith(f"{coarse}/") and not basename(name).startswith((".", "header"))
    ]
    data = [name for name in files if not name.endswith(".json")]
    del memory_bucket._objects[sorted(data)[-1]]
    assert "nothing to do" not in update(kind).note
    is_equal(levels(kind), expected)
    assert "nothing to do" in update(kind).note


def test_a_process_that_wrote_the_files_updates_what_it_changes_later(bucket):
    """It knows the states of files that it stored, for a moment."""
    start("precomputed")
    wkwdask.rechunk(IMAGE["precomputed"], shard_shape=False)
    change_a_corner("precomputed")
    assert "nothing to do" not in update("precomputed").note
    is_equal(levels("precomputed"), built_again(bucket, "precomputed"))


def test_the_state_of_a_stored_file_is_known_for_a_moment(bucket, monkeypatch):
    store = store_at("memory://bucket/folder")
    for name in ("early", "late", "own"):
        store.publish(name, b"first")
    early = store.states(["early"])
    store.put("own", b"of this process")
    assert store.states(["early"]) == early
    assert [state.nbytes for state in store.states(["own"])] == [15]
    memory_bucket._objects.update(
        {name: each._replace(data=b"of another") for name, each in memory_bucket._objects.items()}
    )
    monkeypatch.setattr(remote, "_TRUSTED_SECONDS", 0.0)
    assert [state.nbytes for state in store.states(["late"])] == [10]


@pytest.mark.parametrize("kind", KINDS)
def test_updates_of_a_box_and_by_content(bucket, kind):
    start(kind)
    expected = levels(kind)
    for mag, voxels in expected.items():
        if mag != "1":
            change_a_corner(kind, np.zeros_like(voxels[:, :9, :3, :5]), mag)
    report = update(kind, update=False, bounding_box=(0, 0, 0, 40, 20, 10))
    assert "copied by the server" in report.note
    is_equal(levels(kind), expected)
    change_a_corner(kind)
    expected = built_again(bucket, kind)
    # what lies outside of the box stays as it is, and is rebuilt by the next update
    update(kind, update=False, bounding_box=(34, 34, 0, 2, 2, 8))
    assert not np.array_equal(levels(kind)["2-2-1"], expected["2-2-1"])
    assert "nothing to do" not in update(kind).note
    is_equal(levels(kind), expected)
    assert " 0 copied by the server" in update(kind, update="content").note
    is_equal(levels(kind), expected)
    assert "nothing to do" in update(kind).note


@pytest.mark.parametrize("kind", KINDS)
def test_a_mag_above_a_gap_is_not_left_out_in_silence(bucket, kind):
    mags = ["2-2-1", "4-4-2", "8-8-4"]
    save(kind)
    pyramid(kind, mags=mags)
    change_a_corner(kind)
    expected = built_again(bucket, kind, mags=mags)
    prefix = "zarr://" if kind == "ngff" else ""
    wkwdask.rm(f"{prefix}{IMAGE[kind]}", mags="4-4-2")
    before = bucket.snapshot()
    message = "mag 8-8-4 was made from mag 4-4-2, which does not exist; .*; mags=.* updates"
    with pytest.raises(wkwdask.MissingError, match=message):
        wkwdask.plan_pyramid(IMAGE[kind], update=True)
    with pytest.raises(wkwdask.MissingError, match=message):
        update(kind)
    assert bucket.snapshot() == before
    pyramid(kind, mags="4-4-2", finest="2-2-1")
    update(kind)
    is_equal(levels(kind), expected)


def test_files_of_mags_that_are_not_aligned_are_known(bucket):
    """A corner at odd voxels shifts the files of each mag against those of the next."""
    options = {"chunk_shape": (8, 8, 8), "shard_shape": (16, 16, 16), "offset": (5, 0, 3)}
    wkwdask.save(VOXELS, IMAGE["precomputed"], voxel_size=(4, 4, 8), **options)
    pyramid("precomputed", shard_shape=(8, 8, 8))
    assert "nothing to do" in update("precomputed").note
    region = ((21, 16, 9), (23, 18, 11))
    corner = np.full((1, 2, 2, 2), 255, np.uint8)
    wkwdask.save(corner, IMAGE["precomputed"], region=region, mag=1)
    note = update("precomputed").note
    assert not note.startswith("nothing")
    assert " 0 copied" not in note
    assert "nothing to do" in update("precomputed").note
    assert wkwdask.verify(IMAGE["precomputed"]).is_sound


def test_a_mag_without_records_is_rebuilt_by_content(bucket):
    save("precomputed")
    pyramid("precomputed", method="max")
    for name in [name for name in memory_bucket._objects if "/.wkwdask" in name]:
        del memory_bucket._objects[name]
    change_a_corner("precomputed")
    with pytest.raises(wkwdask.MissingError, match="no mags that build_pyramid made"):
        update("precomputed")
    expected = wkwdask.read(IMAGE["precomputed"], mag=1)
    update("precomputed", update="content", mags=["2-2-1"], method="max")
    bucket.requests = []
    found = wkwdask.read(IMAGE["precomputed"], mag="2-2-1")
    windows = expected.reshape(1, 20, 2, 18, 2, 20).max(axis=(2, 4))
    np.testing.assert_array_equal(found, windows)


def _interrupt(bucket, kind):
    """Kill an update after it has copied half of its files."""
    before = bucket.snapshot()
    bucket.requests = []
    update(kind)
    calls = [n for n, (name, _) in enumerate(bucket.requests) if name == "copy_once"]
    bucket.restore(before)
    with bucket.killed_at(calls[len(calls) // 2], after=True):
        update(kind)
    return before


@pytest.fixture
def _short_batches(monkeypatch):
    monkeypatch.setattr("wkwdask.store.objects.line_objects._MOST_SECONDS", -1.0)


@pytest.mark.usefixtures("_short_batches")
def test_an_interrupted_update_resumes(bucket):
    start("precomputed")
    change_a_corner("precomputed")
    _interrupt(bucket, "precomputed")
    said = run_here("status", IMAGE["precomputed"]).stdout
    assert "build_pyramid (update)" in said
    assert "finished" in said
    with pytest.raises(ResumeError, match="made with other settings"):
        pyramid("precomputed", existing="overwrite")
    report = update("precomputed")
    assert "had been finished before" in report.note
    assert records() == []


@pytest.mark.usefixtures("_short_batches")
def test_an_interrupted_update_starts_over_if_the_source_has_changed(bucket):
    start("precomputed")
    change_a_corner("precomputed")
    _interrupt(bucket, "precomputed")
    change_a_corner("precomputed", VOXELS[:, :5, :5, :5] // 3)
    with pytest.warns(DiscardWarning, match="finished work of an interrupted job"):
        update("precomputed")
    is_equal(levels("precomputed"), built_again(bucket, "precomputed"))
    assert records() == []


@pytest.mark.usefixtures("_short_batches")
@pytest.mark.filterwarnings("ignore::wkwdask.errors.DiscardWarning")
def test_an_interrupted_update_is_cancelled_and_cleaned(bucket):
    start("precomputed")
    change_a_corner("precomputed")
    seen, objects = levels("precomputed"), _interrupt(bucket, "precomputed")
    run_here("cancel", IMAGE["precomputed"], "--discard")
    is_equal(levels("precomputed"), seen)
    assert memory_bucket._objects.keys() == objects.keys()


@pytest.mark.usefixtures("_short_batches")
def test_an_interrupted_pyramid_is_not_discarded_by_an_update(bucket):
    start("precomputed")

    def restart():
        with regions_of(8):
            pyramid("precomputed", existing="restart", method="nearest")

    before = bucket.snapshot()
    bucket.requests = []
    restart()
    puts = [
        n
        for n, (name, url) in enumerate(bucket.requests)
        if name == "put_once" and "/8_8_8." in url and ".json" not in url
    ]
    bucket.restore(before)
    with bucket.killed_at(puts[len(puts) // 2], after=True):
        restart()
    change_a_corner("precomputed")
    with pytest.raises(ResumeError, match="wkwdask cancel"):
        update("precomputed")


def test_a_change_before_the_locks_is_noticed(bucket):
    """Another job writes a region of a coarser mag after the update was planned."""
    start("precomputed")
    change_a_corner("precomputed")
    before = bucket.snapshot()
    bucket.requests = []
    update("precomputed")
    lease = next(n for n, (name, _) in enumerate(bucket.requests) if name == "put_once")
    bucket.restore(before)
    with bucket.paused_at(lease, lambda: update("precomputed")) as ends:
        mag = "2-2-1"
        voxels = levels("precomputed")[mag]
        region = ((0, 0, 0), voxels.shape[1:])
        wkwdask.save(np.zeros_like(voxels), IMAGE["precomputed"], region=region, mag=mag)
    assert ends == [LockedError]
    update("precomputed")
    is_equal(levels("precomputed"), built_again(bucket, "precomputed"))


def test_provenance_states_the_update_and_the_voxels(bucket):
    start("wkw")
    change_a_corner("wkw")
    update("wkw")
    for mag, folder in folders("wkw").items():
        if mag != "1":
            record = read_provenance(folder)
            assert record["settings"]["command"] == "build_pyramid (update)"
            assert record["made"]["settings"]["command"] == "build_pyramid"
            assert dirname(folder) == f"{IMAGE['wkw']}/v"


@pytest.mark.needs("zarr")
def test_levels_of_other_software_keep_their_names(bucket, tmp_path):
    import zarr

    group = zarr.open_group(tmp_path / "em.ome.zarr", mode="w", zarr_format=3)
    datasets = []
    for path, factor in (("0", 1), ("1", 2)):
        array = VOXELS[0].T[::factor, ::factor, ::factor]
        group.create_array(path, shape=array.shape, dtype="uint8", chunks=(8, 8, 8))[...] = array
        scale = {"type": "scale", "scale": [4.0 * factor] * 3}
        datasets.append({"path": path, "coordinateTransformations": [scale]})
    axes = [{"name": axis, "type": "space", "unit": "nanometer"} for axis in "zyx"]
    group.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": datasets}]}
    wkwdask.copy(tmp_path / "em.ome.zarr", IMAGE["ngff"])
    for method in ("max", "min", "max"):
        wkwdask.build_pyramid(IMAGE["ngff"], mags=["2"], method=method, existing="overwrite")
        windows = VOXELS[0].reshape(20, 2, 18, 2, 10, 2)
        expected = getattr(windows, method)(axis=(1, 3, 5))
        np.testing.assert_array_equal(levels("ngff")["2"][0], expected)
        keys = [plain_name(level.key) for level in find(IMAGE["ngff"]).layers[0].levels]
        assert keys == ["0", "1"]
