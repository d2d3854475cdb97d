"""Every verb that reads, on a volume of each format on each server, beside the same volume on
disk."""

from __future__ import annotations

import itertools
import os

import dask
import numpy as np
import pytest
import xarray as xr
from faults.trees import contents
from PIL import Image
from remote.volumes import FORMS, PARTS, SERVERS, SHAPE, VOXEL_SIZE
from support.commands import run_here

import wkwdask

pytestmark = pytest.mark.needs("obstore")

VERBS = {}


def verb(function):
    """Register a check of one verb: ``verb(url, form, local, folder)``, the last three a format,
    the local volume and a folder for results."""
    VERBS[function.__name__] = function
    return function


@pytest.fixture(autouse=True)
def _synchronous():
    with dask.config.set(scheduler="synchronous"):
        yield


@verb
def read(url, form, local, folder):
    for part in PARTS:
        np.testing.assert_array_equal(wkwdask.read(url, form.box(part)), form.crop(part))


@verb
def read_many(url, form, local, folder):
    for part, found in zip(
        PARTS, wkwdask.read_many(url, [form.box(part) for part in PARTS]), strict=True
    ):
        np.testing.assert_array_equal(found, form.crop(part))


@verb
def sample(url, form, local, folder):
    points = np.random.default_rng(0).integers(0, SHAPE, (30, 3))
    expected = form.array()[(slice(None), *points.T)]
    found = wkwdask.sample(url, points + form.offset)
    np.testing.assert_array_equal(found, expected[0] if form.num_channels == 1 else expected.T)


@verb
def open_array(url, form, local, folder):
    array = wkwdask.open(url)
    assert array.dtype == form.dtype
    np.testing.assert_array_equal(array.compute(), form.array())
    np.testing.assert_array_equal(
        wkwdask.open(url, chunks="block")[:, 5, 3:30].compute(), form.array()[:, 5, 3:30]
    )


@verb
def xarray(url, form, local, folder):
    array = xr.open_dataarray(url.removeprefix(form.prefix), engine=form.engine, chunks={})
    dims = [axis for axis in ("c", "x", "y", "z") if axis in array.dims]
    np.testing.assert_array_equal(
        array.transpose(*dims).values.reshape(form.array().shape), form.array()
    )
    for axis, low, edge in zip(
        "xyz", form.offset, VOXEL_SIZE if form.engine != "n5" else (1, 1, 1), strict=True
    ):
        np.testing.assert_allclose(array[axis].values[0], (low + 0.5) * edge)


@verb
def info(url, form, local, folder):
    done = run_here("info", url)
    assert (done.returncode or 0, done.stderr) == (0, "")
    assert form.dtype in done.stdout
    if form.engine != "wkw":
        assert [scale.box for scale in wkwdask.info(url).scales] == [
            scale.box for scale in wkwdask.info(local).scales
        ]


@verb
def open_dataset(url, form, local, folder):
    here, there = (wkwdask.open_dataset(text.rsplit("/", 2)[0]) for text in (local, url))
    assert there.voxel_size == here.voxel_size
    assert there["color"].bounding_box == here["color"].bounding_box
    assert [str(mag.mag) for mag in there["color"]] == [str(mag.mag) for mag in here["color"]]


@verb
def preview(url, form, local, folder):
    pictures = [
        Image.open(wkwdask.preview(text, folder / f"{n}.png"))
        for n, text in enumerate((local, url))
    ]
    np.testing.assert_array_equal(*map(np.asarray, pictures))
    assert np.asarray(pictures[0]).std() > 0


@verb
def verify(url, form, local, folder):
    report = wkwdask.verify(url)
    assert report.is_sound
    assert report.faults == ()


@verb
def diff(url, form, local, folder):
    assert wkwdask.diff(url, local).equal


@verb
def convert(url, form, local, folder):
    if form.engine == "wkw":
        for text, name in ((url, "there"), (local, "here")):  # blocks are copied
            wkwdask.convert(text.rsplit("/", 2)[0], folder / f"{name}.ome.zarr", layer="color")
        assert contents(folder / "there.ome.zarr/1") == contents(folder / "here.ome.zarr/1")
        wkwdask.convert(url.rsplit("/", 2)[0], f"precomputed://{folder}/converted", layer="color")
        found = wkwdask.read(f"precomputed://{folder}/converted", form.box())
    else:
        wkwdask.convert(
            url,
            folder / "converted",
            layer="copy",
            **({"voxel_size": VOXEL_SIZE} if form.engine == "n5" else {}),
        )
        found = wkwdask.read(folder / "converted/copy/1", form.box())
    np.testing.assert_array_equal(found, form.array())


@verb
def copy(url, form, local, folder):
    target = f"{form.prefix}{folder}/{form.path}"
    wkwdask.copy(url, target)
    np.testing.assert_array_equal(wkwdask.read(target, form.box()), form.array())


def test_labels_of_a_remote_volume_are_counted(stored, web):
    pandas = pytest.importorskip("pandas", reason="tables")
    tables = [
        wkwdask.label_statistics(FORMS[1].url(place), bounding_box=(0, 0, 0, *SHAPE))
        for place in (stored, web.url)
    ]
    pandas.testing.assert_frame_equal(*tables)


def test_a_remote_volume_gets_a_pyramid_in_a_local_dataset(stored, web, tmp_path):
    (form,) = (form for form in FORMS if form.name == "precomputed")
    pytest.importorskip(form.needs, reason="writes the volume")
    for place, name in ((stored, "expected"), (web.url, "found")):
        wkwdask.convert(form.url(place), tmp_path / name, layer="em", pyramid=True)
    assert len(wkwdask.open_dataset(tmp_path / "found")["em"]) > 1
    for mag in wkwdask.open_dataset(tmp_path / "expected")["em"]:
        assert wkwdask.diff(
            *(tmp_path / name / "em" / mag.mag.name for name in ("expected", "found"))
        ).equal


def _cells():
    """List verb, format and server: every verb on every format from the web server and from one
    kind of bucket, the nightly tests from all."""
    for (row, name), (column, form) in itertools.product(enumerate(VERBS), enumerate(FORMS)):
        if name == "open_dataset" and form.engine != "wkw":
            continue
        # the emulator has no listing of Google's XML interface
        buckets = [server for server in SERVERS[1:] if (name, server) != ("verify", "gs")]
        buckets = (
            buckets
            if os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
            else [buckets[(row + column) % len(buckets)]]
        )
        yield from ((name, form, server) for server in (SERVERS[0], *buckets))


@pytest.mark.parametrize(
    ("name", "form", "place"), list(_cells()), ids=str, indirect=["form", "place"]
)
def test_verb(name, form, place, stored, tmp_path):
    VERBS[name](form.url(place), form, form.url(stored), tmp_path)


@pytest.mark.parametrize("form", [form for form in FORMS if form.prefix], ids=str)
@pytest.mark.parametrize(
    "verb", [wkwdask.copy, wkwdask.rechunk, wkwdask.compress], ids=lambda verb: verb.__name__
)
def test_a_web_address_without_prefix_is_copied_as_the_format_that_is_there(
    stored, web, tmp_path, form, verb
):
    address, options = (
        form.url(web.url),
        {"encoding": "raw"}
        if form.prefix.startswith("precomputed") and verb is wkwdask.compress
        else {},
    )
    verb(address.removeprefix(form.prefix), f"{form.prefix}{tmp_path}/new", **options)
    np.testing.assert_array_equal(wkwdask.read(f"{form.prefix}{tmp_path}/new"), form.array())
