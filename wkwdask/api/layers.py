"""Layers and mags of a dataset as objects, and their display in notebooks."""

from __future__ import annotations

import base64
import io
import time
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError, MissingError
from wkwdask.formats.container import container_of
from wkwdask.formats.opening import is_readable
from wkwdask.formats.roots import external_location
from wkwdask.formats.webknossos.dataset import listed_layer
from wkwdask.formats.webknossos.datasource import largest_segment_id
from wkwdask.formats.webknossos.document import read_datasource
from wkwdask.formats.webknossos.layer_metadata import (
    attachments_of,
    axes_of,
    dtype_of,
    mappings_of,
    other_format,
    transformations_of,
    type_text,
    view_of,
)
from wkwdask.formats.wkw.folder import count_files
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import Mag
from wkwdask.model.summary import THUMBNAIL, box_text, format_nbytes, html_table
from wkwdask.model.volume import voxel_nbytes
from wkwdask.store.paths import is_remote
from wkwdask.verbs.webknossos.dataset_edit import stored_layer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import dask.array as da
    import numpy as np
    import numpy.typing as npt

    from wkwdask.api.options import MagLike
    from wkwdask.formats.webknossos.datasource import DataSource, LayerRecord
    from wkwdask.formats.webknossos.layer_metadata import Attachment, Axis
    from wkwdask.model.image import InvalidLayer
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.viewer.view import View


@dataclass(frozen=True, slots=True)
class LayerMag:
    """One mag of a layer in the JSON of a dataset."""

    dataset: str
    """Folder of the dataset."""
    layer: str
    """Name of the layer."""
    mag: Mag
    folder: str
    """Folder or URL of the mag."""
    elsewhere: str | None
    """Real location of a mag outside the dataset, else None."""
    box: BoundingBox
    """Box of the data [voxels of the mag], which :meth:`read` takes.

    It is :attr:`Layer.bounding_box`, aligned outward to whole voxels of the mag. As everywhere,
    ``box`` counts voxels of its mag, and ``bounding_box`` voxels of mag 1.
    """

    def open(self, **options: Any) -> da.Array:
        """Open the mag as a dask array; options as for :func:`wkwdask.open`."""
        from wkwdask.api.access import open as open_array

        _check_listed(self.dataset, self.layer, mag=self.mag)
        return open_array(self.dataset, layer=self.layer, mag=self.mag, **options)

    def read(self, box: BoundingBox | Sequence[Sequence[int]] | None = None) -> npt.NDArray[Any]:
        """Read voxels, shape (c, x, y, z); box as for :func:`wkwdask.read`, by default the whole
        mag."""
        from wkwdask.api.access import read

        _check_listed(self.dataset, self.layer, mag=self.mag)
        return read(self.dataset, box, layer=self.layer, mag=self.mag)

    def __repr__(self) -> str:
        at = f" at {self.elsewhere}" if self.elsewhere is not None else ""
        return f"LayerMag {self.mag} of layer {self.layer!r}: {_box_text(self.box)}{at}"


@dataclass(frozen=True, slots=True, repr=False)
class Layer:
    """One layer in the JSON of a dataset."""

    dataset: str
    """Folder of the dataset."""
    name: str
    category: str
    """``"color"`` or ``"segmentation"``."""
    element_class: str
    """Bits of all channels together, such as ``"uint8"`` or ``"uint24"``."""
    num_channels: int
    """Number of channels."""
    bounding_box: BoundingBox
    """Box of the data [voxels of mag 1], as in the JSON and in WEBKNOSSOS.

    :attr:`LayerMag.box` is the same box in voxels of one mag. As everywhere, ``bounding_box``
    counts voxels of mag 1, and ``box`` voxels of its mag.
    """
    data_format: str
    """Storage format: ``"wkw"``, ``"zarr3"`` and so on. Methods of this class open WKW, Zarr and
    N5."""
    listed: tuple[LayerMag, ...] = ()
    """Mags of the layer, finest first."""
    problem: str = ""
    """Error in the JSON that makes the layer unusable; empty for a valid layer."""
    entry: Any = field(default=None, compare=False)
    """Entry of the layer in the JSON."""

    @property
    def mags(self) -> dict[Mag, LayerMag]:
        """Mags of the layer, finest first.

        Raises
        ------
        CorruptError
            The entry of the layer in the JSON is invalid.
        """
        self._check()
        return {mag.mag: mag for mag in self.listed}

    def __getitem__(self, mag: MagLike) -> LayerMag:
        """Return a mag: ``layer["2-2-1"]``."""
        parsed_mag, mags = Mag.parse(mag), self.mags
        if parsed_mag not in mags:
            raise MissingError(
                f"{self.dataset}: layer {self.name} has no mag {parsed_mag}; there are "
                f"{', '.join(map(str, mags)) or 'none'}"
            )
        return mags[parsed_mag]

    def __iter__(self) -> Iterator[LayerMag]:
        return iter(self.mags.values())

    def __len__(self) -> int:
        return len(self.mags)

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """Type of one channel, None if WKW has no such type."""
        return dtype_of(self.element_class, self.num_channels)

    @property
    def largest_segment_id(self) -> int | None:
        """Largest segment id in the JSON, None if it is not stated."""
        return largest_segment_id(self._object)

    @property
    def view_configuration(self) -> dict[str, Any]:
        """Default view settings of the layer in WEBKNOSSOS."""
        return view_of(self._object)

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """Meshes, agglomerates and other attachments of the layer."""
        return attachments_of(self._object)

    @property
    def mappings(self) -> tuple[str, ...]:
        """Names of the mappings of a segmentation."""
        return mappings_of(self._object)

    @property
    def additional_axes(self) -> tuple[Axis, ...]:
        """Axes besides x, y, z."""
        return axes_of(self._object)

    @property
    def coordinate_transformations(self) -> tuple[dict[str, Any], ...]:
        """Transformations of the layer relative to the other layers, as in the JSON."""
        return transformations_of(self._object)

    @property
    def _object(self) -> dict[str, Any]:
        return self.entry if isinstance(self.entry, dict) else {}

    def open(self, mag: MagLike | None = None, **options: Any) -> da.Array:
        """Open a mag as a dask array, by default the finest mag that was written; options as for
        :func:`wkwdask.open`."""
        from wkwdask.api.access import open as open_array

        self._check_current()
        return open_array(self.dataset, layer=self.name, mag=mag, **options)

    def read(
        self, box: BoundingBox | Sequence[Sequence[int]] | None = None, mag: MagLike | None = None
    ) -> npt.NDArray[Any]:
        """Read voxels, shape (c, x, y, z); box as for :func:`wkwdask.read`, by default the whole
        layer."""
        from wkwdask.api.access import read

        self._check_current()
        return read(self.dataset, box, layer=self.name, mag=mag)

    def view(self, **options: Any) -> View:
        """Show the layer in Neuroglancer, in a browser or in a notebook; options as for
        :func:`wkwdask.view`."""
        from wkwdask.viewer.view import view

        self._check_current()
        return view(self.dataset, layer=self.name, **options)

    def compute_largest_segment_id(self) -> int:
        """Compute the largest value of the finest mag that was written, brick by brick, on threads
        or the active dask Client.

        The JSON is not changed: :meth:`Dataset.set_largest_segment_id` writes the id.

        Returns
        -------
        int
            The id; 0 if no voxel is stored.

        Raises
        ------
        MissingError
            No mag has files.
        TypeError
            The values are no integers.
        """
        from wkwdask.api.apply import apply

        self._check_current()
        stored = stored_layer(self.dataset, self.name)
        volume = container_of(stored).readable(stored).volume()
        if volume.dtype.kind not in "iu":
            raise TypeError(
                f"{volume.folder}: values are {volume.dtype.name}, expected integer ids"
            )
        # Name the layer and not the folder of its mag: this limits the search to the layer's box in
        # this dataset.
        largest = apply(_largest, f"{self.dataset}/{self.name}", combine=max)
        return 0 if largest is None else int(largest)

    def _check(self) -> None:
        if self.problem:
            raise CorruptError(self.problem)

    def _check_current(self) -> None:
        self._check()
        _check_listed(self.dataset, self.name, type_of=self)

    def __repr__(self) -> str:
        return f"Layer {self.line()}"

    def line(self) -> str:
        """Describe the layer in one line."""
        if self.problem:
            return f"{self.name!r}: cannot be used: {self.problem}"
        stored = f" ({other})" if (other := other_format(self.data_format)) else ""
        mags = ", ".join(
            f"{mag.mag} (at {mag.elsewhere})" if mag.elsewhere is not None else str(mag.mag)
            for mag in self.listed
        )
        return (
            f"{self.name!r}: {self.category}, "
            f"{type_text(self.element_class, self.num_channels)}{stored}, "
            f"{_box_text(self.bounding_box)}, mags {mags or 'none'}"
        )

    def _repr_html_(self) -> str:
        return card(
            f"<b>{escape(self.name)}</b> <code>{escape(self.dataset)}</code>", self.dataset, (self,)
        )


def _check_listed(
    dataset: str, name: str, *, mag: Mag | None = None, type_of: Layer | None = None
) -> None:
    """Raise if a layer or mag was renamed, removed or replaced by another type since its record was
    read."""
    source = read_datasource(dataset)
    current = None if source is None else source.layer(name)
    is_unchanged = current is not None and (
        mag is None or any(listed.mag == mag for listed in current.mags)
    )
    if current is not None and type_of is not None:
        is_unchanged = (current.category, current.element_class, current.num_channels) == (
            type_of.category,
            type_of.element_class,
            type_of.num_channels,
        )
    if not is_unchanged:
        what = f"layer {name!r}" if mag is None else f"mag {mag} of layer {name!r}"
        names = (
            "none" if source is None else ", ".join(layer.name for layer in source.layers) or "none"
        )
        raise MissingError(
            f"{dataset}: {what} was renamed, removed or replaced since this record was read; open "
            f"the dataset again (its layers are {names})"
        )


def _largest(values: npt.NDArray[Any]) -> int:
    return int(values.max())


def layer_of(dataset: str, source: DataSource, record: LayerRecord) -> Layer:
    """Return the layer of an entry in the dataset's JSON."""
    stored = listed_layer(dataset, source, record)
    mags = tuple(
        LayerMag(
            dataset,
            record.name,
            mag,
            folder,
            external_location(dataset, folder),
            record.bounding_box.in_mag(mag),
        )
        for mag, folder in stored.mags.items()
    )
    return Layer(
        dataset,
        record.name,
        record.category,
        record.element_class,
        record.num_channels,
        record.bounding_box,
        record.data_format,
        mags,
        entry=record.entry,
    )


def invalid_layer(dataset: str, layer: InvalidLayer) -> Layer:
    """Return the layer of an invalid entry, which only states its ``problem``."""
    entry = layer.entry if isinstance(layer.entry, dict) else {}
    category, elements, stored = (
        str(entry.get(key, "")) for key in ("category", "elementClass", "dataFormat")
    )
    return Layer(
        dataset,
        layer.name,
        category,
        elements,
        1,
        BoundingBox((0, 0, 0), (0, 0, 0)),
        stored,
        problem=layer.problem,
        entry=layer.entry,
    )


def _box_text(box: BoundingBox) -> str:
    return f"{box.topleft} + {box.size}"


# ------------------------------------------------------------------------- in a notebook

_MOST_NBYTES = 32 << 20  # limit of decoded data for one picture
_MOST_SECONDS = 1.0  # limit for counting the files of all mags of a card together


def card(head: str, dataset: str, layers: Sequence[Layer]) -> str:
    """Return HTML for notebooks: a table of the layers and a small picture, with bounded work;
    errors are suppressed."""
    until = time.monotonic() + _MOST_SECONDS
    columns = ("layer", "category", "type", "mag", "box (top left + size)", "files", "bytes", "")
    table = html_table(columns, (row for layer in layers for row in _rows(layer, until)))
    return (
        f"<div>{head}<div "
        f"style='display:flex;gap:12px;align-items:flex-start'>{table}{_picture(dataset, layers)}</div></div>"  # noqa: E501
    )


def _rows(layer: Layer, until: float) -> list[tuple[str, ...]]:
    if layer.problem:
        return [(layer.name, "", "", "", "", "", "", f"cannot be used: {layer.problem}")]
    first = (layer.name, layer.category, type_text(layer.element_class, layer.num_channels))
    if not layer.listed:
        return [
            (*first, "none", box_text(layer.bounding_box), "", "", other_format(layer.data_format))
        ]
    return [
        (*(first if number == 0 else ("", "", "")), *_mag_cells(layer, mag, until))
        for number, mag in enumerate(layer.listed)
    ]


def _mag_cells(layer: Layer, mag: LayerMag, until: float) -> tuple[str, ...]:
    other = other_format(layer.data_format)
    elsewhere = "" if mag.elsewhere is None else f"elsewhere: {mag.elsewhere}"
    files, nbytes = _sizes(mag, until) if not other and not is_remote(mag.folder) else ("", "")
    return (
        mag.mag.name,
        box_text(mag.box),
        files,
        nbytes,
        "; ".join(filter(None, [other, elsewhere])),
    )


def _sizes(mag: LayerMag, until: float) -> tuple[str, str]:
    """Count files and bytes until the time limit; return lower bounds if it is reached."""
    try:
        files, nbytes, is_all = count_files(mag.folder, until)
    except OSError:
        return "?", "?"
    least = "" if is_all else "\N{GREATER-THAN OR EQUAL TO} "
    return f"{least}{files:,}", f"{least}{format_nbytes(nbytes)}"


def _picture(dataset: str, layers: Sequence[Layer]) -> str:
    """Draw the layers if that is cheap; return an empty text if it fails, since a table is better
    than an error."""
    try:
        volumes = {
            layer.category: volume
            for layer in reversed(layers)
            if (volume := _small_volume(layer)) is not None
        }
        datasource = read_datasource(dataset)
        return (
            ""
            if not volumes or datasource is None
            else _image_tag(volumes, datasource.voxel_size_nm, THUMBNAIL)
        )
    except Exception:  # opening or reading the layer reports the same error
        return ""


def picture_of_mag(path: str, pixels: int) -> str:
    """Draw the mag of a path if that is cheap; return an empty text if it fails, since a table is
    better than an error."""
    from wkwdask.formats.opening import find
    from wkwdask.viewer.slices import is_segmentation

    try:
        image, volume = find(path).open(None, None)
        category = "segmentation" if is_segmentation(image, volume) else "color"
        return (
            _image_tag({category: volume}, volume.lengths_nm, pixels)
            if _is_quickly_drawn(volume)
            else ""
        )
    except Exception:  # a mag that does not exist yet, or cannot be read
        return ""


def _image_tag(
    volumes: Mapping[str, StoredArray], voxel_size: Sequence[float] | None, pixels: int
) -> str:
    """Return an HTML image of three slices through an image, a segmentation or both."""
    from wkwdask.viewer.preview import draw

    buffer = io.BytesIO()
    draw(volumes.get("color"), volumes.get("segmentation"), voxel_size, pixels).save(
        buffer, format="PNG"
    )
    return (
        "<img alt='three slices' "
        f"src='data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}'>"
    )


def _small_volume(layer: Layer) -> StoredArray | None:
    """Open the coarsest mag that has files, None if three slices of it exceed the limit of a
    picture."""
    if layer.problem or other_format(layer.data_format) or not layer.listed:
        return None
    stored = stored_layer(layer.dataset, layer.name)
    for mag in reversed(stored.mags):
        if is_readable(stored, mag):
            volume = stored.volume(mag)
            return volume if _is_quickly_drawn(volume) else None
    return None


def _is_quickly_drawn(volume: StoredArray) -> bool:
    """Check whether three slices need few decoded bytes."""
    (x, y, z), edge = volume.box.size, max(volume.chunk_shape)
    return edge * (x * y + x * z + y * z) * voxel_nbytes(volume) <= _MOST_NBYTES
