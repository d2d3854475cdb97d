"""The engine ``"wkw"`` beside the same DataArray in memory, and what an array of it can do."""

from __future__ import annotations

import asyncio
import json
import pickle
import subprocess
import sys

import dask
import distributed
import numpy as np
import pytest
import xarray as xr
from hypothesis import assume, given
from hypothesis import strategies as st
from support.datasets import FILE_NAME
from support.local_cluster import local_cluster

import wkwdask
from wkwdask import BoundingBox

VOXEL_SIZE = (11.24, 11.24, 28.0)
TOPLEFT = (21, 3, 9)
RNG = np.random.default_rng(3)
EM = RNG.integers(1, 200, (50, 37, 23)).astype(np.uint8)
RGB = RNG.integers(0, 255, (3, 50, 37, 23)).astype(np.uint8)
IDS = np.repeat(np.repeat(RNG.integers(0, 9, (25, 19, 23)), 2, 0), 2, 1)[:50, :37].astype(np.uint32)
OPTIONS = {"block_len": 8, "file_len": 2}


def in_memory(voxels, name, mag=(1, 1, 1), topleft=TOPLEFT):
    """Make what should be seen, by hand."""
    dims = "xyz" if voxels.ndim == 3 else "cxyz"
    coords = {
        axis: (
            axis,
            (np.arange(t, t + n) + 0.5) * (m * length),
            {"units": "nm", "long_name": axis, "mag": m, "voxel_size_nm": length},
        )
        for axis, t, n, m, length in zip(
            "xyz", topleft, voxels.shape[-3:], mag, VOXEL_SIZE, strict=True
        )
    }
    if voxels.ndim == 4:
        coords["c"] = ("c", np.arange(len(voxels)), {"long_name": "channel"})
    category = "segmentation" if voxels.dtype == np.uint32 else "color"
    mag_name = str(mag[0]) if len(set(mag)) == 1 else "-".join(map(str, mag))
    return xr.DataArray(
        voxels,
        dims=list(dims),
        coords=coords,
        name=name,
        attrs={"mag": mag_name, "voxel_size_nm": VOXEL_SIZE, "category": category},
    )


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("xarray") / "ds"
    wkwdask.create_dataset(folder, VOXEL_SIZE)
    for layer, voxels in (("em", EM), ("rgb", RGB), ("cells", IDS)):
        wkwdask.to_wkw(voxels, folder / layer / "1", offset=TOPLEFT, **OPTIONS)
    wkwdask.build_pyramid(folder, "em", mags=["2-2-1"])
    return folder


@pytest.fixture(params=[None, {}], ids=["lazy", "dask"])
def pair(request, dataset):
    """The opened layer, and the same voxels in memory."""
    opened = xr.open_dataarray(dataset, engine="wkw", layer="em", chunks=request.param, cache=False)
    assert (opened.chunks is None) is (request.param is None)
    return opened, in_memory(EM, "em")


@pytest.fixture(params=[None, {}], ids=["lazy", "dask"])
def rgb(request, dataset):
    return xr.open_dataarray(
        dataset / "rgb", engine="wkw", chunks=request.param, cache=False
    ), in_memory(RGB, "rgb")


X = float((TOPLEFT[0] + 4.5) * VOXEL_SIZE[0])
SELECTIONS = {
    "all": lambda a: a,
    "ints": lambda a: a[3, 4, 5],
    "negative ints": lambda a: a[-1, -2, -3],
    "slices": lambda a: a[5:20, :7, -4:],
    "empty": lambda a: a[5:5],
    "steps": lambda a: a[1:40:7, ::3, ::-1],
    "negative steps": lambda a: a[::-2, 30:2:-5],
    "arrays": lambda a: a[[3, 40, 3, -1], :, [0]],
    "three arrays": lambda a: a[[5, 1], [2, 30, 4], [-1, 0]],
    "mask": lambda a: a[:, np.arange(37) % 5 == 0],
    "slice of a slice": lambda a: a[10:40][5:20:2].isel(y=slice(None, None, -4))[::2],
    "array of an array": lambda a: a.isel(x=[1, 2, 40, 41]).isel(x=[3, 0], z=-1),
    "transposed": lambda a: a.transpose("z", "x", "y")[2, ::5, 3:9],
    "T": lambda a: a.T[1:3],
    "isel": lambda a: a.isel(x=slice(3, 9), z=0),
    "isel drop": lambda a: a.isel(y=2, drop=True),
    "points": lambda a: a.isel(
        x=xr.DataArray([1, 49, 7], dims="p"),
        y=xr.DataArray([0, 36, 7], dims="p"),
        z=xr.DataArray([22, 0, 7], dims="p"),
    ),
    "points along two axes": lambda a: a.isel(
        x=xr.DataArray([[1, 49], [7, -1]], dims=["p", "q"]),
        y=xr.DataArray([[0, 36], [7, 2]], dims=["p", "q"]),
    ),
    "points, then slices": lambda a: a.isel(
        x=xr.DataArray([1, 49, 7], dims="p"), y=xr.DataArray([0, 36, 7], dims="p")
    )[1:, ::-3],
    "sel nearest": lambda a: a.sel(x=X + 3, y=150, z=500, method="nearest"),
    "sel slice": lambda a: a.sel(x=slice(X, X + 100), z=slice(300, 500)),
    "sel exact": lambda a: a.sel(x=[X], method=None),
    "head": lambda a: a.head(x=3, y=2),
    "where": lambda a: a.where(a > 100, 0),
    "arithmetic": lambda a: 255 - a[::2],
    "coarsen": lambda a: a.coarsen(x=2, y=2, z=3, boundary="trim").mean(),
    "interp": lambda a: a.interp(x=[X + 1, X + 30], y=200.0, z=400.0),
    "mean": lambda a: a.mean("z"),
    "groupby": lambda a: a.groupby(a.z > 500).max(),
    "stack": lambda a: a.isel(z=1).stack(p=("x", "y")),
    "rolling": lambda a: a.isel(z=1, y=2).rolling(x=3).sum(),
}


class TestAsInMemory:
    """Operations on an opened array equal those in memory."""

    @pytest.mark.parametrize("select", SELECTIONS.values(), ids=SELECTIONS)
    def test_selection(self, pair, select):
        opened, expected = pair
        xr.testing.assert_identical(select(opened).compute(), select(expected))

    @pytest.mark.parametrize(
        "select",
        [
            lambda a: a,
            lambda a: a[1],
            lambda a: a[::-1, 3, 4:9],
            lambda a: a.isel(c=[2, 0, 0], x=slice(None, None, 20), z=-1),
            lambda a: a.sel(c=1, x=slice(X, X + 50)),
            lambda a: a.isel(
                c=xr.DataArray([0, 2], dims="p"), x=xr.DataArray([5, 49], dims="p"), y=1, z=2
            ),
            lambda a: a.transpose("y", "c", ...)[4:6],
        ],
    )
    def test_channels(self, rgb, select):
        opened, expected = rgb
        xr.testing.assert_identical(select(opened).compute(), select(expected))

    def test_pickling(self, pair):
        opened, expected = pair
        again = pickle.loads(pickle.dumps(opened[::3]))
        xr.testing.assert_identical(again.compute(), expected[::3])

    @pytest.mark.parametrize("scheduler", ["threads", "synchronous"])
    def test_schedulers(self, pair, scheduler):
        opened, expected = pair
        with dask.config.set(scheduler=scheduler):
            xr.testing.assert_identical((opened + 1).sum("x").compute(), (expected + 1).sum("x"))

    def test_a_cluster_of_processes(self, dataset):
        opened = xr.open_dataarray(dataset / "em", engine="wkw", chunks={}, cache=False)
        with local_cluster(n_workers=1) as cluster, distributed.Client(cluster):
            xr.testing.assert_identical(
                opened[5:, ::2].max("z").compute(), in_memory(EM, "em")[5:, ::2].max("z")
            )

    def test_plotting(self, pair):
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        opened, expected = pair
        figure, axes = plt.subplots()
        image = opened.isel(z=4).plot.imshow(ax=axes, x="x", y="y", add_colorbar=False)
        np.testing.assert_array_equal(np.asarray(image.get_array()), expected.isel(z=4).T)
        assert axes.get_xlabel() == "x [nm]"
        opened.isel(x=0, y=0).plot(ax=axes)
        plt.close(figure)

    def test_asynchronous_loading(self, pair):
        opened, expected = pair
        if not hasattr(opened, "load_async"):
            pytest.skip("this xarray has no load_async")
        xr.testing.assert_identical(asyncio.run(opened[3:9].load_async()), expected[3:9])


def test_the_entry_point_is_installed():
    assert "wkw" in xr.backends.list_engines()


def test_the_engine_is_found_from_the_path(dataset):
    xr.testing.assert_identical(
        xr.open_dataarray(dataset / "em" / "1").compute(), in_memory(EM, "em")
    )


def test_another_mag(dataset):
    half = wkwdask.read(dataset / "em" / "2-2-1")[0]
    expected = in_memory(half, "em", (2, 2, 1), (10, 1, 9))
    for opened in (
        xr.open_dataarray(dataset / "em" / "2-2-1"),
        xr.open_dataset(dataset, engine="wkw", layer="em", mag="2-2-1").em,
    ):
        xr.testing.assert_identical(opened.compute(), expected)


def test_a_bounding_box_is_opened(dataset):
    opened = xr.open_dataarray(
        dataset, engine="wkw", layer="em", bounding_box=(30, 10, 9, 12, 20, 3)
    )
    xr.testing.assert_identical(opened.compute(), in_memory(EM, "em")[9:21, 7:27, :3])
    with pytest.raises(wkwdask.BoundsError, match="reaches outside"):
        xr.open_dataarray(dataset, engine="wkw", layer="em", bounding_box=(0, 0, 0, 12, 20, 3))


def test_an_ambiguous_path_lists_the_choices(dataset):
    with pytest.raises(ValueError, match="more than one data variable"):
        xr.open_dataarray(dataset, engine="wkw")
    with pytest.raises(wkwdask.MissingError, match="no layer 'blood'"):
        xr.open_dataset(dataset, engine="wkw", layer="blood")
    with pytest.raises(ValueError, match="is mag 1, not mag 2"):
        xr.open_dataset(dataset / "em" / "1", engine="wkw", mag=2)


def test_variables_are_dropped(dataset):
    assert list(xr.open_dataset(dataset / "em", engine="wkw", drop_variables="em").data_vars) == []


def test_opening_reads_no_voxels(dataset, tmp_path):
    wkwdask.to_wkw(EM, tmp_path / "1", **OPTIONS)
    for file in tmp_path.glob("1/z*/y*/x*.wkw"):
        file.write_bytes(b"broken")
    opened = xr.open_dataarray(tmp_path / "1", engine="wkw")
    assert opened[3:5, ::2].shape == (2, 19, 23)
    with pytest.raises(wkwdask.FormatError, match=r"x0\.wkw"):
        opened[3:5].compute()


def test_coordinates_are_voxels_without_a_voxel_size(tmp_path):
    wkwdask.to_wkw(EM, tmp_path / "2", offset=(16, 0, 0), **OPTIONS)
    opened = xr.open_dataarray(tmp_path / "2", engine="wkw")
    np.testing.assert_array_equal(opened.x[:3], [33.0, 35.0, 37.0])
    assert opened.x.attrs == {"units": "voxel", "long_name": "x", "mag": 2}
    assert opened.wkw.mag == wkwdask.Mag(2, 2, 2)
    with pytest.raises(ValueError, match="voxel size is unknown"):
        _ = opened.wkw.voxel_size
    opened.wkw.to_wkw(tmp_path / "other" / "2", **OPTIONS)
    xr.testing.assert_equal(xr.open_dataarray(tmp_path / "other" / "2", engine="wkw"), opened)


def test_a_layer_named_like_an_axis(tmp_path):
    wkwdask.to_wkw(EM, tmp_path / "x" / "1", **OPTIONS)
    assert list(xr.open_dataset(tmp_path / "x" / "1", engine="wkw").data_vars) == ["layer_x"]


class TestGuess:
    """Paths that the engine recognizes."""

    def test_dataset_layer_and_mag(self, dataset):
        assert all(
            xr.backends.list_engines()["wkw"].guess_can_open(path)
            for path in (dataset, str(dataset / "em"), dataset / "em" / "1", dataset.as_uri())
        )

    def test_a_broken_json_is_recognized(self, tmp_path):
        (tmp_path / FILE_NAME).write_text("{")
        assert xr.backends.list_engines()["wkw"].guess_can_open(tmp_path)
        with pytest.raises(wkwdask.CorruptError, match="not valid JSON"):
            xr.open_dataset(tmp_path)

    @pytest.mark.parametrize("other", ["s3://bucket/ds", b"bytes", 7, ""])
    def test_other_files_are_not_recognized(self, other):
        assert not xr.backends.list_engines()["wkw"].guess_can_open(other)

    def test_other_folders_are_not_recognized(self, tmp_path):
        (tmp_path / "zarr.json").write_text("{}")
        (tmp_path / "a.nc").write_bytes(b"")
        assert not xr.backends.list_engines()["wkw"].guess_can_open(tmp_path)
        assert not xr.backends.list_engines()["wkw"].guess_can_open(tmp_path / "a.nc")
        assert not xr.backends.list_engines()["wkw"].guess_can_open(tmp_path / "absent")

    def test_a_folder_of_zarr_arrays_is_not_recognized(self, tmp_path):
        (tmp_path / FILE_NAME).write_text(
            json.dumps({"scale": [1, 1, 1], "dataLayers": [ZARR_LAYER]})
        )
        assert not xr.backends.list_engines()["wkw"].guess_can_open(tmp_path)


ZARR_LAYER = {
    "name": "other",
    "category": "color",
    "dataFormat": "zarr3",
    "elementClass": "uint8",
    "numChannels": 1,
    "boundingBox": {"topLeft": [0, 0, 0], "width": 5, "height": 5, "depth": 5},
    "mags": [{"mag": [1, 1, 1], "path": "./other/1"}],
}


class TestTree:
    """A dataset as a DataTree."""

    def test_layers_and_mags(self, dataset):
        tree = xr.open_datatree(dataset, engine="wkw")
        assert {node.path for node in tree.leaves} == {"/em/1", "/em/2-2-1", "/rgb/1", "/cells/1"}
        assert tree.attrs == {"name": "ds", "voxel_size_nm": VOXEL_SIZE}
        assert tree["em"].attrs == {
            "layer": "em",
            "category": "color",
            "data_format": "wkw",
            "bounding_box": (*TOPLEFT, *EM.shape),
        }
        xr.testing.assert_identical(tree["em/1/em"].compute(), in_memory(EM, "em"))
        xr.testing.assert_identical(
            tree["cells/1"].to_dataset(inherit=False).cells.compute(), in_memory(IDS, "cells")
        )

    def test_in_chunks(self, dataset):
        tree = xr.open_datatree(dataset, chunks={})
        assert tree["rgb/1/rgb"].chunks is not None
        xr.testing.assert_identical(tree["rgb/1/rgb"].compute(), in_memory(RGB, "rgb"))

    def test_a_layer_and_a_mag(self, dataset):
        assert {node.path for node in xr.open_datatree(dataset / "em", engine="wkw").leaves} == {
            "/1",
            "/2-2-1",
        }
        assert {
            node.path for node in xr.open_datatree(dataset / "em" / "2-2-1", engine="wkw").leaves
        } == {"/2-2-1"}

    def test_groups(self, dataset):
        groups = xr.open_groups(dataset / "em", engine="wkw")
        assert set(groups) == {"/", "/1", "/2-2-1"}

    def test_a_level_without_a_mag_does_not_take_the_place_of_one(self, tmp_path):
        zarr = pytest.importorskip("zarr", reason="the extra zarr")
        group = zarr.create_group(str(tmp_path / "em"), zarr_format=2)
        datasets = []
        for name, factor in (("0", 1), ("1", 3), ("2", 2)):  # as ome-zarr names levels
            step = {"type": "scale", "scale": [float(factor)] * 3}
            datasets.append({"path": name, "coordinateTransformations": [step]})
            if name != "2":
                group.create_array(name, shape=(30 // factor,) * 3, dtype="u1", chunks=(8, 8, 8))
        axes = [{"name": axis, "type": "space", "unit": "nanometer"} for axis in "zyx"]
        group.attrs["multiscales"] = [{"version": "0.4", "axes": axes, "datasets": datasets}]
        tree = xr.open_datatree(tmp_path / "em", engine="ngff")
        assert {name: dict(node.sizes) for name, node in tree.children.items()} == {
            "1": {"x": 30, "y": 30, "z": 30},
            "level_1": {"x": 10, "y": 10, "z": 10},
            "level_2": {},
        }
        assert tree["level_1"].attrs["key"] == "1"
        assert "em/2: not found" in tree["level_2"].attrs["problem"]

    def test_layers_that_cannot_be_opened_are_listed(self, dataset, tmp_path):
        document = json.loads((dataset / FILE_NAME).read_text())
        document["dataLayers"] = [
            document["dataLayers"][0],
            ZARR_LAYER,
            {"name": "odd/one", "category": "pink"},
        ]
        for entry in document["dataLayers"][0]["mags"]:
            entry["path"] = str((dataset / entry["path"]).resolve())
        document["dataLayers"][0]["mags"][1]["path"] = "./gone"
        (tmp_path / FILE_NAME).write_text(json.dumps(document))
        tree = xr.open_datatree(tmp_path, engine="wkw")
        assert "no WKW mag here" in tree["em/2-2-1"].attrs["problem"]
        assert any(
            text in tree["other/1"].attrs["problem"]
            for text in ("other/1: no Zarr array here", "needs the package zarr")
        )
        assert (
            'expected "color" or "segmentation", found "pink"' in tree["odd_one"].attrs["problem"]
        )
        xr.testing.assert_equal(tree["em/1/em"].compute(), in_memory(EM, "em"))


boxes = st.builds(
    BoundingBox, st.tuples(*[st.integers(0, 3000)] * 3), st.tuples(*[st.integers(1, 3000)] * 3)
)


class TestChunks:
    """Chunks by ``{}`` and by ``"auto"`` never split blocks."""

    @given(
        box=boxes,
        dtype=st.sampled_from(["uint8", "uint16", "uint32", "uint64"]),
        channels=st.sampled_from([1, 3]),
        lengths=st.sampled_from([(32, 1024), (32, 32), (8, 64), (64, 512)]),
        limit=st.sampled_from(["128MiB", "16MiB", "3MB"]),
    )
    def test_chunk_borders_are_block_borders(
        self, tmp_path_factory, box, dtype, channels, lengths, limit
    ):
        # dask splits larger blocks
        assume(
            lengths[0] ** 3 * np.dtype(dtype).itemsize * channels <= dask.utils.parse_bytes(limit)
        )
        folder = tmp_path_factory.mktemp("chunks")
        wkwdask.create_dataset(folder, VOXEL_SIZE)
        wkwdask.create(
            folder / "em" / "1",
            box,
            dtype,
            num_channels=channels,
            block_len=lengths[0],
            file_len=lengths[1] // lengths[0],
        )
        with dask.config.set({"array.chunk-size": limit}):
            opened = xr.open_dataarray(folder / "em" / "1", engine="wkw")
            preferred = tuple(opened.encoding["preferred_chunks"][axis] for axis in opened.dims)
            # where these are few
            automatic = (
                xr.open_dataarray(folder / "em" / "1", engine="wkw", chunks="auto")
                if box.volume < 1 << 24
                else None
            )
            alike = dask.array.core.normalize_chunks(
                "auto", opened.shape, dtype=np.dtype(dtype), previous_chunks=preferred
            )
        for chunks in (preferred, alike, *([] if automatic is None else [automatic.chunks])):
            for axis, cut in zip(opened.dims, chunks, strict=True):
                assert sum(cut) == opened.sizes[axis]
                if axis != "c":
                    first = box.topleft["xyz".index(axis)]
                    assert all((first + border) % lengths[0] == 0 for border in np.cumsum(cut)[:-1])

    @pytest.mark.parametrize(
        "chunks", [{}, "auto", {"z": "auto"}, {"x": "auto", "y": "auto"}, {"x": -1}]
    )
    def test_opened(self, dataset, chunks, recwarn):
        with dask.config.set({"array.chunk-size": "4kiB"}):
            opened = xr.open_dataarray(dataset / "em", engine="wkw", chunks=chunks)
        for n, cut in enumerate(opened.chunks):
            assert all((TOPLEFT[n] + border) % 8 == 0 for border in np.cumsum(cut)[:-1])
        xr.testing.assert_identical(opened.compute(), in_memory(EM, "em"))


def _fail_at_an_end(block, block_info=None):
    if block_info[None]["chunk-location"][0] == 0:
        raise RuntimeError("an end")
    return block


class TestWriting:
    """Coordinates and voxel size stay."""

    def test_a_new_dataset(self, tmp_path):
        array = in_memory(EM, "em")
        array.wkw.to_wkw(tmp_path / "new" / "em" / "1", **OPTIONS)
        xr.testing.assert_identical(
            xr.open_dataarray(tmp_path / "new", engine="wkw").compute(), array
        )
        assert wkwdask.info(tmp_path / "new").voxel_size_nm == VOXEL_SIZE

    def test_channels(self, tmp_path):
        array = in_memory(RGB, "rgb")
        wkwdask.to_wkw(
            array.transpose("z", "c", "y", "x").chunk(20), tmp_path / "new" / "rgb" / "1", **OPTIONS
        )
        xr.testing.assert_identical(
            xr.open_dataarray(tmp_path / "new", engine="wkw").compute(), array
        )

    @pytest.mark.parametrize("mag", ["1", "2-2-1", "4-4-2"])
    def test_another_mag(self, tmp_path, mag):
        factors = wkwdask.Mag.parse(mag).factors
        array = in_memory(IDS, "cells", factors)
        array.wkw.to_wkw(tmp_path / "new" / "cells" / mag, **OPTIONS)
        xr.testing.assert_identical(
            xr.open_dataarray(tmp_path / "new", engine="wkw").compute(), array
        )

    def test_without_attributes_lengths_are_measured(self, tmp_path):
        array = in_memory(EM, "em").drop_attrs()
        for axis in "xyz":
            array[axis].attrs["units"] = "nm"
        array.wkw.to_wkw(tmp_path / "new" / "em" / "1", **OPTIONS)
        assert wkwdask.info(tmp_path / "new").voxel_size_nm == VOXEL_SIZE
        xr.testing.assert_allclose(
            xr.open_dataarray(tmp_path / "new", engine="wkw"), array, rtol=1e-12
        )

    def test_other_units(self, tmp_path):
        array = in_memory(EM, "em").drop_attrs()
        array = array.assign_coords(
            {axis: (axis, array[axis].values / 1000, {"units": "um"}) for axis in "xyz"}
        )
        array.wkw.to_wkw(tmp_path / "new" / "em" / "1", **OPTIONS)
        xr.testing.assert_identical(
            xr.open_dataarray(tmp_path / "new", engine="wkw").compute().drop_attrs(),
            in_memory(EM, "em").drop_attrs(),
        )

    def test_a_slice_is_written_at_its_place(self, dataset, tmp_path):
        opened = xr.open_dataarray(dataset / "em", engine="wkw", chunks={})
        (255 - opened[10:30, :, 5:]).wkw.to_wkw(tmp_path / "new" / "em" / "1", **OPTIONS)
        xr.testing.assert_equal(
            xr.open_dataarray(tmp_path / "new", engine="wkw"), 255 - opened[10:30, :, 5:]
        )

    def test_one_section(self, dataset, tmp_path):
        section = xr.open_dataarray(dataset / "em", engine="wkw").isel(z=4)
        section.wkw.to_wkw(tmp_path / "new" / "em" / "1", **OPTIONS)
        xr.testing.assert_equal(
            xr.open_dataarray(tmp_path / "new", engine="wkw").isel(z=0), section
        )
        assert wkwdask.info(tmp_path / "new").layers[0].bounding_box == BoundingBox(
            (21, 3, 13), (50, 37, 1)
        )

    def test_coarsened(self, dataset, tmp_path):
        opened = xr.open_dataarray(dataset, engine="wkw", layer="cells", chunks={})
        # from voxel 22, 4 on
        half = opened.isel(x=slice(1, 49), y=slice(1, 37)).coarsen(x=2, y=2).max()
        assert half.wkw.mag == wkwdask.Mag(2, 2, 1)
        half.wkw.to_wkw(tmp_path / "new" / "cells" / "2-2-1", **OPTIONS)
        # means of coordinates are rounded
        xr.testing.assert_allclose(
            xr.open_dataarray(tmp_path / "new", engine="wkw"), half, rtol=1e-12
        )

    @pytest.mark.parametrize("unit", ["nm", "voxel"])
    def test_coordinates_between_voxels_are_rejected(self, dataset, tmp_path, unit):
        opened = xr.open_dataarray(dataset, engine="wkw", layer="cells")
        if unit == "voxel":
            wkwdask.to_wkw(opened, tmp_path / "cells" / "1", offset=TOPLEFT, **OPTIONS)
            opened = xr.open_dataarray(tmp_path / "cells" / "1", engine="wkw")
        # from voxel 21, 3 on: these lie between those of the mag
        half = opened.coarsen(x=2, y=2, boundary="trim").max()
        with pytest.raises(ValueError, match=r"coordinate x: .* not the center of a voxel"):
            half.wkw.to_wkw(tmp_path / "new" / "cells" / "2-2-1", **OPTIONS)
        assert not (tmp_path / "new").exists()

    def test_an_existing_dataset_gets_a_layer(self, dataset, tmp_path):
        array = in_memory(EM, "em")
        array.wkw.to_wkw(tmp_path / "new" / "em" / "1", **OPTIONS)
        (array > 100).astype(np.uint8).wkw.to_wkw(tmp_path / "new" / "mask" / "1", **OPTIONS)
        xr.testing.assert_equal(
            xr.open_dataarray(tmp_path / "new", engine="wkw", layer="mask"),
            (array > 100).astype(np.uint8),
        )

    def test_other_voxel_types_are_rejected(self, tmp_path):
        array = in_memory(EM, "em")
        array.wkw.to_wkw(tmp_path / "new" / "em" / "1", **OPTIONS)
        with pytest.raises(
            ValueError,
            match=r"mag 2-2-1 are 22\.48, 22\.48, 28 nm in the dataset, but 11\.24, 11\.24, 28 nm",
        ):
            array.wkw.to_wkw(tmp_path / "new" / "em" / "2-2-1", **OPTIONS)
        assert not (tmp_path / "new" / "em" / "2-2-1").exists()
        # what is asked for goes before coordinates
        array.wkw.to_wkw(tmp_path / "new" / "em" / "2-2-1", offset=(0, 0, 0), **OPTIONS)

    def test_a_folder_in_use_becomes_no_dataset(self, tmp_path):
        (tmp_path / "thesis.txt").write_text("mine")
        in_memory(EM, "em").wkw.to_wkw(tmp_path / "em" / "1", **OPTIONS)
        assert sorted(
            path.name for path in tmp_path.iterdir() if not path.name.startswith(".")
        ) == ["em", "thesis.txt"]

    def test_an_interrupted_write_still_becomes_a_dataset(self, tmp_path):
        array = in_memory(EM, "em").chunk(16)
        breaks = array.copy(
            data=array.data.map_blocks(_fail_at_an_end, dtype=EM.dtype, meta=array.data._meta)
        )
        with dask.config.set(scheduler="synchronous"):
            with pytest.raises(Exception, match="an end"):
                breaks.wkw.to_wkw(tmp_path / "new" / "em" / "1", token="em", **OPTIONS)
            assert list((tmp_path / "new" / "em").iterdir())
            array.wkw.to_wkw(
                tmp_path / "new" / "em" / "1", token="em", existing="resume", **OPTIONS
            )
        xr.testing.assert_identical(
            xr.open_dataarray(tmp_path / "new", engine="wkw").compute(), array.compute()
        )

    def test_a_layer_added_meanwhile_is_kept(self, tmp_path):
        array = in_memory(EM, "em")

        def write_other(block, block_info=None):
            if block_info:
                array.wkw.to_wkw(tmp_path / "new" / "other" / "1", **OPTIONS)
            return block

        slow = array.chunk(-1)
        slow = slow.copy(
            data=slow.data.map_blocks(write_other, dtype=EM.dtype, meta=slow.data._meta)
        )
        slow.wkw.to_wkw(tmp_path / "new" / "em" / "1", **OPTIONS)
        assert set(xr.open_datatree(tmp_path / "new", engine="wkw").children) == {"em", "other"}

    def test_layers_in_use_become_no_dataset(self, tmp_path):
        wkwdask.to_wkw(EM, tmp_path / "new" / "em" / "1", **OPTIONS)
        in_memory(EM, "em").wkw.to_wkw(tmp_path / "new" / "other" / "1", **OPTIONS)
        assert not (tmp_path / "new" / FILE_NAME).exists()

    def test_two_mags_of_a_new_layer_at_once(self, tmp_path):
        """Whoever comes second keeps the box of the first."""
        far = in_memory(EM, "em", (2, 2, 1), (100, 3, 9))
        jobs = [
            array.wkw.to_wkw(tmp_path / "new" / "em" / mag, compute=False, **OPTIONS)
            for array, mag in ((in_memory(EM, "em"), "1"), (far, "2-2-1"))
        ]
        for job in jobs:
            job.compute()
        assert wkwdask.info(tmp_path / "new").layers[0].bounding_box == BoundingBox(
            (21, 3, 9), (279, 77, 23)
        )
        xr.testing.assert_equal(
            xr.open_dataarray(tmp_path / "new" / "em" / "1", engine="wkw").wkw.crop_nm(
                x=(0, 71 * 11.24), y=(0, 40 * 11.24)
            ),
            in_memory(EM, "em"),
        )

    def test_two_voxel_sizes_at_once(self, tmp_path):
        array = in_memory(EM, "em")
        other = in_memory(EM, "em", (2, 2, 1))
        jobs = [
            one.wkw.to_wkw(tmp_path / "new" / name / "1", compute=False, **OPTIONS)
            for one, name in ((array, "em"), (other, "half"))
        ]
        jobs[0].compute()
        with pytest.raises(ValueError, match="another job created the dataset with voxels of"):
            jobs[1].compute()
        assert [layer.name for layer in wkwdask.info(tmp_path / "new").layers] == ["em"]
        assert not (tmp_path / "new" / "half" / "1").exists()

    def test_a_delayed_write(self, tmp_path):
        array = in_memory(EM, "em")
        array.chunk(16).wkw.to_wkw(
            tmp_path / "new" / "em" / "1", compute=False, **OPTIONS
        ).compute()
        xr.testing.assert_identical(
            xr.open_dataarray(tmp_path / "new", engine="wkw").compute(), array
        )


class TestAccessor:
    """``.wkw``"""

    def test_mag_and_voxel_size(self, dataset):
        opened = xr.open_dataarray(dataset / "em" / "2-2-1", engine="wkw")
        for array in (opened, opened + 1, opened[3:5, 7].transpose("z", "x")):
            assert array.wkw.mag == wkwdask.Mag(2, 2, 1)
            assert array.wkw.voxel_size == VOXEL_SIZE
        with pytest.raises(ValueError, match="powers of two, got 6-2-1"):
            _ = opened[::3].wkw.mag
        with pytest.raises(ValueError, match="coordinate x: has no values"):
            _ = opened[:0].wkw.mag
        with pytest.raises(ValueError, match=r"a spacing of 28\.1, expected a multiple of"):
            _ = opened.assign_coords(
                x=("x", np.arange(opened.sizes["x"]) * 28.1, opened.x.attrs)
            ).wkw.mag
        with pytest.raises(ValueError, match="no coordinate x"):
            _ = opened.drop_vars("x").wkw.mag
        with pytest.raises(ValueError, match="no attribute voxel_size_nm"):
            _ = opened.drop_attrs().wkw.voxel_size

    @pytest.mark.parametrize("chunks", [None, {}])
    def test_at_mag(self, dataset, chunks):
        fine = xr.open_dataarray(dataset / "em" / "1", engine="wkw", chunks=chunks)
        coarse = xr.open_dataarray(dataset / "em" / "2-2-1", engine="wkw")
        xr.testing.assert_identical(fine.wkw.at_mag("2-2-1").compute(), coarse.compute())
        found = fine.isel(x=slice(7, 20), z=5).transpose().wkw.at_mag("2-2-1")
        assert (found.chunks is None) is (chunks is None)
        # voxels 28 to 41: 14 to 21 of 2-2-1
        xr.testing.assert_identical(
            found.compute(), coarse.isel(x=slice(4, 11), z=5).transpose().compute()
        )
        xr.testing.assert_identical(
            coarse[3:5, ::-1].wkw.at_mag(1).compute(), in_memory(EM, "em")[5:9]
        )
        xr.testing.assert_identical(
            coarse[[1, 7]].wkw.at_mag(1).compute(), in_memory(EM, "em")[1:15]
        )

    def test_at_mag_keeps_channels(self, dataset):
        opened = xr.open_dataarray(dataset / "rgb", engine="wkw")
        xr.testing.assert_identical(
            opened.isel(c=[2, 0], z=1).wkw.at_mag(1).compute(), opened.isel(c=[2, 0], z=1).compute()
        )
        xr.testing.assert_identical(
            opened.isel(c=1).wkw.at_mag(1).compute(), opened.isel(c=1).compute()
        )

    def test_at_mag_of_a_computed_array(self, dataset):
        opened = xr.open_dataarray(dataset / "em" / "1", engine="wkw")
        with pytest.raises(ValueError, match="opened and not computed"):
            (opened + 1).wkw.at_mag("2-2-1")
        with pytest.raises(wkwdask.MissingError, match="no mag 8"):
            opened.wkw.at_mag(8)

    def test_crop_nm(self):
        array = in_memory(EM, "em")
        edge = (TOPLEFT[0] + 10) * VOXEL_SIZE[0]
        left, right = array.wkw.crop_nm(x=(None, edge)), array.wkw.crop_nm(x=(edge, None))
        assert (left.sizes["x"], right.sizes["x"]) == (10, 40)
        xr.testing.assert_identical(xr.concat([left, right], "x"), array)
        xr.testing.assert_identical(
            array.wkw.crop_nm(y=(100, 200), z=(280, 285)), array[:, 6:15, 1:1]
        )
        with pytest.raises(ValueError, match="no axis z to crop"):
            array.isel(z=0).wkw.crop_nm(z=(0, 1))
        xr.testing.assert_identical(
            array[::-1].wkw.crop_nm(x=(edge, edge + 30)), array[::-1].isel(x=slice(37, 40))
        )

    @pytest.mark.parametrize("layer", ["em", "rgb", "cells"])
    def test_preview(self, dataset, tmp_path, layer):
        from PIL import Image

        opened = xr.open_dataarray(dataset, engine="wkw", layer=layer)
        picture = opened.wkw.preview(tmp_path / "a.png", size=100)
        wkwdask.preview(dataset, tmp_path / "b.png", layer=layer, mag=1, size=100)
        with Image.open(tmp_path / "b.png") as other:
            np.testing.assert_array_equal(np.asarray(picture), np.asarray(other))

    def test_preview_of_a_computed_array(self, dataset):
        opened = xr.open_dataarray(dataset, engine="wkw", layer="em", chunks={})
        mask = (opened > 100).wkw.preview(size=60)
        assert len(mask.getcolors()) > 2
        opened.isel(z=3).wkw.preview(size=60)
        # such coordinates say no length: it is drawn in voxels
        turned = opened[::-1, [3, 9, 4]].wkw.preview(size=60)
        np.testing.assert_array_equal(
            turned, opened[::-1, [3, 9, 4]].drop_vars(list("xyz")).wkw.preview(size=60)
        )
        with pytest.raises(ValueError, match="no voxels to draw"):
            opened[:0].wkw.preview()
        with pytest.raises(ValueError, match="dimensions must be x, y, z"):
            opened.rename(x="width").wkw.preview()


@pytest.mark.parametrize(
    "lines", ["import xarray, wkwdask", "import wkwdask, xarray; xarray.backends.list_engines()"]
)
def test_the_accessor_is_registered_in_any_order_of_imports(lines):
    done = subprocess.run(
        [sys.executable, "-c", f"{lines}; print(xarray.DataArray.wkw.__name__)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "WkwAccessor\n"


# ----------------------------------------------------------------------------- all layers


@pytest.fixture
def layers(tmp_path):
    """A dataset whose layers have other boxes, mags and numbers of channels."""
    wkwdask.create_dataset(tmp_path, VOXEL_SIZE)
    wkwdask.to_wkw(EM, tmp_path / "em/1", offset=TOPLEFT, **OPTIONS)
    wkwdask.to_wkw(RGB, tmp_path / "rgb/1", offset=TOPLEFT, **OPTIONS)
    wkwdask.to_wkw(IDS[:20, 5:], tmp_path / "cells/1", offset=(30, 8, 9), **OPTIONS)
    for layer in ("em", "cells"):
        wkwdask.build_pyramid(tmp_path, layer, mags=["2-2-1"])
    return tmp_path


@pytest.mark.parametrize("chunks", [None, {}])
def test_dataset_of_all_layers(layers, chunks):
    opened = xr.open_dataset(layers, engine="wkw", chunks=chunks)
    cells = np.zeros(EM.shape, np.uint32)
    cells[9:29, 5:] = IDS[:20, 5:]
    assert set(opened.data_vars) == {"em", "rgb", "cells"}
    assert "left_out" not in opened.attrs
    for name, voxels in (("em", EM), ("rgb", RGB), ("cells", cells)):
        xr.testing.assert_identical(opened[name].compute(), in_memory(voxels, name))
    inside = opened.em.where(opened.cells > 0).mean().compute()
    assert float(inside) == pytest.approx(EM[cells > 0].mean())
    points = opened.cells.sel(x=[400.0], y=[90.0], z=[300.0], method="nearest")
    assert points.values.item() == cells[400 * 100 // 1124 - 21, 90 * 100 // 1124 - 3, 1]


def test_mag_of_all_layers(layers):
    opened = xr.open_dataset(layers, engine="wkw", mag="2-2-1")
    assert set(opened.data_vars) == {"em", "cells"}
    assert [text.split(":")[0] for text in opened.attrs["left_out"]] == ["rgb"]
    alone = xr.open_dataarray(layers, engine="wkw", layer="em", mag="2-2-1")
    np.testing.assert_array_equal(opened.em, alone)


def test_box_of_all_layers(layers):
    opened = xr.open_dataset(layers, engine="wkw", bounding_box=(60, 30, 20, 11, 10, 2))
    np.testing.assert_array_equal(opened.em, EM[39:, 27:, 11:13])
    assert not opened.cells.any()
    with pytest.raises(wkwdask.BoundsError, match="60, 30, 20"):
        xr.open_dataset(layers, engine="wkw", bounding_box=(60, 30, 20, 12, 10, 2))
    with pytest.raises(wkwdask.MissingError, match="no layer has mag 16"):
        xr.open_dataset(layers, engine="wkw", mag=16)


def test_layers_with_other_numbers_of_channels(layers):
    wkwdask.to_wkw(RGB[:2], layers / "two/1", offset=TOPLEFT, **OPTIONS)
    opened = xr.open_dataset(layers, engine="wkw")
    assert opened.rgb.dims == ("c_rgb", "x", "y", "z")
    np.testing.assert_array_equal(opened.two, RGB[:2])


def test_layers_without_a_common_mag(layers):
    wkwdask.rm(layers / "cells", mags=["1"])
    wkwdask.rm(layers / "em", mags=["2-2-1"])
    with pytest.raises(ValueError, match="no mag that all layers have"):
        xr.open_dataset(layers, engine="wkw")
