"""Oracle: tensorstore 0.1.86, whose ``downsample`` shares our rules for mean, mode, min, max and
(as ``stride``) nearest.

The oracle gets the array at its absolute place, so that its windows are anchored at absolute voxel
0 as ours are. It drops windows whose lowest voxel lies outside the array for ``stride``; there only
its own domain is compared. NaN is where the two are allowed to differ: see the last test.
"""

from __future__ import annotations

import numpy as np
import pytest

import wkwdask

ts = pytest.importorskip("tensorstore", reason="the oracle tensorstore 0.1.86 is not installed")

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
METHODS = {"mean": "mean", "mode": "mode", "min": "min", "max": "max", "nearest": "stride"}

# voxel size [nm], coarsest mag, the factor of each step
LADDERS = (
    ((11.24, 11.24, 28), "8-8-4", [(2, 2, 1), (2, 2, 2), (2, 2, 2)]),
    ((10, 20, 40), "8-4-2", [(2, 1, 1), (2, 2, 1), (2, 2, 2)]),
    ((40, 40, 4), "1-1-4", [(1, 1, 2), (1, 1, 2)]),
    ((40, 4, 4), "1-2-2", [(1, 2, 2)]),
    ((4, 40, 4), "4-1-4", [(2, 1, 2), (2, 1, 2)]),
    ((40, 4, 40), "1-4-1", [(1, 2, 1), (1, 2, 1)]),
    ((8, 8, 8), "16", [(2, 2, 2)] * 4),
)
# mags that jump, and the factor of each step
JUMPS = (
    (["4-4-1"], [(4, 4, 1)]),
    (["4", "8-8-4"], [(4, 4, 4), (2, 2, 1)]),
    (["2-2-1", "2-2-16"], [(2, 2, 1), (1, 1, 16)]),
    (["2-2-16", "4-4-16"], [(2, 2, 16), (2, 2, 1)]),
    (["1-1-4", "4"], [(1, 1, 4), (4, 4, 1)]),
    (["8-1-2", "8"], [(8, 1, 2), (1, 8, 4)]),
)
OFFSETS = ((0, 0, 0), (5, 3, 7), (16, 0, 15), (31, 33, 1))


def random_voxels(dtype, shape, seed):
    """Full-range noise, with a region of few values so that modes and ties are frequent, and a
    region of zeros."""
    random = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        values = (random.normal(0, 1, shape) * 10.0 ** random.integers(-3, 6, shape)).astype(dtype)
        few = np.array([-1.5, 0, 1.25, 3], dtype)
    else:
        limits = np.iinfo(dtype)
        values = random.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
        few = np.array([limits.min, 0, 1, limits.max], dtype)
    labels = few[random.integers(0, len(few), shape)]
    values[:, shape[1] // 3 :] = labels[:, shape[1] // 3 :]
    values[:, :, : shape[2] // 4] = 0
    return values


def make_dataset(folder, voxel_size, array, offset, *, block_len=8, file_len=2, layer="layer"):
    """A dataset of one layer with its finest mag."""
    wkwdask.create_dataset(folder, voxel_size)
    wkwdask.to_wkw(
        array,
        folder / layer / "1",
        offset=offset,
        block_len=block_len,
        file_len=file_len,
        compression="lz4",
        category="color",
    )


def check_ladder(folder, array, offset, factors, method):
    """Compare each mag with what the oracle makes of the mag before it."""
    expected = ts.array(array)[ts.d[:].label["x", "y", "z"].translate_to[offset]]
    mag = np.array([1, 1, 1])
    for factor in factors:
        mag = mag * factor
        reduced = ts.downsample(expected, list(factor), METHODS[method])
        domain = reduced.domain
        voxels = reduced.read().result()
        ours = wkwdask.read(folder / "layer", mag=mag.tolist())[0]
        low = np.array(offset) // mag
        assert ours.shape == tuple(-(-(np.array(offset) + array.shape) // mag) - low)
        inside = tuple(
            slice(a - b, a - b + n)
            for a, b, n in zip(domain.origin, low, domain.shape, strict=True)
        )
        np.testing.assert_array_equal(
            ours[inside], voxels, err_msg=f"{method} {mag.tolist()} at {offset}"
        )
        if method != "nearest":
            assert voxels.shape == ours.shape
        # The oracle starts from our own mag, so that a window that it dropped is there in the next;
        # it sums floats in the order of the memory.
        expected = ts.array(np.ascontiguousarray(ours))[
            ts.d[:].label["x", "y", "z"].translate_to[low.tolist()]
        ]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_and_method(tmp_path, dtype, method):
    seed = DTYPES.index(dtype)
    voxel_size, coarsest, factors = LADDERS[0]
    offset = OFFSETS[seed % len(OFFSETS)]
    array = random_voxels(dtype, (37, 29, 23), seed)
    make_dataset(tmp_path / "ds", voxel_size, array, offset)
    wkwdask.build_pyramid(tmp_path / "ds", method=method, coarsest=coarsest)
    check_ladder(tmp_path / "ds", array, offset, factors, method)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize(("voxel_size", "coarsest", "factors"), LADDERS)
def test_every_factor_and_offset(tmp_path, voxel_size, coarsest, factors, offset):
    for n, (method, dtype) in enumerate(
        (("mean", "uint8"), ("mode", "uint32"), ("nearest", "int16"))
    ):
        array = random_voxels(dtype, (33, 18, 41), n)
        folder = tmp_path / method
        make_dataset(folder, voxel_size, array, offset)
        wkwdask.build_pyramid(folder, method=method, coarsest=coarsest)
        check_ladder(folder, array, offset, factors, method)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("mags", "factors"), JUMPS)
def test_jumps(tmp_path, mags, factors, method):
    """Windows longer than 2. The array is so long that the box cuts no window on both sides: what
    the oracle makes of such a window is not its value."""
    for n, (dtype, offset) in enumerate(
        zip(("uint8", "int64", "float32"), OFFSETS[1:], strict=True)
    ):
        array = random_voxels(dtype, (37, 42, 51), n)
        folder = tmp_path / dtype
        make_dataset(folder, (8, 8, 8), array, offset)
        wkwdask.build_pyramid(folder, method=method, mags=mags)
        check_ladder(folder, array, offset, factors, method)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "factor", [(4, 4, 1), (4, 4, 4), (2, 2, 16), (1, 1, 2), (2, 1, 1), (1, 2, 2), (16, 8, 4)]
)
def test_whole_windows(tmp_path, factor, dtype, method):
    """To the bit."""
    array = random_voxels(dtype, [n * f for n, f in zip((3, 5, 2), factor, strict=True)], 3)
    make_dataset(tmp_path / "ds", (8, 8, 8), array, (0, 0, 0), file_len=8)
    wkwdask.build_pyramid(tmp_path / "ds", mags=[factor], method=method)
    out = wkwdask.read(tmp_path / "ds", mag=factor)[0]
    expected = (
        ts.downsample(ts.array(np.ascontiguousarray(array)), list(factor), METHODS[method])
        .read()
        .result()
    )
    assert out.tobytes() == expected.tobytes()


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 1, 3), (1, 40, 2), (65, 3, 5)])
@pytest.mark.parametrize("method", METHODS)
def test_thin_arrays(tmp_path, shape, method):
    random = np.random.default_rng(7)
    array = random.integers(0, 200, shape, dtype=np.uint16)
    make_dataset(tmp_path / "ds", (8, 8, 8), array, (7, 9, 31))
    coarsest = "8-8-1" if shape[2] == 1 else "8"
    wkwdask.build_pyramid(tmp_path / "ds", method=method, coarsest=coarsest)
    factors = [(2, 2, 1)] * 3 if shape[2] == 1 else [(2, 2, 2)] * 3
    check_ladder(tmp_path / "ds", array, (7, 9, 31), factors, method)


def test_large_regions_in_several_tasks(tmp_path):
    """Several regions, parts that are joined, and whole files in Morton order, in one pyramid."""
    array = random_voxels("uint8", (300, 150, 170), 5)
    offset = (119, 60, 250)
    make_dataset(tmp_path / "ds", (8, 8, 8), array, offset, block_len=16, file_len=8)
    wkwdask.build_pyramid(tmp_path / "ds", method="mean", coarsest=16)
    check_ladder(tmp_path / "ds", array, offset, [(2, 2, 2)] * 4, "mean")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nan(tmp_path, dtype):
    """NaN propagates in mean, as in the oracle. In min and max it does here too, at any position;
    the oracle's comparisons depend on the order."""
    array = np.arange(8, dtype=dtype).reshape(2, 2, 2)
    for place in range(8):
        damaged = array.copy()
        damaged.flat[place] = np.nan
        for method in ("mean", "min", "max", "median"):
            folder = tmp_path / f"{method}{place}"
            make_dataset(folder, (8, 8, 8), damaged, (0, 0, 0), block_len=4, file_len=1)
            wkwdask.build_pyramid(folder, method=method, coarsest=2)
            assert np.isnan(wkwdask.read(folder / "layer" / "2")).all(), (method, place)
    expected = ts.downsample(ts.array(damaged), [2, 2, 2], "mean").read().result()
    assert np.isnan(expected).all()


def test_mode_ignores_nan(tmp_path):
    array = np.full((2, 2, 2), np.nan, np.float32)
    array[1, 1, :] = 5
    make_dataset(tmp_path / "ds", (8, 8, 8), array, (0, 0, 0), block_len=4, file_len=1)
    wkwdask.build_pyramid(tmp_path / "ds", method="mode", coarsest=2)
    assert wkwdask.read(tmp_path / "ds" / "layer" / "2").item() == 5
