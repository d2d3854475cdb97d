"""Levels whose voxel sizes were derived from rounded shapes are levels of powers of two."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.n5_volumes import write_attributes, write_dataset

import wkwdask
from wkwdask.geometry.mag import Mag
from wkwdask.model.levels import factors_by_shapes, mag_from_ratio

SIZES = [(45, 37, 25), (22, 18, 12), (11, 9, 6), (5, 4, 3)]  # x, y, z, rounded down
FINEST = (4.0, 4.0, 40.0)


def derived():
    """Return the voxel size of each level as ome-zarr-py states it."""
    return [
        [length * whole / n for length, whole, n in zip(FINEST, SIZES[0], size, strict=True)]
        for size in SIZES
    ]


def check(url):
    scales = wkwdask.info(url).scales
    assert [scale.mag for scale in scales] == [
        Mag(1, 1, 1),
        Mag(2, 2, 2),
        Mag(4, 4, 4),
        Mag(8, 8, 8),
    ]
    for number, size in enumerate(SIZES):
        level = wkwdask.open(url, mag=2**number)
        assert level.shape == (1, *size)
        assert (level == number + 1).all()


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_ome_zarr(tmp_path, version):
    zarr = pytest.importorskip("zarr", reason="the extra zarr")
    group = zarr.create_group(str(tmp_path / "a"), zarr_format=2 if version == "0.4" else 3)
    datasets = []
    for number, (size, lengths) in enumerate(zip(SIZES, derived(), strict=True)):
        group.create_array(str(number), shape=size[::-1], dtype="u1", chunks=(8, 8, 8))[...] = (
            number + 1
        )
        datasets.append(
            {
                "path": str(number),
                "coordinateTransformations": [{"type": "scale", "scale": lengths[::-1]}],
            }
        )
    axes = [{"name": axis, "type": "space", "unit": "nanometer"} for axis in "zyx"]
    image = {"axes": axes, "datasets": datasets}
    group.attrs.update(
        {"multiscales": [{"version": "0.4", **image}]}
        if version == "0.4"
        else {"ome": {"version": "0.5", "multiscales": [image]}}
    )
    check(f"zarr://{tmp_path}/a")
    assert wkwdask.verify(f"zarr://{tmp_path}/a").is_sound
    report = wkwdask.convert(f"zarr://{tmp_path}/a", tmp_path / "ds", layer="color")
    assert [Mag.parse(Path(mag.path).name) for mag in report.mags] == [
        Mag(1, 1, 1),
        Mag(2, 2, 2),
        Mag(4, 4, 4),
        Mag(8, 8, 8),
    ]


def test_n5(tmp_path):
    for number, (size, lengths) in enumerate(zip(SIZES, derived(), strict=True)):
        transform = {
            "axes": ["z", "y", "x"],
            "scale": lengths[::-1],
            "translate": [0, 0, 0],
            "units": ["nm"] * 3,
        }
        write_dataset(
            tmp_path / "a" / f"s{number}",
            np.full(size, number + 1, np.uint8),
            (8, 8, 8),
            transform=transform,
        )
    write_attributes(tmp_path / "a", n5="4.0.0")
    check(f"n5://{tmp_path}/a")


def test_precomputed(tmp_path):
    scales = []
    for number, (size, lengths) in enumerate(zip(SIZES, derived(), strict=True)):
        scales.append(
            {
                "key": str(number),
                "size": size,
                "resolution": lengths,
                "voxel_offset": [0, 0, 0],
                "chunk_sizes": [[64, 64, 64]],
                "encoding": "raw",
            }
        )
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "_".join(f"0-{n}" for n in size)).write_bytes(
            bytes([number + 1]) * int(np.prod(size))
        )
    info = {
        "@type": "neuroglancer_multiscale_volume",
        "type": "image",
        "data_type": "uint8",
        "num_channels": 1,
        "scales": scales,
    }
    (tmp_path / "info").write_text(json.dumps(info))
    check(f"precomputed://{tmp_path}")


@given(st.integers(16, 10**6), st.integers(0, 4), st.booleans())
def test_every_rounded_length_is_understood(length, power, rounds_up):
    factor = 2**power
    coarser = -(-length // factor) if rounds_up else length // factor
    (found,) = factors_by_shapes([(length / coarser, 1.0, 1.0)], (length, 1, 1), [(coarser, 1, 1)])
    assert mag_from_ratio(found) in (
        Mag(factor, 1, 1),
        Mag(factor // 2 or 1, 1, 1),
        Mag(factor * 2, 1, 1),
    )
    if coarser >= 4:
        assert mag_from_ratio(found) == Mag(factor, 1, 1)


@pytest.mark.parametrize("ratio", [3.0, 2.5, 6.0])
def test_ratios_that_no_rounding_explains_have_no_mag(ratio):
    (found,) = factors_by_shapes([(ratio, 1.0, 1.0)], (ratio * 100, 1, 1), [(100, 1, 1)])
    assert mag_from_ratio(found) is None


def test_whole_factors_are_kept_beside_another_one():
    # 27 // 8 is 3 too, but a pyramid of 3 has no level of 8
    stated = [(1.0, 1.0, 1.0), (3.0, 3.0, 1.0), (9.0, 9.0, 1.0)]
    assert factors_by_shapes(stated, (27, 27, 9), [(27, 27, 9), (9, 9, 9), (3, 3, 9)]) == stated
    # along another axis
    assert factors_by_shapes([(5.0, 5.0, 5.0)], (100, 100, 10), [(20, 20, 2)]) == [(5.0,) * 3]


def write_ngff(path, stated):
    zarr = pytest.importorskip("zarr", reason="the extra zarr")
    group = zarr.create_group(str(path), zarr_format=2)
    datasets = []
    for name, (size, lengths) in stated.items():
        group.create_array(name, shape=size[::-1], dtype="u1", chunks=(8, 8, 8))
        step = {"type": "scale", "scale": lengths[::-1]}
        datasets.append({"path": name, "coordinateTransformations": [step]})
    axes = [{"name": axis, "type": "space", "unit": "nanometer"} for axis in "zyx"]
    group.attrs["multiscales"] = [{"version": "0.4", "axes": axes, "datasets": datasets}]


def write_n5(path, stated):
    for name, (size, lengths) in stated.items():
        axes = {"axes": ["z", "y", "x"], "units": ["nm"] * 3, "translate": [0, 0, 0]}
        voxels = np.ones(size, np.uint8)
        write_dataset(path / name, voxels, (8, 8, 8), transform={**axes, "scale": lengths[::-1]})
    write_attributes(path, n5="4.0.0")


def write_precomputed(path, stated):
    scales = [
        {
            "key": name,
            "size": size,
            "resolution": lengths,
            "chunk_sizes": [[64, 64, 64]],
            "encoding": "raw",
        }
        for name, (size, lengths) in stated.items()
    ]
    info = {"type": "image", "data_type": "uint8", "num_channels": 1, "scales": scales}
    path.mkdir()
    (path / "info").write_text(json.dumps(info))


@pytest.mark.parametrize("write", [write_ngff, write_n5, write_precomputed])
def test_levels_of_a_pyramid_of_three_are_none_of_a_power_of_two(tmp_path, write):
    sizes = [(63, 45, 18), (21, 15, 6), (7, 5, 2)]
    stated = {f"s{n}": (size, [length * 3**n for length in FINEST]) for n, size in enumerate(sizes)}
    write(tmp_path / "a", stated)
    scales = wkwdask.info(tmp_path / "a").scales
    assert [scale.mag for scale in scales] == [Mag(1, 1, 1), None, None]
    assert [scale.resolution for scale in scales] == [tuple(each) for _, each in stated.values()]
