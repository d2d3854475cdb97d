"""One index along a time axis, and along other axes than c, x, y and z, of files that other
software wrote."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import xarray as xr
from support.commands import run_here
from support.range_server import range_server

import wkwdask
from wkwdask.errors import BoundsError, UnsupportedError
from wkwdask.formats.opening import find
from wkwdask.verbs.sources import source_token

zarr = pytest.importorskip("zarr", reason="the extra zarr")

LENGTHS = {"t": 5, "m": 3, "c": 2, "z": 13, "y": 9, "x": 17}
CHUNKS = {"t": 1, "m": 1, "c": 1, "z": 4, "y": 8, "x": 8}
SHARD = {"z": 8, "y": 16, "x": 16}


def values(axes):
    lengths = [LENGTHS[axis] for axis in axes]
    return np.random.default_rng(7).integers(1, 60_000, lengths, np.uint16)


def expected(array, axes, **index):
    """The voxels (c, x, y, z) of one index along the other axes."""
    left = "".join(axis for axis in axes if axis not in index)
    part = array[tuple(index.get(axis, slice(None)) for axis in axes)]
    part = part if "c" in left else part[np.newaxis]
    left = left if "c" in left else "c" + left
    return part.transpose([left.index(axis) for axis in "cxyz"])


def write_image(folder, axes, *, version="0.5", chunks=None, **options):
    """Write an image with one array."""
    array = values(axes)
    v3 = version == "0.5"
    group = zarr.open_group(folder, mode="w", zarr_format=3 if v3 else 2)
    stored = group.create_array(
        "0",
        shape=array.shape,
        dtype=array.dtype,
        chunks=[{**CHUNKS, **(chunks or {})}[axis] for axis in axes],
        fill_value=0,
        **({"dimension_names": list(axes)} if v3 else {}),
        **options,
    )
    stored[...] = array
    kinds = {"t": "time", "c": "channel", "m": None}
    named = [{"name": axis, "type": kinds.get(axis, "space")} for axis in axes]
    named = [{k: v for k, v in axis.items() if v is not None} for axis in named]
    for axis in named:
        axis |= {"unit": "nanometer"} if axis.get("type") == "space" else {}
    sizes = {"z": 40.0, "y": 4.0, "x": 4.0, "t": 2.5}
    scale = {"type": "scale", "scale": [sizes.get(axis, 1.0) for axis in axes]}
    image = {"axes": named, "datasets": [{"path": "0", "coordinateTransformations": [scale]}]}
    if v3:
        group.attrs["ome"] = {"version": version, "multiscales": [image]}
    else:
        group.attrs["multiscales"] = [{"version": version, **image}]
    return array


LAYOUTS = {
    "files of one time": {},
    "chunks of several times": {"chunks": {"t": 2, "m": 3}},
    "names with dots": {"chunk_key_encoding": {"name": "v2", "separator": "."}},
    "shards": {"shards": SHARD},
    "shards of several times": {"shards": {**SHARD, "t": 4}},
    "uncompressed": {"compressors": None, "chunks": {"t": 3}},
    "version 2": {"version": "0.4"},
    "version 2, Fortran order": {"version": "0.4", "order": "F", "chunks": {"t": 2}},
}


@pytest.mark.parametrize("axes", ["tczyx", "zyxt", "cztyx", "tmzyx"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_and_order(tmp_path, axes, layout):
    options = dict(LAYOUTS[layout])
    if "shards" in options:
        options["shards"] = [{**CHUNKS, **options["shards"]}[axis] for axis in axes]
    array = write_image(tmp_path / "a.zarr", axes, **options)
    for t in (0, 3):
        index = {"t": t, "m": 2} if "m" in axes else {"t": t}
        right = expected(array, axes, **index)
        found = wkwdask.read(tmp_path / "a.zarr", index=index)
        np.testing.assert_array_equal(found, right)
        box = ((3, 2, 5), (12, 9, 13))
        np.testing.assert_array_equal(
            wkwdask.read(tmp_path / "a.zarr", box, index=index), right[:, 3:12, 2:9, 5:13]
        )
        np.testing.assert_array_equal(wkwdask.open(tmp_path / "a.zarr", index=index), right)


def test_missing_and_wrong_indices(tmp_path):
    array = write_image(tmp_path / "a.zarr", "tmczyx")
    path = tmp_path / "a.zarr"
    with pytest.raises(UnsupportedError, match=r"'t' of length 5.*index=\{\"t\": 0\}"):
        wkwdask.open(path)
    with pytest.raises(UnsupportedError, match=r"'m' of length 3.*index=\{\"m\": 0\}"):
        wkwdask.read(path, index={"t": 1})
    for n in (5, -1):
        with pytest.raises(BoundsError, match=rf"index {n} is out .* axis 't' of length 5"):
            wkwdask.open(path, index={"t": n, "m": 0})
    with pytest.raises(ValueError, match=r"no further axis 'q', .* there are t, m besides"):
        wkwdask.open(path, index={"t": 1, "m": 0, "q": 2})
    with pytest.raises(ValueError, match="no further axis 'c'"):
        wkwdask.open(path, index={"t": 1, "m": 0, "c": 1})
    with pytest.raises(TypeError, match=r"index must map .*, such as \{\"t\": 3\}, got"):
        wkwdask.open(path, index={"t": "1"})
    np.testing.assert_array_equal(
        wkwdask.read(path, index={"T": np.int64(1), "m": 0}),
        expected(array, "tmczyx", t=1, m=0),
    )
    wkwdask.write(tmp_path / "wkw" / "1", (0, 0, 0), np.ones((32, 32, 32), np.uint8))
    with pytest.raises(ValueError, match="index= applies to OME-NGFF images and Zarr arrays only"):
        wkwdask.open(tmp_path / "wkw" / "1", index={"t": 0})


def test_an_axis_of_one_element(tmp_path):
    zarr.create_array(
        tmp_path / "a.zarr", shape=(1, 4, 5, 6), dtype="u1", dimension_names=list("tzyx")
    )[...] = 3
    assert wkwdask.read(f"zarr://{tmp_path}/a.zarr", index={"t": 0}).shape == (1, 6, 5, 4)
    with pytest.raises(BoundsError, match="index 1 is out of range along the axis 't' of length 1"):
        wkwdask.read(f"zarr://{tmp_path}/a.zarr", index={"t": 1})


def test_a_group_with_and_without_a_time_axis(tmp_path):
    array = write_image(tmp_path / "g.zarr" / "movie", "tzyx")
    write_image(tmp_path / "g.zarr" / "still", "zyx")
    zarr.open_group(tmp_path / "g.zarr", mode="a", zarr_format=3)
    url = f"zarr://{tmp_path}/g.zarr"
    found = wkwdask.read(url, layer="movie", index={"t": 2})
    np.testing.assert_array_equal(found, expected(array, "tzyx", t=2))
    assert wkwdask.read(url, layer="still").shape == (1, 17, 9, 13)
    with pytest.raises(ValueError, match=r"no further axis 't', .* there are none besides"):
        wkwdask.read(url, layer="still", index={"t": 2})


def test_a_reader_and_a_level_by_its_path(tmp_path):
    array = write_image(tmp_path / "a.zarr", "tczyx")
    readers = [
        wkwdask.reader(f"{tmp_path}/a.zarr/0", index={"t": t}, mag=None)
        for t in range(LENGTHS["t"])
    ]
    for t, reader in enumerate(map(pickle.loads, map(pickle.dumps, readers))):
        np.testing.assert_array_equal(reader.read(), expected(array, "tczyx", t=t))
    assert readers[2].sample([(4, 5, 6)]).tolist() == [array[2, :, 6, 5, 4].tolist()]


def test_a_reader_keeps_its_index(tmp_path):
    """The caller may use one mapping for many readers."""
    array, index, readers = write_image(tmp_path / "a.zarr", "tzyx"), {}, []
    for t in range(LENGTHS["t"]):
        index["t"] = t
        readers.append(wkwdask.reader(tmp_path / "a.zarr", index=index))
        wkwdask.sample(tmp_path / "a.zarr", [(4, 5, 6)], index=index)
    for t, reader in enumerate(readers):
        np.testing.assert_array_equal(reader.read(), expected(array, "tzyx", t=t))
        found = wkwdask.sample(tmp_path / "a.zarr", [(4, 5, 6)], index={"t": t})
        assert found.tolist() == [array[t, 6, 5, 4]]


def test_many_boxes_points_and_counts(tmp_path):
    array = write_image(tmp_path / "a.zarr", "tzyx")
    path, index, right = tmp_path / "a.zarr", {"t": 3}, expected(array, "tzyx", t=3)
    boxes = [((0, 0, 0), (9, 9, 9)), ((3, 2, 5), (12, 9, 13))]
    for found, (low, high) in zip(wkwdask.read_many(path, boxes, index=index), boxes, strict=True):
        inside = tuple(map(slice, low, high))
        np.testing.assert_array_equal(found, right[(slice(None), *inside)])
    points = [(4, 5, 6), (16, 8, 12)]
    assert wkwdask.sample(path, points, index=index).tolist() == [right[0][each] for each in points]
    labels, sizes = np.unique(right, return_counts=True)
    table = wkwdask.label_statistics(path, path, index=index)
    assert table.voxels.to_dict() == dict(zip(labels, sizes, strict=True))
    np.testing.assert_array_equal(table["mean"], labels)
    counts = wkwdask.histogram(path, index=index)
    np.testing.assert_array_equal(counts.sel(c=0), np.bincount(right.ravel(), minlength=1 << 16))
    found = wkwdask.contrast(path, (0, 100), index=index)
    assert found.attrs["intensityRange"] == [labels.min(), labels.max()]


def test_behind_a_server(tmp_path):
    array = write_image(tmp_path / "a.zarr", "tczyx")
    pytest.importorskip("obstore", reason="reads http")
    with range_server(tmp_path) as server:
        found = wkwdask.read(f"zarr://{server.url}/a.zarr", index={"t": 4})
    np.testing.assert_array_equal(found, expected(array, "tczyx", t=4))


def test_xarray(tmp_path):
    array = write_image(tmp_path / "a.zarr", "tczyx")
    opened = xr.open_dataset(tmp_path / "a.zarr", engine="ngff", index={"t": 3})
    (variable,) = opened.data_vars.values()
    right = expected(array, "tczyx", t=3)
    np.testing.assert_array_equal(variable.transpose("c", "x", "y", "z"), right)
    other = variable.isel(x=slice(2, 9)).wkw.at_mag(1)
    np.testing.assert_array_equal(
        other.transpose("c", "x", "y", "z"), expected(array, "tczyx", t=3)[:, 2:9]
    )
    tree = xr.open_datatree(tmp_path / "a.zarr", engine="ngff", index={"t": 3})
    (leaf,) = tree["1"].data_vars.values()
    np.testing.assert_array_equal(leaf.transpose("c", "x", "y", "z"), right)
    np.testing.assert_array_equal(
        leaf.isel(x=slice(2, 9)).wkw.at_mag(1).transpose("c", "x", "y", "z"), right[:, 2:9]
    )


@pytest.mark.parametrize("target", ["wkw", "zarr://out.ome.zarr", "n5://out.n5", "out.ozx"])
def test_convert(tmp_path, monkeypatch, target):
    monkeypatch.chdir(tmp_path)
    array = write_image(tmp_path / "a.zarr", "tczyx", shards=(1, 1, 8, 16, 16))
    wkwdask.convert("zarr://a.zarr", target, index={"t": 3}, verify=True)
    np.testing.assert_array_equal(wkwdask.read(target), expected(array, "tczyx", t=3))


@pytest.mark.parametrize("chunk", [1, 2])
def test_jobs_know_which_index_they_read(tmp_path, chunk):
    write_image(tmp_path / "a.zarr", "tzyx", chunks={"t": chunk})
    opened = [find(tmp_path / "a.zarr", index={"t": t}).open(None, None)[1] for t in range(5)]
    assert len({source_token(array) for array in opened}) == 5


def test_plain_arrays_and_other_sources(tmp_path):
    array = values("tzyx")
    zarr.create_array(tmp_path / "a.zarr", data=array, dimension_names=list("tzyx"))
    wkwdask.convert(
        tmp_path / "a.zarr", tmp_path / "wkw", index={"t": 2}, voxel_size=(4, 4, 40), layer="em"
    )
    found = wkwdask.read(tmp_path / "wkw")
    np.testing.assert_array_equal(found, expected(array, "tzyx", t=2))
    with pytest.raises(ValueError, match="index= does not apply, since axes= names all"):
        wkwdask.convert(tmp_path / "a.zarr", tmp_path / "b", index={"t": 2}, axes="tzyx")
    np.save(tmp_path / "a.npy", array[0])
    with pytest.raises(ValueError, match="index= does not apply, since it is read as images"):
        wkwdask.convert(tmp_path / "a.npy", tmp_path / "b", index={"t": 2})


@pytest.mark.parametrize("names", [None, ["time", "c", "z", "y", "x"]])
def test_converting_an_array_names_the_remedy(tmp_path, names):
    array = np.random.default_rng(1).integers(1, 99, (2, 1, 3, 4, 5), np.uint8)
    zarr.create_array(tmp_path / "a.zarr", data=array, dimension_names=names)
    axis = "t" if names is None else names[0]
    with pytest.raises(
        UnsupportedError, match=rf'axis .{axis}. of length 2.*index={{"{axis}": 0}}'
    ):
        wkwdask.convert(tmp_path / "a.zarr", tmp_path / "ds", voxel_size=(4, 4, 4))
    wkwdask.convert(tmp_path / "a.zarr", tmp_path / "ds", voxel_size=(4, 4, 4), index={axis: 1})
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "ds"), expected(array[1], "czyx").astype(np.uint8)
    )


def test_an_array_with_more_axes_of_one_element(tmp_path):
    array = np.random.default_rng(1).integers(1, 99, (1, 1, 2, 3, 4, 5), np.uint8)
    zarr.create_array(tmp_path / "a.zarr", data=array)
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "a.zarr"), expected(array[0, 0], "czyx"))


def test_commands(tmp_path):
    array = write_image(tmp_path / "a.zarr", "tczyx")
    write_image(tmp_path / "b.zarr", "tzyx")
    source, picture = f"zarr://{tmp_path}/a.zarr", f"{tmp_path}/a.png"
    refused = run_here("convert", source, f"{tmp_path}/wkw")
    assert "--index t=0 chooses its first element" in " ".join(refused.stderr.split())
    for command in (
        ["info", source],
        ["preview", source, "-o", picture],
        ["histogram", source, "--bins", "9"],
        ["contrast", source],
        ["labels", f"zarr://{tmp_path}/b.zarr"],
        ["convert", source, f"{tmp_path}/wkw"],
    ):
        done = run_here(*command, "--index", "t=2")
        assert done.returncode == 0, done.stderr
        assert command[0] != "info" or "0, 0, 0 + 17, 9, 13" in done.stdout
    np.testing.assert_array_equal(wkwdask.read(f"{tmp_path}/wkw"), expected(array, "tczyx", t=2))
    wrong = run_here("info", source, "--index", "t")
    assert "--index takes an axis and a number, such as t=3, got 't'" in wrong.stderr


@pytest.mark.parametrize("sharded", [False, True])
def test_an_array_by_tensorstore(tmp_path, sharded):
    tensorstore = pytest.importorskip("tensorstore", reason="the oracle tensorstore")
    array = values("tczyx")
    bytes_codec = {"name": "bytes", "configuration": {"endian": "little"}}
    turned = {"name": "transpose", "configuration": {"order": [4, 0, 3, 1, 2]}}
    inner = {"chunk_shape": [2, 1, 4, 4, 8], "codecs": [turned, bytes_codec]}
    sharding = {"name": "sharding_indexed", "configuration": inner}
    store = tensorstore.open(
        {
            "driver": "zarr3",
            "kvstore": {"driver": "file", "path": f"{tmp_path}/a.zarr"},
            "metadata": {
                "shape": array.shape,
                "data_type": "uint16",
                "dimension_names": list("tczyx"),
                "chunk_grid": {
                    "name": "regular",
                    "configuration": {"chunk_shape": [2, 1, 8, 8, 16]},
                },
                "codecs": [sharding] if sharded else [turned, bytes_codec],
            },
        },
        create=True,
    ).result()
    store[...] = array
    for t in range(5):
        np.testing.assert_array_equal(
            wkwdask.read(f"zarr://{tmp_path}/a.zarr", index={"t": t}),
            np.asarray(store[t].read().result()).transpose(0, 3, 2, 1),
        )


def test_an_image_by_ngff_zarr(tmp_path):
    ngff_zarr = pytest.importorskip("ngff_zarr", reason="the oracle ngff-zarr")
    array = values("tczyx")
    method = ngff_zarr.Methods.DASK_BIN_SHRINK  # compiles nothing
    image = ngff_zarr.to_ngff_image(array, dims=list("tczyx"), scale={"z": 40, "y": 4, "x": 4})
    ngff_zarr.to_ngff_zarr(
        str(tmp_path / "a.ome.zarr"), ngff_zarr.to_multiscales(image, [2], method), version="0.5"
    )
    for t in (0, 4):
        found = wkwdask.read(tmp_path / "a.ome.zarr", index={"t": t})
        np.testing.assert_array_equal(found, expected(array, "tczyx", t=t))
    assert wkwdask.read(tmp_path / "a.ome.zarr", mag=2, index={"t": 4}).shape[0] == 2
