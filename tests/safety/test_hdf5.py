"""HDF5 files that lead to other files, and folders and archives with links: nothing outside is read
unless it is allowed."""

from __future__ import annotations

import os

import numpy as np
import pytest
from support.commands import run_here

import wkwdask
from wkwdask.errors import CorruptError, FormatError, MissingError, TruncatedError, UnsupportedError

h5py = pytest.importorskip("h5py", reason="h5py, of the extra convert, is not installed")

VOXELS = np.random.default_rng(0).integers(1, 255, (4, 8, 16), np.uint8)
SECRET = bytes(range(256)) * 2


@pytest.fixture
def folder(tmp_path):
    """A file in a folder, and what lies outside of it."""
    (tmp_path / "in").mkdir()
    (tmp_path / "secret").write_bytes(SECRET)
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = VOXELS
    with h5py.File(tmp_path / "in" / "near.h5", "w") as file:
        file["x"] = VOXELS
    return tmp_path / "in"


def write(folder, add, name="a.h5"):
    with h5py.File(folder / name, "w") as file:
        add(file)
    return f"{folder}/{name}:/data"


def virtual(file, *sources):
    """Make a virtual dataset of others, one behind the other."""
    layout = h5py.VirtualLayout((VOXELS.shape[0] * len(sources), *VOXELS.shape[1:]), np.uint8)
    for n, (path, key) in enumerate(sources):
        layout[n * VOXELS.shape[0] : (n + 1) * VOXELS.shape[0]] = h5py.VirtualSource(
            path, key, VOXELS.shape
        )
    file.create_virtual_dataset("data", layout)


def external(file, path, offset=0):
    file.create_dataset(
        "data", VOXELS.shape, np.uint8, external=[(str(path), offset, h5py.h5f.UNLIMITED)]
    )


def converted(source, tmp_path, **options):
    wkwdask.convert(source, tmp_path / "ds", voxel_size=(4, 4, 4), **options)
    return wkwdask.read(tmp_path / "ds")[0].T


def through_near(add):
    """Lead through another file of the folder, which leads outside."""

    def make(file, top):
        write(top / "in", lambda near: add(near, top), "near.h5")
        file["data"] = h5py.ExternalLink("near.h5", "/data")

    return make


def virtual_of_near(file, top):
    write(top / "in", lambda near: external(near, top / "secret"), "near.h5")
    virtual(file, ("near.h5", "data"))


def by_soft_link(file, top):
    file["elsewhere"] = h5py.ExternalLink(str(top / "other.h5"), "/")
    file["data"] = h5py.SoftLink("/elsewhere/x")


def by_symbolic_link(file, top):
    (top / "in" / "link.h5").symlink_to(top / "other.h5")
    file["data"] = h5py.ExternalLink("link.h5", "/x")


def by_linked_storage(file, top):
    (top / "in" / "link").symlink_to(top / "secret")
    external(file, top / "in" / "link")


OUTSIDE = {
    "storage": lambda file, top: external(file, top / "secret"),
    "storage through a link": by_linked_storage,
    "link": lambda file, top: file.__setitem__(
        "data", h5py.ExternalLink(str(top / "other.h5"), "/x")
    ),
    "link upwards": lambda file, top: file.__setitem__(
        "data", h5py.ExternalLink("../other.h5", "/x")
    ),
    "link behind a soft link": by_soft_link,
    "link to a link": by_symbolic_link,
    "link to a link in a file": through_near(
        lambda near, top: near.__setitem__("data", h5py.ExternalLink("../other.h5", "/x"))
    ),
    "link to storage in a file": through_near(lambda near, top: external(near, top / "secret")),
    "virtual": lambda file, top: virtual(file, ("../other.h5", "x")),
    "virtual, absolute": lambda file, top: virtual(
        file, ("near.h5", "x"), (str(top / "other.h5"), "x")
    ),
    "virtual of storage": virtual_of_near,
}


@pytest.mark.parametrize("kind", OUTSIDE)
def test_what_lies_outside_is_refused(tmp_path, folder, kind):
    source = write(folder, lambda file: OUTSIDE[kind](file, tmp_path))
    with pytest.raises(
        UnsupportedError,
        match=(
            rf"\.h5: .* leads to {tmp_path}/(secret|other\.h5), outside of the folder of the file; "
            r".*allow_external=True"
        ),
    ):
        converted(source, tmp_path)
    with pytest.raises((UnsupportedError, MissingError)):
        wkwdask.label_statistics(source)
    found = converted(source, tmp_path, allow_external=True)
    expected = (
        np.frombuffer(SECRET, np.uint8).reshape(VOXELS.shape) if "storage" in kind else VOXELS
    )
    np.testing.assert_array_equal(found[-4:], expected)


def test_the_command_names_the_option(tmp_path, folder):
    source = write(folder, lambda file: external(file, tmp_path / "secret"))
    done = run_here("convert", source, tmp_path / "ds", "--voxel-size", "4,4,4")
    assert done.returncode == 1
    assert "--allow-external" in done.stderr
    assert (
        run_here(
            "convert", source, tmp_path / "ds", "--voxel-size", "4,4,4", "--allow-external"
        ).returncode
        == 0
    )


def test_what_lies_in_the_folder_is_read(tmp_path, folder, monkeypatch):
    monkeypatch.chdir(folder)  # external storage counts from there
    (folder / "raw").write_bytes(SECRET)
    (folder / "below").mkdir()
    os.replace(folder / "near.h5", folder / "below" / "near.h5")
    expected = {"external": np.frombuffer(SECRET, np.uint8).reshape(VOXELS.shape)}
    for name, add in {
        "soft": lambda file: (
            file.__setitem__("x", VOXELS),
            file.__setitem__("data", h5py.SoftLink("x")),
        ),
        "link": lambda file: file.__setitem__("data", h5py.ExternalLink("below/near.h5", "/x")),
        "virtual": lambda file: virtual(file, ("below/near.h5", "x")),
        "own": lambda file: (file.__setitem__("x", VOXELS), virtual(file, (".", "x"))),
        "external": lambda file: external(file, "raw"),
    }.items():
        found = converted(write(folder, add, f"{name}.h5"), tmp_path, existing="overwrite")
        np.testing.assert_array_equal(found, expected.get(name, VOXELS))


def test_what_is_missing_is_not_zero(tmp_path, folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "raw").write_bytes(SECRET[:100])
    for add, error, message in (
        (
            lambda file: virtual(file, ("near.h5", "x"), ("gone.h5", "x")),
            MissingError,
            r"gone\.h5: not found",
        ),
        (
            lambda file: virtual(file, ("near.h5", "gone")),
            MissingError,
            r"near\.h5: no dataset gone, a source of the virtual dataset .*a\.h5:/data",
        ),
        (
            lambda file: external(file, "raw"),
            TruncatedError,
            r"raw: has 100 bytes from byte 0, and .*a\.h5:/data needs 512",
        ),
    ):
        with pytest.raises(error, match=message):
            converted(write(folder, add), tmp_path)


def test_loops_of_links(tmp_path, folder):
    def soft(file):
        file["x"] = VOXELS
        file["data"], file["b"] = h5py.SoftLink("/b"), h5py.SoftLink("/data")

    for add in (
        soft,
        lambda file: virtual(file, ("a.h5", "data")),
        lambda file: file.__setitem__("data", h5py.ExternalLink("a.h5", "/data")),
    ):
        with pytest.raises(
            CorruptError,
            match=r"a\.h5:/data: (leads through more than 64 links|is a virtual dataset of itself)",
        ):
            converted(write(folder, add), tmp_path)


def test_files_without_number(tmp_path, folder):
    def add(file):
        space = h5py.h5s.create_simple(VOXELS.shape, (h5py.h5s.UNLIMITED, *VOXELS.shape[1:]))
        space.select_hyperslab((0, 0, 0), (h5py.h5s.UNLIMITED, 1, 1), VOXELS.shape, VOXELS.shape)
        layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        layout.set_virtual(space, b"../other%b.h5", b"x", h5py.h5s.create_simple(VOXELS.shape))
        h5py.h5d.create(file.id, b"data", h5py.h5t.NATIVE_UINT8, space, layout)

    with pytest.raises(
        UnsupportedError, match=r"is a virtual dataset of all files and datasets \.\./other%b\.h5:x"
    ):
        converted(write(folder, add), tmp_path)


def test_agglomerate_files(tmp_path, folder):
    """A mapping leads nowhere else either."""
    wkwdask.create_dataset(tmp_path / "ds", voxel_size=(4, 4, 4))
    wkwdask.to_wkw(
        np.ones((1, 8, 8, 8), np.uint32), tmp_path / "ds" / "seg" / "1", category="segmentation"
    )
    with h5py.File(folder / "agglomerate.hdf5", "w") as file:
        file.create_dataset(
            "segment_to_agglomerate",
            (64,),
            np.uint64,
            external=[(str(tmp_path / "secret"), 0, h5py.h5f.UNLIMITED)],
        )
    with pytest.raises(
        UnsupportedError,
        match=(
            r"agglomerate\.hdf5: external storage of /segment_to_agglomerate leads to .*secret, "
            r"outside"
        ),
    ):
        wkwdask.remap(
            tmp_path / "ds" / "seg", tmp_path / "ds" / "mapped" / "1", folder / "agglomerate.hdf5"
        )


# ----------------------------------------------------------------------------- claims


def test_a_chunk_behind_several_compressors_is_refused(tmp_path, folder):
    """Each of them returns a thousand times its input."""

    def twice_deflated(file):
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk(VOXELS.shape)
        plist.set_shuffle()
        for _ in range(2):
            plist.set_deflate(9)
        space = h5py.h5s.create_simple(VOXELS.shape)
        data = h5py.h5d.create(file.id, b"data", h5py.h5t.NATIVE_UINT8, space, plist)
        data.write(h5py.h5s.ALL, h5py.h5s.ALL, VOXELS)

    source = write(folder, twice_deflated)
    with pytest.raises(UnsupportedError, match=r"several HDF5 filters \(1, 1\)"):
        converted(source, tmp_path)


def test_a_chunk_that_no_file_of_that_size_can_hold_is_refused(tmp_path, folder):
    def huge(file):
        file.create_dataset("data", (1 << 10,) * 3, np.uint8, chunks=(1 << 10,) * 3)

    with pytest.raises(CorruptError, match="a chunk claims 1073741824 bytes of values"):
        converted(write(folder, huge), tmp_path)


def test_agglomerates_that_no_file_of_that_size_can_hold_are_refused(tmp_path, folder):
    wkwdask.to_wkw(VOXELS.astype(np.uint32), tmp_path / "ds/seg/1", voxel_size=(4, 4, 4))
    with h5py.File(folder / "ids.hdf5", "w") as file:
        file.create_dataset("segment_to_agglomerate", (1 << 40,), np.uint64, chunks=(1 << 16,))
    with pytest.raises(CorruptError, match=r"ids\.hdf5 claims \d+ bytes"):
        wkwdask.remap(tmp_path / "ds/seg", tmp_path / "ds/mapped/1", folder / "ids.hdf5")


def test_axes_are_the_labels_or_scales_of_the_dimensions(tmp_path, folder):
    def labelled(file):
        file["data"] = VOXELS.transpose(1, 0, 2)
        file["z"] = np.arange(VOXELS.shape[0])
        file["z"].make_scale()
        dims = file["data"].dims
        dims[0].label, dims[2].label = "y", "x"
        dims[1].attach_scale(file["z"])

    np.testing.assert_array_equal(converted(write(folder, labelled), tmp_path), VOXELS)


@pytest.mark.parametrize("dtype", [h5py.string_dtype(), "S1"])
def test_texts_of_labels_may_have_a_fixed_length(tmp_path, folder, dtype):
    def labelled(file):
        file["data"] = VOXELS.transpose(2, 0, 1)
        file["data"].attrs["DIMENSION_LABELS"] = np.array(["x", "z", "y"], dtype)

    np.testing.assert_array_equal(converted(write(folder, labelled), tmp_path), VOXELS)


def test_attributes_of_many_values_are_no_position(tmp_path, folder):
    def many(file):
        file["data"] = VOXELS
        file["data"].attrs["resolution"] = [40.0, 4.0, 4.0]
        file["data"].attrs["offset"] = np.ones((40, 3))

    np.testing.assert_array_equal(converted(write(folder, many), tmp_path), VOXELS)


def test_an_attribute_of_very_many_values_names_no_axes(tmp_path, folder):
    def many(file):
        file["data"] = VOXELS
        file["data"].attrs["DIMENSION_LABELS"] = [""] * 100

    with pytest.raises(CorruptError, match="DIMENSION_LABELS: expected a few values"):
        converted(write(folder, many), tmp_path)


# ----------------------------------------------------------------------------- images and archives


@pytest.mark.parametrize("name", ["1.png", "1.tif", "a.npy", "a.h5", "a.mrc"])
def test_pipes_do_not_hang(tmp_path, name):
    (tmp_path / "s").mkdir()
    os.mkfifo(tmp_path / "s" / name)
    for source in (
        (tmp_path / "s", tmp_path / "s" / name)
        if name.startswith("1")
        else (tmp_path / "s" / name,)
    ):
        with pytest.raises(FormatError, match=f"{name}: .*not a regular file"):
            converted(source, tmp_path)


def test_a_link_to_a_file_whose_parts_lie_beside_it(folder, tmp_path):
    write(folder, lambda file: virtual(file, ("near.h5", "x")))
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "a.h5").symlink_to("../in/a.h5")
    np.testing.assert_array_equal(converted(f"{tmp_path}/links/a.h5:/data", tmp_path), VOXELS)
