"""The volumes that all tools read: real data, written once by the reference library into a temporary folder."""

from __future__ import annotations

import importlib.util
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .works.base import read_mag

if TYPE_CHECKING:
    import numpy as np

DATA_VARIABLE = "WKWDASK_TEST_DATA"
LAYERS = ("em", "seg")
_CATEGORIES = {"em": "color", "seg": "segmentation"}
_BLOCK_LEN = 32
_LARGEST = 512


@dataclass(frozen=True)
class Data:
    """Working copies of both volumes."""

    folder: Path
    """Where everything is."""
    size: int
    """Edge of the volumes [voxels]."""

    def dataset(self, layer: str) -> str:
        """Name the dataset of a volume; its layer has the same name."""
        return str(self.folder / f"dataset-{layer}")

    def mag(self, layer: str) -> str:
        """Name the mag of a volume."""
        return f"{self.dataset(layer)}/{layer}/1"

    def fresh(self, name: str) -> str:
        """Name a folder for one unit's own use."""
        return str(self.folder / "work" / name)


def data_folder() -> Path:
    """Find the real data: ``WKWDASK_TEST_DATA``, else ``shared/data`` beside the repository.

    Raises
    ------
    FileNotFoundError
        There is none.
    """
    chosen = os.environ.get(DATA_VARIABLE)
    folder = Path(chosen) if chosen else Path(__file__).resolve().parents[3] / "shared" / "data"
    if not (folder / "make_em.py").is_file():
        raise FileNotFoundError(f"{folder}: no make_em.py here; set {DATA_VARIABLE} to the folder with the real data")
    return folder


def real_volumes(size: int) -> dict[str, np.ndarray]:
    """Make the EM volume and read the segmentation, both cubes in Fortran order."""
    if not 64 <= size <= _LARGEST or size & (size - 1):
        raise ValueError(f"size must be 64, 128, 256 or 512, got {size}")
    folder = data_folder()
    spec = importlib.util.spec_from_file_location("make_em", folder / "make_em.py")
    make_em = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_em)
    return {"em": make_em.volume(size), "seg": read_mag(folder / "connectomics_seg", size)[0]}


def prepare(folder: Path, volumes: dict[str, np.ndarray]) -> Data:
    """Write both volumes as WKW datasets: LZ4, blocks of 32 voxels, one file.

    Parameters
    ----------
    folder : Path
        Where they go.
    volumes : dict
        The cubes ``em`` and ``seg``, of one size.

    Returns
    -------
    Data
    """
    data = Data(folder, volumes["em"].shape[0])
    for layer, voxels in volumes.items():
        mag = Path(data.mag(layer))
        mag.parent.mkdir(parents=True)
        _write(str(mag), voxels)
        record = _record(layer, voxels)
        (mag.parents[1] / "datasource-properties.json").write_text(json.dumps(record, indent=1))
    return data


def _write(path: str, voxels: np.ndarray) -> None:
    """Write a cube as one LZ4 file with the reference library, or with wkwdask where that is not installed."""
    file_len = voxels.shape[0] // _BLOCK_LEN
    try:
        import wkw
    except ImportError:
        import wkwdask

        wkwdask.write(path, (0, 0, 0), voxels, block_len=_BLOCK_LEN, file_len=file_len, compression="lz4")
        return
    header = wkw.Header(voxels.dtype.type, block_len=_BLOCK_LEN, file_len=file_len, block_type=wkw.Header.BLOCK_TYPE_LZ4)
    with wkw.Dataset.create(path, header) as dataset:
        dataset.write((0, 0, 0), voxels)


def _record(layer: str, voxels: np.ndarray) -> dict[str, Any]:
    """Describe a dataset of one layer in the words of WEBKNOSSOS."""
    width, height, depth = voxels.shape
    record = {
        "name": layer,
        "category": _CATEGORIES[layer],
        "boundingBox": {"topLeft": [0, 0, 0], "width": width, "height": height, "depth": depth},
        "elementClass": voxels.dtype.name,
        "dataFormat": "wkw",
        "numChannels": 1,
        "wkwResolutions": [{"resolution": [1, 1, 1], "cubeLength": width}],
    }
    if layer == "seg":
        record |= {"largestSegmentId": int(voxels.max()), "mappings": []}
    return {"id": {"name": layer, "team": ""}, "scale": {"factor": [16.0, 16.0, 16.0], "unit": "nanometer"}, "dataLayers": [record]}


def write_cube(data: Data, name: str, size: int) -> str:
    """Write the segmentation as another cube, cut or repeated, one file whatever its size; give the layer's folder."""
    import dask
    import dask.array as da

    import wkwdask

    array = wkwdask.open(data.mag("seg"))
    copies = -(-size // data.size)
    array = da.tile(array, (1, copies, copies, copies))[:, :size, :size, :size]
    layer = data.folder / "cubes" / name
    with dask.config.set(scheduler="synchronous"):
        wkwdask.to_wkw(array, layer / "1", block_len=_BLOCK_LEN, file_len=size // _BLOCK_LEN, compression="lz4", category="segmentation")
    return str(layer)
