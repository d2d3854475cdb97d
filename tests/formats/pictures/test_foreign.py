"""What a source is: order and gaps of sections, axes, headers that are broken, arrays that lie somewhere in a file."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from wkwdask.errors import CorruptError, MissingError, TruncatedError, UnsupportedError
from wkwdask.formats.pictures.array_file import check_axes, default_axes
from wkwdask.formats.pictures.foreign import Placing, missing_numbers, open_foreign, sort_naturally
from wkwdask.formats.pictures.image_stack import read_notes
from wkwdask.geometry.bounding_box import MAG_1, BoundingBox
from wkwdask.model.extras import need

HERE = Placing((0, 0, 0), MAG_1)


def whole(volume):
    out = np.empty((volume.num_channels, *volume.box.size), volume.dtype)
    volume.read_into(out, volume.box.topleft)
    return out


def save_sections(folder, array, name="s{}.png"):
    """Write an array (z, y, x) or (z, y, x, c) as images."""
    folder.mkdir(exist_ok=True)
    for z, section in enumerate(array):
        Image.fromarray(section).save(folder / name.format(z))
    return folder


def random_voxels(shape, dtype=np.uint8, seed=0):
    return np.random.default_rng(seed).integers(0, 255, shape).astype(dtype)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["s10", "s9", "s1"], ["s1", "s9", "s10"]),
        (["a2_1", "a10_0", "a2_0"], ["a2_0", "a2_1", "a10_0"]),
        (["10", "9a", "b"], ["9a", "10", "b"]),  # numbers and text at the same place
        (["s2", "s02", "s002"], ["s002", "s02", "s2"]),
    ],
)
def test_natural_order(names, expected):
    assert sort_naturally(names) == expected


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
def test_gaps(names, expected):
    assert missing_numbers(names) == expected


@pytest.mark.parametrize("axes", ["zyxx", "abc", "zy", "zyxcz", "zyt", "z-x"])
def test_axes_that_do_not_fit(axes):
    with pytest.raises(ValueError, match="axes"):
        check_axes(axes, (3, 4, 5), "name")


def test_default_axes():
    assert [default_axes(shape, "a") for shape in ((2, 3), (2, 3, 4), (2, 3, 4, 5), (1, 2, 3, 4, 5))] == ["yx", "zyx", "czyx", "-czyx"]
    with pytest.raises(ValueError, match=r"a: an array of shape \(2, 2, 3, 4, 5\): name its axes"):
        default_axes((2, 2, 3, 4, 5), "a")


@given(st.permutations("czyx"), st.booleans(), st.sampled_from(["<u1", ">u2", "<i4", ">f4", "<f2", "?"]), st.integers(0, 99))
def test_npy_of_any_axes(tmp_path_factory, axes, fortran, dtype, seed):
    """Any box of an array with any order of axes and of memory, in either byte order."""
    rng = np.random.default_rng(seed)
    lengths = dict(zip("cxyz", rng.integers(1, 9, 4).tolist(), strict=True))
    array = rng.integers(0, 2 if dtype == "?" else 120, [lengths[axis] for axis in axes]).astype(dtype)
    path = tmp_path_factory.mktemp("npy") / "a.npy"
    np.save(path, np.asfortranarray(array) if fortran else array)
    volume = open_foreign(path, Placing((3, 4, 5), MAG_1, axes="".join(axes))).volume
    expected = array.transpose([axes.index(axis) for axis in "cxyz"]).astype({"?": "u1", "<f2": "f4"}.get(dtype, np.dtype(dtype).newbyteorder("=")))
    assert (volume.dtype, volume.num_channels) == (expected.dtype, lengths["c"])
    assert volume.box == BoundingBox((3, 4, 5), expected.shape[1:])
    low = [int(rng.integers(n)) for n in expected.shape]
    high = [int(rng.integers(a, n)) + 1 for a, n in zip(low, expected.shape, strict=True)]
    out = np.empty([b - a for a, b in zip(low, high, strict=True)], volume.dtype, order="F")
    pickle.loads(pickle.dumps(volume)).read_into(out, tuple(a + c for a, c in zip(low[1:], (3, 4, 5), strict=True)), low[0])
    np.testing.assert_array_equal(out, expected[tuple(slice(a, b) for a, b in zip(low, high, strict=True))])


def test_broken_npy(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.ones((4, 5, 6), np.uint16))
    raw = path.read_bytes()
    for length in (0, 5, 20, 127):
        path.write_bytes(raw[:length])
        with pytest.raises(CorruptError, match=r"a\.npy: not readable as \.npy file"):
            open_foreign(path, HERE)
    path.write_bytes(raw[:-1])
    with pytest.raises(TruncatedError, match=r"a\.npy: has 367 bytes, expected 368"):
        open_foreign(path, HERE)
    np.save(path, np.ones((4, 5, 6), np.complex64))
    with pytest.raises(UnsupportedError, match="complex64"):
        open_foreign(path, HERE)
    np.save(path, np.array([[["a"]]], dtype=object))
    with pytest.raises(CorruptError, match="holds object"):
        open_foreign(path, HERE)
    path.unlink()
    with pytest.raises(MissingError, match="no such file or folder"):
        open_foreign(path, HERE)


def test_a_file_that_shrinks(tmp_path):
    """It is an error of that file, not the end of the process."""
    np.save(tmp_path / "a.npy", np.ones((40, 50, 60), np.uint16))
    volume = open_foreign(tmp_path / "a.npy", HERE).volume
    os.truncate(tmp_path / "a.npy", 1000)
    with pytest.raises(TruncatedError, match=r"a\.npy: ends at byte 1000"):
        whole(volume)
    (tmp_path / "a.npy").unlink()
    with pytest.raises(MissingError, match=r"a\.npy: is gone"):
        whole(volume)


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
            image = Image.fromarray(section.astype(bool)) if mode == "1" else Image.fromarray(section, "L")
            if mode == "P":
                image.putpalette([200, 10, 10] * 5)
            image.save(tmp_path / "s" / f"{z}.png")
    volume = open_foreign(tmp_path / "s", HERE).volume
    assert volume.dtype == array.dtype
    np.testing.assert_array_equal(whole(volume), (array if array.ndim == 4 else array[..., np.newaxis]).transpose(3, 2, 1, 0))


def test_slices_that_are_not_like_the_others(tmp_path):
    """Each is named, with what it is and what it should be."""
    folder = save_sections(tmp_path / "s", random_voxels((6, 7, 9)))
    Image.fromarray(random_voxels((7, 8))).save(folder / "s1.png")
    Image.fromarray(random_voxels((7, 9, 3))).save(folder / "s2.png")
    (folder / "s4.png").write_bytes(b"no image")
    with pytest.raises(CorruptError) as caught:
        open_foreign(folder, HERE)
    text = str(caught.value)
    assert f"{folder}/s1.png: has 8 x 7 pixels of uint8, expected 9 x 7 pixels of uint8 as most of the others" in text
    assert f"{folder}/s2.png: has 9 x 7 pixels of uint8 in 3 channels, expected 9 x 7" in text
    assert f"{folder}/s4.png: cannot be read" in text
    assert "s0.png" not in text
    filled = open_foreign(folder, Placing((0, 0, 0), MAG_1, fill=True))
    assert len(filled.notes) == 3
    found = whole(filled.volume)[0]
    assert [bool(found[:, :, z].any()) for z in range(6)] == [True, False, False, True, False, True]


def test_a_slice_that_cannot_be_decoded(tmp_path):
    """Its header is fine. It is an error, or zeros and a note."""
    array = random_voxels((3, 40, 50))
    folder = save_sections(tmp_path / "s", array)
    raw = (folder / "s1.png").read_bytes()
    (folder / "s1.png").write_bytes(raw[: len(raw) // 2])
    volume = open_foreign(folder, HERE).volume
    with pytest.raises(CorruptError, match=r"s1\.png: cannot be decoded"):
        whole(volume)
    from dataclasses import replace

    array[1] = 0
    np.testing.assert_array_equal(whole(replace(volume, notes=str(tmp_path / "notes")))[0], array.T)
    (note,) = read_notes(str(tmp_path / "notes"))
    assert "s1.png: cannot be decoded" in note
    (folder / "s2.png").unlink()  # gone is not broken: nothing is filled
    with pytest.raises(MissingError, match=r"s2\.png: is gone"):
        whole(replace(volume, notes=str(tmp_path / "notes")))


def test_a_slice_that_was_replaced_by_another(tmp_path):
    folder = save_sections(tmp_path / "s", random_voxels((2, 40, 50)))
    volume = open_foreign(folder, HERE).volume
    Image.fromarray(random_voxels((40, 50, 3))).save(folder / "s1.png")
    with pytest.raises(CorruptError, match=r"s1\.png: decodes to uint8 of shape \(40, 50, 3\), its header promised uint8 of \(40, 50, 1\)"):
        whole(volume)


@pytest.mark.parametrize("reading", [(16, 16, 8), (64, 8, 8), (64, 64, 64), (8, 64, 2)])
def test_held_sections(tmp_path, monkeypatch, reading):
    """Each is decoded once, however it is read; no file stays."""
    from wkwdask.formats.pictures import image_stack

    array = random_voxels((7, 41, 50))
    volume = open_foreign(save_sections(tmp_path / "s", array), Placing((3, 5, 6), MAG_1)).volume.cropped(BoundingBox((9, 7, 8), (40, 30, 4)))
    decoded = []
    read = image_stack.read_pixels
    monkeypatch.setattr(image_stack, "read_pixels", lambda *args: decoded.append(args[0].name) or read(*args))
    (tmp_path / "scratch").mkdir()
    found = np.zeros((1, 40, 30, 4), np.uint8)
    with volume.held(reading, str(tmp_path / "scratch")) as held:
        for x in range(0, 64, reading[0]):
            for y in range(0, 64, reading[1]):
                cell = BoundingBox((x, y, 8), (*reading[:2], 4)).intersection(volume.box)
                if not cell.is_empty:
                    out = np.empty((1, *cell.size), np.uint8)
                    held.read_into(out, cell.topleft)
                    i, j = cell.topleft[0] - 9, cell.topleft[1] - 7
                    found[:, i : i + cell.size[0], j : j + cell.size[1]] = out
    np.testing.assert_array_equal(found[0], array.T[6:46, 2:32, 2:6])
    assert sorted(decoded) == [f"{tmp_path}/s/s{z}.png" for z in range(2, 6)]
    assert os.listdir(tmp_path / "scratch") == []


def test_a_part_knows_only_its_slices(tmp_path):
    """So that a task of thousands is small."""
    volume = open_foreign(save_sections(tmp_path / "s", random_voxels((30, 4, 4))), HERE).volume
    part = volume.cropped(BoundingBox((0, 0, 8), (4, 4, 3)))
    assert len(part.slices) == 3
    assert len(pickle.dumps(part)) < len(pickle.dumps(volume)) / 2
    np.testing.assert_array_equal(whole(part), whole(volume)[:, :, :, 8:11])


def test_folders_that_are_no_stack(tmp_path):
    with pytest.raises(MissingError, match="no images here"):
        open_foreign(tmp_path, HERE)
    save_sections(tmp_path, random_voxels((2, 4, 4)))
    save_sections(tmp_path, random_voxels((2, 4, 4)), "s{}.jpg")
    with pytest.raises(ValueError, match=r"images of several kinds \(\.jpg, \.png\): choose with a pattern"):
        open_foreign(tmp_path, HERE)
    assert len(open_foreign(f"{tmp_path}/*.png", HERE).volume.slices) == 2
    with pytest.raises(MissingError, match="no file matches"):
        open_foreign(f"{tmp_path}/*.tif", HERE)
    with pytest.raises(UnsupportedError, match="not a kind that is read"):
        open_foreign(__file__, HERE)


def test_a_package_that_is_not_there():
    with pytest.raises(ModuleNotFoundError, match=r"a\.tif: needs the package no_such_package.*pip install 'wkwdask\[convert\]'"):
        need("no_such_package", "a.tif")
