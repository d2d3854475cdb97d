"""``to_precomputed``: what is chosen, what is refused, and what becomes of a volume that already
exists."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import stat
import threading

import dask
import dask.array as da
import numpy as np
import pytest
from faults.trees import contents, leftovers
from support.inside import limited
from support.locks import dead_process, put_lock

import wkwdask
from wkwdask import Sharding
from wkwdask.errors import ExistsError, LockedError, ResumeError, TaskFailedError, UnsupportedError

SIZE = (40, 30, 20)
VOXEL_SIZE = (4, 4, 40)
SHARDING = Sharding(preshift_bits=1, minishard_bits=1, shard_bits=4)  # chunks of 10 voxels
OPTIONS = {"voxel_size": VOXEL_SIZE, "chunk_shape": (10, 10, 10)}


def voxels(dtype="uint8", seed=0):
    return np.random.default_rng(seed).integers(1, 99, SIZE).astype(dtype)


def info_of(folder):
    return json.loads((folder / "info").read_text())


def read(folder, **options):
    return wkwdask.open(folder, **options).compute()[0]


# ----------------------------------------------------------------------------- what is chosen


@pytest.mark.parametrize(
    ("dtype", "kind", "encoding"),
    [
        ("uint8", "image", "raw"),
        ("float32", "image", "raw"),
        ("uint32", "segmentation", "compressed_segmentation"),
        ("uint64", "segmentation", "compressed_segmentation"),
        ("int32", "segmentation", "raw"),
    ],
)
def test_defaults(tmp_path, dtype, kind, encoding):
    report = wkwdask.to_precomputed(
        voxels(dtype),
        f"precomputed://file://{tmp_path}/v",
        voxel_size=(4.5, 4, 40),
        offset=(-7, 0, 3),
    )
    info = info_of(tmp_path / "v")
    (scale,) = info["scales"]
    assert (info["@type"], info["type"], info["data_type"], info["num_channels"]) == (
        "neuroglancer_multiscale_volume",
        kind,
        dtype,
        1,
    )
    assert (scale["key"], scale["encoding"], scale["chunk_sizes"]) == (
        "4.5_4_40",
        encoding,
        [[64, 64, 64]],
    )
    assert (scale["size"], scale["voxel_offset"], scale["resolution"]) == (
        [40, 30, 20],
        [-7, 0, 3],
        [4.5, 4, 40],
    )
    assert "sharding" not in scale
    assert (report.files, report.mags[0].nonzero.topleft, report.mags[0].path) == (
        1,
        (-7, 0, 3),
        str(tmp_path / "v" / "4.5_4_40"),
    )
    assert set(json.loads((tmp_path / "v" / "provenance").read_text())) == {
        "description",
        "sources",
        "owners",
        "processing",
    }
    assert leftovers(tmp_path) == []


def test_a_data_array_says_where_it_lies(tmp_path):
    xr = pytest.importorskip("xarray")
    coords = {
        axis: (["x", "y", "z"][n], (np.arange(size) + 5) * length, {"units": "nm"})
        for n, (axis, size, length) in enumerate(zip("xyz", SIZE, (4, 4, 40), strict=True))
    }
    array = xr.DataArray(
        voxels(), dims=("x", "y", "z"), coords=coords, attrs={"category": "segmentation"}
    )
    wkwdask.to_precomputed(array.transpose("z", "y", "x"), tmp_path / "v")
    info = info_of(tmp_path / "v")
    assert (info["type"], info["scales"][0]["voxel_offset"], info["scales"][0]["resolution"]) == (
        "segmentation",
        [5, 5, 5],
        [4, 4, 40],
    )
    np.testing.assert_array_equal(read(tmp_path / "v"), voxels())


def test_further_scales(tmp_path):
    wkwdask.to_precomputed(voxels(), tmp_path / "v", **OPTIONS)
    info = info_of(tmp_path / "v")
    info["mesh"], info["scales"][0]["rois"] = "mesh", [[0, 0, 0, 9, 9, 9]]
    (tmp_path / "v" / "info").write_text(json.dumps(info))
    (tmp_path / "v" / "provenance").write_text("{}")
    for mag, step in (("4-4-1", 4), ("2-2-1", 2)):
        wkwdask.to_precomputed(
            voxels()[::step, ::step], tmp_path / "v", mag=mag, chunk_shape=(10, 10, 10)
        )
    after = info_of(tmp_path / "v")
    assert [scale["resolution"] for scale in after["scales"]] == [
        [4, 4, 40],
        [8, 8, 40],
        [16, 16, 40],
    ]
    assert (after["mesh"], after["scales"][0]) == ("mesh", info["scales"][0])
    assert (tmp_path / "v" / "provenance").read_text() == "{}"
    for mag, step in (("1", 1), ("2-2-1", 2), ("4-4-1", 4)):
        np.testing.assert_array_equal(read(tmp_path / "v", mag=mag), voxels()[::step, ::step])


def test_later(tmp_path):
    """Checked now, done when it is computed."""
    delayed = wkwdask.to_precomputed(
        da.from_array(voxels(), chunks=13),
        tmp_path / "v",
        shard_shape=SHARDING,
        compute=False,
        **OPTIONS,
    )
    assert not (tmp_path / "v" / "info").exists()
    with dask.config.set(scheduler="synchronous"):
        report = delayed.compute()
    assert report.voxels == voxels().size
    np.testing.assert_array_equal(read(tmp_path / "v"), voxels())


# ----------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("array", "options", "message"),
    [
        (voxels("int64"), {}, "no int64"),
        (voxels("float64"), {}, "no float64"),
        (voxels("bool"), {}, "no bool"),
        (
            voxels(),
            {"encoding": "compressed_segmentation"},
            "compressed_segmentation encodes uint32, uint64, not uint8",
        ),
        (voxels("uint16"), {"encoding": "jpeg"}, "jpeg encodes uint8"),
        (voxels(), {"encoding": "jpeg", "type": "segmentation"}, "jpeg changes the ids"),
        (voxels(), {"encoding": "webp"}, "encoding of Neuroglancer precomputed must be one of"),
        (voxels(), {"quality": 90}, "quality= is for jpeg and jxl, not for raw"),
        (voxels(), {"encoding": "jpeg", "quality": 101}, r"quality must be in 0\.\.100"),
        (voxels(), {"type": "labels"}, 'type must be "image" or "segmentation"'),
        (voxels(), {"voxel_size": None}, "voxel_size= is needed"),
        (voxels(), {"voxel_size": (4, 0, 40)}, "voxel_size must be three positive numbers"),
        (voxels(), {"mag": 2}, "mag= adds a coarser scale"),
        (voxels(), {"chunk_shape": (10, 10)}, "chunk_shape"),
        (voxels(), {"chunk_shape": (10, 0, 10)}, "chunk_shape must be positive"),
        (voxels(), {"shard_shape": Sharding(1, 1, 1)}, "the bits"),
        (
            voxels(),
            {"shard_shape": {"preshift_bits": 1}},
            "shard_shape must be three whole numbers",
        ),
        (
            voxels(),
            {"shard_shape": Sharding(1, 1, 4, "murmurhash3_x86_128")},
            "a new shard must be a box of voxels",
        ),
        (
            voxels(),
            {"shard_shape": Sharding(1, 1, 4), "compression": "gzip"},
            "compression='gzip' contradicts Sharding",
        ),
        (
            voxels(),
            {"compression": "br"},
            "compression of Neuroglancer precomputed must be one of gzip, raw",
        ),
        (voxels()[:0], {}, "size must be positive"),
        (voxels()[None, None], {}, "the array must have the shape"),
        (voxels(), {"existing": "update"}, "existing must be"),
    ],
)
def test_refused_before_anything_is_written(tmp_path, array, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        wkwdask.to_precomputed(array, tmp_path / "v", **{**OPTIONS, **options})
    assert list(tmp_path.iterdir()) == []


def test_force(tmp_path):
    pytest.importorskip("imagecodecs", reason="jpeg needs the extra precomputed")
    wkwdask.to_precomputed(
        voxels(), tmp_path / "v", encoding="jpeg", type="segmentation", force=True, **OPTIONS
    )
    assert info_of(tmp_path / "v")["scales"][0]["encoding"] == "jpeg"


def test_the_viewer_would_show_it_wrong(tmp_path):
    pytest.importorskip("imagecodecs", reason="png needs the extra precomputed")
    with pytest.warns(
        UserWarning, match="Neuroglancer shows png of uint16 with 2 channels incorrectly"
    ):
        wkwdask.to_precomputed(
            np.stack([voxels("uint16")] * 2), tmp_path / "v", encoding="png", **OPTIONS
        )


def test_nothing_is_written_to_web_servers():
    with pytest.raises(UnsupportedError, match="remote locations are read-only"):
        wkwdask.to_precomputed(voxels(), "https://host/v/|neuroglancer-precomputed:", **OPTIONS)


def test_a_lock_of_provenance_that_a_dead_process_left(tmp_path):
    """Nobody takes it again once the file is there; it goes with the next change of the volume."""
    wkwdask.to_precomputed(voxels(), tmp_path / "v", **OPTIONS)
    lock = put_lock(tmp_path / "v" / "provenance", dead_process("making of provenance"))
    wkwdask.to_precomputed(voxels(), tmp_path / "v", existing="overwrite", **OPTIONS)
    assert not lock.exists()


def test_other_data_is_left_alone(tmp_path):
    wkwdask.to_wkw(voxels(), tmp_path / "ds" / "em" / "1")
    for folder in (tmp_path / "ds" / "em" / "1", tmp_path / "ds" / "em"):
        with pytest.raises(ExistsError, match="holds WKW data"):
            wkwdask.to_precomputed(voxels(), folder, **OPTIONS)
    wkwdask.to_precomputed(voxels(), tmp_path / "v", **OPTIONS)
    with pytest.raises(ExistsError, match="is a scale of the volume"):
        wkwdask.to_precomputed(voxels(), tmp_path / "v" / "4_4_40", **OPTIONS)
    (tmp_path / "v" / "4_4_40" / "thesis.docx").write_text("years")
    with pytest.raises(
        ExistsError, match=r"other files than a precomputed scale \(.*thesis.docx\)"
    ):
        wkwdask.to_precomputed(voxels(), tmp_path / "v", existing="overwrite", **OPTIONS)
    with pytest.raises(ExistsError, match="other files than a precomputed scale"):
        wkwdask.to_wkw(voxels(), tmp_path / "v" / "4_4_40", existing="overwrite")
    assert (tmp_path / "v" / "4_4_40" / "thesis.docx").read_text() == "years"


@pytest.mark.parametrize(
    ("array", "options", "message"),
    [
        (
            voxels("uint16"),
            {},
            r"the volume is image of 1 x uint8, the new scale is image of 1 x uint16",
        ),
        (
            voxels(),
            {"type": "segmentation"},
            "the volume is image of 1 x uint8, the new scale is segmentation",
        ),
        (voxels(), {"voxel_size": (8, 8, 40)}, r"voxels of mag 1 have \(4, 4, 40\) nm"),
    ],
)
def test_a_volume_of_another_kind(tmp_path, array, options, message):
    wkwdask.to_precomputed(voxels(), tmp_path / "v", **OPTIONS)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=message):
        wkwdask.to_precomputed(array, tmp_path / "v", existing="overwrite", **options)
    assert contents(tmp_path) == before


def test_scales_that_are_listed(tmp_path):
    """Without files it is there all the same; outside of the volume nothing is written."""
    wkwdask.to_precomputed(voxels(), tmp_path / "v", **OPTIONS)
    (tmp_path / "v" / "4_4_40").rename(tmp_path / "away")
    with pytest.raises(ExistsError, match="already lists scale '4_4_40'"):
        wkwdask.to_precomputed(voxels(), tmp_path / "v")
    wkwdask.to_precomputed(voxels(seed=1), tmp_path / "v", existing="overwrite")
    np.testing.assert_array_equal(read(tmp_path / "v"), voxels(seed=1))
    info = info_of(tmp_path / "v")
    info["scales"][0]["key"] = "../away"
    (tmp_path / "v" / "info").write_text(json.dumps(info))
    with pytest.raises(
        UnsupportedError,
        match=(
            r"lies outside the volume .*v, at .*away \(.*info names it "
            r".\.\./away.\).*allow_external=True"
        ),
    ):
        wkwdask.to_precomputed(voxels(), tmp_path / "v", existing="overwrite")
    (tmp_path / "v" / "info").write_text(json.dumps({**info, "redirect": "../other"}))
    with pytest.raises(UnsupportedError, match="redirects to"):
        wkwdask.to_precomputed(voxels(), tmp_path / "v", existing="overwrite")


# ----------------------------------------------------------------------------- what already exists


def test_overwritten_whole(tmp_path):
    """The modes of the old scale stay; its key gets the job, and its files stay until the next
    one."""
    wkwdask.to_precomputed(voxels(), tmp_path / "v", **OPTIONS)
    with pytest.raises(ExistsError, match="already exists"):
        wkwdask.to_precomputed(voxels(), tmp_path / "v", **OPTIONS)
    info = info_of(tmp_path / "v")
    info["scales"][0]["key"] = "finest"
    (tmp_path / "v" / "info").write_text(json.dumps(info))
    (tmp_path / "v" / "4_4_40").rename(tmp_path / "v" / "finest")
    for path in (tmp_path / "v" / "finest").iterdir():
        path.chmod(0o640)
    (tmp_path / "v" / "finest").chmod(0o750)
    wkwdask.to_precomputed(
        voxels(seed=1)[:20],
        tmp_path / "v",
        shard_shape=True,
        existing="overwrite",
        offset=(1, 2, 3),
    )
    (key,) = [scale["key"] for scale in info_of(tmp_path / "v")["scales"]]
    assert re.fullmatch(r"finest\.\d{8}T\d{6}-[0-9a-f]{8}", key)
    new = tmp_path / "v" / key
    assert [path.name for path in new.iterdir() if not path.name.startswith(".")] == ["0.shard"]
    assert stat.S_IMODE(new.stat().st_mode) == 0o750
    assert stat.S_IMODE((new / "0.shard").stat().st_mode) == 0o640
    assert (tmp_path / "v" / "finest").is_dir()
    wkwdask.build_pyramid(tmp_path / "v", mags=["2-2-2"])
    assert not (tmp_path / "v" / "finest").exists()
    assert info_of(tmp_path / "v")["scales"][0]["voxel_offset"] == [1, 2, 3]
    np.testing.assert_array_equal(read(tmp_path / "v"), voxels(seed=1)[:20])


class BrokenError(Exception):
    pass


@pytest.mark.parametrize("sharded", [False, SHARDING])
def test_what_was_finished_is_kept(tmp_path, sharded):
    asked, state = [], {"left": 5}

    def chunk(block, block_info=None):
        if block.shape[-1] and block_info:
            asked.append(block_info[0]["chunk-location"])
            state["left"] -= 1
            if state["left"] < 0:
                raise BrokenError
        return block

    array = da.from_array(voxels(), chunks=(20, 20, 10)).map_blocks(chunk, dtype=np.uint8)
    options = {**OPTIONS, "shard_shape": sharded}
    with dask.config.set(scheduler="synchronous"), limited(chunks_of_a_group=4):
        with pytest.raises((BrokenError, TaskFailedError)) as failed:
            wkwdask.to_precomputed(array, tmp_path / "v", **options)
        assert 'existing="resume" resumes with any array' in "".join(
            getattr(failed.value, "__notes__", [])
        )
        assert not (tmp_path / "v" / "info").exists()
        with pytest.raises(ResumeError, match="scales was"):
            wkwdask.to_precomputed(
                array,
                tmp_path / "v",
                existing="resume",
                **{**options, "chunk_shape": (20, 20, 20), "shard_shape": False},
            )
        (staged,) = (tmp_path / "v").glob(".wkwdask-job-*/1-1-1")
        kept = sorted(path.name for path in staged.iterdir())
        os.truncate(staged / kept[0], 7)
        before, state["left"] = len(asked), 1000
        report = wkwdask.to_precomputed(array, tmp_path / "v", existing="resume", **options)
        assert "had been finished before" in report.note
        assert 0 < len(asked) - before < 8  # of 8 chunks
        again = wkwdask.to_precomputed(array, tmp_path / "v", existing="resume", **options)
        assert "nothing to do" in again.note
        assert (
            again.files
            == report.files
            == sum(not name.startswith(".") for name in os.listdir(tmp_path / "v" / "4_4_40"))
        )
    np.testing.assert_array_equal(read(tmp_path / "v"), voxels())
    assert leftovers(tmp_path) == []


# ----------------------------------------------------------------------------- several at once


def write_scale(folder, mag, step, barrier):
    barrier.wait()
    with dask.config.set(scheduler="synchronous"):
        wkwdask.to_precomputed(voxels()[::step, ::step], folder, mag=mag, chunk_shape=(10, 10, 10))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_jobs_that_add_scales_at_once(tmp_path):
    """``info`` keeps what each of them says."""
    wkwdask.to_precomputed(voxels(), tmp_path / "v", **OPTIONS)
    steps = [2, 4, 8, 16]
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(len(steps))
    children = [
        context.Process(
            target=write_scale, args=(tmp_path / "v", f"{step}-{step}-1", step, barrier)
        )
        for step in steps
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * len(steps)
    assert [scale["resolution"][0] for scale in info_of(tmp_path / "v")["scales"]] == [
        4,
        8,
        16,
        32,
        64,
    ]
    assert leftovers(tmp_path) == []


def test_two_drivers_of_one_scale(tmp_path):
    """The second is told who is the first."""
    started, go_on = threading.Event(), threading.Event()

    def wait(block):
        if block.size:
            started.set()
            assert go_on.wait(60)
        return block

    def first():
        array = da.from_array(voxels(), chunks=-1).map_blocks(
            wait, dtype=np.uint8, meta=np.empty((0, 0, 0), np.uint8)
        )
        with dask.config.set(scheduler="synchronous"):
            wkwdask.to_precomputed(array, tmp_path / "v", **OPTIONS)

    driver = threading.Thread(target=first)
    driver.start()
    assert started.wait(60)
    try:
        with pytest.raises(LockedError, match="another job writes it: to_precomputed into"):
            wkwdask.to_precomputed(voxels(), tmp_path / "v", existing="overwrite", **OPTIONS)
    finally:
        go_on.set()
        driver.join()
    np.testing.assert_array_equal(read(tmp_path / "v"), voxels())
    assert leftovers(tmp_path) == []


def test_a_volume_that_others_made_meanwhile(tmp_path):
    """With values of another type: then the scale does not appear."""

    def make(block):
        if block.size and not (tmp_path / "v" / "info").exists():
            (tmp_path / "v" / "info").write_text(
                json.dumps(
                    {"type": "image", "data_type": "uint16", "num_channels": 1, "scales": []}
                )
            )
        return block

    array = da.from_array(voxels(), chunks=-1).map_blocks(
        make, dtype=np.uint8, meta=np.empty((0, 0, 0), np.uint8)
    )
    with (
        dask.config.set(scheduler="synchronous"),
        pytest.raises(ValueError, match="for the new scale"),
    ):
        wkwdask.to_precomputed(array, tmp_path / "v", **OPTIONS)
    assert not (tmp_path / "v" / "4_4_40").exists()


def test_other_verbs_refuse_the_same_compressions(tmp_path):
    wkwdask.to_precomputed(np.ones((9, 9, 9), np.uint8), tmp_path / "v", voxel_size=(4, 4, 40))
    for verb in (wkwdask.rechunk, wkwdask.build_pyramid):
        with pytest.raises(ValueError, match=r"compression of .* must be"):
            verb(tmp_path / "v", compression="zstd")
