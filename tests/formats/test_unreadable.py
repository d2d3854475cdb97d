"""What may not be read is an error that names it, and never absent."""

import json
import re

import numpy as np
import pytest
from support.other_user import nobody, public_folder

import wkwdask

VOXELS = np.arange(16**3, dtype=np.uint16).reshape(16, 16, 16)


@pytest.mark.parametrize("hidden", ["1", "1/header.wkw"])
def test_a_coarser_mag_does_not_replace_an_unreadable_one(hidden):
    with public_folder() as folder:
        layer = folder / "color"
        wkwdask.write(layer / "1", (0, 0, 0), VOXELS, block_len=8)
        wkwdask.build_pyramid(layer, method="mean", mags=[2, 4])
        assert [level.mag.name for level in wkwdask.info(layer).layers[0].mags] == ["1", "2", "4"]
        (layer / hidden).chmod(0)
        with nobody():
            with pytest.raises(PermissionError, match=r"color/1/header\.wkw"):
                wkwdask.read(layer)
            levels = wkwdask.info(layer).layers[0].mags
            assert wkwdask.read(layer, mag=2).shape == (1, 8, 8, 8)
        assert [level.mag.name for level in levels] == ["1", "2", "4"]
        assert "Permission denied" in levels[0].problem


def test_an_unreadable_info_is_that_of_a_volume():
    with public_folder() as folder:
        wkwdask.to_precomputed(VOXELS, folder / "em", voxel_size=(4, 4, 40))
        (folder / "em" / "info").chmod(0)
        with nobody(), pytest.raises(PermissionError, match="em/info"):
            wkwdask.open(folder / "em")


def test_a_link_to_a_missing_mag_is_listed(tmp_path):
    layer = tmp_path / "color"
    wkwdask.write(layer / "2", (0, 0, 0), VOXELS, block_len=8)
    (layer / "1").symlink_to(tmp_path / "unmounted" / "1")
    levels = wkwdask.info(layer).layers[0].mags
    assert [(level.mag.name, bool(level.problem)) for level in levels] == [
        ("1", True),
        ("2", False),
    ]
    assert not wkwdask.verify(layer).is_sound
    with pytest.raises(wkwdask.MissingError, match=r"color/1/header\.wkw: not found"):
        wkwdask.read(layer, mag=1)


@pytest.mark.parametrize(
    ("name", "document", "member"),
    [
        ("em", "info", "size"),
        pytest.param("em.ome.zarr", "1/zarr.json", "fill_value", marks=pytest.mark.needs("zarr")),
    ],
)
def test_a_coarser_level_does_not_replace_a_damaged_one(tmp_path, name, document, member):
    image, path = tmp_path / name, tmp_path / name / document
    wkwdask.save(VOXELS, image if "." in name else f"precomputed://{image}", voxel_size=(4, 4, 4))
    wkwdask.build_pyramid(image, coarsest=2)
    coarse = wkwdask.read(image, mag=2)
    content = json.loads(path.read_text())
    damaged = content["scales"][0] if "scales" in content else content
    damaged[member] = "damaged"
    path.write_text(json.dumps(content))
    for call in (
        lambda: wkwdask.read(image),
        lambda: wkwdask.convert(image, tmp_path / "out"),
        lambda: wkwdask.apply(np.max, image),
        lambda: wkwdask.build_pyramid(image, coarsest=4),
    ):
        with pytest.raises(wkwdask.FormatError, match=f"{re.escape(str(path))}: .*{member}"):
            call()
    np.testing.assert_array_equal(wkwdask.read(image, mag=2), coarse)
