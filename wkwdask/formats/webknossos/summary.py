"""What is in a dataset: the numbers behind ``wkwdask info``."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from wkwdask.errors import UnsupportedError, WkwDaskError
from wkwdask.formats.record_paths import external_location
from wkwdask.formats.webknossos.dataset import is_arrays_layer, locate, open_arrays, read_datasource
from wkwdask.formats.wkw.array import open_mag
from wkwdask.formats.wkw.folder import file_path, list_files
from wkwdask.formats.wkw.layout import header_of
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import Mag
from wkwdask.model.voxel_type import element_class
from wkwdask.store import files

if TYPE_CHECKING:
    import os

    from wkwdask.model.image import Image


@dataclass(frozen=True, slots=True)
class MagSummary:
    """One mag."""

    mag: Mag
    """The mag."""
    folder: str
    """Its folder."""
    box: BoundingBox | None = None
    """Where it has data [voxels of the mag], None where it cannot be opened."""
    dtype: str = ""
    """Type of one channel."""
    compression: str = ""
    """How ``header.wkw`` says that blocks are encoded."""
    block_len: int = 0
    """Edge of a block [voxels], 0 where it is not stored as WKW."""
    file_len: int = 0
    """Edge of a file [blocks]."""
    files: int = 0
    """Data files."""
    nbytes: int = 0
    """Bytes of all data files."""
    problem: str = ""
    """Why the mag cannot be opened, empty where it can."""
    elsewhere: str | None = None
    """Where its folder really is, None where that is inside of the dataset."""


@dataclass(frozen=True, slots=True)
class LayerSummary:
    """One layer."""

    name: str
    """Its name."""
    category: str
    """``"color"`` or ``"segmentation"``, empty where no JSON says it."""
    data_format: str
    """How it is stored."""
    element_class: str
    """Type as the JSON says it, or as the header does."""
    num_channels: int
    """Values per voxel."""
    bounding_box: BoundingBox | None
    """Where it has data [voxels of mag 1], None where no JSON says it."""
    mags: tuple[MagSummary, ...]
    """Its mags, finest first."""
    problem: str = ""
    """What the JSON says of it that is impossible, empty where all is well."""


@dataclass(frozen=True, slots=True)
class DatasetSummary:
    """A dataset, or as much of one as a path names."""

    path: str
    """What was looked at."""
    voxel_size_nm: tuple[float, float, float] | None
    """Edge lengths of a mag-1 voxel along x, y, z [nm], None where no JSON says it."""
    layers: tuple[LayerSummary, ...]
    """The layers."""
    voxel_size: tuple[float, float, float] | None = None
    """The voxel size as the JSON states it [``unit``]."""
    unit: str = "nanometer"
    """Unit of the voxel size."""

    def to_json(self) -> dict[str, Any]:
        """Give plain values for ``json.dumps``."""
        head = {"path": self.path, "voxel_size_nm": self.voxel_size_nm, "voxel_size": self.voxel_size, "unit": self.unit}
        return {**head, "layers": [_layer_json(layer) for layer in self.layers]}


def summarize(url: str | os.PathLike[str]) -> DatasetSummary:
    """Look at a dataset, layer or mag; only headers are read, but all files are counted."""
    located = locate(url)
    sources = [layer.container.datasource for layer in located.layers if layer.container.datasource is not None]
    if not sources and located.invalid_layers:
        sources = [source for source in (read_datasource(located.path),) if source is not None]
    layers = tuple(_summarize_layer(layer, located.mag) for layer in located.layers)
    layers += tuple(LayerSummary(invalid.name, "", "", "", 0, None, (), invalid.problem) for invalid in located.invalid_layers)
    if not sources:
        return DatasetSummary(located.path, None, layers)
    return DatasetSummary(located.path, sources[0].voxel_size_nm, layers, sources[0].voxel_size, sources[0].unit)


def _summarize_layer(layer: Image, only: Mag | None) -> LayerSummary:
    record = layer.container.record
    try:
        folders = layer.mags
    except UnsupportedError:
        folders = {}
    mags = tuple(_summarize_mag(layer, mag, folder) for mag, folder in folders.items() if only in (None, mag))
    if record is not None:
        return LayerSummary(layer.name, record.category, record.data_format, record.element_class, record.num_channels, record.bounding_box, mags)
    opened = next((open_mag(mag.folder, mag.box, mag.mag) for mag in mags if not mag.problem), None)
    if opened is None:
        return LayerSummary(layer.name, "", "wkw", "", 0, None, mags)
    return LayerSummary(layer.name, "", "wkw", element_class(opened.dtype, opened.num_channels), opened.num_channels, None, mags)


def _summarize_mag(layer: Image, mag: Mag, folder: str) -> MagSummary:
    """Look at a mag; one that is stored as Zarr or N5 has no blocks of one length."""
    is_array = is_arrays_layer(layer)
    real = None if layer.container.dataset_folder is None else external_location(layer.container.dataset_folder, folder)
    num_files = nbytes = 0
    try:
        volume = open_arrays(layer).volume(mag) if is_array else layer.volume(mag)
        if is_array:
            num_files, nbytes = volume.count_files() or (0, 0)
        else:
            for index in list_files(folder):
                num_files += 1
                nbytes += files.stat(file_path(folder, index)).st_size
    except (WkwDaskError, ModuleNotFoundError, OSError) as error:
        return MagSummary(mag, folder, problem=str(error), elsewhere=real)
    if is_array:
        return MagSummary(mag, folder, volume.box, volume.dtype.name, layer.container.record.data_format, files=num_files, nbytes=nbytes, elsewhere=real)
    header = header_of(volume)
    lengths = header.block_len, header.file_len
    return MagSummary(mag, folder, volume.box, header.dtype.name, header.block_type.label, *lengths, num_files, nbytes, elsewhere=real)


def _layer_json(layer: LayerSummary) -> dict[str, Any]:
    values = _values(layer)
    del values["mags"]
    return {**values, "category": layer.category or None, "mags": [_values(mag) for mag in layer.mags]}


def _values(summary: LayerSummary | MagSummary) -> dict[str, Any]:
    """Give what a summary says in the forms that JSON has."""
    values = {each.name: getattr(summary, each.name) for each in fields(summary)}
    for name, value in values.items():
        if isinstance(value, BoundingBox):
            values[name] = [*value.topleft, *value.size]
        elif isinstance(value, Mag):
            values[name] = list(value.factors)
    return {**values, "problem": summary.problem or None}
