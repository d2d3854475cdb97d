"""Chains of jobs on N5 groups of other software: after each job, that software still finds every
level with its voxel size."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import dask
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.n5_dialects import (
    DIALECTS,
    LEVELS,
    SIZE,
    SIZED,
    bigdataviewer,
    imagej,
    neuroglancer,
    no_attributes,
    paintera,
    tensorstore,
    tensorstore_zyx,
    two_time_points,
    version_alone,
    write_by_tensorstore,
)
from support.n5_readers import (
    CannotOpenError,
    attributes_of,
    by_bigdataviewer,
    by_n5_viewer,
    by_neuroglancer,
    level_folders,
    merged_attributes,
)
from support.n5_volumes import write_attributes

import wkwdask
from wkwdask.errors import UnsupportedError

ts = pytest.importorskip("tensorstore", reason="tensorstore is not installed")

VOXEL_SIZE = (4, 4, 8)
MAGS = [(1, 1, 1), (2, 2, 1), (2, 2, 2), (4, 4, 2), (4, 4, 4), (8, 8, 8), (16, 16, 16)]
"""Absolute factors of levels that jobs make."""


def channels_of_n5_viewer(group):
    """Factors that the attributes above all channels list."""
    for n, array in enumerate(LEVELS[:3]):
        write_by_tensorstore(group / f"s{n}", array)
    write_attributes(
        group.parent,
        scales=[[1 << n] * 3 for n in range(3)],
        pixelResolution={"dimensions": VOXEL_SIZE, "unit": "nm"},
    )


def arrays_in(group, axes):
    """Return the voxels of all levels in the order x, y, z, as tensorstore reads them."""
    found = {}
    for path in level_folders(group):
        array = ts.open({"driver": "n5", "kvstore": f"file://{path}/"}).result().read().result()
        found[path.name] = array if axes == "xyz" else array.T
    return found


def factors_of(array):
    """Return the factors of a level, which the whole image and its shape tell."""
    return tuple(
        float(2 ** round(np.log2(whole / length)))
        for whole, length in zip(SIZE, array.shape, strict=True)
    )


def relative(factors, arrays):
    """Return a mag that counts from the finest level; None if there is no such one."""
    finest = min(map(factors_of, arrays.values()), key=np.prod)
    steps = [a / b for a, b in zip(factors, finest, strict=True)]
    return None if any(step < 1 for step in steps) else "-".join(str(int(step)) for step in steps)


def run(job, factors, number, url, arrays, *, has_size):
    """Do one job if it applies to the group."""
    name, mag = sorted(arrays)[number % len(arrays)], relative(factors, arrays)
    has_mag = tuple(map(float, factors)) in map(factors_of, arrays.values())
    if job == "pyramid" and mag not in (None, "1-1-1"):
        wkwdask.build_pyramid(
            url, mags=[mag], method="nearest", existing="overwrite" if has_mag else "error"
        )
    elif job == "save" and mag is not None and not has_mag and factors == MAGS[-1]:
        last = max(int(name[1:]) for name in arrays)
        wkwdask.save(LEVELS[3][::2, ::2, ::2], f"{url}/s{last + 1}", mag=mag)
    elif job == "remove" and len(arrays) > 1:
        wkwdask.rm(f"{url}/{name}")
    elif job == "rechunk":
        wkwdask.rechunk(f"{url}/{name}", chunk_shape=(8, 8, 8))
    elif job == "compress":
        wkwdask.compress(url, compression="raw")
    elif job == "upsample" and has_size and (1.0, 1.0, 1.0) not in map(factors_of, arrays.values()):
        wkwdask.upsample(url, mags=["1"], voxel_size=VOXEL_SIZE)


def is_refused(group, describe, job, arrays):
    """Return whether BigDataViewer would show a new level as another one: the list of the setup has
    other factors at its end or at the number of the level."""
    name, factors, _ = job
    listed = attributes_of(group.parent).get("downsamplingFactors", [])
    is_new = (
        name == "pyramid"
        and relative(factors, arrays) not in (None, "1-1-1")
        and tuple(map(float, factors)) not in map(factors_of, arrays.values())
    )
    return (
        describe is two_time_points
        and is_new
        and list(factors) not in listed
        and np.prod(factors) <= np.prod(listed[-1])
    )


def sizes_along(factors, axes):
    sizes = dict(zip("xyz", (a * b for a, b in zip(VOXEL_SIZE, factors, strict=True)), strict=True))
    return [sizes[axis] for axis in axes]


def check(group, describe, axes, could_open):
    """Compare what each software reads with what the levels are."""
    root, arrays = group.parents[1], arrays_in(group, axes)
    factors = {name: factors_of(array) for name, array in arrays.items()}
    sizes = {name: sizes_along(each, axes) for name, each in factors.items()}
    is_setup = describe in (bigdataviewer, two_time_points)
    try:
        found = by_neuroglancer(group, root)
    except CannotOpenError:
        has_gap = arrays.keys() != {f"s{n}" for n in range(len(arrays))}
        assert not could_open or (has_gap and (is_setup or describe is channels_of_n5_viewer)), (
            "Neuroglancer"
        )
    else:
        states_size = merged_attributes(group, root).keys() & {"resolution", "pixelResolution"}
        assert not states_size or found == {
            name: sizes[name] for name in (found if is_setup else sizes)
        }
    if describe in SIZED and describe not in (tensorstore, tensorstore_zyx, imagej):
        shown = by_n5_viewer(group)
        assert {
            name: tuple(each if axes == "xyz" else each[::-1]) for name, each in shown.items()
        } == factors
    if is_setup:
        assert by_bigdataviewer(group) == {
            name: list(each) for name, each in factors.items() if name in by_bigdataviewer(group)
        }
        if describe is two_time_points:
            assert by_bigdataviewer(group.parent / "timepoint1") == {
                f"s{n}": [1 << n] * 3 for n in range(3)
            }
        else:
            assert by_bigdataviewer(group).keys() == factors.keys()
    for name in arrays:
        place = attributes_of(group / name).get("transform", {})
        assert set(place.get("units", ())) != {"nm"} or place["scale"] == sizes_along(
            factors[name], place["axes"]
        )
    for image in attributes_of(group).get("multiscales", ()):
        assert {entry["path"] for entry in image["datasets"]} == set(arrays)
    if describe in (*SIZED, two_time_points, channels_of_n5_viewer):
        info = wkwdask.info(f"n5://{group}")
        assert {scale.key: scale.resolution for scale in info.scales} == {
            name: tuple(sizes_along(each, "xyz")) for name, each in factors.items()
        }
    return arrays


JOBS = st.tuples(
    st.sampled_from(
        ["pyramid", "pyramid", "save", "remove", "remove", "rechunk", "compress", "upsample"]
    ),
    st.sampled_from(MAGS),
    st.integers(0, 4),
)


@pytest.mark.long
@given(
    st.sampled_from([*DIALECTS, two_time_points, channels_of_n5_viewer]),
    st.lists(JOBS, min_size=1, max_size=5),
)
@example(bigdataviewer, [("pyramid", (2, 2, 1), 0)])
@example(
    two_time_points,
    [
        ("pyramid", (8, 8, 8), 0),
        ("remove", (1, 1, 1), 2),
        ("remove", (1, 1, 1), 0),
        ("pyramid", (4, 4, 4), 0),
    ],
)
@example(
    neuroglancer,
    [
        ("remove", (1, 1, 1), 1),
        ("pyramid", (16, 16, 16), 0),
        ("pyramid", (8, 8, 8), 0),
        ("pyramid", (2, 2, 2), 0),
    ],
)
@example(paintera, [("rechunk", (1, 1, 1), 1), ("remove", (1, 1, 1), 0), ("pyramid", (4, 4, 2), 0)])
@example(channels_of_n5_viewer, [("pyramid", (8, 8, 8), 0), ("pyramid", (2, 2, 1), 0)])
def test_other_software_finds_the_levels_after_each_job(describe, jobs):
    axes = "zyx" if describe.__name__.endswith("zyx") else "xyz"
    with tempfile.TemporaryDirectory() as folder, dask.config.set(scheduler="synchronous"):
        group = Path(folder) / "c.n5" / "setup0" / "timepoint0"
        describe(group)
        try:
            could_open = bool(by_neuroglancer(group, group.parents[1]))
        except CannotOpenError:
            could_open = False
        before = check(group, describe, axes, could_open)
        for job in jobs:
            refused = pytest.raises(UnsupportedError, match=r"lists \[\[1, 1, 1\], \[2")
            with refused if is_refused(group, describe, job, before) else contextlib.nullcontext():
                run(
                    *job,
                    f"n5://{group}",
                    before,
                    has_size=describe not in (no_attributes, version_alone),
                )
            after = check(group, describe, axes, could_open)
            shapes = {array.shape: array for array in before.values()}
            for array in after.values():
                np.testing.assert_array_equal(array, shapes.get(array.shape, array))
            before = after
