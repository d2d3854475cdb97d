"""Oracles: files that tifffile, imagecodecs, Pillow, h5py, zarr and mrcfile wrote become WKW that
the reference library wkw 1.1.24 reads as what they hold; what is exported is read by tifffile and
zarr. Without wkw, as on the lower bounds, wkwdask reads and writes WKW itself."""

from __future__ import annotations

import gzip
import itertools
import json
import warnings

import dask
import numpy as np
import pytest
from PIL import Image
from support.inside import limited

import wkwdask
from wkwdask.errors import (
    BoundsError,
    CorruptError,
    MetadataWarning,
    MissingError,
    UnsupportedError,
)

try:
    import wkw
except ModuleNotFoundError:
    wkw = None

tifffile = pytest.importorskip(
    "tifffile", reason="tifffile, of the extra convert, is not installed"
)
h5py = pytest.importorskip("h5py", reason="h5py, of the extra convert, is not installed")
zarr = pytest.importorskip("zarr", reason="zarr, of the extra convert, is not installed")
mrcfile = pytest.importorskip("mrcfile", reason="mrcfile, of the extra convert, is not installed")
nibabel = pytest.importorskip("nibabel", reason="nibabel, of the extra convert, is not installed")
imagecodecs = pytest.importorskip(
    "imagecodecs", reason="imagecodecs, of the extra convert, is not installed"
)

OFFSET = (5, 0, 3)
OPTIONS = {"layer": "em", "offset": OFFSET, "block_len": 8, "file_len": 2, "compression": "lz4"}
DTYPES = (
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float32",
    "float64",
)


@pytest.fixture(autouse=True)
def _in_this_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


def voxels(dtype="uint8", shape=(11, 30, 41), seed=0):
    """Sections (z, y, x), with values that fill the type."""
    dtype = np.dtype(dtype)
    random = np.random.default_rng(seed)
    if dtype.kind == "f":
        return random.normal(size=shape).astype(dtype)
    limits = np.iinfo(dtype)
    return random.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def imported(source, tmp_path, **options):
    """Import it, and read it with wkw: (c, z, y, x)."""
    options = {"voxel_size": (4, 4, 35)} | OPTIONS | options
    wkwdask.convert(source, tmp_path / "ds", **options)
    (layer,) = json.loads((tmp_path / "ds" / "datasource-properties.json").read_text())[
        "dataLayers"
    ]
    box = layer["boundingBox"]
    if wkw is None:
        return wkwdask.read(tmp_path / "ds").transpose(0, 3, 2, 1)
    with wkw.Dataset.open(str(tmp_path / "ds" / "em" / "1")) as reference:
        return reference.read(
            box["topLeft"], [box["width"], box["height"], box["depth"]]
        ).transpose(0, 3, 2, 1)


def scale(tmp_path):
    return json.loads((tmp_path / "ds" / "datasource-properties.json").read_text())["scale"][
        "factor"
    ]


# ----------------------------------------------------------------------------- TIFF

TIFF_FORMS = {
    "plain": {},
    "big": {"bigtiff": True},
    "big-endian": {"byteorder": ">"},
    "no description": {"metadata": None},
    "zlib": {"compression": "zlib"},
    "lzw strips": {"compression": "lzw", "rowsperstrip": 7, "predictor": True},
    "zstd tiles": {"compression": "zstd", "tile": (16, 32), "metadata": None},
    "raw tiles": {"tile": (16, 16)},
    "strips": {"rowsperstrip": 4, "metadata": None},
    "ome": {"ome": True},
    "big-endian ome tiles": {"ome": True, "tile": (16, 16), "byteorder": ">", "bigtiff": True},
}


@pytest.mark.parametrize("form", TIFF_FORMS)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_tiff_of_many_pages(tmp_path, form, dtype):
    array = voxels(dtype)
    options = TIFF_FORMS[form] | (
        {"predictor": False} if dtype == "float32" and "predictor" in TIFF_FORMS[form] else {}
    )
    tifffile.imwrite(tmp_path / "a.tif", array, photometric="minisblack", **options)
    found = imported(
        tmp_path / "a.tif", tmp_path, **({"axes": "zyx"} if form != "no description" else {})
    )
    assert found.dtype == dtype
    np.testing.assert_array_equal(found[0], array)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tiffs_of_one_section(tmp_path, dtype):
    """Names in natural order; every type."""
    array = voxels(dtype)
    (tmp_path / "s").mkdir()
    for z, section in enumerate(array):
        tifffile.imwrite(
            tmp_path / "s" / f"section {z}.tiff",
            section,
            compression="zlib" if z % 2 else None,
            tile=(16, 16) if z % 3 else None,
        )
    found = imported(tmp_path / "s", tmp_path)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found[0], array)


def test_tiffs_of_bits(tmp_path):
    """They become bytes, 0 and 1."""
    array = voxels(shape=(3, 30, 41)) > 100
    (tmp_path / "s").mkdir()
    for z, section in enumerate(array):
        tifffile.imwrite(
            tmp_path / "s" / f"{z}.tif",
            section,
            bitspersample=1,
            compression="packbits" if z else None,
        )
    np.testing.assert_array_equal(imported(tmp_path / "s", tmp_path)[0], array)


@pytest.mark.parametrize(
    "options", [{"tile": (16, 16)}, {"rowsperstrip": 8, "compression": "zlib"}, {}]
)
def test_large_tiffs_are_read_in_parts(tmp_path, options):
    """Tiles, strips and rows that a task needs, and no others."""
    array = voxels("uint16", (21, 70, 90))
    (tmp_path / "s").mkdir()
    for z, section in enumerate(array):
        tifffile.imwrite(tmp_path / "s" / f"{z}.tif", section, **options)
    with limited(section_nbytes=2 * 8 * 90 * 20):
        np.testing.assert_array_equal(imported(tmp_path / "s", tmp_path)[0], array)


def test_tiffs_of_several_sections_each(tmp_path):
    array = voxels(shape=(12, 30, 41))
    (tmp_path / "s").mkdir()
    for n in range(3):
        tifffile.imwrite(
            tmp_path / "s" / f"{n}.tif",
            array[4 * n : 4 * n + 4],
            photometric="minisblack",
            metadata=None,
        )
    np.testing.assert_array_equal(imported(tmp_path / "s", tmp_path)[0], array)


@pytest.mark.parametrize(
    "options",
    [
        {"planarconfig": "contig"},
        {"planarconfig": "separate"},
        {"compression": "jpeg"},
        {"tile": (16, 16), "compression": "zlib"},
    ],
)
def test_colors(tmp_path, options):
    """Three channels, on any axis of the file."""
    array = voxels(shape=(3, 32, 48, 3))
    (tmp_path / "s").mkdir()
    for z, section in enumerate(array):
        data = section.transpose(2, 0, 1) if options.get("planarconfig") == "separate" else section
        tifffile.imwrite(tmp_path / "s" / f"{z}.tif", data, photometric="rgb", **options)
    # JPEG loses something
    expected = np.stack([tifffile.imread(tmp_path / "s" / f"{z}.tif") for z in range(3)])
    if options.get("planarconfig") == "separate":
        expected = expected.transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(
        imported(tmp_path / "s", tmp_path), expected.transpose(3, 0, 1, 2)
    )


@pytest.mark.parametrize("axes", ["ZCYX", "CZYX", "TZCYX", "ZYX", "ZYXS"])
def test_ome_tiff(tmp_path, axes):
    """Axes and the voxel size are in the file."""
    lengths = {"T": 1, "Z": 4, "C": 2, "Y": 20, "X": 30, "S": 3}
    array = voxels("uint8" if "S" in axes else "uint16", [lengths[axis] for axis in axes])
    size = {
        "PhysicalSizeX": 0.004,
        "PhysicalSizeY": 4.5,
        "PhysicalSizeYUnit": "nm",
        "PhysicalSizeZ": 350,
        "PhysicalSizeZUnit": "Å",
    }
    tifffile.imwrite(
        tmp_path / "a.ome.tif",
        array,
        photometric="rgb" if "S" in axes else "minisblack",
        metadata={"axes": axes} | size,
    )
    found = imported(tmp_path / "a.ome.tif", tmp_path, voxel_size=None)
    order = [axes.index(axis) for axis in axes if axis in "CS"] + [
        axes.index(axis) for axis in "ZYX"
    ]
    expected = (array[0] if axes[0] == "T" else array).transpose(
        [n - (axes[0] == "T") for n in order]
    )
    np.testing.assert_array_equal(found, expected if len(order) == 4 else expected[np.newaxis])
    assert scale(tmp_path) == [4.0, 4.5, 35.0]


def test_a_set_of_ome_tiffs(tmp_path):
    """Each file describes all of them: one file stands for the set, and in a folder each counts
    once."""
    array = voxels(shape=(3, 20, 30))
    (tmp_path / "s").mkdir()
    data = "".join(
        f'<TiffData FirstZ="{z}" IFD="0" PlaneCount="1"><UUID '
        f'FileName="{z}.ome.tif">urn:uuid:{z}</UUID></TiffData>'
        for z in range(3)
    )
    size = 'DimensionOrder="XYZCT" Type="uint8" SizeX="30" SizeY="20" SizeZ="3" SizeC="1" SizeT="1"'
    for z, section in enumerate(array):
        text = (
            '<?xml version="1.0"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" '
            f'UUID="urn:uuid:{z}">'
            f'<Image ID="Image:0"><Pixels ID="Pixels:0" {size}><Channel ID="Channel:0:0" '
            f'SamplesPerPixel="1"/>{data}</Pixels></Image></OME>'
        )
        tifffile.imwrite(tmp_path / "s" / f"{z}.ome.tif", section, description=text, metadata=None)
    np.testing.assert_array_equal(imported(tmp_path / "s" / "0.ome.tif", tmp_path)[0], array)
    np.testing.assert_array_equal(
        imported(tmp_path / "s", tmp_path, existing="overwrite")[0], array
    )


@pytest.mark.parametrize("axes", ["ZYX", "ZCYX"])
def test_imagej(tmp_path, axes):
    array = voxels("uint16", (5, 20, 30) if axes == "ZYX" else (5, 2, 20, 30))
    tifffile.imwrite(tmp_path / "a.tif", array, imagej=True, metadata={"axes": axes})
    expected = array[np.newaxis] if axes == "ZYX" else array.transpose(1, 0, 2, 3)
    np.testing.assert_array_equal(imported(tmp_path / "a.tif", tmp_path), expected)


def test_imagej_with_one_directory(tmp_path):
    """Beyond 4 GiB, ImageJ describes the first section alone; the others lie behind it."""
    array = voxels("uint16", (5, 20, 30))
    tifffile.imwrite(tmp_path / "a.tif", array, imagej=True, metadata={"axes": "ZYX"})
    with tifffile.TiffFile(tmp_path / "a.tif", mode="r+b") as tiff:
        page = tiff.pages[0]
        file, order = tiff.filehandle, tiff.byteorder
        file.seek(page.offset)
        count = int.from_bytes(file.read(2), "little" if order == "<" else "big")
        file.seek(page.offset + 2 + 12 * count)
        file.write(bytes(4))  # no next directory
    with tifffile.TiffFile(tmp_path / "a.tif") as tiff:
        assert (len(tiff.pages), tiff.series[0].shape) == (1, (5, 20, 30))
    np.testing.assert_array_equal(imported(tmp_path / "a.tif", tmp_path)[0], array)


def test_the_error_names_the_page_that_differs(tmp_path):
    array = voxels()
    with tifffile.TiffWriter(tmp_path / "a.tif") as writer:
        for z, section in enumerate(array):
            writer.write(section[:5] if z == 3 else section, metadata=None)
    with pytest.raises(
        CorruptError, match=r"a\.tif: page 3: has 41 x 5 pixels of uint8, expected 41 x 30"
    ):
        imported(tmp_path / "a.tif", tmp_path)


PAGE_BY_PAGE = {
    "plain": ("a.tif", {}),
    "tiles": ("a.tif", {"compression": "zlib", "tile": (16, 16)}),
    "ome": ("a.ome.tif", {}),
}


@pytest.mark.parametrize("form", PAGE_BY_PAGE)
def test_tiff_written_page_by_page(tmp_path, form):
    """Each page is a separate series; together they are the stack, in one file or in several."""
    name, options = PAGE_BY_PAGE[form]
    array = voxels()
    (tmp_path / "s").mkdir()
    for folder, first, last in (("", 0, 11), ("s/1", 0, 4), ("s/2", 4, 11)):
        with tifffile.TiffWriter(tmp_path / f"{folder}{name}") as writer:
            for section in array[first:last]:
                writer.write(section, photometric="minisblack", **options)
    for source, axes in ((name, None), (name, "yx"), (name, "zyx"), ("s", None)):
        np.testing.assert_array_equal(
            imported(tmp_path / source, tmp_path, axes=axes, existing="overwrite")[0], array
        )
    with pytest.raises(ValueError, match="axes 'zcyx' for an array of shape"):
        imported(tmp_path / name, tmp_path, axes="zcyx", existing="overwrite")


def test_tiff_that_grew_by_appending(tmp_path):
    array = voxels(shape=(6, 30, 41, 3))
    for n, section in enumerate(array):
        tifffile.imwrite(tmp_path / "rgb.tif", section, photometric="rgb", append=n > 0)
    for n in range(3):
        tifffile.imwrite(
            tmp_path / "stacks.tif",
            array[2 * n : 2 * n + 2, ..., 0],
            photometric="minisblack",
            append=n > 0,
            compression="zlib",
        )
    np.testing.assert_array_equal(
        imported(tmp_path / "rgb.tif", tmp_path), array.transpose(3, 0, 1, 2)
    )
    np.testing.assert_array_equal(
        imported(tmp_path / "stacks.tif", tmp_path, existing="overwrite")[0], array[..., 0]
    )


@pytest.mark.parametrize(
    ("name", "lengths"), [("a.tif", (4, 3)), ("a.ome.tif", (4, 3)), ("a.ome.tif", (4, 4))]
)
def test_tiff_of_several_stacks(tmp_path, name, lengths):
    """The error lists them."""
    (tmp_path / "s").mkdir()
    for target in (tmp_path / name, tmp_path / "s" / name):
        with tifffile.TiffWriter(target) as writer:
            for length in lengths:
                writer.write(
                    voxels(shape=(length, 30, 41)),
                    photometric="minisblack",
                    metadata={"axes": "ZYX"},
                )
    message = (
        rf"holds 2 images, expected one, or sections of equal shape: uint8 ZYX \({lengths[0]}, 30, "
        rf"41\), uint8 ZYX \({lengths[1]}, 30, 41\)"
    )
    with pytest.raises(UnsupportedError, match=message):
        imported(tmp_path / name, tmp_path)
    with pytest.raises(CorruptError, match=message):
        imported(tmp_path / "s", tmp_path)


def test_every_truncation_of_a_tiff_is_an_error(tmp_path):
    """The error names the file; absent pixels are never zeros."""
    array = voxels()
    for name, options in (("raw", {}), ("zlib", {"compression": "zlib", "rowsperstrip": 8})):
        tifffile.imwrite(tmp_path / f"{name}.tif", array[0], metadata=None, **options)
        raw = (tmp_path / f"{name}.tif").read_bytes()
        for length in range(0, len(raw) - 1, 97):
            (tmp_path / "cut.tif").write_bytes(raw[:length])
            with pytest.raises(CorruptError, match=r"cut\.tif"):
                imported(tmp_path / "cut.tif", tmp_path)


def test_a_deep_color_png(tmp_path):
    """Pillow halves its bits; wkwdask keeps all of them."""
    array = voxels("uint16", (3, 20, 30, 3))
    (tmp_path / "s").mkdir()
    for z, section in enumerate(array):
        (tmp_path / "s" / f"{z}.png").write_bytes(imagecodecs.png_encode(section))
    np.testing.assert_array_equal(imported(tmp_path / "s", tmp_path), array.transpose(3, 0, 1, 2))


def test_jpegs(tmp_path):
    array = voxels(shape=(3, 40, 50))
    (tmp_path / "s").mkdir()
    for z, section in enumerate(array):
        Image.fromarray(section).save(tmp_path / "s" / f"{z}.jpg", quality=70)
    expected = np.stack(
        [imagecodecs.jpeg_decode((tmp_path / "s" / f"{z}.jpg").read_bytes()) for z in range(3)]
    )
    np.testing.assert_array_equal(imported(tmp_path / "s", tmp_path)[0], expected)


# ----------------------------------------------------------------------------- arrays


@pytest.mark.parametrize(
    "options", [{}, {"chunks": (3, 16, 16)}, {"chunks": (1, 30, 41), "compression": "gzip"}]
)
@pytest.mark.parametrize("dtype", ["uint8", ">u2", "float64", "int64"])
def test_hdf5(tmp_path, options, dtype):
    array = voxels(np.dtype(dtype).newbyteorder("="))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("volumes/raw", data=array.astype(dtype), **options).attrs[
            "element_size_um"
        ] = (0.05, 0.008, 0.004)
        file.create_dataset("other", data=array)
    found = imported(f"{tmp_path}/a.h5:/volumes/raw", tmp_path, voxel_size=None)
    np.testing.assert_array_equal(found[0], array)
    assert scale(tmp_path) == [4.0, 8.0, 50.0]
    with pytest.raises(
        MissingError,
        match=r"several datasets, or none: name one of: .*a\.h5:/other, .*a\.h5:/volumes/raw",
    ):
        imported(tmp_path / "a.h5", tmp_path)
    with pytest.raises(MissingError, match="no dataset 'nothing'"):
        imported(f"{tmp_path}/a.h5:nothing", tmp_path)


def test_hdf5_names(tmp_path):
    """With two slashes, behind soft and external links; a dangling one is not found."""
    array = voxels()
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["g/x"] = array
        file["soft"] = h5py.SoftLink("/g/x")
        file["dangling"] = h5py.SoftLink("/g/y")
        file["outside"] = h5py.ExternalLink("nothing.h5", "/x")
    for name in ("/g/x", "//g/x", "/soft", "soft"):
        np.testing.assert_array_equal(
            imported(f"{tmp_path}/a.h5:{name}", tmp_path, existing="overwrite")[0], array
        )
    for name in ("dangling", "outside", "g"):
        with pytest.raises(
            MissingError,
            match=rf"a\.h5: no dataset '{name}' of two or more axes: name one of: .*a\.h5:/g/x",
        ):
            imported(f"{tmp_path}/a.h5:/{name}", tmp_path)


@pytest.mark.parametrize("kind", ["npy", "h5", "zarr"])
def test_arrays_without_voxels(tmp_path, kind):
    empty = np.zeros((0, 30, 41), np.uint8)
    path = tmp_path / f"a.{kind}"
    if kind == "npy":
        np.save(path, empty)
    elif kind == "h5":
        with h5py.File(path, "w") as file:
            file["x"] = empty
    else:
        zarr.create_array(str(path), shape=empty.shape, chunks=(1, 30, 41), dtype="uint8")
    with pytest.raises(
        BoundsError, match=r"a\..*: the source holds no voxels: its (shape|size) is \("
    ):
        imported(path, tmp_path)
    assert not (tmp_path / "ds").exists()


def test_hdf5_axes_and_damage(tmp_path):
    array = voxels(shape=(2, 5, 6, 7))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        data = file.create_dataset("data", data=array)
        for dim, label in zip(data.dims, "czyx", strict=True):
            dim.label = label
    np.testing.assert_array_equal(imported(tmp_path / "a.h5", tmp_path), array)
    (tmp_path / "b.h5").write_bytes(b"no HDF5")
    with pytest.raises(CorruptError, match=r"b\.h5: not readable as HDF5 file"):
        imported(tmp_path / "b.h5", tmp_path)


ZARR_FORMS = {
    "v2": {"zarr_format": 2, "chunks": (4, 16, 16)},
    "v3": {"zarr_format": 3, "chunks": (4, 16, 16)},
    "shards": {"zarr_format": 3, "chunks": (2, 8, 8), "shards": (8, 32, 48)},
    "sections": {"zarr_format": 2, "chunks": (1, 30, 41)},
}


@pytest.mark.parametrize("form", ZARR_FORMS)
@pytest.mark.parametrize("dtype", ["uint8", "uint64", "float32"])
def test_zarr(tmp_path, form, dtype):
    array = voxels(dtype)
    zarr.create_array(str(tmp_path / "a.zarr"), shape=array.shape, dtype=dtype, **ZARR_FORMS[form])[
        ...
    ] = array
    np.testing.assert_array_equal(imported(tmp_path / "a.zarr", tmp_path)[0], array)


@pytest.mark.parametrize("version", [2, 3])
def test_ome_zarr(tmp_path, version):
    """The finest array of a group, its axes and its voxel size."""
    array = voxels(shape=(1, 2, 5, 20, 30))
    group = zarr.create_group(str(tmp_path / "a.zarr"), zarr_format=version)
    group.create_array("s0", shape=array.shape, dtype="uint8", chunks=(1, 1, 5, 8, 8))[...] = array
    group.create_array("s1", shape=(1, 2, 5, 10, 15), dtype="uint8", chunks=(1, 1, 5, 8, 8))
    axes = [{"name": "t", "type": "time"}, {"name": "c", "type": "channel"}] + [
        {"name": name, "type": "space", "unit": "micrometer"} for name in "zyx"
    ]
    datasets = [
        {
            "path": path,
            "coordinateTransformations": [
                {"type": "scale", "scale": [1, 1, 0.05, f * 0.008, f * 0.004]}
            ],
        }
        for path, f in (("s0", 1), ("s1", 2))
    ]
    multiscales = {"multiscales": [{"axes": axes, "datasets": datasets}]}
    group.attrs.update(multiscales if version == 2 else {"ome": {"version": "0.5", **multiscales}})
    # the offset is none of mag 2-2-1
    np.testing.assert_array_equal(
        imported(tmp_path / "a.zarr", tmp_path, voxel_size=None, mag=1), array[0]
    )
    assert scale(tmp_path) == [4.0, 8.0, 50.0]


@pytest.mark.parametrize("unit", ["micrometer", None])
def test_ome_zarr_with_a_scale_of_all(tmp_path, unit):
    """A scale of the whole multiscale applies too."""
    group = zarr.create_group(str(tmp_path / "a.zarr"), zarr_format=2)
    group.create_array("0", shape=(3, 4, 5), dtype="uint8", chunks=(3, 4, 5))[...] = 1
    axes = [
        {"name": name, "type": "space", **({} if unit is None else {"unit": unit})}
        for name in "zyx"
    ]
    entry = {
        "path": "0",
        "coordinateTransformations": [
            {"type": "scale", "scale": [0.5, 0.25, 0.125]},
            {"type": "translation", "translation": [1, 1, 1]},
        ],
    }
    whole = [{"type": "scale", "scale": [0.1, 0.016, 0.032]}]
    group.attrs["multiscales"] = [
        {"axes": axes, "datasets": [entry], "coordinateTransformations": whole}
    ]
    if unit is None:
        with pytest.raises(ValueError, match="a new dataset needs a voxel size"):
            imported(tmp_path / "a.zarr", tmp_path, voxel_size=None)
    else:
        imported(tmp_path / "a.zarr", tmp_path, voxel_size=None)
        assert scale(tmp_path) == pytest.approx([4.0, 4.0, 50.0])


def test_zarr_groups_and_names(tmp_path):
    group = zarr.create_group(str(tmp_path / "a.zarr"))
    array = voxels(shape=(7, 6, 5))
    group.create_array(
        "raw", shape=array.shape, dtype="uint8", chunks=(4, 4, 4), dimension_names=["x", "y", "z"]
    )[...] = array
    with pytest.raises(
        ValueError, match=r"a group without multiscales: name an array in it: .*a\.zarr/raw"
    ):
        imported(tmp_path / "a.zarr", tmp_path)
    np.testing.assert_array_equal(imported(tmp_path / "a.zarr" / "raw", tmp_path)[0], array.T)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("element_size_um", np.array([0.04, 0.00404, 0.00404], "<f4"), [4.04, 4.04, 40.0]),
        ("element_size_um", np.array([0.04, 0.00404, 0.00404], ">f4"), [4.04, 4.04, 40.0]),
        ("resolution", "4 x 4 x 40 nm", None),  # a text of other software is no voxel size
        ("offset", "none", None),
    ],
)
def test_attributes_of_hdf5(tmp_path, name, value, expected):
    array = voxels("uint8")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("raw", data=array).attrs[name] = value
    voxel_size = (1, 2, 3) if expected is None else None
    found = imported(tmp_path / "a.h5", tmp_path, voxel_size=voxel_size)
    np.testing.assert_array_equal(found[0], array)
    assert scale(tmp_path) == (expected or [1, 2, 3])


def test_an_hdf5_file_is_closed_when_it_is_converted(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("raw", data=voxels("uint8"))
    imported(tmp_path / "a.h5", tmp_path)
    with h5py.File(tmp_path / "a.h5", "a") as file:  # an error while it is open elsewhere
        file["raw"][...] = 7
    wkwdask.convert(tmp_path / "a.h5", tmp_path / "b", layer="em", voxel_size=(4, 4, 4))
    assert (wkwdask.read(tmp_path / "b") == 7).all()


def test_the_voxel_size_of_mrc_has_seven_digits(tmp_path):
    with mrcfile.new(tmp_path / "a.mrc") as mrc:
        mrc.set_data(voxels("int8"))
        mrc.voxel_size = (112.4, 33.7, 404)
    imported(tmp_path / "a.mrc", tmp_path, voxel_size=None)
    assert scale(tmp_path) == [11.24, 3.37, 40.4]


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint16", "float32", "float16"])
def test_mrc(tmp_path, dtype):
    array = (
        (voxels("int8") if dtype == "int8" else voxels("int16").astype(dtype))
        if "float" not in dtype
        else voxels("float32").astype(dtype)
    )
    with mrcfile.new(tmp_path / "a.mrc") as mrc:
        mrc.set_data(array)
        mrc.voxel_size = (40, 50, 350)
    found = imported(tmp_path / "a.mrc", tmp_path, voxel_size=None)
    assert found.dtype == ("float32" if dtype == "float16" else dtype)
    np.testing.assert_array_equal(found[0], array.astype(found.dtype))
    assert scale(tmp_path) == [4.0, 5.0, 35.0]


def test_mrc_bytes_of_imod_and_damage(tmp_path):
    """IMOD marks files of unsigned bytes; mrcfile ignores the mark."""
    array = voxels("int8")
    with mrcfile.new(tmp_path / "a.mrc") as mrc:
        mrc.set_data(array)
    raw = bytearray((tmp_path / "a.mrc").read_bytes())
    raw[152:160] = np.array([1146047817, 0], "<i4").tobytes()
    (tmp_path / "a.mrc").write_bytes(raw)
    np.testing.assert_array_equal(imported(tmp_path / "a.mrc", tmp_path)[0], array.view("uint8"))
    (tmp_path / "a.mrc").write_bytes(raw[:-1])
    with pytest.raises(wkwdask.TruncatedError, match=r"a\.mrc: has \d+ bytes, expected"):
        imported(tmp_path / "a.mrc", tmp_path)
    with mrcfile.new(tmp_path / "c.mrc") as mrc:
        mrc.set_data(voxels("float32", (2, 3, 4)).astype("complex64"))
    with pytest.raises(UnsupportedError, match=r"c\.mrc: mode 4, expected one of"):
        imported(tmp_path / "c.mrc", tmp_path)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint32", "float32"])
@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_nifti(tmp_path, dtype, suffix):
    array = voxels(dtype)
    image = nibabel.Nifti1Image(array.T, np.diag([0.004, 0.005, 0.035, 1]), dtype=dtype)
    image.header.set_xyzt_units("micron")
    nibabel.save(image, tmp_path / f"a{suffix}")
    found = imported(tmp_path / f"a{suffix}", tmp_path, voxel_size=None)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found[0], array)
    assert scale(tmp_path) == [4.0, 5.0, 35.0]  # stored in single precision


def test_nifti_of_other_kinds(tmp_path):
    array = voxels("uint16")
    moved = np.array([[0, -1, 0, 7], [1, 0, 0, 8], [0, 0, 1, 9], [0, 0, 0, 1]])
    nibabel.save(nibabel.Nifti2Image(array.T[..., None], moved), tmp_path / "a.nii")
    with pytest.warns(MetadataWarning, match=r"a\.nii: its orientation and position"):
        found = imported(tmp_path / "a.nii", tmp_path)
    np.testing.assert_array_equal(found[0], array)
    raw = (tmp_path / "a.nii").read_bytes()
    (tmp_path / "a.nii").write_bytes(raw[:-1])
    with pytest.raises(wkwdask.TruncatedError, match=r"a\.nii: has \d+ bytes, expected"):
        imported(tmp_path / "a.nii", tmp_path)
    (tmp_path / "a.nii").write_bytes(raw[:200])
    with pytest.raises(wkwdask.CorruptError, match=r"a\.nii: not readable as NIfTI file"):
        imported(tmp_path / "a.nii", tmp_path)
    many = nibabel.Nifti1Image(np.stack([array.T, array.T], axis=-1), np.eye(4))
    nibabel.save(many, tmp_path / "t.nii")
    with pytest.raises(UnsupportedError, match="an axis 't' of length 2"):
        imported(tmp_path / "t.nii", tmp_path)
    scaled = nibabel.Nifti1Image(array.T, np.eye(4))
    scaled.header.set_slope_inter(0.5, 3)
    nibabel.save(scaled, tmp_path / "s.nii")
    with pytest.raises(UnsupportedError, match=r"s\.nii: .* slope 0\.5 and intercept 3"):
        imported(tmp_path / "s.nii", tmp_path)


@pytest.mark.parametrize(("unit", "metadata", "expected"), [
    ("micron", {"spacing": 0.035}, [4.0, 5.0, 35.0]),
    ("\\u00B5m", {"spacing": 0.035}, [4.0, 5.0, 35.0]),
    ("um", {}, [4.0, 5.0, 1000.0]),  # ImageJ omits a spacing of 1
    ("pixel", {"spacing": 2}, None),
])  # fmt: skip
def test_imagej_states_the_voxel_size(tmp_path, unit, metadata, expected):
    array = voxels()
    tifffile.imwrite(
        tmp_path / "a.tif",
        array,
        imagej=True,
        resolution=(250, 200),
        metadata={"axes": "ZYX", "unit": unit, **metadata},
    )
    np.testing.assert_array_equal(
        imported(tmp_path / "a.tif", tmp_path, voxel_size=None if expected else (7, 7, 7))[0], array
    )
    assert scale(tmp_path) == (expected or [7, 7, 7])


def write_ome_set(folder, array, num_files=2):
    """Write sections (c, z, y, x) as a set of OME-TIFFs of equally many pages, in the order c, z,
    each file with the description of the whole set."""
    folder.mkdir()
    channels, depth, height, width = array.shape
    names, per_file = [f"s{n}.ome.tif" for n in range(num_files)], channels * depth // num_files
    ids = [f"urn:uuid:00000000-0000-0000-0000-00000000000{n}" for n in range(num_files)]
    planes = "".join(
        f'<TiffData IFD="{n % per_file}" FirstC="{n // depth}" FirstZ="{n % depth}" FirstT="0" '
        'PlaneCount="1">'
        f'<UUID FileName="{names[n // per_file]}">{ids[n // per_file]}</UUID></TiffData>'
        for n in range(channels * depth)
    )
    channel_elements = "".join(
        f'<Channel ID="Channel:0:{n}" SamplesPerPixel="1"/>' for n in range(channels)
    )
    for n, name in enumerate(names):
        description = (
            '<?xml version="1.0"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" '
            f'UUID="{ids[n]}"><Image ID="Image:0">'
            f'<Pixels ID="Pixels:0" DimensionOrder="XYZCT" Type="{array.dtype}" SizeX="{width}" '
            f'SizeY="{height}" SizeZ="{depth}" SizeC="{channels}" SizeT="1"'
            ' PhysicalSizeX="0.004" PhysicalSizeY="0.005" '
            f'PhysicalSizeZ="0.035">{channel_elements}{planes}</Pixels></Image></OME>'
        )
        with tifffile.TiffWriter(folder / name, ome=False) as writer:
            for k, plane in enumerate(
                array.reshape(-1, height, width)[n * per_file : (n + 1) * per_file]
            ):
                writer.write(
                    plane,
                    description=description if k == 0 else None,
                    metadata=None,
                    contiguous=False,
                )
    return [folder / name for name in names]


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("is_folder", [True, False], ids=["folder", "list"])
def test_a_set_of_ome_tiffs_is_one_image(tmp_path, channels, is_folder):
    array = voxels("uint16", (channels * 6, 20, 30)).reshape(channels, 6, 20, 30)
    paths = write_ome_set(tmp_path / "set", array)
    found = imported(tmp_path / "set" if is_folder else paths, tmp_path, voxel_size=None)
    np.testing.assert_array_equal(found, array)
    assert scale(tmp_path) == [4.0, 5.0, 35.0]


def test_a_part_of_a_set_of_ome_tiffs_has_its_own_sections_or_is_refused(tmp_path):
    array = voxels("uint16", (1, 9, 20, 30))
    paths = write_ome_set(tmp_path / "one", array, 3)
    np.testing.assert_array_equal(imported(paths[:2], tmp_path), array[:, :6])
    paths = write_ome_set(tmp_path / "three", voxels("uint16", (3, 4, 20, 30)), 3)
    with pytest.raises(
        CorruptError,
        match=(
            r"s0\.ome\.tif: .*one file of a set with axes CZYX .*name one file of the set alone, "
            r"or all of them"
        ),
    ):
        imported(paths[:2], tmp_path / "other")


def test_a_folder_of_stacks_with_one_directory_each(tmp_path):
    """ImageJ and tifffile write one directory, followed by the pixels of all sections."""
    array = voxels("uint16", (6, 20, 30))
    for n in range(2):
        with tifffile.TiffWriter(tmp_path / f"s{n}.tif", imagej=True) as writer:
            writer.write(array[3 * n : 3 * n + 3], truncate=True, metadata={"axes": "ZYX"})
        with tifffile.TiffFile(tmp_path / f"s{n}.tif") as tiff:
            assert len(tiff.pages) == 1
    np.testing.assert_array_equal(imported(sorted(tmp_path.glob("*.tif")), tmp_path)[0], array)


@pytest.mark.parametrize(
    "lacks", [slice(208, 212), slice(212, 216), slice(208, 216)], ids=["MAP", "stamp", "both"]
)
def test_mrc_from_before_the_standard_is_read_with_a_warning(tmp_path, lacks):
    array = voxels("int16")
    with mrcfile.new(tmp_path / "a.mrc") as mrc:
        mrc.set_data(array)
    raw = bytearray((tmp_path / "a.mrc").read_bytes())
    raw[lacks] = bytes(lacks.stop - lacks.start)
    (tmp_path / "a.mrc").write_bytes(raw)
    with pytest.warns(
        MetadataWarning, match=r"a\.mrc: (Map ID string not found|Unrecognised machine stamp)"
    ):
        found = imported(tmp_path / "a.mrc", tmp_path)
    np.testing.assert_array_equal(found[0], array)


@pytest.mark.parametrize("name", ["a.map", "a.ccp4", "a.map.gz"])
def test_maps_and_gzipped_maps_are_mrc(tmp_path, name):
    array = voxels("float32")
    with mrcfile.new(tmp_path / name, compression="gzip" if name.endswith(".gz") else None) as mrc:
        mrc.set_data(array)
        mrc.set_volume()
        mrc.voxel_size = (40, 50, 350)
    np.testing.assert_array_equal(imported(tmp_path / name, tmp_path, voxel_size=None)[0], array)
    assert scale(tmp_path) == [4.0, 5.0, 35.0]


def test_a_stack_of_volumes_says_so(tmp_path):
    array = voxels("int16", (6, 5, 7))
    with mrcfile.new(tmp_path / "a.mrc") as mrc:
        mrc.set_data(array.reshape(2, 3, 5, 7))
    with pytest.warns(
        MetadataWarning,
        match="a stack of 2 volumes of 3 sections each, read as 6 consecutive sections",
    ):
        found = imported(tmp_path / "a.mrc", tmp_path)
    np.testing.assert_array_equal(found[0], array)


def test_damaged_gzipped_maps_are_errors(tmp_path):
    with mrcfile.new(tmp_path / "a.map.gz", compression="gzip") as mrc:
        mrc.set_data(voxels("float32"))
    packed = (tmp_path / "a.map.gz").read_bytes()
    (tmp_path / "a.map.gz").write_bytes(packed[:-2000])
    with pytest.raises(CorruptError, match=r"a\.map\.gz: byte \d+ after unpacking"):
        imported(tmp_path / "a.map.gz", tmp_path)
    (tmp_path / "a.map.gz").write_bytes(gzip.compress(gzip.decompress(packed)[:-100]))
    with pytest.raises(
        wkwdask.TruncatedError, match=r"a\.map\.gz: has \d+ bytes after unpacking, expected \d+"
    ):
        imported(tmp_path / "a.map.gz", tmp_path)


# ----------------------------------------------------------------------------- export


def reference(tmp_path, array):
    """A dataset whose voxels (c, z, y, x) wkw wrote."""
    (tmp_path / "source").mkdir()
    if wkw is None:
        wkwdask.write(
            tmp_path / "source" / "em" / "1",
            OFFSET,
            array.transpose(0, 3, 2, 1),
            block_len=8,
            file_len=2,
        )
        return _described(tmp_path / "source", array)
    header = wkw.Header(
        array.dtype.type,
        num_channels=len(array),
        block_len=8,
        file_len=2,
        block_type=wkw.Header.BLOCK_TYPE_LZ4,
    )
    with wkw.Dataset.create(str(tmp_path / "source" / "em" / "1"), header) as dataset:
        whole = np.zeros(
            (
                len(array),
                *(-(-(n + o) // 16) * 16 for n, o in zip(array.shape[:0:-1], OFFSET, strict=True)),
            ),
            array.dtype,
        )
        whole[
            (
                slice(None),
                *(slice(o, o + n) for n, o in zip(array.shape[:0:-1], OFFSET, strict=True)),
            )
        ] = array.transpose(0, 3, 2, 1)
        dataset.write((0, 0, 0), whole)
    return _described(tmp_path / "source", array)


def _described(folder, array):
    """Write the JSON."""
    layer = {
        "name": "em",
        "category": "color",
        "elementClass": "uint8",
        "numChannels": len(array),
        "dataFormat": "wkw",
        "boundingBox": {
            "topLeft": OFFSET,
            "width": array.shape[3],
            "height": array.shape[2],
            "depth": array.shape[1],
        },
        "mags": [{"mag": [1, 1, 1], "path": "./em/1"}],
    }
    document = {
        "id": {"name": "ds", "team": ""},
        "scale": {"factor": [4, 5, 35], "unit": "nanometer"},
        "dataLayers": [layer],
    }
    (folder / "datasource-properties.json").write_text(json.dumps(document))
    return folder


@pytest.mark.parametrize(
    ("dtype", "channels"),
    [("uint8", 1), ("uint8", 3), ("uint16", 2), ("float32", 1), ("uint64", 1)],
)
@pytest.mark.parametrize("limit", [1 << 30, 4000])  # of what is held in memory
def test_export(tmp_path, dtype, channels, limit):
    array = voxels(dtype, (channels, 11, 40, 61))
    source = reference(tmp_path, array)
    expected = array[0] if channels == 1 else array
    targets = {
        name: tmp_path / name for name in ("a.npy", "a.zarr", "a.tif", "a.ome.tiff", "sections")
    }
    if dtype == "uint64":
        with pytest.raises(UnsupportedError, match=r"OME-TIFF has no uint64: cast it"):
            wkwdask.convert(source, targets.pop("a.ome.tiff"))
    with limited(exported_nbytes=limit):
        for target in targets.values():
            wkwdask.convert(source, target)
    np.testing.assert_array_equal(np.load(targets["a.npy"]), expected)
    np.testing.assert_array_equal(zarr.open_array(str(targets["a.zarr"]), mode="r")[...], expected)
    for name in {"a.tif", "a.ome.tiff"} & set(targets):
        with tifffile.TiffFile(targets[name]) as tiff:
            series = tiff.series[0]
            assert series.axes == ("ZYX" if channels == 1 else "ZCYX")
            np.testing.assert_array_equal(
                series.asarray(), array[0] if channels == 1 else array.transpose(1, 0, 2, 3)
            )
    names = sorted(path.name for path in targets["sections"].iterdir())
    assert names == [f"z{z:04}.tif" for z in range(3, 14)]
    found = np.stack([tifffile.imread(targets["sections"] / name) for name in names])
    np.testing.assert_array_equal(found, array[0] if channels == 1 else array.transpose(1, 2, 3, 0))
    for n, target in enumerate(targets.values()):  # and back
        wkwdask.convert(
            target,
            tmp_path / "back",
            layer=str(n),
            voxel_size=None if n else (4, 5, 35),
            **{k: v for k, v in OPTIONS.items() if k != "layer"},
        )
        np.testing.assert_array_equal(
            wkwdask.read(tmp_path / "back", layer=str(n)).transpose(0, 3, 2, 1), array
        )


@pytest.mark.one_in(3)
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("depth", [1, 3])
def test_export_of_small_boxes(tmp_path, channels, depth):
    """One voxel along an axis is no axis of samples."""
    array = voxels(shape=(channels, depth, 4, 4))
    source = reference(tmp_path, array)
    for width, height in itertools.product(range(1, 5), repeat=2):
        part = array[:, :, :height, :width]
        for name in ("a.tif", "a.ome.tif", "sections"):
            wkwdask.convert(
                source,
                tmp_path / name,
                bounding_box=(*OFFSET, width, height, depth),
                existing="overwrite",
            )
            if name != "sections":
                with tifffile.TiffFile(tmp_path / name) as tiff:
                    assert len(tiff.pages) == depth * channels
                    np.testing.assert_array_equal(
                        tiff.series[0].asarray().reshape(depth, channels, height, width),
                        part.transpose(1, 0, 2, 3),
                    )
            np.testing.assert_array_equal(
                imported(tmp_path / name, tmp_path, existing="overwrite"), part
            )


def test_what_an_export_says_of_itself(tmp_path):
    source = reference(tmp_path, voxels(shape=(1, 11, 40, 61)))
    wkwdask.convert(source, tmp_path / "a.zarr")
    stored = zarr.open_array(str(tmp_path / "a.zarr"), mode="r")
    assert dict(stored.attrs) == {
        "mag": [1, 1, 1],
        "offset_vx": list(OFFSET),
        "voxel_size_nm": [4, 5, 35],
    }
    assert (stored.metadata.dimension_names, stored.chunks, stored.shards) == (
        ("z", "y", "x"),
        (8, 8, 8),
        (16, 16, 16),
    )
    wkwdask.convert(source, tmp_path / "a.ome.tif")
    with warnings.catch_warnings(), tifffile.TiffFile(tmp_path / "a.ome.tif") as tiff:
        text = tiff.ome_metadata
        assert (tiff.pages[0].is_tiled, tiff.pages[0].compression.name) == (True, "ADOBE_DEFLATE")
    assert 'PhysicalSizeX="4' in text
    assert 'PhysicalSizeZ="35' in text
    assert 'PhysicalSizeZUnit="nm"' in text
    for target in ("a.zarr", "a.ome.tif"):
        back = tmp_path / f"of {target.replace('.', ' ')}"
        wkwdask.convert(tmp_path / target, back)
        assert json.loads((back / "datasource-properties.json").read_text())["scale"]["factor"] == [
            4.0,
            5.0,
            35.0,
        ]


@pytest.mark.parametrize("compression", ["raw", "lzw", "zstd", "zlib"])
def test_compression_of_tiff(tmp_path, compression):
    source = reference(tmp_path, voxels(shape=(1, 11, 40, 61)))
    for target in ("a.tif", "sections"):
        wkwdask.convert(source, tmp_path / target, compression=compression)
    for path in (tmp_path / "a.tif", tmp_path / "sections" / "z0003.tif"):
        with tifffile.TiffFile(path) as tiff:
            assert (
                tiff.pages[0].compression.name
                == {"raw": "NONE", "lzw": "LZW", "zstd": "ZSTD", "zlib": "ADOBE_DEFLATE"}[
                    compression
                ]
            )
            np.testing.assert_array_equal(
                tiff.pages[0].asarray(), voxels(shape=(1, 11, 40, 61))[0, 0]
            )


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_tensorstore_reads_sections_that_became_n5_and_ngff(tmp_path, dtype):
    """TIFF sections become blocks and shards in one step."""
    ts = pytest.importorskip("tensorstore", reason="the oracle tensorstore is not installed")
    values = voxels(dtype)
    (tmp_path / "sections").mkdir()
    for z, section in enumerate(values):
        tifffile.imwrite(tmp_path / "sections" / f"s{z}.tif", section)
    options = {"voxel_size": (4, 4, 35), "offset": OFFSET, "chunk_shape": (16, 8, 4)}
    wkwdask.convert(tmp_path / "sections", f"n5://{tmp_path}/v.n5/em", **options)
    wkwdask.convert(tmp_path / "sections", tmp_path / "em.ome.zarr", **options)
    for driver, path in (("n5", "v.n5/em/s0"), ("zarr3", "em.ome.zarr/1")):
        store = ts.open(
            {"driver": driver, "kvstore": {"driver": "file", "path": f"{tmp_path}/{path}"}}
        ).result()
        found = np.asarray(store.read().result())
        np.testing.assert_array_equal(found.T if driver == "n5" else found, values)
