"""``to_n5``: what is written, what is refused, and what becomes of datasets and groups that are
there already."""

from __future__ import annotations

import gzip
import json
import os
import struct

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from faults.trees import contents, leftovers
from support.file_events import counting
from support.inside import before_task, limited
from support.n5_volumes import write_attributes, write_dataset

import wkwdask
from wkwdask.errors import ExistsError, ResumeError, TaskFailedError, UnsupportedError

SIZE = (40, 30, 20)
OPTIONS = {"chunk_shape": (16, 16, 8)}


def voxels(dtype="uint16", seed=0):
    return np.random.default_rng(seed).integers(1, 99, SIZE).astype(dtype)


def attributes_of(folder):
    return json.loads((folder / "attributes.json").read_text())


def read(folder, **options):
    return wkwdask.open(f"n5://{folder}", **options).compute()[0]


# ----------------------------------------------------------------------------- what is written


def test_a_dataset(tmp_path):
    report = wkwdask.to_n5(
        voxels(),
        f"n5://file://{tmp_path}/c.n5/volumes/raw",
        voxel_size=(4, 4.5, 40),
        offset=(-7, 0, 3),
        **OPTIONS,
    )
    assert (report.files, report.mags[0].path, report.mags[0].nonzero.topleft) == (
        18,
        str(tmp_path / "c.n5" / "volumes" / "raw"),
        (-7, 0, 3),
    )
    assert attributes_of(tmp_path / "c.n5") == {"n5": "4.0.0"}
    assert not (tmp_path / "c.n5" / "volumes" / "attributes.json").exists()  # a group needs none
    found = attributes_of(tmp_path / "c.n5" / "volumes" / "raw")
    assert found["compression"] == {"type": "gzip", "level": -1, "useZlib": False}
    assert (found["dimensions"], found["blockSize"], found["dataType"]) == (
        [40, 30, 20],
        [16, 16, 8],
        "uint16",
    )
    assert found["pixelResolution"] == {"dimensions": [4.0, 4.5, 40.0], "unit": "nm"}
    assert found["transform"] == {
        "ordering": "C",
        "axes": ["z", "y", "x"],
        "scale": [40.0, 4.5, 4.0],
        "translate": [120.0, 0.0, -28.0],
        "units": ["nm"] * 3,
    }
    block = (tmp_path / "c.n5/volumes/raw/2/1/2").read_bytes()
    # cut off, as the specification has it
    assert struct.unpack(">2H3I", block[:16]) == (0, 3, 8, 14, 4)
    np.testing.assert_array_equal(
        np.frombuffer(gzip.decompress(block[16:]), ">u2").reshape(8, 14, 4, order="F"),
        voxels()[32:, 16:, 16:],
    )
    np.testing.assert_array_equal(read(tmp_path / "c.n5"), voxels())
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("compression", ["raw", "gzip", "zlib", "bzip2", "xz", "zstd", "blosc"])
def test_types_and_compressions(tmp_path, compression):
    if compression in ("zstd", "blosc"):
        pytest.importorskip("imagecodecs", reason=f"{compression} needs the extra zarr")
    for dtype in ("int8", "uint64", "float64"):
        wkwdask.to_n5(voxels(dtype), tmp_path / dtype, compression=compression, **OPTIONS)
        found = read(tmp_path / dtype)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, voxels(dtype))


def test_channels_and_zeros(tmp_path):
    """Channels are the last axis of N5; a block of zeros is not stored."""
    array = np.stack([voxels(), voxels(seed=1), np.zeros(SIZE, np.uint16)])
    array[:, :32, :16] = 0
    array = np.asfortranarray(array)
    for number, source in enumerate((array, da.from_array(array, chunks=(1, 17, 30, 11)))):
        report = wkwdask.to_n5(source, tmp_path / f"{number}", **OPTIONS)
        assert report.files == 12
        assert (
            attributes_of(tmp_path / f"{number}")["dimensions"],
            attributes_of(tmp_path / f"{number}")["axes"],
        ) == ([40, 30, 20, 3], list("xyzc"))
        assert not (tmp_path / f"{number}" / "0" / "0").exists()
        assert (tmp_path / f"{number}" / "2" / "1" / "0" / "0").is_file()
        np.testing.assert_array_equal(wkwdask.open(tmp_path / f"{number}"), array)


def test_a_data_array_says_where_it_lies(tmp_path):
    coords = {
        axis: (axis, (np.arange(n) + 5.5) * length, {"units": "nm"})
        for axis, n, length in zip("xyz", SIZE, (4, 4, 40), strict=True)
    }
    wkwdask.to_n5(
        xr.DataArray(voxels(), dims=("x", "y", "z"), coords=coords).transpose("z", "y", "x"),
        tmp_path / "v.n5",
    )
    volume = wkwdask.info(tmp_path / "v.n5").scales[0]
    assert (volume.box.topleft, volume.resolution) == ((5, 5, 5), (4.0, 4.0, 40.0))
    assert attributes_of(tmp_path / "v.n5")["n5"] == "4.0.0"  # the dataset is the container's root


def test_levels(tmp_path):
    group = tmp_path / "c.n5" / "em"
    write_attributes(tmp_path / "c.n5", n5="2.5.1")
    write_attributes(group, mine=[1.25, {"deep": 0.10}])
    wkwdask.to_n5(voxels(), group / "s0", voxel_size=(4, 4, 40), offset=(-8, 0, 3), **OPTIONS)
    wkwdask.to_n5(voxels()[::2, ::2], group / "s1", mag="2-2-1", offset=(-4, 0, 3), **OPTIONS)
    found = attributes_of(group)
    assert found["mine"] == [1.25, {"deep": 0.10}]
    assert found["scales"] == [[1, 1, 1], [2, 2, 1]]
    assert [entry["transform"]["translate"] for entry in found["multiscales"][0]["datasets"]] == [
        [120.0, 0.0, -32.0],
        [120.0, 2.0, -30.0],
    ]
    assert attributes_of(tmp_path / "c.n5") == {"n5": "2.5.1"}
    assert [
        (scale.key, scale.mag.name, scale.box.topleft, scale.resolution)
        for scale in wkwdask.info(group).scales
    ] == [
        ("s0", "1", (-8, 0, 3), (4.0, 4.0, 40.0)),
        ("s1", "2-2-1", (-4, 0, 3), (8.0, 8.0, 40.0)),
    ]


def test_later(tmp_path):
    """Checked now, done when it is computed."""
    delayed = wkwdask.to_n5(
        da.from_array(voxels(), chunks=13), tmp_path / "v", compute=False, **OPTIONS
    )
    assert not (tmp_path / "v").exists()
    with dask.config.set(scheduler="synchronous"):
        assert delayed.compute().voxels == voxels().size
    np.testing.assert_array_equal(read(tmp_path / "v"), voxels())


# ----------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("array", "options", "error", "message"),
    [
        (voxels("bool"), {}, TypeError, r'N5 has no type for bool; .*cast with .astype\("uint8"\)'),
        (voxels(), {"compression": "lz4"}, ValueError, "compression of N5 must be one of"),
        (
            voxels(),
            {"compression": "gzip", "level": 10},
            ValueError,
            r"level of gzip must be in -1..9, got 10",
        ),
        (
            voxels(),
            {"chunk_shape": (10, 10)},
            ValueError,
            "chunk_shape must be three whole numbers",
        ),
        (voxels(), {"chunk_shape": (10, 0, 10)}, ValueError, "chunk_shape must be positive"),
        (
            voxels(),
            {"chunk_shape": (4096, 4096, 4096)},
            ValueError,
            "chunk_shape must be three lengths of a block of at most 2147483648 bytes",
        ),
        (
            voxels(),
            {"voxel_size": (4, 0, 40)},
            ValueError,
            "voxel_size must be three positive numbers",
        ),
        (voxels()[None, None], {}, ValueError, "the array must have the shape"),
        (voxels(), {"existing": "update"}, ValueError, "existing must be"),
    ],
)
def test_refused_before_anything_is_written(tmp_path, array, options, error, message):
    with pytest.raises(error, match=message):
        wkwdask.to_n5(array, tmp_path / "v", **{**OPTIONS, **options})
    assert list(tmp_path.iterdir()) == []


def test_containers_on_web_servers_are_not_written():
    with pytest.raises(UnsupportedError, match="remote locations are read-only"):
        wkwdask.to_n5(voxels(), "n5://https://host/v.n5")


def test_other_data_is_left_alone(tmp_path):
    wkwdask.to_wkw(voxels(), tmp_path / "ds" / "em" / "1")
    with pytest.raises(ExistsError, match="holds WKW data"):
        wkwdask.to_n5(voxels(), tmp_path / "ds" / "em" / "1", existing="overwrite")
    with pytest.raises(ExistsError, match="ds/em: holds WKW data; write N5 to another folder"):
        wkwdask.to_n5(voxels(), tmp_path / "ds" / "em" / "s0")
    wkwdask.to_n5(voxels(), tmp_path / "c.n5" / "em" / "s0", **OPTIONS)
    before = contents(tmp_path)
    with pytest.raises(ExistsError, match="lies inside the N5 dataset"):
        wkwdask.to_n5(voxels(), tmp_path / "c.n5" / "em" / "s0" / "more", existing="overwrite")
    with pytest.raises(ExistsError, match="other files than one"):
        wkwdask.to_n5(voxels(), tmp_path / "c.n5" / "em", existing="overwrite")
    with pytest.raises(ExistsError, match="other files than one"):
        wkwdask.to_wkw(voxels(), tmp_path / "c.n5" / "em", existing="overwrite")
    assert contents(tmp_path) == before
    (tmp_path / "c.n5" / "em" / "s0" / "thesis.docx").write_text("years")
    with pytest.raises(ExistsError, match="other files than one N5 dataset"):
        wkwdask.to_n5(voxels(), tmp_path / "c.n5" / "em" / "s0", existing="overwrite")


@pytest.mark.parametrize("axes", [None, ["z", "y", "x"]])
def test_a_single_dataset_is_stored_again_in_place(tmp_path, axes):
    """Other blocks and compression: shape, type, axes, attributes and values stay, as tensorstore
    reads them."""
    ts = pytest.importorskip("tensorstore", reason="tensorstore is not installed")
    described = {"resolution": [4, 4, 40], "who": "me"} | ({"axes": axes} if axes else {})
    write_dataset(tmp_path / "c.n5" / "em", voxels(), **described)
    write_attributes(tmp_path / "c.n5", n5="4.0.0")
    before, seen = attributes_of(tmp_path / "c.n5" / "em"), wkwdask.read(f"n5://{tmp_path}/c.n5/em")
    wkwdask.rechunk(f"n5://{tmp_path}/c.n5/em", chunk_shape=(32, 8, 16), compression="zstd")
    changed = {
        "blockSize": [16, 8, 32] if axes else [32, 8, 16],
        "compression": {"type": "zstd", "level": 3},
    }
    assert attributes_of(tmp_path / "c.n5" / "em") == before | changed
    found = ts.open({"driver": "n5", "kvstore": f"file://{tmp_path}/c.n5/em"}).result()
    np.testing.assert_array_equal(found.read().result(), voxels())
    np.testing.assert_array_equal(wkwdask.read(f"n5://{tmp_path}/c.n5/em"), seen)
    assert sorted(path.name for path in (tmp_path / "c.n5").iterdir()) == ["attributes.json", "em"]


# ----------------------------------------------------------------------------- what already exists


def test_overwritten_whole(tmp_path):
    """Nothing of the old dataset stays, also of one that others wrote."""
    write_dataset(tmp_path / "v", np.ones((90, 90, 90), np.uint8))
    with pytest.raises(ExistsError, match="already exists"):
        wkwdask.to_n5(voxels(), tmp_path / "v", **OPTIONS)
    wkwdask.to_n5(voxels(), tmp_path / "v", existing="overwrite", **OPTIONS)
    np.testing.assert_array_equal(read(tmp_path / "v"), voxels())
    assert (
        sum(path.is_file() and path.name.isdecimal() for path in (tmp_path / "v").rglob("*")) == 18
    )
    assert leftovers(tmp_path) == []


class BrokenError(Exception):
    pass


def fail():
    raise BrokenError


def test_what_was_finished_is_kept(tmp_path):
    asked, state = [], {"left": 5}

    def chunk(block, block_info=None):
        if block.shape[-1] and block_info:
            asked.append(block_info[0]["chunk-location"])
            state["left"] -= 1
            if state["left"] < 0:
                raise BrokenError
        return block

    array = da.from_array(voxels(), chunks=(20, 20, 10)).map_blocks(chunk, dtype=np.uint16)
    options = {"chunk_shape": (10, 10, 10)}
    with dask.config.set(scheduler="synchronous"), limited(chunks_of_a_group=4):
        with pytest.raises((BrokenError, TaskFailedError)) as failed:
            wkwdask.to_n5(array, tmp_path / "em" / "s0", **options)
        assert 'existing="resume" resumes with any array' in "".join(
            getattr(failed.value, "__notes__", [])
        )
        assert not (tmp_path / "em" / "attributes.json").exists()
        with pytest.raises(ResumeError, match="dataset was"):
            wkwdask.to_n5(
                array, tmp_path / "em" / "s0", existing="resume", chunk_shape=(20, 20, 20)
            )
        (staged,) = (tmp_path / "em").glob(".wkwdask-job-*/1-1-1")
        stored = sorted(
            path for path in staged.rglob("*") if path.name.isdecimal() and path.is_file()
        )
        os.truncate(stored[0], 7)
        before, state["left"] = len(asked), 1000
        report = wkwdask.to_n5(array, tmp_path / "em" / "s0", existing="resume", **options)
        assert "had been finished before" in report.note
        assert 0 < len(asked) - before < 8  # of 8 chunks
        assert (
            "nothing to do"
            in wkwdask.to_n5(array, tmp_path / "em" / "s0", existing="resume", **options).note
        )
    np.testing.assert_array_equal(read(tmp_path / "em"), voxels())
    assert leftovers(tmp_path) == []


def test_a_conversion_goes_on(tmp_path):
    wkwdask.create_dataset(tmp_path / "ds", voxel_size=(4, 4, 40))
    wkwdask.to_wkw(voxels(), tmp_path / "ds" / "color" / "1", category="color", file_len=1)
    wkwdask.build_pyramid(tmp_path / "ds", layer="color")
    target = f"n5://{tmp_path}/c.n5/em"
    (tmp_path / "c.n5").mkdir()
    # killed when s0 had appeared
    broken = counting(f"{tmp_path}/c.n5/em/.attributes.json", 1, fail, {"os.rename"})
    with broken, pytest.raises(BrokenError):
        wkwdask.convert(tmp_path / "ds", target, layer="color", chunk_shape=(16, 16, 16))
    assert (tmp_path / "c.n5" / "em" / "s0").exists()
    assert not (tmp_path / "c.n5" / "em" / "attributes.json").exists()
    wkwdask.convert(
        tmp_path / "ds", target, layer="color", chunk_shape=(16, 16, 16), existing="resume"
    )
    assert attributes_of(tmp_path / "c.n5" / "em")["scales"][0] == [1, 1, 1]
    assert wkwdask.diff(tmp_path / "ds" / "color", tmp_path / "c.n5" / "em").equal
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    "target", ["n5://c.n5/em", "precomputed://em", "em.ome.zarr", "other/color"]
)
def test_the_same_call_goes_on_between_two_mags(tmp_path, monkeypatch, target):
    """It was killed when the first mag had appeared; what it finished stays, and the others are
    made."""
    if target.endswith("zarr"):
        pytest.importorskip("zarr", reason="the extra zarr")
    monkeypatch.chdir(tmp_path)
    wkwdask.create_dataset("ds", voxel_size=(4, 4, 40))
    wkwdask.to_wkw(voxels(), "ds/color/1", file_len=1)
    wkwdask.build_pyramid("ds", layer="color")
    source, options = "ds", {"layer": "color"}
    if target.endswith("zarr"):
        options["compression"] = "zstd"  # copied blocks would be a task for each file
    if target == "other/color":
        wkwdask.convert("ds", "n5://source.n5", **options)
        wkwdask.create_dataset("other", voxel_size=(4, 4, 40))
        source, options = "source.n5", {}
    with before_task(2, fail), pytest.raises((BrokenError, TaskFailedError)):
        # each mag is one task
        wkwdask.convert(source, target, **options)
    with pytest.raises(ExistsError):
        wkwdask.convert(source, target, **options, offset=(8, 8, 8))
    report = wkwdask.convert(source, target, **options)
    assert len(report.mags) == len(wkwdask.open_dataset("ds")["color"].mags) > 1
    assert wkwdask.diff("ds/color", target).equal
    with pytest.raises(ExistsError):
        wkwdask.convert(source, target, **options)
