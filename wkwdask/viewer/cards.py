"""Datasets and layers in a notebook: a small table and a small picture, with bounded work, and never an error."""

from __future__ import annotations

import base64
import io
import time
from html import escape
from typing import TYPE_CHECKING, Protocol

from wkwdask.formats.opening import is_readable
from wkwdask.formats.webknossos.dataset import read_datasource, wkw_volume
from wkwdask.formats.webknossos.layer_views import other_format, type_text
from wkwdask.formats.wkw.folder import count_files
from wkwdask.runs.report import format_nbytes
from wkwdask.store.paths import is_remote
from wkwdask.verbs.webknossos.dataset_edit import stored_layer
from wkwdask.viewer.preview import draw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.stored_array import StoredArray

_PIXELS = 160
_MOST_NBYTES = 32 << 20  # that are decoded for a picture
_MOST_SECONDS = 1.0  # for counting files, all mags of a card together


class CardMag(Protocol):
    """What a card shows of a mag, see :class:`wkwdask.api.layers.LayerMag`."""

    @property
    def mag(self) -> Mag: ...
    @property
    def folder(self) -> str: ...
    @property
    def box(self) -> BoundingBox: ...
    @property
    def elsewhere(self) -> str | None: ...


class CardLayer(Protocol):
    """What a card shows of a layer, see :class:`wkwdask.api.layers.Layer`."""

    @property
    def dataset(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def category(self) -> str: ...
    @property
    def element_class(self) -> str: ...
    @property
    def num_channels(self) -> int: ...
    @property
    def data_format(self) -> str: ...
    @property
    def bounding_box(self) -> BoundingBox: ...
    @property
    def problem(self) -> str: ...
    @property
    def listed(self) -> Sequence[CardMag]: ...


class CardDataset(Protocol):
    """What a card shows of a dataset, see :class:`wkwdask.api.datasets.Dataset`."""

    @property
    def path(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def voxel_size(self) -> tuple[float, ...] | None: ...
    @property
    def unit(self) -> str: ...
    @property
    def listed(self) -> Sequence[CardLayer]: ...


def dataset_card(dataset: CardDataset) -> str:
    """Show a dataset: what it is, its layers, and a picture of the first image under the first segmentation."""
    size = "unknown" if dataset.voxel_size is None else f"{' &times; '.join(f'{length:g}' for length in dataset.voxel_size)} {escape(dataset.unit)}"
    head = f"<b>{escape(dataset.name)}</b> <code>{escape(dataset.path)}</code><br>voxel size {size}"
    return _card(head, dataset.listed, _picture(dataset.path, dataset.listed))


def layer_card(layer: CardLayer) -> str:
    """Show a layer."""
    return _card(f"<b>{escape(layer.name)}</b> <code>{escape(layer.dataset)}</code>", (layer,), _picture(layer.dataset, (layer,)))


def _card(head: str, layers: Sequence[CardLayer], picture: str) -> str:
    until = time.monotonic() + _MOST_SECONDS
    columns = "".join(
        f"<th style='text-align:left'>{name}</th>" for name in ("layer", "category", "type", "mag", "box (top left + size)", "files", "bytes", "")
    )
    rows = "".join(row for layer in layers for row in _rows(layer, until))
    table = f"<table><thead><tr>{columns}</tr></thead><tbody>{rows}</tbody></table>"
    return f"<div>{head}<div style='display:flex;gap:12px;align-items:flex-start'>{table}{picture}</div></div>"


def _rows(layer: CardLayer, until: float) -> list[str]:
    if layer.problem:
        return [_row(layer.name, "", "", "", "", "", "", f"cannot be used: {layer.problem}")]
    first = (layer.name, layer.category, type_text(layer.element_class, layer.num_channels))
    if not layer.listed:
        return [_row(*first, "none", _box(layer), "", "", other_format(layer.data_format))]
    return [_row(*(first if number == 0 else ("", "", "")), *_mag_cells(layer, mag, until)) for number, mag in enumerate(layer.listed)]


def _mag_cells(layer: CardLayer, mag: CardMag, until: float) -> tuple[str, ...]:
    other = other_format(layer.data_format)
    notes = [*filter(None, [other]), *([f"elsewhere: {mag.elsewhere}"] if mag.elsewhere is not None else [])]
    files, nbytes = _sizes(mag, until) if not other and not is_remote(mag.folder) else ("", "")
    topleft, size = mag.box.topleft, mag.box.size
    return mag.mag.name, f"{', '.join(map(str, topleft))} + {', '.join(map(str, size))}", files, nbytes, "; ".join(notes)


def _sizes(mag: CardMag, until: float) -> tuple[str, str]:
    """Count files and bytes as far as the time allows."""
    try:
        files, nbytes, is_all = count_files(mag.folder, until)
    except OSError:
        return "?", "?"
    least = "" if is_all else "\N{GREATER-THAN OR EQUAL TO} "
    return f"{least}{files:,}", f"{least}{format_nbytes(nbytes)}"


def _box(layer: CardLayer) -> str:
    return f"{', '.join(map(str, layer.bounding_box.topleft))} + {', '.join(map(str, layer.bounding_box.size))}"


def _row(*cells: str) -> str:
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def _picture(dataset: str, layers: Sequence[CardLayer]) -> str:
    """Draw what can be drawn cheaply; nothing where that fails, since a table is better than an error."""
    try:
        volumes = {layer.category: volume for layer in reversed(layers) if (volume := _small_volume(layer)) is not None}
        datasource = read_datasource(dataset)
        if not volumes or datasource is None:
            return ""
        buffer = io.BytesIO()
        draw(volumes.get("color"), volumes.get("segmentation"), datasource.voxel_size_nm, _PIXELS).save(buffer, format="PNG")
    except Exception:  # whatever is wrong with files, opening or reading them says it
        return ""
    data = base64.b64encode(buffer.getvalue()).decode()
    return f"<img alt='three slices' src='data:image/png;base64,{data}'>"


def _small_volume(layer: CardLayer) -> StoredArray | None:
    """Open the coarsest mag that has files, None where three slices of it are many bytes."""
    if layer.problem or other_format(layer.data_format) or not layer.listed:
        return None
    stored = stored_layer(layer.dataset, layer.name)
    for mag in reversed(stored.mags):
        if is_readable(stored, mag):
            volume = wkw_volume(stored, mag)
            (x, y, z), edge = volume.box.size, volume.chunk_shape[0]
            is_small = edge * (x * y + x * z + y * z) * volume.num_channels * volume.dtype.itemsize <= _MOST_NBYTES
            return volume if is_small else None
    return None
