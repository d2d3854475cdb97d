"""The format that docs/add-a-format.md adds, on files that h5py writes: verbs that read return the
stored voxels, verbs that write refuse."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tomllib

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from usage.test_pages import ROOT, read_steps

import wkwdask
from wkwdask import BoundingBox, Mag
from wkwdask.errors import CorruptError, MissingError, UnsupportedError
from wkwdask.formats import registry

h5py = pytest.importorskip("h5py", reason="h5py is not installed")

MODULE, PROJECT = (
    step
    for step in read_steps((ROOT / "docs" / "add-a-format.md").read_text(encoding="utf-8"))
    if step.file
)
XML = """<SpimData version="0.2"><SequenceDescription><ImageLoader format="bdv.hdf5"><hdf5 type="relative">em.h5</hdf5></ImageLoader>
<ViewSetups>{}</ViewSetups></SequenceDescription></SpimData>"""  # noqa: E501
SETUP = (
    "<ViewSetup><id>{}</id><voxelSize><unit>{}</unit><size>0.5 0.5 2</size></voxelSize></ViewSetup>"
)
READ_ONLY = "the format bdv is read-only; convert"


def save_bdv(folder, stacks, factors=((1, 1, 1), (2, 2, 1)), unit="um", **storage):
    """Write arrays (z, y, x) by their names ``t00000/s00`` with nearest-neighbor levels; return the
    path of the XML."""
    setups = sorted({name.split("/")[1] for name in stacks})
    with h5py.File(folder / "em.h5", "w") as file:
        for setup in setups:
            file[f"{setup}/resolutions"] = np.array(factors, float)
        for name, array in stacks.items():
            for level, (x, y, z) in enumerate(factors):
                part = array[::z, ::y, ::x]
                options = storage and {
                    **storage,
                    "chunks": tuple(map(min, storage["chunks"], part.shape)),
                }
                file.create_dataset(
                    f"{name}/{level}/cells",
                    data=part.view(part.dtype.str.replace("u", "i")),
                    **options,
                )
    (folder / "em.xml").write_text(
        XML.format("".join(SETUP.format(int(setup[1:]), unit) for setup in setups))
    )
    return folder / "em.xml"


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    folder = tmp_path_factory.mktemp("package")
    (folder / MODULE.file).write_text(MODULE.text)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.delitem(sys.modules, "bdv_hdf5", raising=False)
        yield importlib.import_module("bdv_hdf5")
        del sys.modules["bdv_hdf5"]


@pytest.fixture(autouse=True)
def _registered(monkeypatch, module):
    monkeypatch.setattr(registry, "_added", [])
    registry.register(module.FORMAT)


@pytest.fixture
def array():
    values = np.random.default_rng(3).integers(0, 60, (12, 9, 20)).astype(np.uint16)
    values[:5, :, :12] = 0
    return values


@pytest.fixture
def url(tmp_path, array):
    """Volume with the filters of BigDataViewer (scale-offset and gzip)."""
    return save_bdv(
        tmp_path, {"t00000/s00": array}, chunks=(4, 4, 8), compression="gzip", scaleoffset=0
    )


def test_the_example_is_short():
    assert len(MODULE.text.splitlines()) <= 103


def test_reading(url, array):
    for name in (url, f"bdv://{url}", f"{url}|bdv:"):
        np.testing.assert_array_equal(wkwdask.open(name).compute(), array.T[np.newaxis])
    np.testing.assert_array_equal(
        wkwdask.open(url, mag="2-2-1", axes="czyx").compute(), array[np.newaxis, :, ::2, ::2]
    )
    np.testing.assert_array_equal(
        wkwdask.read(url, BoundingBox((3, 2, 1), (10, 6, 9)))[0], array.T[3:13, 2:8, 1:10]
    )
    boxes = wkwdask.read_many(url, [((0, 0, 0), (4, 4, 4)), ((16, 5, 8), (20, 9, 12))])
    np.testing.assert_array_equal(boxes[:, 0], [array.T[:4, :4, :4], array.T[16:, 5:, 8:]])
    np.testing.assert_array_equal(
        np.ravel(wkwdask.sample(url, [(19, 8, 11), (0, 0, 0)])), [array[11, 8, 19], 0]
    )
    opened = xr.open_dataset(url, engine="wkw")
    np.testing.assert_array_equal(opened["t00000_s00"].values, array.T)
    assert (opened.x.values[0], opened.z.values[0]) == (250.0, 1000.0)
    assert sorted(xr.open_datatree(url, engine="wkw").children) == ["1", "2-2-1"]


def test_what_it_contains(url, array):
    fine, coarse = wkwdask.info(url).scales
    assert (fine.mag, fine.resolution, fine.box) == (
        Mag(1, 1, 1),
        (500.0, 500.0, 2000.0),
        BoundingBox((0, 0, 0), array.shape[::-1]),
    )
    assert (coarse.mag, coarse.chunk_sizes) == (Mag(2, 2, 1), ((8, 4, 4),))
    with Image.open(wkwdask.preview(url, url.parent / "em.png")) as picture:
        assert len(np.unique(picture)) > 2


@pytest.mark.parametrize(
    "target",
    [
        "wkw",
        "precomputed://{}/precomputed",
        "n5://{}/em.n5/em",
        "zarr://{}/em.ome.zarr",
        "{}/em.npy",
    ],
)
def test_converting_and_comparing(url, target, array):
    pytest.importorskip(
        "zarr" if target.startswith("zarr") else "numpy", reason="zarr is not installed"
    )
    place = target.format(url.parent) if "{}" in target else str(url.parent / target)
    wkwdask.convert(url, place)
    if place.endswith(".npy"):
        np.testing.assert_array_equal(np.squeeze(np.load(place)), array)
    else:
        found = wkwdask.diff(url, place)
        assert found.equal
        assert len(found.volumes) == 2


def test_computing(url, array):
    folder = wkwdask.create_dataset(url.parent / "wkw", (500, 500, 2000)).path
    wkwdask.apply(np.invert, url, f"{folder}/inverted/1")
    np.testing.assert_array_equal(wkwdask.read(f"{folder}/inverted/1")[0], ~array.T)
    wkwdask.remap(url, f"{folder}/remapped/1", {7: 3}, default="keep")
    np.testing.assert_array_equal(
        wkwdask.read(f"{folder}/remapped/1")[0], np.where(array == 7, 3, array).T
    )
    table = wkwdask.label_statistics(url)
    ids, counts = np.unique(array[array > 0], return_counts=True)
    assert dict(zip(ids, counts, strict=True)) == table["voxels"].to_dict()
    np.testing.assert_array_equal(
        wkwdask.histogram(url)[0], np.bincount(array.ravel(), minlength=1 << 16)
    )


def test_verifying(url):
    assert wkwdask.verify(url, pyramid=True).is_sound
    with h5py.File(url.with_name("em.h5")) as file:
        offset = file["t00000/s00/0/cells"].id.get_chunk_info(0).byte_offset
    data = bytearray(url.with_name("em.h5").read_bytes())
    data[offset : offset + 20] = bytes(20)
    url.with_name("em.h5").write_bytes(data)
    report = wkwdask.verify(url)
    assert [(fault.kind, fault.path) for fault in report.faults] == [
        ("shard.index", str(url.with_name("em.h5")))
    ]
    with pytest.raises(CorruptError, match=r"em\.h5: not readable as HDF5 dataset"):
        wkwdask.read(url)


def test_several_images_are_layers(tmp_path, array):
    stacks = {
        "t00000/s00": array,
        "t00000/s01": array[:4],
        "t00001/s00": array + 1,
        "t00001/s01": array[:4] + 1,
    }
    url = save_bdv(tmp_path, stacks, unit="pixel")
    with pytest.raises(
        ValueError,
        match=(
            "several layers: name one with layer=: t00000/s00, t00000/s01, t00001/s00, t00001/s01"
        ),
    ):
        wkwdask.open(url)
    for name, expected in stacks.items():
        np.testing.assert_array_equal(wkwdask.open(url, layer=name).compute()[0], expected.T)
    assert len(wkwdask.verify(url).mags) == 8


def test_a_file_that_changes_is_another_array(url, array):
    opened = wkwdask.open(url)
    save_bdv(url.parent, {"t00000/s00": array + 1})
    with pytest.raises(
        wkwdask.ReplacedError, match=r"em\.h5 describes another data since it was opened"
    ):
        opened.compute()
    np.testing.assert_array_equal(wkwdask.read(url)[0], array.T + 1)


WRITING = {
    "write": lambda url, array: wkwdask.write(f"bdv://{url}", (0, 0, 0), array),
    "region": lambda url, array: wkwdask.write(
        f"bdv://{url}", None, array[:4, :4, :4], region=((0, 0, 0), (4, 4, 4))
    ),
    "create": lambda url, array: wkwdask.create(f"bdv://{url}", ((0, 0, 0), (4, 4, 4)), "uint8"),
    "convert": lambda url, array: wkwdask.convert(url, f"bdv://{url.parent}/other.xml"),
    "copy": lambda url, array: wkwdask.copy(url, url.parent / "copy"),
    "rechunk": lambda url, array: wkwdask.rechunk(url),
    "rechunk to": lambda url, array: wkwdask.rechunk(url, f"bdv://{url.parent}/other.xml"),
    "compress": lambda url, array: wkwdask.compress(url),
    "rm": lambda url, array: wkwdask.rm(url),
    "pyramid": lambda url, array: wkwdask.build_pyramid(url),
    "update": lambda url, array: wkwdask.build_pyramid(url, update=True),
    "plan": lambda url, array: wkwdask.plan_pyramid(url),
    "upsample": lambda url, array: wkwdask.upsample(url, mags=["1"]),
    "repair": lambda url, array: wkwdask.repair(url),
    "apply": lambda url, array: wkwdask.apply(np.invert, url, f"bdv://{url.parent}/other.xml"),
    "components": lambda url, array: wkwdask.connected_components(
        url, f"bdv://{url.parent}/other.xml"
    ),
    "remap": lambda url, array: wkwdask.remap(url, f"bdv://{url.parent}/other.xml", {1: 2}),
    "dust": lambda url, array: wkwdask.remove_dust(url, f"bdv://{url.parent}/other.xml", 5),
    "renumber": lambda url, array: wkwdask.renumber(url, f"bdv://{url.parent}/other.xml"),
}


@pytest.mark.parametrize("verb", WRITING)
def test_a_verb_that_writes_says_that_the_format_is_read_only(verb, url, array):
    before = {path.name: path.read_bytes() for path in url.parent.iterdir()}
    with pytest.raises(UnsupportedError, match=READ_ONLY):
        WRITING[verb](url, array.T)
    assert {path.name: path.read_bytes() for path in url.parent.iterdir()} == before


@given(
    size=st.tuples(*[st.integers(1, 20)] * 3),
    chunk=st.one_of(st.none(), st.tuples(*[st.integers(1, 9)] * 3)),
    dtype=st.sampled_from(["u1", "u2", "u4", "u8"]),
    filters=st.sampled_from(
        [{}, {"compression": "gzip", "shuffle": True}, {"compression": "lzf"}, {"scaleoffset": 0}]
    ),
    seed=st.integers(0, 99),
)
def test_any_geometry(tmp_path_factory, size, chunk, dtype, filters, seed):
    rng = np.random.default_rng(seed)
    array = rng.integers(0, 120, size).astype(dtype) * (rng.random(size) < 0.5)
    url = save_bdv(
        tmp_path_factory.mktemp("bdv"),
        {"t00000/s00": array},
        **({} if chunk is None else {"chunks": chunk, **filters}),
    )
    np.testing.assert_array_equal(wkwdask.read(url, mag=1)[0], array.T)
    low = tuple(int(rng.integers(n)) for n in size[::-1])
    np.testing.assert_array_equal(
        wkwdask.read(url, (low, size[::-1]), mag=1)[0], array.T[tuple(slice(n, None) for n in low)]
    )


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (lambda url: url.unlink(), MissingError, r"em\.xml: no such file"),
        (
            lambda url: url.write_text("<SpimData"),
            CorruptError,
            r"em\.xml: not readable as XML of BigDataViewer",
        ),
        (
            lambda url: url.write_text("<SpimData/>"),
            CorruptError,
            r"em\.xml: not readable as XML of BigDataViewer",
        ),
        (
            lambda url: url.with_name("em.h5").write_bytes(b"x" * 99),
            CorruptError,
            r"em\.h5: not readable as HDF5 file",
        ),
        (
            lambda url: h5py.File(url.with_name("em.h5"), "w").close(),
            MissingError,
            r"em\.h5: no time point t00000",
        ),
    ],
)
def test_broken_ones(url, damage, error, message):
    damage(url)
    with pytest.raises(error, match=message):
        wkwdask.open(f"bdv://{url}")


def test_an_installed_package_is_found_by_every_process(url, tmp_path):
    package = tmp_path / "package"
    info = package / "wkwdask_bdv-1.0.dist-info"
    info.mkdir(parents=True)
    (package / MODULE.file).write_text(MODULE.text)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wkwdask-bdv\nVersion: 1.0\n")
    entries = tomllib.loads(PROJECT.text)["project"]["entry-points"][registry.GROUP]
    (info / "entry_points.txt").write_text(
        "\n".join(
            [f"[{registry.GROUP}]", *(f"{name} = {value}" for name, value in entries.items())]
        )
    )
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(package), str(ROOT), os.environ.get("PYTHONPATH", "")])
        )
    }
    done = subprocess.run(
        [sys.executable, "-m", "wkwdask", "info", url],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "bdv volume, uint16" in done.stdout
    assert "0, 0, 0 + 20, 9, 12" in done.stdout
