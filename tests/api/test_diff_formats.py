"""WKW compared with arrays and images of other formats."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

import wkwdask
from wkwdask.errors import MissingError


@pytest.fixture
def values():
    return np.random.default_rng(5).integers(0, 60000, (40, 30, 20)).astype(np.uint16)


@pytest.fixture
def mag(tmp_path, values):
    wkwdask.create_dataset(tmp_path / "ds", (4, 4, 4))
    wkwdask.write(tmp_path / "ds" / "color" / "1", (5, 6, 7), values, block_len=8, file_len=2)
    return tmp_path / "ds" / "color" / "1"


@pytest.mark.parametrize("dtype", ["<u2", ">u2"])
@pytest.mark.parametrize("order", [True, False])
def test_an_array(tmp_path, mag, values, dtype, order):
    np.save(tmp_path / "a.npy", values.T.astype(dtype))
    pair = (mag, tmp_path / "a.npy") if order else (tmp_path / "a.npy", mag)
    assert wkwdask.diff(*pair).equal
    values[3, 4, 5] += 1
    np.save(tmp_path / "a.npy", values.T.astype(dtype))
    (volume,) = wkwdask.diff(*pair).volumes
    assert volume.voxels_different == 1
    assert volume.listed[0].voxel == (8, 10, 12)


def test_sections(tmp_path, mag, values):
    (tmp_path / "sections").mkdir()
    for z in range(values.shape[2]):
        Image.fromarray(np.ascontiguousarray(values[:, :, z].T)).save(
            tmp_path / "sections" / f"{z}.png"
        )
    assert wkwdask.diff(tmp_path / "sections", mag).equal
    assert wkwdask.diff(mag, tmp_path / "sections", bounding_box=(10, 10, 10, 5, 5, 5)).equal


def test_what_does_not_fit(tmp_path, mag, values):
    np.save(tmp_path / "a.npy", values.T.astype(np.uint32))
    (volume,) = wkwdask.diff(mag, tmp_path / "a.npy").volumes
    assert volume.mismatches == ("uint16 and uint32: voxels are not compared",)
    np.save(tmp_path / "a.npy", values.T[:-1])
    (volume,) = wkwdask.diff(mag, tmp_path / "a.npy").volumes
    assert "boxes" in volume.mismatches[0]
    with pytest.raises(MissingError):
        wkwdask.diff(mag, tmp_path / "nothing")


def test_images_of_zarr_by_their_path(tmp_path, mag, values):
    """They say where each of their arrays lies, and are compared with the mag that they have."""
    pytest.importorskip(
        "zarr", minversion="3.1.4", reason="zarr, of the extra zarr, is not installed"
    )
    wkwdask.build_pyramid(tmp_path / "ds", layer="color", mags="2-2-1", block_len=8, file_len=2)
    wkwdask.convert(tmp_path / "ds", tmp_path / "em.ome.zarr", layer="color")
    for pair in ((tmp_path / "em.ome.zarr", mag.parent), (mag.parent, tmp_path / "em.ome.zarr")):
        found = wkwdask.diff(*pair)
        assert found.equal
        assert len(found.volumes) == 2
    coarse = wkwdask.diff(tmp_path / "em.ome.zarr", mag.parent / "2-2-1")
    assert coarse.equal
    assert coarse.voxels_compared
