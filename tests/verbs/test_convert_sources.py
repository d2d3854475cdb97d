"""What a source is: order and gaps of sections, axes, headers that are broken, arrays that lie
somewhere in a file."""

from __future__ import annotations

import os
import sys

import dask
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.inside import before_task

import wkwdask
from wkwdask.errors import (
    BoundsError,
    CorruptError,
    MissingError,
    SectionWarning,
    TruncatedError,
    UnsupportedError,
)
from wkwdask.formats.zarr.codec import _compressor


@pytest.fixture(autouse=True, scope="module")
def _in_this_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


def converted(source, folder, **options):
    """Convert to WKW and back to an array (c, x, y, z)."""
    wkwdask.convert(
        source,
        folder / "ds",
        **{"layer": "em", "voxel_size": (4, 4, 4), "existing": "overwrite", **options},
    )
    return wkwdask.read(folder / "ds", layer="em", mag=1)


def save_sections(folder, array, name="s{}.png"):
    """Write an array (z, y, x) or (z, y, x, c) as images."""
    folder.mkdir(exist_ok=True)
    for z, section in enumerate(array):
        Image.fromarray(section).save(folder / name.format(z))
    return folder


def random_voxels(shape, dtype=np.uint8, seed=0):
    return np.random.default_rng(seed).integers(0, 255, shape).astype(dtype)


@pytest.mark.filterwarnings("ignore:missing sections")
@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["s10", "s9", "s1"], ["s1", "s9", "s10"]),
        (["a2_1", "a10_0", "a2_0"], ["a2_0", "a2_1", "a10_0"]),
        (["10", "9a", "b"], ["9a", "10", "b"]),  # numbers and text at the same place
        (["s2", "s02", "s002"], ["s002", "s02", "s2"]),
    ],
)
def test_natural_order(tmp_path, names, expected):
    for value, name in enumerate(names):
        save_sections(tmp_path / "s", np.full((1, 4, 4), value + 1, np.uint8), f"{name}.png")
    found = converted(tmp_path / "s", tmp_path, on_error="fill")[0, 0, 0]  # gaps are zeros
    assert found[found > 0].tolist() == [names.index(name) + 1 for name in expected]


@pytest.mark.needs("tifffile")
@pytest.mark.filterwarnings("ignore:missing sections")
@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["s1.tif", "s2.tif", "s4.tif"], [3]),
        (["s10.tif", "s20.tif", "s40.tif"], [30]),  # every tenth
        (["s1_60.tif", "s2_60.tif", "s5_60.tif"], [3, 4]),
        (["1_60.tif", "2_61.tif", "5_60.tif"], []),  # two numbers vary: there is no telling
        (["a.tif", "b.tif"], []),
        (["s7.tif"], []),
        (["s1.tif", "s2.tif", "other.tif"], []),
        (["20210101.tif", "20991231.tif"], []),
    ],
)
def test_gaps(tmp_path, names, expected):
    for name in names:
        save_sections(tmp_path / "s", np.ones((1, 4, 4), np.uint8), name)
    found = converted(tmp_path / "s", tmp_path, on_error="fill")[0, 0, 0]
    assert (len(found), int((found == 0).sum())) == (len(names) + len(expected), len(expected))
    if expected:
        with pytest.raises(MissingError, match=f"sections seem to be missing: {expected[0]}"):
            converted(tmp_path / "s", tmp_path)


@pytest.mark.parametrize("axes", ["zyxx", "abc", "zy", "zyxcz", "zyt", "z-x"])
def test_axes_that_do_not_fit(tmp_path, axes):
    np.save(tmp_path / "a.npy", np.ones((3, 4, 5), np.uint8))
    with pytest.raises(ValueError, match="axes"):
        converted(tmp_path / "a.npy", tmp_path, axes=axes)


def test_default_axes(tmp_path):
    for shape, expected in (
        ((2, 3), (1, 3, 2, 1)),
        ((2, 3, 4), (1, 4, 3, 2)),
        ((2, 3, 4, 5), (2, 5, 4, 3)),
        ((1, 2, 3, 4, 5), (2, 5, 4, 3)),
    ):
        np.save(tmp_path / "a.npy", random_voxels(shape))
        found = converted(tmp_path / "a.npy", tmp_path)
        assert found.shape == expected
        np.testing.assert_array_equal(
            found, random_voxels(shape).reshape(expected[0], *expected[:0:-1]).transpose(0, 3, 2, 1)
        )
    np.save(tmp_path / "a.npy", np.ones((2, 2, 3, 4, 5), np.uint8))
    with pytest.raises(
        UnsupportedError,
        match=r"a.npy: the axes of an array of shape \(2, 2, 3, 4, 5\) have no names, .*axes=",
    ):
        converted(tmp_path / "a.npy", tmp_path)


@given(
    st.permutations("czyx"),
    st.booleans(),
    st.sampled_from(["<u1", ">u2", "<i4", ">f4", "<f2", "?"]),
    st.integers(0, 99),
)
def test_npy_of_any_axes(tmp_path_factory, axes, fortran, dtype, seed):
    """Any box of an array with any order of axes and of memory, in either byte order."""
    rng = np.random.default_rng(seed)
    lengths = dict(zip("cxyz", rng.integers(1, 9, 4).tolist(), strict=True))
    array = rng.integers(0, 2 if dtype == "?" else 120, [lengths[axis] for axis in axes]).astype(
        dtype
    )
    folder = tmp_path_factory.mktemp("npy")
    np.save(folder / "a.npy", np.asfortranarray(array) if fortran else array)
    expected = array.transpose([axes.index(axis) for axis in "cxyz"]).astype(
        {"?": "u1", "<f2": "f4"}.get(dtype, np.dtype(dtype).newbyteorder("="))
    )
    low = [int(rng.integers(n)) for n in expected.shape[1:]]
    high = [int(rng.integers(a, n)) + 1 for a, n in zip(low, expected.shape[1:], strict=True)]
    channel = int(rng.integers(lengths["c"]))
    box = (*np.add(low, (3, 4, 5)).tolist(), *np.subtract(high, low).tolist())
    for channels in (None, (channel,)):
        found = converted(
            folder / "a.npy",
            folder,
            axes="".join(axes),
            offset=(3, 4, 5),
            bounding_box=box,
            channels=channels,
        )
        part = expected[(slice(None), *map(slice, low, high))]
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, part if channels is None else part[[channel]])


def test_broken_npy(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.ones((4, 5, 6), np.uint16))
    raw = path.read_bytes()
    for length in (0, 5, 20, 127):
        path.write_bytes(raw[:length])
        with pytest.raises(CorruptError, match=r"a\.npy: not readable as \.npy file"):
            converted(path, tmp_path)
    path.write_bytes(raw[:-1])
    with pytest.raises(TruncatedError, match=r"a\.npy: has 367 bytes, expected 368"):
        converted(path, tmp_path)
    np.save(path, np.ones((4, 5, 6), np.complex64))
    with pytest.raises(UnsupportedError, match="complex64"):
        converted(path, tmp_path)
    np.save(path, np.array([[["a"]]], dtype=object))
    with pytest.raises(CorruptError, match="holds object"):
        converted(path, tmp_path)
    path.unlink()
    with pytest.raises(MissingError, match="no such file or folder"):
        converted(path, tmp_path)


def test_a_file_that_shrinks(tmp_path):
    """It is an error of that file, not the end of the process."""
    np.save(tmp_path / "a.npy", np.ones((40, 50, 60), np.uint16))
    with (
        before_task(1, lambda: os.truncate(tmp_path / "a.npy", 1000)),
        pytest.raises(TruncatedError, match=r"a\.npy: ends at byte 1000"),
    ):
        converted(tmp_path / "a.npy", tmp_path)
    np.save(tmp_path / "a.npy", np.ones((40, 50, 60), np.uint16))
    with (
        before_task(1, (tmp_path / "a.npy").unlink),
        pytest.raises(MissingError, match=r"a\.npy: is gone"),
    ):
        converted(tmp_path / "a.npy", tmp_path)


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "I;16", "1", "P"])
def test_pixels_of_png(tmp_path, mode):
    """As they are stored."""
    pixels = {"L": (), "LA": (2,), "RGB": (3,), "RGBA": (4,)}.get(mode)
    if pixels is not None:
        array = random_voxels((3, 7, 9, *pixels))
        save_sections(tmp_path / "s", array)
    elif mode == "I;16":
        array = random_voxels((3, 7, 9), np.uint16) * 257
        save_sections(tmp_path / "s", array)
    else:
        array = random_voxels((3, 7, 9)) % (2 if mode == "1" else 5)
        (tmp_path / "s").mkdir()
        for z, section in enumerate(array):
            image = (
                Image.fromarray(section.astype(bool))
                if mode == "1"
                else Image.fromarray(section, "L")
            )
            if mode == "P":
                image.putpalette([200, 10, 10] * 5)
            image.save(tmp_path / "s" / f"{z}.png")
    found = converted(tmp_path / "s", tmp_path)
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(
        found, (array if array.ndim == 4 else array[..., np.newaxis]).transpose(3, 2, 1, 0)
    )


def test_slices_that_are_not_like_the_others(tmp_path):
    """Each is named, with what it is and what it should be."""
    folder = save_sections(tmp_path / "s", random_voxels((6, 7, 9)))
    Image.fromarray(random_voxels((7, 8))).save(folder / "s1.png")
    Image.fromarray(random_voxels((7, 9, 3))).save(folder / "s2.png")
    (folder / "s4.png").write_bytes(b"no image")
    with pytest.raises(CorruptError) as caught:
        converted(folder, tmp_path)
    text = str(caught.value)
    assert (
        f"{folder}/s1.png: has 8 x 7 pixels of uint8, expected 9 x 7 pixels of uint8 like most "
        "slices" in text
    )
    assert f"{folder}/s2.png: has 9 x 7 pixels of uint8 in 3 channels, expected 9 x 7" in text
    assert f"{folder}/s4.png: cannot be read" in text
    assert "s0.png" not in text
    with pytest.warns(SectionWarning, match="filled with zeros"):
        report = wkwdask.convert(
            folder, tmp_path / "filled", layer="em", voxel_size=(4, 4, 4), on_error="fill"
        )
    assert len(report.note.splitlines()) == 3
    found = wkwdask.read(tmp_path / "filled", layer="em")[0]
    assert [bool(found[:, :, z].any()) for z in range(6)] == [True, False, False, True, False, True]


def test_a_slice_that_cannot_be_decoded(tmp_path):
    """Its header is fine. It is an error, or zeros and a note."""
    array = random_voxels((3, 40, 50))
    folder = save_sections(tmp_path / "s", array)
    raw = (folder / "s1.png").read_bytes()
    (folder / "s1.png").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(CorruptError, match=r"s1\.png: cannot be decoded"):
        converted(folder, tmp_path)
    array[1] = 0
    report = wkwdask.convert(
        folder, tmp_path / "filled", layer="em", voxel_size=(4, 4, 4), on_error="fill"
    )
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "filled", layer="em")[0], array.T)
    assert "s1.png: cannot be decoded" in report.note
    # gone is not broken: nothing is filled
    with (
        before_task(1, (folder / "s2.png").unlink),
        pytest.raises(MissingError, match=r"s2\.png: is gone"),
    ):
        converted(folder, tmp_path, on_error="fill")


def test_a_slice_that_was_replaced_by_another(tmp_path):
    folder = save_sections(tmp_path / "s", random_voxels((2, 40, 50)))
    message = (
        r"s1\.png: decodes to uint8 of shape \(40, 50, 3\), expected uint8 of shape \(40, 50, 1\)"
    )
    with (
        before_task(1, lambda: Image.fromarray(random_voxels((40, 50, 3))).save(folder / "s1.png")),
        pytest.raises(CorruptError, match=message),
    ):
        converted(folder, tmp_path)


def test_folders_that_are_no_stack(tmp_path):
    folder = tmp_path / "s"
    folder.mkdir()
    with pytest.raises(MissingError, match="no images "):
        converted(folder, tmp_path)
    save_sections(folder, random_voxels((2, 4, 4)))
    save_sections(folder, random_voxels((2, 4, 4)), "s{}.jpg")
    with pytest.raises(
        ValueError, match=r"images of several kinds \(\.jpg, \.png\): choose with a pattern"
    ):
        converted(folder, tmp_path)
    assert converted(f"{folder}/*.png", tmp_path).shape == (1, 4, 4, 2)
    with pytest.raises(MissingError, match="no file matches"):
        converted(f"{folder}/*.tif", tmp_path)
    with pytest.raises(UnsupportedError, match="unknown suffix"):
        converted(__file__, tmp_path)


@pytest.mark.parametrize(
    ("target", "package", "options"),
    [
        ("zarr://{}/z", "numcodecs", {}),
        ("n5://{}/n", "imagecodecs", {"compression": "zstd"}),
        ("n5://{}/n", "imagecodecs", {"compression": "blosc"}),
        ("precomputed://{}/p", "imagecodecs", {"encoding": "jxl"}),
        ("precomputed://{}/p", "compresso", {"encoding": "compresso"}),
        ("{}/a.tif", "tifffile", {}),
        ("{}/a.zarr", "zarr", {}),
    ],
)
def test_a_missing_package_is_an_error_before_anything_is_written(
    tmp_path, monkeypatch, target, package, options
):
    source = tmp_path / "ds" / "color" / "1"
    wkwdask.write(source, (0, 0, 0), random_voxels((16, 16, 16)), voxel_size=(4, 4, 4), file_len=1)
    before = sorted(tmp_path.rglob("*"))
    _compressor.cache_clear()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ModuleNotFoundError, match=f"needs the package {package}, .* pip install 'wkwdask"
    ) as caught:
        wkwdask.convert(source, target.format(tmp_path), **options)
    assert "tasks" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_package_that_is_not_there(tmp_path, monkeypatch):
    Image.fromarray(random_voxels((4, 4))).save(tmp_path / "a.tif")
    monkeypatch.setitem(sys.modules, "tifffile", None)
    with pytest.raises(
        ModuleNotFoundError,
        match=r"a\.tif: needs the package tifffile.*pip install 'wkwdask\[convert\]'",
    ):
        converted(tmp_path / "a.tif", tmp_path)


# ----------------------------------------------------------------------------- positions that files
# state


def write_cremi(path, array, offset=(120, 8, 24), resolution=(40, 4, 4)):
    """Write a volume with attributes in nanometers in the order z, y, x, as the files of the CREMI
    challenge have it."""
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    with h5py.File(path, "w") as file:
        data = file.create_dataset("volumes/labels/neuron_ids", data=array)
        data.attrs["resolution"] = np.asarray(resolution, float)
        data.attrs["offset"] = np.asarray(offset, float)
    return f"{path}:volumes/labels/neuron_ids"


def test_a_volume_of_cremi_lies_where_its_offset_says(tmp_path):
    labels = random_voxels((5, 12, 14), "uint64") + 1
    source = write_cremi(tmp_path / "sample_A_padded.hdf", labels)
    wkwdask.convert(source, tmp_path / "ds", layer="cells")
    layer = wkwdask.open_dataset(tmp_path / "ds")["cells"]
    assert (layer.bounding_box.topleft, layer.bounding_box.size) == ((6, 2, 3), (14, 12, 5))
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "ds", layer="cells", mag=1)[0], labels.transpose(2, 1, 0)
    )
    wkwdask.convert(source, f"n5://{tmp_path}/c.n5/cells")
    assert wkwdask.info(f"n5://{tmp_path}/c.n5/cells").scales[0].box.topleft == (6, 2, 3)
    wkwdask.convert(source, f"n5://{tmp_path}/c.n5/moved", offset=(0, 0, 0))
    assert wkwdask.info(f"n5://{tmp_path}/c.n5/moved").scales[0].box.topleft == (0, 0, 0)
    wkwdask.apply(np.copy, source, f"n5://{tmp_path}/c.n5/applied")
    assert wkwdask.info(f"n5://{tmp_path}/c.n5/applied").scales[0].box.topleft == (6, 2, 3)
    assert wkwdask.diff(source, tmp_path / "ds" / "cells" / "1").equal


@pytest.mark.parametrize(
    ("offset", "resolution", "topleft"),
    [
        # between voxels: the nearest one, half a voxel is rounded down
        ((100, 6, 25), (40, 4, 4), (6, 1, 2)),
        ((np.nan, 8, 24), (40, 4, 4), (0, 0, 0)),
        ((8, 24), (40, 4, 4), (0, 0, 0)),
        ((120, 8, 24), (0, 4, 4), (0, 0, 0)),  # no voxel size, so no unit
    ],
)
def test_offsets_that_are_no_voxels(tmp_path, offset, resolution, topleft):
    source = write_cremi(tmp_path / "a.h5", random_voxels((5, 12, 14)), offset, resolution)
    wkwdask.convert(source, tmp_path / "ds", layer="em", voxel_size=(4, 4, 40))
    assert wkwdask.open_dataset(tmp_path / "ds")["em"].bounding_box.topleft == topleft


def test_a_negative_position_is_refused_by_wkw(tmp_path):
    source = write_cremi(tmp_path / "a.h5", random_voxels((5, 12, 14)), (-120, 8, 24))
    with pytest.raises(BoundsError, match="no voxels below 0: move it with offset="):
        wkwdask.convert(source, tmp_path / "ds", layer="em")
    wkwdask.convert(source, tmp_path / "ds", layer="em", offset=(0, 0, 0))
