"""Tests of each verb on an image of any format, through public functions and commands, compared
with numpy.

A verb gets a :class:`Bench`, which saves an image and a segmentation of one format, and raises if a
result is wrong.
"""

from __future__ import annotations

import contextlib
import json
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pytest
import xarray as xr
from PIL import Image
from support.bucket_faults import let_answers_settle
from support.commands import run_here
from support.mesh_files import voxelised
from support.range_server import range_server
from support.segmenting import stitched
from verbs.cases import (
    LOWEST,
    TYPES,
    Case,
    components_of,
    largest_of_windows,
    other_voxels,
    step_of,
)
from verbs.forms import FORMS, VOXEL_SIZE, Form
from verbs.other_readers import expect_by_others
from verbs.stored_path import stored_path

import wkwdask
from wkwdask.errors import MissingError
from wkwdask.formats.opening import find
from wkwdask.formats.precomputed.mesh_reader import open_meshes
from wkwdask.formats.record_paths import is_job_folder
from wkwdask.formats.registry import opening_format
from wkwdask.store.paths import MEMORY, basename, is_bucket
from wkwdask.store.records import PROVENANCE_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

VERBS = {}
LIMITS = {
    "histogram": {"types": ("uint8", "uint16")},  # one bin per value
    "contrast": {"types": ("uint8", "uint16")},
    "meshes": {"types": ("uint8", "uint16", "uint32", "uint64")},  # labels are not negative
    # positions in WKW are not negative
    **{name: {"lowest": 0} for name in ("convert_to_wkw", "convert_plan", "convert_from_wkw")},
}
"""Limits of the arrays with which a verb is tested, as arguments of :class:`Bench`."""


def verb(function):
    """Register a function in the table of verbs."""
    VERBS[function.__name__] = function
    return function


def verb_of_target(function):
    """Register a function of a bench, a target image and its mag 1 twice: with a target of the same
    format, and of WKW."""
    VERBS[function.__name__] = lambda bench: function(bench, bench.place, _with_dataset(bench))
    VERBS[f"{function.__name__}_to_wkw"] = lambda bench: function(
        bench, f"{bench.root}/other/target", f"{_other_dataset(bench)}/target/1"
    )
    LIMITS[f"{function.__name__}_to_wkw"] = {"lowest": 0}
    return function


class Bench:
    """Folder with an image of one format, drawn from a seed."""

    def __init__(
        self,
        form: Form,
        folder: Path,
        seed: int,
        root: str | None = None,
        types: Sequence[str] = TYPES,
        lowest: int = LOWEST,
    ) -> None:
        self.form = form
        self.folder = folder
        """Folder for pictures and tables."""
        self.root = str(folder) if root is None else root
        """Folder or URL for images."""
        self.rng = np.random.default_rng(seed)
        self.seed = seed
        self.limits = {"types": types, "lowest": lowest}
        self.case = form.draw(seed, **self.limits)

    @cached_property
    def image(self) -> str:
        url = self.form.url(self.root, "image")
        self.form.save(self.case.array, url, self.case.offset)
        let_answers_settle()
        return url

    @cached_property
    def labels(self) -> tuple[str, Case]:
        case = self.form.draw(self.seed, is_segmentation=True, **self.limits)
        url = self.form.url(self.root, "labels")
        options = (
            {"type": "segmentation"}
            if self.form.engine == "precomputed"
            else {"category": "segmentation"}
        )
        self.form.save(case.array, url, case.offset, **options)
        return url, case

    @property
    def is_in_bucket(self) -> bool:
        return is_bucket(self.root)

    @property
    def place(self) -> str:
        """Unused URL of the same format."""
        return self.form.url(self.root, "target")

    @property
    def finest_place(self) -> str:
        """URL of mag 1 of a new image."""
        return self.place + self.form.finest

    def expect(self, url: str, case: Case, mag: object = 1) -> None:
        """Compare type, position and voxels of a mag with an array."""
        whole = wkwdask.open(url, mag=mag)
        assert (whole.shape, whole.dtype) == (case.array.shape, case.array.dtype)
        np.testing.assert_array_equal(whole.compute(), case.array)
        found = wkwdask.read(url, (case.offset, case.end), mag=mag)
        assert found.dtype == case.array.dtype
        np.testing.assert_array_equal(found, case.array)
        if not self.root.startswith(MEMORY):  # which nobody else reads
            expect_by_others(url, mag, case, self.form.unread_by if url == self.image else ())
        let_answers_settle()

    @property
    def voxel_size(self) -> dict[str, object]:
        """Option of jobs that need the voxel size, where the image does not state it."""
        return {} if self.form.states_voxel_size else {"voxel_size": VOXEL_SIZE}

    def as_stored(self, url: str, case: Case) -> Case:
        """Return an array in the type that a target has instead of one that its format does not
        store."""
        dtype = wkwdask.open(url, mag=1).dtype
        return Case(case.array.astype(dtype), case.offset) if dtype == self.form.cast else case

    def command(self, *arguments: object) -> str:
        """Run a command, which must succeed, and return its output."""
        done = run_here(*arguments)
        assert done.returncode in (0, None), done.stderr
        return done.stdout


def _chunk_files(url: str) -> list[Path]:
    """List the files that hold the voxels of an image."""
    names = {
        "info",
        "provenance",
        "header.wkw",
        "attributes.json",
        "zarr.json",
        ".zarray",
        ".zattrs",
        ".zgroup",
        "datasource-properties.json",
    }
    names |= {"toy.json", "level.json", "METADATA.ome.xml"}
    return sorted(
        path
        for path in stored_path(url).rglob("*")
        if path.is_file() and path.name not in names and not path.name.startswith(".wkwdask")
    )


# ---------------------------------------------------------------------------- reading


@verb
def read(bench):
    for _ in range(3):
        box = bench.case.part(bench.rng)
        np.testing.assert_array_equal(wkwdask.read(bench.image, box, mag=1), bench.case.crop(box))


@verb
def open_array(bench):
    array = wkwdask.open(bench.image, mag=1)
    part = tuple(slice(*sorted(bench.rng.integers(0, n + 1, 2))) for n in array.shape)
    np.testing.assert_array_equal(array[part].compute(), bench.case.array[part])
    turned = wkwdask.open(bench.image, mag=1, axes="czyx", chunks="block")
    np.testing.assert_array_equal(turned.compute(), bench.case.array.transpose(0, 3, 2, 1))


@verb
def sample(bench):
    points = bench.rng.integers(bench.case.offset, bench.case.end, (20, 3))
    cells = tuple((points - bench.case.offset).T)
    found = wkwdask.sample(bench.image, points, mag=1)
    expected = bench.case.array[(slice(None), *cells)]
    np.testing.assert_array_equal(found, expected[0] if len(expected) == 1 else expected.T)


@verb
def xarray(bench):
    url = (
        bench.image
        if bench.form.engine in ("wkw", "precomputed")
        else str(stored_path(bench.image))
    )
    engine = bench.form.engine if bench.form.engine != "toy" else "wkw"
    array = xr.open_dataarray(url.removeprefix("precomputed://"), engine=engine, chunks={})
    dims = [axis for axis in ("c", "x", "y", "z") if axis in array.dims]
    np.testing.assert_array_equal(
        array.transpose(*dims).values.reshape(bench.case.array.shape), bench.case.array
    )
    for axis, low, edge in zip("xyz", bench.case.offset, VOXEL_SIZE, strict=True):
        np.testing.assert_allclose(array[axis].values[0], (low + 0.5) * edge)


@verb
def info(bench):
    assert str(bench.case.array.dtype) in bench.command("info", bench.image)
    found = wkwdask.info(bench.image)
    box = wkwdask.BoundingBox(bench.case.offset, bench.case.size)
    if bench.form.engine == "wkw":
        (layer,) = found.layers
        assert len(layer.mags) == 1 + len(bench.form.levels)
        assert (layer.mags[0].box, layer.mags[0].dtype, layer.num_channels) == (
            box,
            str(bench.case.array.dtype),
            len(bench.case.array),
        )
        return
    assert (found.dtype, found.num_channels) == (str(bench.case.array.dtype), len(bench.case.array))
    assert len(found.scales) == 1 + len(bench.form.levels)
    assert (found.scales[0].box, found.scales[0].chunk_sizes) == (box, (bench.form.chunk_shape,))


@verb
def preview(bench):
    stripes = (np.indices((20, 18, 16)).sum(0)[np.newaxis] % 8 * 30 + 1).astype("uint8")
    pictures = []
    for name, array in {"stripes": stripes, "even": np.ones_like(stripes)}.items():
        url = bench.form.url(bench.root, name)
        bench.form.save(array, url, (0, 0, 0))
        with Image.open(wkwdask.preview(url, bench.folder / "picture.png", mag=1)) as picture:
            pictures.append(np.asarray(picture.convert("L"), int))
    assert pictures[0].std() > 2 * pictures[1].std()


@verb
def zarr_view(bench):
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    group = zarr.open_group(wkwdask.zarr_view(bench.image), mode="r")
    arrays = [array for _, array in group.arrays()]
    found = np.asarray(arrays[0][...])
    found = found[np.newaxis] if found.ndim == 3 else found
    np.testing.assert_array_equal(found.transpose(0, 3, 2, 1), bench.case.array)


@verb
def zarr_in_place(bench):
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    bench.expect(bench.image, bench.case)
    before = set(stored_path(bench.image).rglob("*"))
    if bench.form.engine == "n5":  # axes x, y, z, c
        wkwdask.n5_as_zarr(bench.image, write=True)
        found = zarr.open_array(stored_path(_level(bench, bench.image)), mode="r")[...].T
    else:  # axes c, z, y, x, from voxel 0 on
        wkwdask.write_zarr_view(bench.image)
        box = tuple(
            slice(low, high) for low, high in zip(bench.case.offset, bench.case.end, strict=True)
        )
        found = zarr.open_array(stored_path(_level(bench, bench.image)), mode="r")[
            (..., *box[::-1])
        ]
    np.testing.assert_array_equal(
        found.reshape(-1, *bench.case.size[::-1]).transpose(0, 3, 2, 1), bench.case.array
    )
    if bench.form.engine == "n5":
        wkwdask.n5_as_zarr(bench.image, remove=True)
    else:
        wkwdask.remove_zarr_view(bench.image)
    assert set(stored_path(bench.image).rglob("*")) == before


# ---------------------------------------------------------------------------- writing


@verb
def save(bench):
    bench.expect(bench.image, bench.case)
    try:
        bench.form.save(bench.case.array, bench.image, bench.case.offset)
    except wkwdask.ExistsError:
        pass
    else:
        raise AssertionError("an existing image was replaced")
    other = Case(bench.case.array[:, ::-1] * 2, bench.case.offset)
    bench.form.save(other.array, bench.image, other.offset, existing="overwrite")
    bench.expect(bench.image, other)


@verb
def save_by_url(bench):
    if bench.form.engine == "wkw":
        wkwdask.create_dataset(stored_path(bench.place).parent, VOXEL_SIZE, existing="keep")
    wkwdask.save(
        bench.case.array, bench.finest_place, offset=bench.case.offset, voxel_size=VOXEL_SIZE
    )
    bench.expect(bench.place, bench.case)


@verb
def resume(bench):
    bench.expect(bench.image, bench.case)
    before = {path: path.stat().st_mtime_ns for path in _chunk_files(bench.image)}
    bench.form.save(bench.case.array, bench.image, bench.case.offset, existing="resume")
    assert {path: path.stat().st_mtime_ns for path in _chunk_files(bench.image)} == before


@verb
def write(bench):
    wkwdask.write(_with_dataset(bench), bench.case.offset, bench.case.array, voxel_size=VOXEL_SIZE)
    bench.expect(bench.place, bench.case)


@verb
def write_region(bench):
    low, high = bench.case.part(bench.rng)
    patch = other_voxels(bench.case.crop((low, high)))
    wkwdask.write(_level(bench, bench.image), None, patch, region=(low, high))
    changed = bench.case.array.copy()
    Case(changed, bench.case.offset).crop((low, high))[...] = patch
    bench.expect(bench.image, Case(changed, bench.case.offset))
    return low, high


@verb
def clear_region(bench):
    """Zeros in whole chunks of all channels: chunks of zeros are not stored."""
    low = bench.case.offset
    high = (min(low[0] + bench.form.chunk_shape[0], bench.case.end[0]), *bench.case.end[1:])
    changed = bench.case.array.copy()
    part = Case(changed, low).crop((low, high))
    part[...] = 0
    wkwdask.write(_level(bench, bench.image), None, part, region=(low, high))
    bench.expect(bench.image, Case(changed, low))


@verb
def serve(bench):
    """A server without listings, after a write into a region: files of other software lie beside
    ours."""
    changed = write_region(bench)
    with range_server(bench.folder) as server:
        for box in (changed, (bench.case.offset, bench.case.end)):
            found = wkwdask.read(bench.form.url(server.url, "image"), box, mag=1)
            np.testing.assert_array_equal(found, wkwdask.read(bench.image, box, mag=1))


def _level(bench, url):
    return url + bench.form.finest


@verb
def create(bench):
    zeros = Case(np.zeros((1, 20, 9, 11), "uint16"), bench.case.offset)
    wkwdask.create(_with_dataset(bench), (zeros.offset, zeros.end), "uint16", voxel_size=VOXEL_SIZE)
    bench.expect(bench.place, zeros)


@verb_of_target
def apply(bench, image, target):
    # of the target
    chunks = [4 * n for n in bench.form.chunk_shape] if target == bench.finest_place else 32
    wkwdask.apply(
        _inverse, _level(bench, bench.image), target, channels=len(bench.case.array), chunks=chunks
    )
    bench.expect(image, bench.as_stored(image, Case(_inverse(bench.case.array), bench.case.offset)))


def _inverse(voxels):
    return ~voxels if voxels.dtype == bool else voxels.dtype.type(100) - voxels


def _with_dataset(bench):
    if bench.form.engine == "wkw":
        wkwdask.create_dataset(stored_path(bench.place).parent, VOXEL_SIZE, existing="keep")
    return bench.finest_place


def _other_dataset(bench):
    return wkwdask.create_dataset(f"{bench.root}/other", VOXEL_SIZE, existing="keep").path


# ---------------------------------------------------------------------------- mags


@verb
def pyramid(bench):
    wkwdask.build_pyramid(bench.image, mags=["2-2-1", "4-4-2"], method="max")
    half = largest_of_windows(bench.case, (2, 2, 1))
    bench.expect(bench.image, half, "2-2-1")
    bench.expect(bench.image, largest_of_windows(half, (2, 2, 2)), "4-4-2")


@verb
def pyramid_ladder(bench):
    # WEBKNOSSOS's ladder for voxels of 4 x 4 x 8 nm
    wkwdask.build_pyramid(bench.image, method="max", coarsest="4-4-2")
    half = largest_of_windows(bench.case, (2, 2, 1))
    bench.expect(bench.image, half, "2-2-1")
    bench.expect(bench.image, largest_of_windows(half, (2, 2, 2)), "4-4-2")


@verb
def pyramid_resume(bench):
    wkwdask.build_pyramid(bench.image, mags=["2-2-1"], method="max")
    let_answers_settle()
    before = {path: path.stat().st_mtime_ns for path in _chunk_files(bench.image)}
    note = wkwdask.build_pyramid(bench.image, mags=["2-2-1"], method="max", existing="resume").note
    assert "nothing to do" in note
    assert {path: path.stat().st_mtime_ns for path in _chunk_files(bench.image)} == before
    with pytest.raises(wkwdask.ResumeError, match="method was max, is min"):
        wkwdask.build_pyramid(bench.image, mags=["2-2-1"], method="min", existing="resume")


@verb
def pyramid_box(bench):
    wkwdask.build_pyramid(bench.image, mags=["2-2-1"], method="max")
    low, high = bench.case.part(bench.rng)
    changed = bench.case.array.copy()
    Case(changed, bench.case.offset).crop((low, high))[...] = 100
    wkwdask.write(
        _level(bench, bench.image),
        None,
        Case(changed, bench.case.offset).crop((low, high)),
        region=(low, high),
    )
    box = [*low, *(b - a for a, b in zip(low, high, strict=True))]
    wkwdask.build_pyramid(bench.image, mags=["2-2-1"], bounding_box=box)
    bench.expect(
        bench.image, largest_of_windows(Case(changed, bench.case.offset), (2, 2, 1)), "2-2-1"
    )


@verb
def pyramid_update(bench):
    wkwdask.build_pyramid(bench.image, mags=["2-2-1"], method="max")
    changed = Case(
        np.where(bench.case.array > 100, 0, other_voxels(bench.case.array)).astype(
            bench.case.array.dtype
        ),
        bench.case.offset,
    )
    wkwdask.write(
        _level(bench, bench.image), None, changed.array, region=(changed.offset, changed.end)
    )
    wkwdask.build_pyramid(bench.image, mags=["2-2-1"], method="max", update=True)
    bench.expect(bench.image, largest_of_windows(changed, (2, 2, 1)), "2-2-1")


@verb
def pyramid_plan(bench):
    files = _chunk_files(bench.image)
    plan = wkwdask.plan_pyramid(bench.image, mags=["2-2-1"], method="max")
    assert "2-2-1" in str(plan)
    assert bench.form.levels or bench.is_in_bucket or plan.files_in == len(files)
    assert _chunk_files(bench.image) == files
    wkwdask.build_pyramid(bench.image, mags=["2-2-1"], method="max")
    assert plan.mags[0].files >= len(_chunk_files(bench.image)) - len(files) > 0


def _doubled(case):
    """Return an array whose windows of 2 x 2 x 2 voxels have one value each."""
    return Case(
        case.array.repeat(2, 1).repeat(2, 2).repeat(2, 3), tuple(2 * n for n in case.offset)
    )


@verb
def pyramid_mode(bench):
    """The only method for bool and for labels; every id stays, the largest one too."""
    half, bench.case = bench.case, _doubled(bench.case)
    wkwdask.build_pyramid(bench.image, mags=["2-2-2"], method="mode")
    bench.expect(bench.image, half, "2-2-2")


@verb
def pyramid_of_labels(bench):
    half = bench.form.draw(bench.seed, is_segmentation=True, **bench.limits)
    bench.case = _doubled(half)
    wkwdask.build_pyramid(bench.image, mags=["2-2-2"], method="mode")
    bench.expect(bench.image, half, "2-2-2")


@verb
def upsample(bench):
    bench.case = _doubled(bench.case)
    wkwdask.build_pyramid(bench.image, mags=["2-2-2"], method="max")
    wkwdask.rm(bench.image, mags=["1"])
    wkwdask.upsample(bench.image, mags=["1"], voxel_size=VOXEL_SIZE)
    bench.expect(bench.image, bench.case)


@verb
def levels(bench):
    """Levels that other software wrote: their voxels and places, and mag 1 as the default."""
    bench.expect(bench.image, bench.case)
    for mag in bench.form.levels:
        bench.expect(bench.image, bench.form.level_of(bench.case, mag), mag)
    np.testing.assert_array_equal(wkwdask.open(bench.image), bench.case.array)
    report = wkwdask.verify(bench.image, pyramid=True, method="max")
    assert report.is_sound, str(report)
    before = {path: path.read_bytes() for path in _chunk_files(bench.image)}
    wkwdask.repair(bench.image, method="max", rebuild_differing=True, older_than=0)
    assert {path: path.read_bytes() for path in _chunk_files(bench.image)} == before


# ---------------------------------------------------------------------------- storage


@verb
def rechunk(bench):
    wkwdask.rechunk(_level(bench, bench.image), _with_dataset(bench), **bench.form.other_chunks)
    bench.expect(bench.place, bench.case)
    wkwdask.rechunk(bench.image, **bench.form.other_chunks)
    bench.expect(bench.image, bench.case)


@verb
def rechunk_shards(bench):
    """Other files in place, then compared: chunks keep their bytes."""
    wkwdask.rechunk(bench.image, verify=True, **bench.form.other_files)
    bench.expect(bench.image, bench.case)


@verb
def compress(bench):
    wkwdask.compress(bench.image, compression=bench.form.compression)
    bench.expect(bench.image, bench.case)


@verb
def copy(bench):
    wkwdask.copy(bench.image, bench.place)
    bench.expect(bench.place, bench.case)


@verb
def copy_box(bench):
    low, high = bench.case.part(bench.rng)
    wkwdask.copy(
        bench.image,
        bench.place,
        bounding_box=[*low, *(b - a for a, b in zip(low, high, strict=True))],
        verify=True,
    )
    bench.expect(bench.place, Case(bench.case.crop((low, high)), low))


@verb
def copy_moved_box(bench):
    low, high = bench.case.part(bench.rng)
    size = tuple(b - a for a, b in zip(low, high, strict=True))
    wkwdask.copy(bench.image, bench.place, bounding_box=[*low, *size], translate=bench.form.move)
    bench.expect(
        bench.place,
        Case(
            bench.case.crop((low, high)),
            tuple(a + b for a, b in zip(low, bench.form.move, strict=True)),
        ),
    )


@verb
def rm(bench):
    bench.expect(bench.image, bench.case)
    wkwdask.rm(bench.image)
    if bench.is_in_bucket:  # where readers continue for a while
        # a listing that lags may have hidden a record of the job from itself
        found = wkwdask.clean(bench.image)
        assert all(is_job_folder(basename(folder)) for folder in found), found
        for _ in range(8):  # or the garbage from one of them
            with contextlib.suppress(MissingError):  # nothing is left
                wkwdask.clean(bench.image, grace_seconds=0)
    # and it may name files that are gone
    assert not any(path.exists() for path in _chunk_files(bench.image))


@verb
def convert_to_wkw(bench):
    if not bench.form.is_source:
        bench.expect(bench.image, bench.case)
    target = f"{bench.root}/converted/image"
    wkwdask.convert(bench.image, f"{bench.root}/converted", layer="image", **bench.voxel_size)
    bench.expect(target, bench.as_stored(target, bench.case))
    assert wkwdask.verify(target).is_sound


@verb
def convert_plan(bench):
    plan = wkwdask.plan_convert(
        bench.image, f"{bench.root}/converted", layer="image", **bench.voxel_size
    )
    assert [mag.size for mag in plan.mags] == [
        bench.case.size,
        *(bench.form.level_of(bench.case, mag).size for mag in bench.form.levels),
    ]
    assert not stored_path(f"{bench.root}/converted").exists()


@verb
def convert_from_wkw(bench):
    wkwdask.create_dataset(f"{bench.root}/source", VOXEL_SIZE)
    wkwdask.to_wkw(
        bench.case.array,
        f"{bench.root}/source/image/1",
        offset=bench.case.offset,
        block_len=8,
        file_len=2,
    )
    wkwdask.convert(f"{bench.root}/source", bench.place, layer="image")
    bench.expect(bench.place, bench.case)
    assert wkwdask.verify(bench.place).is_sound


def _in_box_of_layer(case, finest, mag):
    """Return a level with the zeros that it has in WKW, where the box of the layer is that of all
    mags."""
    size = largest_of_windows(finest, step_of(mag)).size
    return Case(
        np.pad(
            case.array,
            [(0, 0), *((0, whole - n) for whole, n in zip(size, case.size, strict=True))],
        ),
        case.offset,
    )


def _convert_levels(target):
    """Return the verb that converts an image with two levels to a format."""

    def convert_levels(bench):
        mags = list(bench.form.levels)
        if not mags:
            mags = ["2-2-1", "8-8-4"]
            wkwdask.build_pyramid(bench.image, mags=mags, method="max")
        url = (
            f"{bench.root}/converted"
            if target.engine == "wkw"
            else target.url(bench.root, "converted")
        )
        note = wkwdask.convert(
            bench.image,
            url,
            **({"layer": "image"} if target.engine == "wkw" else {}),
            **bench.voxel_size,
        ).note
        url += "/image" if target.engine == "wkw" else ""
        for mag, case in [
            (1, bench.case),
            *((mag, bench.form.level_of(bench.case, mag)) for mag in mags),
        ]:
            whole = (
                case
                if target.engine != "wkw" or mag == 1
                else _in_box_of_layer(case, bench.case, mag)
            )
            assert whole is case or case.size == whole.size or "begins 0 x 0 x 0 and ends" in note
            bench.expect(url, bench.as_stored(url, whole), mag)
        report = wkwdask.verify(url, pyramid=True, method="max")
        assert report.is_sound, str(report)

    return convert_levels


for _target in FORMS:
    if _target.name in ("wkw", "precomputed-sharded", "n5", "ngff-0.5"):
        VERBS[f"convert_levels_to_{_target}"] = _convert_levels(_target)
LIMITS["convert_levels_to_wkw"] = {"lowest": 0}
LIMITS["convert_levels_to_precomputed-sharded"] = {"types": FORMS[1].types}


# ---------------------------------------------------------------------------- checks


@verb
def verify(bench):
    assert wkwdask.verify(bench.image).is_sound
    _damage(bench)
    report = wkwdask.verify(bench.image)
    assert not report.is_sound
    assert any(_chunk_files(bench.image)[0].name in str(fault) for fault in report.faults)


@verb
def verify_pyramid(bench):
    wkwdask.build_pyramid(bench.image, mags=["2-2-1"], method="max")
    report = wkwdask.verify(bench.image, pyramid=True)
    assert report.is_sound, str(report)
    assert [mag.compared > 0 for mag in report.mags][:2] == [False, True]
    half = largest_of_windows(bench.case, (2, 2, 1))
    half.array[(0, 0, 0, 0)] = half.array[(0, 0, 0, 0)] == 0
    wkwdask.write(
        _level_of(bench, "2-2-1"),
        None,
        half.array,
        mag=None if bench.form.engine == "wkw" else "2-2-1",
        region=(half.offset, half.end),
    )
    report = wkwdask.verify(bench.image, pyramid=True)
    assert {fault.kind for fault in report.faults if fault.severity == "error"} == {
        "pyramid.differs"
    }


def _level_of(bench, mag):
    return f"{bench.image}/{mag}" if bench.form.engine == "wkw" else bench.image


@verb
def repair_by_method(bench):
    """Without the record of the job that made the coarser mag, the user states how it was made."""
    finest = set(_chunk_files(bench.image))
    wkwdask.build_pyramid(bench.image, mags=["2-2-1"], method="max")
    path = min(set(_chunk_files(bench.image)) - finest)
    folder = next(
        path
        for path in stored_path(bench.image).rglob("*")
        if path.name == PROVENANCE_NAME and _is_coarser(path)
    )
    folder.unlink()
    path.write_bytes(path.read_bytes()[:-3])
    report = wkwdask.repair(bench.image, older_than=0)
    assert not report.actions
    assert not report.is_sound or bench.is_in_bucket  # where a listing may lag behind
    wkwdask.repair(bench.image, older_than=0, method="max")
    bench.expect(bench.image, largest_of_windows(bench.case, (2, 2, 1)), "2-2-1")


def _is_coarser(path):
    return json.loads(path.read_bytes())["settings"]["command"] == "build_pyramid"


def _damage(bench):
    path = _chunk_files(bench.image)[0]
    path.write_bytes(path.read_bytes()[:-3])


@verb
def repair(bench):
    finest = set(_chunk_files(bench.image))
    wkwdask.build_pyramid(bench.image, mags=["2-2-1"], method="max")
    path = min(set(_chunk_files(bench.image)) - finest)
    path.write_bytes(path.read_bytes()[:-3])
    left = path.with_name(f".{path.name}.0123456789abcdef.wkwdask-tmp")
    if not bench.is_in_bucket:  # whose objects are never written under another name
        left.write_bytes(b"left")
    wkwdask.repair(bench.image, older_than=0)
    assert not left.exists()
    assert wkwdask.verify(bench.image).is_sound
    bench.expect(bench.image, bench.case)
    bench.expect(bench.image, largest_of_windows(bench.case, (2, 2, 1)), "2-2-1")


@verb
def manifest(bench):
    wkwdask.write_manifest(bench.image)
    assert not wkwdask.check_manifest(bench.image).changed
    _damage(bench)
    assert [name.rpartition("/")[2] for name in wkwdask.check_manifest(bench.image).changed] == [
        _chunk_files(bench.image)[0].name
    ]


@verb
def diff(bench):
    other = bench.form.url(bench.root, "other")
    changed = bench.case.array.copy()
    changed[:1, :1, :1, :1] = other_voxels(changed[:1, :1, :1, :1])
    bench.form.save(changed, other, bench.case.offset)
    assert wkwdask.diff(bench.image, bench.image).equal
    found = wkwdask.diff(bench.image, other)
    assert found.volumes[0].voxels_different == 1
    assert [(one.voxel, one.first, one.second) for one in found.volumes[0].listed] == [
        (bench.case.offset, bench.case.array[0, 0, 0, 0], changed[0, 0, 0, 0])
    ]


# ---------------------------------------------------------------------------- labels


@verb
def label_statistics(bench):
    url, case = bench.labels
    table = wkwdask.label_statistics(url, mag=1)
    assert list(table.index) == sorted(set(np.unique(case.array)) - {0})
    for label, row in table.iterrows():
        places = np.argwhere(case.array[0] == label) + case.offset
        assert row["voxels"] == len(places)
        np.testing.assert_array_equal(row[["min_x", "min_y", "min_z"]], places.min(0))
        np.testing.assert_array_equal(row[["max_x", "max_y", "max_z"]], places.max(0) + 1)
        np.testing.assert_allclose(
            row[["centroid_x", "centroid_y", "centroid_z"]].astype(float), places.mean(0) + 0.5
        )


@verb
def meshes(bench):
    url, case = bench.labels
    volume = f"precomputed://{bench.root}/meshed"
    wkwdask.save(
        np.zeros((8, 8, 8), np.uint8), volume, voxel_size=VOXEL_SIZE, category="segmentation"
    )
    wkwdask.meshes(_level(bench, url), f"{volume}/mesh", cell=12, error=0)
    (folder,) = opening_format(volume).mesh_folders(find(volume).layers[0])
    stored = open_meshes(folder)
    assert stored.labels() == sorted(set(np.unique(case.array).tolist()) - {0})
    assert wkwdask.verify(volume).is_sound
    for label in stored.labels()[:2]:
        vertices, faces = stored.triangles(label, 0)
        is_inside = voxelised(vertices / VOXEL_SIZE - case.offset, faces, case.array.shape[1:])
        np.testing.assert_array_equal(is_inside, case.array[0] == label)


@verb
def histogram(bench):
    counts = wkwdask.histogram(bench.image, mag=1)
    expected = [
        np.bincount(channel.ravel(), minlength=counts.sizes["value"])
        for channel in bench.case.array
    ]
    np.testing.assert_array_equal(counts, expected)


@verb
def contrast(bench):
    table = wkwdask.contrast(bench.image, (0, 100), mag=1)
    expected = [
        (seen.min(), seen.max(), len(seen)) if seen.any() else (np.nan, np.nan, 0)
        for seen in (channel[channel > 0] for channel in bench.case.array)
    ]
    np.testing.assert_array_equal(table[["low", "high", "voxels"]], expected)


@verb_of_target
def components(bench, image, target):
    url, case = bench.labels
    wkwdask.connected_components(_level(bench, url), target)
    found = wkwdask.read(image, (case.offset, case.end), mag=1)
    expected = components_of(case.array[0])
    pairs = np.unique(np.stack([found.ravel(), expected.ravel()]), axis=1)
    # ids are 1 to n
    np.testing.assert_array_equal(pairs[0][pairs[0] > 0], np.arange(1, expected.max() + 1))
    assert len(set(pairs[1])) == pairs.shape[1]
    assert ((found[0] > 0) == (expected > 0)).all()
    bench.expect(image, Case(found, case.offset))


@verb_of_target
def segment(bench, image, target):
    url, case = bench.labels
    wkwdask.segment(components_of, _level(bench, url), target, halo=4, chunks=(16, 24, 16))
    found = wkwdask.read(image, (case.offset, case.end), mag=1)
    np.testing.assert_array_equal(
        found[0],
        stitched(
            lambda low, high: components_of(case.crop((low, high))[0]),
            (case.offset, case.end),
            (case.offset, case.end),
            (16, 24, 16),
            (4, 4, 4),
        )[0],
    )
    bench.expect(image, Case(found, case.offset))


@verb_of_target
def remap(bench, image, target):
    url, case = bench.labels
    ids = [int(label) for label in np.unique(case.array)[-2:]]
    wkwdask.remap(_level(bench, url), target, dict.fromkeys(ids, 5), default="keep")
    bench.expect(
        image,
        Case(
            np.where(
                np.isin(case.array, np.array(ids, case.array.dtype)),
                case.array.dtype.type(5),
                case.array,
            ),
            case.offset,
        ),
    )


@verb_of_target
def dust(bench, image, target):
    url, case = bench.labels
    wkwdask.remove_dust(_level(bench, url), target, 50)
    ids, counts = np.unique(case.array, return_counts=True)
    bench.expect(
        image,
        Case(
            np.where(np.isin(case.array, ids[counts < 50]), case.array.dtype.type(0), case.array),
            case.offset,
        ),
    )


@verb_of_target
def renumber(bench, image, target):
    url, case = bench.labels
    wkwdask.renumber(_level(bench, url), target)
    ids = np.union1d(case.array, 0)
    bench.expect(
        image, Case(np.searchsorted(ids, case.array).astype(case.array.dtype), case.offset)
    )
