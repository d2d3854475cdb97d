"""The volumes that all tools read: real data, written by the reference library into a temporary
folder when a row needs them."""

from __future__ import annotations

import importlib.util
import json
import os
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .works.base import read_mag

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Vec3 = tuple[int, int, int]

DATA_VARIABLE = "WKWDASK_TEST_DATA"
LAYERS = ("em", "seg")
ITEMSIZE = {"em": 1, "seg": 4}
BLOCK_LEN = 32
SMALLEST, LARGEST_REAL, LARGEST = 64, 512, 1024
_CATEGORIES = {"em": "color", "seg": "segmentation"}
_GRID = 16
_OCCUPIED = 41  # 1 % of the files of the grid


@dataclass(frozen=True)
class Data:
    """Folder and size of all volumes."""

    folder: Path
    """Where everything is."""
    size: int
    """Edge of the volume of the pyramids [voxels]."""

    @property
    def real_size(self) -> int:
        """Edge of the volumes that are as they were recorded [voxels]: what reads are measured
        on."""
        return min(self.size, LARGEST_REAL)

    def cube(
        self,
        layer: str,
        edge: int | None = None,
        file_vx: int | None = None,
        compression: str = "lz4",
    ) -> Cube:
        """Describe a volume, by default as it was recorded and in one file."""
        edge = self.real_size if edge is None else edge
        return Cube(self, layer, edge, edge if file_vx is None else file_vx, compression)

    def scattered(self, *, dense: bool) -> Scattered:
        """Describe a volume most of whose files are absent, or a dense one that holds the same
        files."""
        return Scattered(self, max(BLOCK_LEN, self.size // 4), dense)

    def fresh(self, name: str) -> str:
        """Name a folder for one unit's own use."""
        return str(self.work / name.replace("/", "-"))

    @property
    def work(self) -> Path:
        """The folder of all units' own folders, removed after every row."""
        return self.folder / "work"

    @property
    def shared(self) -> Path:
        """The folder of files that the works of several rows read, kept until all is measured."""
        return self.folder / "shared"


@dataclass(frozen=True)
class Cube:
    """Real data as a WKW dataset of one layer: blocks of 32 voxels."""

    data: Data
    """All volumes."""
    layer: str
    """``em`` or ``seg``; the layer has this name too."""
    edge: int
    """Length along x, y and z [voxels]; beyond that of the real data it is mirrored, below it the
    lower corner is taken."""
    file_vx: int
    """Edge of its files [voxels]."""
    compression: str = "lz4"
    """``lz4``, ``lz4hc`` or ``raw``."""

    @property
    def dataset(self) -> str:
        """The dataset's folder."""
        return str(
            self.data.folder
            / f"{self.layer}-{self.edge}-in-files-of-{self.file_vx}-{self.compression}"
        )

    @property
    def mag(self) -> str:
        """The mag's folder."""
        return f"{self.dataset}/{self.layer}/1"

    @property
    def nbytes(self) -> int:
        """Bytes of all voxels."""
        return self.edge**3 * ITEMSIZE[self.layer]

    def make(self) -> None:
        """Write it from the real data, if it is not there."""
        if not Path(self.dataset).is_dir():
            real = self.data.cube(self.layer)
            self.write(_resized(read_mag(real.mag, real.edge)[0], self.edge))

    def write(self, voxels: np.ndarray) -> None:
        """Write these voxels as the dataset."""
        _write_wkw(self.mag, self.file_vx, voxels.dtype, [((0, 0, 0), voxels)], self.compression)
        record = _layer_record(
            self.layer, _CATEGORIES[self.layer], voxels, voxels.shape, self.file_vx
        )
        _write_json(Path(self.dataset), record)


@dataclass(frozen=True)
class Slab:
    """Real data that is one block thick, mirrored along x and y, in one WKW file."""

    data: Data
    """All volumes."""
    layer: str
    """``em`` or ``seg``."""

    @property
    def edge(self) -> int:
        """Length along x and y [voxels]."""
        return 2 * self.data.size

    @property
    def mag(self) -> str:
        """The mag's folder."""
        return str(self.data.folder / f"slab-{self.layer}-{self.edge}" / self.layer / "1")

    def make(self) -> None:
        """Write it from the real data by wkwdask, if it is not there: wkw writes whole cubes."""
        if Path(self.mag).is_dir():
            return
        import wkwdask

        real = self.data.cube(self.layer)
        voxels = read_mag(real.mag, real.edge)[0][:, :, :BLOCK_LEN]
        more = (0, self.edge - real.edge)
        mirrored = np.asfortranarray(np.pad(voxels, (more, more, (0, 0)), "symmetric"))
        wkwdask.write(
            self.mag,
            (0, 0, 0),
            mirrored,
            file_len=self.edge // BLOCK_LEN,
            compression="lz4",
            voxel_size=(4, 4, 4),
        )


@dataclass(frozen=True)
class Scattered:
    """41 files of uint8 labels, real ones, scattered over a grid of 16 by 16 by 16 files or side by
    side."""

    data: Data
    """All volumes."""
    file_vx: int
    """Edge of its files [voxels]."""
    dense: bool
    """Whether the files are side by side."""

    layer = "labels"

    @property
    def dataset(self) -> str:
        """The dataset's folder."""
        return str(self.data.folder / f"labels-{'dense' if self.dense else 'sparse'}")

    @property
    def nbytes(self) -> int:
        """Bytes of the voxels of all existing files."""
        return _OCCUPIED * self.file_vx**3

    @property
    def grid(self) -> tuple[int, int, int]:
        """Files along x, y, z that the layer's box spans."""
        return (4, 4, 3) if self.dense else (_GRID, _GRID, _GRID)

    def files(self) -> list[tuple[int, int, int]]:
        """Return the index of every file."""
        every = list(product(*map(range, self.grid)))
        if self.dense:
            return every[:_OCCUPIED]
        return [
            every[n] for n in np.random.default_rng(5).choice(len(every), _OCCUPIED, replace=False)
        ]

    def make(self) -> None:
        """Write it from the real segmentation, if it is not there."""
        if Path(self.dataset).is_dir():
            return
        real = self.data.cube("seg")
        labels = (read_mag(real.mag, real.edge)[0] & 0xFF).astype(np.uint8)
        step = self.file_vx
        parts = [
            tuple(slice(at, at + step) for at in corner)
            for corner in product(range(0, real.edge, step), repeat=3)
        ]
        files = (
            (tuple(i * step for i in index), np.asfortranarray(labels[parts[n % len(parts)]]))
            for n, index in enumerate(self.files())
        )
        _write_wkw(f"{self.dataset}/{self.layer}/1", step, labels.dtype, files)
        _write_json(
            Path(self.dataset),
            _layer_record(self.layer, "segmentation", labels, [n * step for n in self.grid], step),
        )


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
        raise FileNotFoundError(
            f"{folder}: no make_em.py here; set {DATA_VARIABLE} to the folder with the real data"
        )
    return folder


def check_size(size: int) -> None:
    """Make sure that volumes of a size can be made.

    Raises
    ------
    ValueError
        They cannot.
    """
    if not SMALLEST <= size <= LARGEST or size & (size - 1):
        raise ValueError(f"size must be a power of two from {SMALLEST} to {LARGEST}, got {size}")


def real_volumes(size: int) -> dict[str, np.ndarray]:
    """Make the EM volume and read the segmentation, both cubes in Fortran order, of at most 512
    voxels along an edge."""
    folder = data_folder()
    spec = importlib.util.spec_from_file_location("make_em", folder / "make_em.py")
    make_em = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_em)
    edge = min(size, LARGEST_REAL)
    return {"em": make_em.volume(edge), "seg": read_mag(folder / "connectomics_seg", edge)[0]}


def prepare(folder: Path, size: int, volumes: dict[str, np.ndarray]) -> Data:
    """Write the real data, from which all other volumes are made.

    Parameters
    ----------
    folder : Path
        Where they go.
    size : int
        Edge of the volume of the pyramids [voxels].
    volumes : dict
        The cubes ``em`` and ``seg``, at least as large as the volumes that reads are measured on;
        of larger ones, the lower corners are taken.

    Returns
    -------
    Data
    """
    data = Data(folder, size)
    for layer, voxels in volumes.items():
        data.cube(layer).write(_resized(voxels, data.real_size))
    return data


def _resized(voxels: np.ndarray, edge: int) -> np.ndarray:
    """Cut a cube, or mirror it at its upper borders until it is large enough."""
    have = voxels.shape[0]
    if edge <= have:
        return np.asfortranarray(voxels[:edge, :edge, :edge])
    out = np.empty((edge,) * 3, voxels.dtype, order="F")
    for corner in product(range(0, edge, have), repeat=3):
        flips = tuple(slice(None, None, -1 if at // have % 2 else 1) for at in corner)
        out[tuple(slice(at, at + have) for at in corner)] = voxels[flips]
    return out


def _write_wkw(
    path: str,
    file_vx: int,
    dtype: np.dtype,
    parts: Iterable[tuple[Vec3, np.ndarray]],
    compression: str = "lz4",
) -> None:
    """Write whole files with the reference library, or with wkwdask where that is not installed and
    there is one part.

    Parameters
    ----------
    path : str
        The mag's folder.
    file_vx : int
        Edge of a file [voxels].
    dtype : dtype
        Type of the voxels.
    parts : iterable of (corner, ndarray)
        Lowest voxel, and the voxels of one file or of several.
    compression : str
        Block type.
    """
    Path(path).parent.mkdir(parents=True)
    file_len = file_vx // BLOCK_LEN
    try:
        import wkw
    except ImportError:
        import wkwdask

        ((corner, voxels),) = parts
        wkwdask.write(
            path, corner, voxels, block_len=BLOCK_LEN, file_len=file_len, compression=compression
        )
        return
    block_types = {
        "raw": wkw.Header.BLOCK_TYPE_RAW,
        "lz4": wkw.Header.BLOCK_TYPE_LZ4,
        "lz4hc": wkw.Header.BLOCK_TYPE_LZ4HC,
    }
    header = wkw.Header(
        dtype.type, block_len=BLOCK_LEN, file_len=file_len, block_type=block_types[compression]
    )
    with wkw.Dataset.create(path, header) as dataset:
        for corner, voxels in parts:
            dataset.write(corner, voxels)


def _layer_record(
    layer: str, category: str, voxels: np.ndarray, shape: Sequence[int], file_vx: int
) -> dict[str, Any]:
    """Describe a layer of voxels such as these in the words of WEBKNOSSOS."""
    width, height, depth = shape
    record = {
        "name": layer,
        "category": category,
        "boundingBox": {"topLeft": [0, 0, 0], "width": width, "height": height, "depth": depth},
        "elementClass": voxels.dtype.name,
        "dataFormat": "wkw",
        "numChannels": 1,
        "wkwResolutions": [{"resolution": [1, 1, 1], "cubeLength": file_vx}],
    }
    return record | (
        {"largestSegmentId": int(voxels.max()), "mappings": []}
        if category == "segmentation"
        else {}
    )


def _write_json(dataset: Path, layer: dict[str, Any]) -> None:
    """Describe a dataset of one layer."""
    record = {
        "id": {"name": layer["name"], "team": ""},
        "scale": {"factor": [16.0, 16.0, 16.0], "unit": "nanometer"},
        "dataLayers": [layer],
    }
    (dataset / "datasource-properties.json").write_text(json.dumps(record, indent=1))
