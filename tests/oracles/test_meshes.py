"""cloud-volume reads every fragment that this package writes."""

from __future__ import annotations

import numpy as np
import pytest
from support.mesh_files import num_levels, read_level, volume

import wkwdask

pytestmark = pytest.mark.needs("zmesh", "DracoPy", "pyfqmr", "cloudvolume")
LENGTHS = (8.0, 6.0, 30.0)
LARGE = 2**53 + 1


@pytest.fixture(scope="module", params=[True, False], ids=["sharded", "unsharded"])
def folder(tmp_path_factory, request):
    """Two tubes through several cells, one of them with an id that no double can hold."""
    folder = tmp_path_factory.mktemp("meshes") / "volume"
    x, y, z = np.ogrid[:90, :40, :30]
    labels = np.zeros((90, 40, 30), np.uint64)
    labels[((y - 12) ** 2 + (z - 12) ** 2 < 50) & (x > 5)] = LARGE
    labels[((y - 28) ** 2 + (z - 16) ** 2 < 40) & (x < 60)] = 7
    url = f"precomputed://{folder}"
    wkwdask.save(labels, url, offset=(-20, 1000, 3), voxel_size=LENGTHS, category="segmentation")
    wkwdask.meshes(url, cell=16, sharded=request.param)
    return folder


@pytest.mark.parametrize(("label", "levels"), [(7, 3), (LARGE, 4)])
def test_cloud_volume_reads_all_levels(folder, label, levels):
    from cloudvolume import CloudVolume

    opened = CloudVolume(f"file://{folder}")
    assert opened.info["mesh"] == "mesh"
    assert num_levels(folder / "mesh", label) == levels
    for lod in range(levels):
        found = opened.mesh.get(label, lod=lod, concat=True)[label].consolidate()
        vertices, faces = read_level(folder / "mesh", label, lod)
        assert len(found.faces) == len(faces)
        size = volume(found.vertices.astype(float), found.faces)
        assert size == pytest.approx(volume(vertices, faces), rel=1e-4)
        for end in (np.min, np.max):
            np.testing.assert_allclose(
                end(found.vertices, axis=0), end(vertices, axis=0), atol=0.05
            )
