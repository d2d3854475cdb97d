"""N5 and OME-NGFF through the functions and commands that people call: reading, looking,
conversion."""

from __future__ import annotations

import json

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from PIL import Image
from support.commands import run_here
from support.n5_volumes import write_attributes, write_dataset
from support.precomputed_volumes import labels

import wkwdask
from wkwdask import Mag
from wkwdask.errors import BoundsError, ExistsError, MissingError, UnsupportedError

SHAPE = (50, 37, 23)
EM = np.random.default_rng(3).integers(0, 255, SHAPE).astype(np.uint8)
IDS = labels(SHAPE, np.uint64)[0]


def transform(length, first, step=1):
    """Place a level whose first voxel is a given one of its mag, as Janelia's software writes
    it."""
    centers = [(n * step + (step - 1) / 2) * length for n in first]
    return {
        "transform": {
            "axes": ["z", "y", "x"],
            "scale": [length * step] * 3,
            "translate": centers[::-1],
            "units": ["nm"] * 3,
        }
    }


@pytest.fixture(scope="module")
def container(tmp_path_factory):
    """A container with an image ``em`` in two mags, at an offset, and a segmentation ``cells``."""
    root = tmp_path_factory.mktemp("n5") / "c.n5"
    write_attributes(root, n5="4.0.0")
    write_dataset(root / "em" / "s0", EM, **transform(4, (8, 4, 0)))
    write_dataset(
        root / "em" / "s1",
        np.ascontiguousarray(EM[::2, ::2, ::2]),
        cut=False,
        **transform(4, (4, 2, 0), 2),
    )
    write_dataset(
        root / "cells",
        IDS,
        (20, 20, 20),
        "raw",
        pixelResolution={"dimensions": [4, 4, 4], "unit": "nm"},
    )
    return root


def test_open(container):
    array = wkwdask.open(f"n5://{container}/em")
    assert isinstance(array, da.Array)
    np.testing.assert_array_equal(array[0, 3:40:2, 7, ::-1].compute(), EM[3:40:2, 7, ::-1])
    np.testing.assert_array_equal(
        wkwdask.open(container, layer="em", mag=2, axes="zyx"), EM[::2, ::2, ::2].T
    )
    np.testing.assert_array_equal(wkwdask.open(container / "em", mag="s1")[0], EM[::2, ::2, ::2])
    np.testing.assert_array_equal(
        wkwdask.open(container / "em" / "s1", channel=0), EM[::2, ::2, ::2]
    )
    np.testing.assert_array_equal(
        wkwdask.open(container / "em", bounding_box=(18, 14, 5, 4, 5, 6))[0], EM[10:14, 10:15, 5:11]
    )
    np.testing.assert_array_equal(wkwdask.open(container / "em", origin="absolute")[0, 8:, 4:], EM)
    assert wkwdask.open(container / "cells", chunks="block").chunks == (
        (1,),
        (20, 20, 10),
        (20, 17),
        (20, 3),
    )
    with pytest.raises(BoundsError):
        wkwdask.open(container / "em", bounding_box=(0, 17, 45, 4, 5, 6))
    with pytest.raises(ValueError, match="several layers"):
        wkwdask.open(container)
    with pytest.raises(ValueError, match="chunk_size= applies to precomputed volumes only"):
        wkwdask.open(container / "em", chunk_size=(8, 8, 8))


def test_read_and_sample(container):
    np.testing.assert_array_equal(wkwdask.read(container / "cells")[0], IDS)
    for _ in range(2):  # the second time by what is kept of the first
        np.testing.assert_array_equal(
            wkwdask.read(f"n5://{container}/em", ((10, 10, 10), (20, 30, 20)))[0],
            EM[2:12, 6:26, 10:20],
        )
    assert wkwdask.sample(container / "em", [[8, 4, 0], [57, 40, 22]]).tolist() == [
        EM[0, 0, 0],
        EM[49, 36, 22],
    ]


def _engine(name):
    return xr.backends.list_engines()[name]


def test_xarray(container):
    dataset = xr.open_dataset(f"n5://{container}/em", engine="n5", mag=2)
    np.testing.assert_array_equal(dataset["em"].values, EM[::2, ::2, ::2])
    # centers of voxels 4 and 5 of mag 2 [nm]
    assert dataset["em"].sel(x=slice(32, 48)).sizes["x"] == 2
    assert (dataset.x.attrs["units"], dataset.attrs["mag"]) == ("nm", "2")
    tree = xr.open_datatree(container, engine="n5")
    assert sorted(tree.groups) == ["/", "/cells", "/cells/1", "/em", "/em/1", "/em/2"]
    np.testing.assert_array_equal(tree["/cells/1/cells"].values, IDS)
    assert _engine("n5").guess_can_open(container)
    assert not _engine("n5").guess_can_open(container.parent)
    assert _engine("ngff").guess_can_open("zarr://x")
    assert not _engine("ngff").guess_can_open(str(container))


@pytest.mark.parametrize(
    "attributes",
    [
        {"painteraData": {"type": "raw"}, "resolution": [4, 4, 40]},  # Paintera
        {"downsamplingFactors": [[1, 1, 1]], "dataType": "uint8"},  # a setup of BigDataViewer
        None,
    ],
)
def test_a_group_in_a_container_needs_no_prefix(tmp_path, attributes):
    group = tmp_path / "v.n5" / "raw"
    write_dataset(group / "data" / "s0", EM, (16, 16, 16))
    if attributes is not None:
        write_attributes(group, **attributes)
    (group / ".DS_Store").write_bytes(b"a file of macOS")
    np.testing.assert_array_equal(wkwdask.read(group)[0], EM)
    np.testing.assert_array_equal(wkwdask.read(f"n5://{group}")[0], EM)


def test_info_and_preview(container, tmp_path):
    summary = wkwdask.info(container)
    assert [(scale.key, scale.mag, scale.encoding) for scale in summary.scales] == [
        ("cells", Mag(1, 1, 1), "raw"),
        ("em/s0", Mag(1, 1, 1), "gzip"),
        ("em/s1", Mag(2, 2, 2), "gzip"),
    ]
    document = json.loads(run_here("info", f"n5://{container}/em", "--json").output)
    assert (document["format"], document["dtype"], document["scales"][0]["box"]) == (
        "n5",
        "uint8",
        [8, 4, 0, *SHAPE],
    )
    printed = run_here("info", container).output
    assert "n5 container" in printed
    with Image.open(wkwdask.preview(container / "em", tmp_path / "p.png", size=64)) as picture:
        assert picture.size[0] > 64


def test_to_wkw_and_back(container, tmp_path):
    report = wkwdask.convert(f"n5://{container}/em", tmp_path / "ds", layer="color", file_len=1)
    assert [mag.path for mag in report.mags] == [
        str(tmp_path / "ds" / "color" / name) for name in ("1", "2")
    ]
    assert wkwdask.open_dataset(tmp_path / "ds").voxel_size_nm == (4, 4, 4)
    assert wkwdask.info(tmp_path / "ds").layers[0].bounding_box.topleft == (8, 4, 0)
    assert wkwdask.diff(tmp_path / "ds" / "color", container / "em").equal
    report = wkwdask.convert(
        tmp_path / "ds",
        f"n5://{tmp_path}/out.n5/em",
        layer="color",
        chunk_shape=(20, 20, 20),
        compression="xz",
    )
    assert [mag.path for mag in report.mags] == [
        str(tmp_path / "out.n5" / "em" / name) for name in ("s0", "s1")
    ]
    assert wkwdask.diff(tmp_path / "out.n5" / "em", container / "em").equal
    assert (
        "nothing to do"
        in wkwdask.convert(
            tmp_path / "ds",
            f"n5://{tmp_path}/out.n5/em",
            layer="color",
            chunk_shape=(20, 20, 20),
            compression="xz",
            existing="resume",
        ).note
    )
    with pytest.raises(ExistsError, match="em/s0: already exists"):
        wkwdask.convert(tmp_path / "ds", f"n5://{tmp_path}/out.n5/em", layer="color")


def test_one_level_becomes_wkw(container, tmp_path):
    wkwdask.convert(container / "em" / "s1", tmp_path / "ds")
    assert wkwdask.open(tmp_path / "ds").shape == (1, 25, 19, 12)
    wkwdask.convert(
        container / "cells",
        tmp_path / "seg",
        bounding_box=(10, 10, 10, 20, 20, 10),
        offset=(4, 0, 0),
    )
    layer = wkwdask.info(tmp_path / "seg").layers[0]
    assert (layer.name, layer.category, layer.bounding_box.topleft) == (
        "segmentation",
        "segmentation",
        (14, 10, 10),
    )
    np.testing.assert_array_equal(wkwdask.open(tmp_path / "seg")[0], IDS[10:30, 10:30, 10:20])


def test_other_ways(container, tmp_path):
    wkwdask.convert(container / "em", f"precomputed://{tmp_path}/pre")
    assert wkwdask.diff(f"precomputed://{tmp_path}/pre", container / "em").equal
    wkwdask.convert(f"precomputed://{tmp_path}/pre", f"n5://{tmp_path}/again.n5", mag=1)
    np.testing.assert_array_equal(wkwdask.open(tmp_path / "again.n5")[0], EM)
    wkwdask.convert(container / "em" / "s0", tmp_path / "em.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "em.npy").T, EM)
    wkwdask.convert(tmp_path / "em.npy", f"n5://{tmp_path}/y.n5")
    np.testing.assert_array_equal(wkwdask.open(tmp_path / "y.n5")[0], EM)
    with pytest.raises(ValueError, match=r"n5://.* is N5: pyramid= is not for it"):
        wkwdask.convert(container / "em", f"n5://{tmp_path}/x.n5", pyramid=True)
    with pytest.raises(ValueError, match="several layers"):
        wkwdask.convert(container, tmp_path / "x")
    for source in (container / "em", tmp_path / "em.npy"):
        for target in ("x.n5", "x.n5/em"):
            with pytest.raises(
                ValueError, match=rf"{target}: is named like N5; write n5://{tmp_path}/{target}"
            ):
                wkwdask.convert(source, f"{tmp_path}/{target}", voxel_size=(4, 4, 4))
    assert not (tmp_path / "x.n5").exists()
    with pytest.raises(MissingError):
        wkwdask.convert(f"n5://{tmp_path}/nothing", tmp_path / "x")


def test_a_path_of_one_mag_is_not_another(container, tmp_path):
    wkwdask.convert(container / "em", tmp_path / "ds", layer="color")
    for source, name in (
        (tmp_path / "ds" / "color" / "1", "1"),
        (container / "em" / "s0", "1"),
        (tmp_path / "ds" / "color" / "2", "2"),
    ):
        other = "2" if name == "1" else "1"
        for target in (
            f"n5://{tmp_path}/x.n5",
            f"precomputed://{tmp_path}/x",
            f"zarr://{tmp_path}/x.zarr",
        ):
            with pytest.raises(
                ValueError, match=rf"{source}: is mag {name}, but mag= says {other}"
            ):
                wkwdask.convert(source, target, mag=other)


def test_levels_that_are_not_written_anew(container, tmp_path):
    """They would be of another pyramid where the finest level becomes another mag; else a note says
    that they stay."""
    wkwdask.convert(container / "em", f"n5://{tmp_path}/c.n5")
    with pytest.raises(
        ExistsError,
        match=r"c.n5: holds s1 too, for a voxel size of .* nm in s0, got \(8.0, 8.0, 8.0\) nm",
    ):
        wkwdask.convert(container / "em", f"n5://{tmp_path}/c.n5", mag=2, existing="overwrite")
    assert wkwdask.diff(tmp_path / "c.n5", container / "em").equal
    report = wkwdask.convert(
        container / "em",
        f"n5://{tmp_path}/c.n5",
        mag=1,
        bounding_box=(8, 4, 0, 10, 10, 10),
        existing="overwrite",
    )
    assert report.note == "existing other levels are not changed: s1"


def test_as_a_source(container, tmp_path):
    """Of statistics, and of jobs that make WKW of any volume."""
    assert wkwdask.histogram(container / "em").values.sum() == EM.size
    wkwdask.apply(np.invert, f"n5://{container}/em/s1", tmp_path / "ds" / "em" / "2")
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "ds" / "em" / "2", ((4, 2, 0), (29, 21, 12)))[0], ~EM[::2, ::2, ::2]
    )


def test_levels_get_the_next_numbers(tmp_path):
    """They are stored as the one that they are made of, and the group lists them with all that
    readers look for."""
    url = f"{tmp_path}/c.n5/em"
    wkwdask.to_n5(
        EM,
        f"{url}/s0",
        offset=(3, 0, 5),
        voxel_size=(4, 4, 8),
        chunk_shape=(8, 8, 8),
        compression="raw",
    )
    wkwdask.build_pyramid(f"n5://{url}", mags=["2-2-1", "4-4-2"], method="max")
    assert [
        (level.key, str(level.mag), level.resolution)
        for level in wkwdask.info(f"n5://{url}").scales
    ] == [
        ("s0", "1", (4, 4, 8)),
        ("s1", "2-2-1", (8, 8, 8)),
        ("s2", "4-4-2", (16, 16, 16)),
    ]
    document = json.loads((tmp_path / "c.n5" / "em" / "s2" / "attributes.json").read_text())
    assert (document["compression"], document["blockSize"]) == ({"type": "raw"}, [8, 8, 8])
    wkwdask.build_pyramid(
        f"n5://{url}", mags=["2-2-1"], method="nearest", existing="overwrite", compression="gzip"
    )
    document = json.loads((tmp_path / "c.n5" / "em" / "s1" / "attributes.json").read_text())
    assert document["compression"]["type"] == "gzip"
    # numbers go from fine to coarse: s2 becomes s3
    wkwdask.build_pyramid(f"n5://{url}", mags=["2-2-2"], method="max")
    assert [(level.key, str(level.mag)) for level in wkwdask.info(f"n5://{url}").scales] == [
        ("s0", "1"),
        ("s1", "2-2-1"),
        ("s2", "2"),
        ("s3", "4-4-2"),
    ]
    group = json.loads((tmp_path / "c.n5" / "em" / "attributes.json").read_text())
    assert group["scales"] == [[1, 1, 1], [2, 2, 1], [2, 2, 2], [4, 4, 2]]
    assert [entry["path"] for entry in group["multiscales"][0]["datasets"]] == [
        "s0",
        "s1",
        "s2",
        "s3",
    ]
    wkwdask.to_n5(EM, f"{tmp_path}/c.n5/alone")
    with pytest.raises(UnsupportedError, match="is a single N5 dataset, and levels need a group"):
        wkwdask.build_pyramid(f"n5://{tmp_path}/c.n5/alone", mags=["2"])


# ------------------------------------------------------------------------------------------------
# OME-NGFF


@pytest.fixture(scope="module")
def ngff(tmp_path_factory):
    """An OME-NGFF image in two resolutions and two channels, of version 0.5 in shards, and of
    version 0.4."""
    zarr = pytest.importorskip("zarr", reason="the extra zarr")
    folder = tmp_path_factory.mktemp("ngff")
    array = np.stack([EM, 255 - EM])
    for version, name in ((3, "em.zarr"), (2, "old.zarr")):
        group = zarr.open_group(folder / name, mode="w", zarr_format=version)
        datasets = []
        for number, step in enumerate((1, 2)):
            part = array[:, ::step, ::step, ::step].transpose(0, 3, 2, 1)
            options = (
                {"shards": (2, 16, 16, 16), "dimension_names": list("czyx")}
                if version == 3
                else {"chunk_key_encoding": {"name": "v2", "separator": "/"}}
            )
            stored = group.create_array(
                f"s{number}", shape=part.shape, dtype=part.dtype, chunks=(1, 8, 8, 8), **options
            )
            stored[...] = part
            scale = {"type": "scale", "scale": [1, *[0.004 * step] * 3]}
            moves = {
                "type": "translation",
                "translation": [
                    0,
                    *[(n * step + (step - 1) / 2) * 0.004 for n in (0, 4 // step, 8 // step)],
                ],
            }
            datasets.append({"path": f"s{number}", "coordinateTransformations": [scale, moves]})
        axes = [
            {"name": "c", "type": "channel"},
            *({"name": letter, "type": "space", "unit": "micrometer"} for letter in "zyx"),
        ]
        image = {"multiscales": [{"version": "0.4", "axes": axes, "datasets": datasets}]}
        group.attrs.update(image if version == 2 else {"ome": {"version": "0.5", **image}})
    return folder


@pytest.mark.parametrize("name", ["em.zarr", "old.zarr"])
def test_ngff(ngff, tmp_path, name):
    url = f"zarr://{ngff}/{name}"
    np.testing.assert_array_equal(wkwdask.open(url)[1], 255 - EM)
    np.testing.assert_array_equal(wkwdask.open(ngff / name, mag=2, channel=0), EM[::2, ::2, ::2])
    np.testing.assert_array_equal(
        wkwdask.read(f"{url}/s1", ((4, 2, 0), (14, 12, 10)))[0], EM[:20:2, :20:2, :20:2]
    )
    assert wkwdask.sample(url, [[57, 40, 22], [8, 4, 0]])[:, 0].tolist() == [
        EM[49, 36, 22],
        EM[0, 0, 0],
    ]
    summary = wkwdask.info(ngff / name)
    assert [
        (scale.key, scale.mag, scale.resolution, scale.box.topleft) for scale in summary.scales
    ] == [
        ("s0", Mag(1, 1, 1), (4.0, 4.0, 4.0), (8, 4, 0)),
        ("s1", Mag(2, 2, 2), (8.0, 8.0, 8.0), (4, 2, 0)),
    ]
    assert all(scale.files > 0 for scale in summary.scales)
    tree = xr.open_datatree(ngff / name, engine="ngff")
    assert sorted(tree.groups) == ["/", "/1", "/2"]
    assert xr.open_dataset(url, engine="ngff").x.values[:2].tolist() == [34, 38]
    wkwdask.convert(url, tmp_path / "ds", layer="color")
    assert wkwdask.diff(tmp_path / "ds" / "color", url).equal
    # by its path alone it is the same level
    (made,) = wkwdask.convert(ngff / name / "s1", tmp_path / "level").mags
    assert made.path == str(tmp_path / "level" / "color" / "2")
    np.testing.assert_array_equal(
        wkwdask.read(made.path, ((4, 2, 0), (29, 21, 12)))[1], 255 - EM[::2, ::2, ::2]
    )


def test_n5_as_zarr(container, tmp_path):
    wkwdask.convert(container / "em", f"n5://{tmp_path}/v.n5/em")
    printed = run_here("n5-as-zarr", f"{tmp_path}/v.n5").output
    assert sorted(json.loads(printed)) == [
        "em/s0/zarr.json",
        "em/s1/zarr.json",
        "em/zarr.json",
        "zarr.json",
    ]
    assert not list(tmp_path.rglob("zarr.json"))
    run_here("n5-as-zarr", f"{tmp_path}/v.n5", "--write")
    assert len(list(tmp_path.rglob("zarr.json"))) == 4
    image = json.loads((tmp_path / "v.n5" / "em" / "zarr.json").read_text())["attributes"]["ome"][
        "multiscales"
    ][0]
    assert [
        entry["coordinateTransformations"][1]["translation"] for entry in image["datasets"]
    ] == [[32.0, 16.0, 0.0], [34.0, 18.0, 2.0]]
    # a dataset with a zarr.json is one still
    wkwdask.convert(
        container / "em" / "s0", f"n5://{tmp_path}/v.n5/em", mag=1, existing="overwrite"
    )
    run_here("n5-as-zarr", f"{tmp_path}/v.n5", "--remove")
    assert not list(tmp_path.rglob("zarr.json"))
    (tmp_path / "v.n5" / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    with pytest.raises(
        ExistsError, match=r"was not derived from attributes.json; it is left unchanged"
    ):
        wkwdask.n5_as_zarr(tmp_path / "v.n5", write=True)
    assert len(list(tmp_path.rglob("zarr.json"))) == 1


def test_any_axes_as_zarr(container, tmp_path):
    zarr = pytest.importorskip("zarr", reason="the extra zarr")
    movie = np.random.default_rng(0).integers(0, 99, (9, 8, 7, 2, 3)).astype(np.uint16)
    write_dataset(tmp_path / "c.n5" / "movies" / "movie", movie, (4, 5, 6, 1, 2))
    write_dataset(tmp_path / "c.n5" / "levels" / "s0", movie, (4, 5, 6, 1, 2))
    assert sorted(wkwdask.n5_as_zarr(tmp_path / "c.n5" / "movies" / "movie")) == ["zarr.json"]
    write_dataset(tmp_path / "c.n5" / "em", EM)
    wkwdask.n5_as_zarr(tmp_path / "c.n5", write=True)
    for name, array in (("movies/movie", movie), ("levels/s0", movie), ("em", EM)):
        np.testing.assert_array_equal(
            zarr.open_group(tmp_path / "c.n5", mode="r")[name][...], array
        )
    assert len(wkwdask.n5_as_zarr(tmp_path / "c.n5", remove=True)) == 6
    assert not list(tmp_path.rglob("zarr.json"))


def test_the_form_of_the_proposal(container, tmp_path):
    """Blocks that are all whole can be said by ``offset``; those that are cut off cannot."""
    document = wkwdask.n5_as_zarr(container / "em" / "s1", form="offset")["zarr.json"]
    assert [codec["name"] for codec in document["codecs"]] == [
        "transpose",
        "bytes",
        "gzip",
        "offset",
    ]
    assert document["codecs"][0]["configuration"] == {"order": [2, 1, 0]}
    assert document["codecs"][3]["configuration"] == {
        "offset": 16,
        "prefix": "AAAAAwAAABAAAAAQAAAACA==",
    }
    with pytest.raises(UnsupportedError, match="does not begin with the header of a whole block"):
        wkwdask.n5_as_zarr(container / "em" / "s0", form="offset")
    write_dataset(tmp_path / "v", EM, cut=False, mode=1)
    assert (
        wkwdask.n5_as_zarr(tmp_path / "v", form="offset")["zarr.json"]["codecs"][3][
            "configuration"
        ]["offset"]
        == 20
    )
    write_dataset(tmp_path / "w", EM, cut=False)
    (tmp_path / "w" / "0" / "0" / "0").write_bytes((tmp_path / "v" / "0" / "0" / "0").read_bytes())
    with pytest.raises(UnsupportedError, match="blocks of two modes"):
        wkwdask.n5_as_zarr(tmp_path / "w", form="offset")
    with pytest.raises(ValueError, match="form must be 'n5_default' or 'offset', got 'zarr'"):
        wkwdask.n5_as_zarr(container, form="zarr")
