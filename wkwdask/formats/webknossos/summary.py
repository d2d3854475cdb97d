"""Summary of a dataset, as printed by ``wkwdask info``."""

from __future__ import annotations

from dataclasses import dataclass, fields
from html import escape
from typing import TYPE_CHECKING

from wkwdask.errors import UnsupportedError, WkwDaskError
from wkwdask.formats.roots import external_location
from wkwdask.formats.webknossos.dataset import dataset_of, is_arrays_layer, locate, open_arrays
from wkwdask.formats.webknossos.document import read_datasource
from wkwdask.formats.wkw.array import open_mag
from wkwdask.formats.wkw.folder import file_name, list_files
from wkwdask.formats.wkw.layout import header_of
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import Mag
from wkwdask.model.summary import Card, box_text, format_nbytes, html_table
from wkwdask.model.voxel_type import element_class
from wkwdask.store.paths import is_remote
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable

    from wkwdask.model.image import Image
    from wkwdask.model.json_text import JsonObject


@dataclass(frozen=True, slots=True)
class MagSummary:
    """Summary of one mag."""

    mag: Mag
    """Mag."""
    folder: str
    """Folder of the mag."""
    box: BoundingBox | None = None
    """Bounding box [voxels of the mag]; None if the mag cannot be opened."""
    dtype: str = ""
    """Type of one channel."""
    compression: str = ""
    """Compression of blocks: ``"raw"``, ``"lz4"`` or ``"lz4hc"``; the storage format for Zarr and
    N5."""
    block_len: int = 0
    """Edge length of a block [voxels]; 0 if not stored as WKW."""
    file_len: int = 0
    """Edge length of a file [blocks]."""
    files: int | None = 0
    """Number of data files, None for remote mags."""
    nbytes: int | None = 0
    """Total size of the data files [bytes], None for remote mags."""
    problem: str = ""
    """Reason why the mag cannot be opened, or empty."""
    elsewhere: str | None = None
    """Real path of the folder if it lies outside of the dataset, else None."""


@dataclass(frozen=True, slots=True)
class LayerSummary:
    """Summary of one layer."""

    name: str
    """Name of the layer."""
    category: str
    """``"color"`` or ``"segmentation"``; empty without a JSON."""
    data_format: str
    """Storage format, such as ``"wkw"`` or ``"zarr3"``."""
    element_class: str
    """Type of all channels together, from the JSON or the header."""
    num_channels: int
    """Number of channels."""
    bounding_box: BoundingBox | None
    """Bounding box [voxels of mag 1]; None without a JSON."""
    mags: tuple[MagSummary, ...]
    """Mags, finest first."""
    problem: str = ""
    """Invalid values of the layer in the JSON, or empty."""


@dataclass(frozen=True, slots=True)
class DatasetSummary(Card):
    """Summary of a dataset, a layer or a mag."""

    path: str
    """Path that was summarized."""
    voxel_size_nm: tuple[float, float, float] | None
    """Edge lengths of a mag-1 voxel along x, y, z [nm]; None without a JSON."""
    layers: tuple[LayerSummary, ...]
    """Layers, in the order of the JSON."""
    voxel_size: tuple[float, float, float] | None = None
    """Voxel size as stated in the JSON [``unit``]."""
    unit: str = "nanometer"
    """Unit of the voxel size."""
    notes: tuple[str, ...] = ()
    """Meshes of the layers."""

    def _tables(self) -> str:
        rows = [
            (
                layer.name,
                layer.category,
                mag.mag.name,
                box_text(mag.box),
                "" if mag.files is None else f"{mag.files:,}",
                "" if mag.nbytes is None else format_nbytes(mag.nbytes),
                mag.problem,
            )
            for layer in self.layers
            for mag in layer.mags
        ]
        rows += [
            (layer.name, layer.category, "", "", "", "", layer.problem)
            for layer in self.layers
            if not layer.mags
        ]
        lengths = (
            "unknown"
            if self.voxel_size is None
            else f"{' x '.join(f'{length:g}' for length in self.voxel_size)} {self.unit}"
        )
        return f"{escape(f'{self.path}: voxel size {lengths}')}{html_table(('layer', 'category', 'mag', 'box', 'files', 'bytes', ''), rows)}{'<br>'.join(map(escape, self.notes))}"  # noqa: E501

    def _drawn(self) -> Iterable[str]:
        return (mag.folder for layer in self.layers for mag in layer.mags if not mag.problem)

    def to_json(self) -> JsonObject:
        head = {
            "path": self.path,
            "voxel_size_nm": self.voxel_size_nm,
            "voxel_size": self.voxel_size,
            "unit": self.unit,
        }
        return {
            **head,
            "layers": [_layer_json(layer) for layer in self.layers],
            **({"notes": list(self.notes)} if self.notes else {}),
        }


def summarize(
    url: str | os.PathLike[str], notes_of: Callable[[Image], Iterable[str]]
) -> DatasetSummary:
    """Summarize a dataset, layer or mag: headers are read, and all files are counted. ``notes_of``
    returns the notes of a layer."""
    located = locate(url)
    sources = [
        source for layer in located.layers if (source := dataset_of(layer).datasource) is not None
    ]
    if not sources and (located.invalid_layers or not located.layers):
        sources = [source for source in (read_datasource(located.path),) if source is not None]
    layers = tuple(_summarize_layer(layer, located.mag) for layer in located.layers)
    layers += tuple(
        LayerSummary(invalid.name, "", "", "", 0, None, (), invalid.problem)
        for invalid in located.invalid_layers
    )
    if not sources:
        return DatasetSummary(located.path, None, layers)
    shown = located.layers if located.mag is None else ()
    return DatasetSummary(
        located.path,
        sources[0].voxel_size_nm,
        layers,
        sources[0].voxel_size,
        sources[0].unit,
        tuple(note for layer in shown for note in notes_of(layer)),
    )


def _summarize_layer(layer: Image, only: Mag | None) -> LayerSummary:
    record = dataset_of(layer).record
    try:
        folders = layer.mags
    except UnsupportedError:
        folders = {}
    mags = tuple(
        _summarize_mag(layer, mag, folder) for mag, folder in folders.items() if only in (None, mag)
    )
    if record is not None:
        return LayerSummary(
            layer.name,
            record.category,
            record.data_format,
            record.element_class,
            record.num_channels,
            record.bounding_box,
            mags,
        )
    opened = next((open_mag(mag.folder, mag.box, mag.mag) for mag in mags if not mag.problem), None)
    if opened is None:
        return LayerSummary(layer.name, "", "wkw", "", 0, None, mags)
    return LayerSummary(
        layer.name,
        "",
        "wkw",
        element_class(opened.dtype, opened.num_channels),
        opened.num_channels,
        None,
        mags,
    )


def _summarize_mag(layer: Image, mag: Mag, folder: str) -> MagSummary:
    """Summarize a mag; one stored as Zarr or N5 has no block length."""
    is_array = is_arrays_layer(layer)
    dataset = dataset_of(layer).dataset_folder
    real = None if dataset is None else external_location(dataset, folder)
    num_files: int | None
    nbytes: int | None
    num_files = nbytes = 0
    try:
        volume = open_arrays(layer).volume(mag) if is_array else layer.volume(mag)
        if is_array or is_remote(folder):
            num_files, nbytes = volume.files.count() or (None, None)
        else:
            store = store_at(folder)
            for index in list_files(folder):
                num_files += 1
                nbytes += store.status(file_name(index)).st_size
    except (WkwDaskError, ModuleNotFoundError, OSError) as error:
        return MagSummary(mag, folder, problem=str(error), elsewhere=real)
    if is_array:
        return MagSummary(
            mag,
            folder,
            volume.box,
            volume.dtype.name,
            dataset_of(layer).data_format,
            files=num_files,
            nbytes=nbytes,
            elsewhere=real,
        )
    header = header_of(volume)
    lengths = header.block_len, header.file_len
    return MagSummary(
        mag,
        folder,
        volume.box,
        header.dtype.name,
        header.block_type.label,
        *lengths,
        num_files,
        nbytes,
        elsewhere=real,
    )


def _layer_json(layer: LayerSummary) -> JsonObject:
    values = _values(layer)
    del values["mags"]
    return {
        **values,
        "category": layer.category or None,
        "mags": [_values(mag) for mag in layer.mags],
    }


def _values(summary: LayerSummary | MagSummary) -> JsonObject:
    values = {each.name: getattr(summary, each.name) for each in fields(summary)}
    for name, value in values.items():
        if isinstance(value, BoundingBox):
            values[name] = [*value.topleft, *value.size]
        elif isinstance(value, Mag):
            values[name] = value.name
    return {**values, "problem": summary.problem or None}
