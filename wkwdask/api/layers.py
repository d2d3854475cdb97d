"""Layers and mags of a dataset as objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError, MissingError
from wkwdask.formats.record_paths import elsewhere
from wkwdask.formats.webknossos.dataset import listed_layer, read_datasource, wkw_volume
from wkwdask.formats.webknossos.datasource import largest_segment_id
from wkwdask.formats.webknossos.layer_views import attachments_of, axes_of, dtype_of, mappings_of, other_format, transformations_of, type_text, view_of
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import Mag
from wkwdask.verbs.webknossos.dataset_edit import stored_layer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import dask.array as da
    import numpy as np
    import numpy.typing as npt

    from wkwdask.api.options import MagLike
    from wkwdask.formats.webknossos.datasource import DataSource, LayerRecord, OddLayer
    from wkwdask.formats.webknossos.layer_views import Attachment, Axis


@dataclass(frozen=True, slots=True)
class LayerMag:
    """One mag of a layer, as the JSON lists it."""

    dataset: str
    """Folder of the dataset."""
    layer: str
    """Name of the layer."""
    mag: Mag
    """The mag."""
    folder: str
    """Its folder, or its URL."""
    elsewhere: str | None
    """Where it really is, None where that is inside of the dataset."""
    box: BoundingBox
    """Where the layer has data [voxels of the mag]."""

    def open(self, **options: Any) -> da.Array:
        """Open it as a dask array; options as for :func:`wkwdask.open`."""
        from wkwdask.api.access import open as open_array

        _check_listed(self.dataset, self.layer, mag=self.mag)
        return open_array(self.dataset, layer=self.layer, mag=self.mag, **options)

    def read(self, box: BoundingBox | Sequence[Sequence[int]] | None = None) -> npt.NDArray[Any]:
        """Read voxels, shape (c, x, y, z); the box as for :func:`wkwdask.read`, by default all."""
        from wkwdask.api.access import read

        _check_listed(self.dataset, self.layer, mag=self.mag)
        return read(self.dataset, box, layer=self.layer, mag=self.mag)

    def __repr__(self) -> str:
        at = f" at {self.elsewhere}" if self.elsewhere is not None else ""
        return f"LayerMag {self.mag} of layer {self.layer!r}: {_box_text(self.box)}{at}"


@dataclass(frozen=True, slots=True, repr=False)
class Layer:
    """One layer of a dataset, as the JSON describes it."""

    dataset: str
    """Folder of the dataset."""
    name: str
    """Its name."""
    category: str
    """``"color"`` or ``"segmentation"``."""
    element_class: str
    """Bits of all channels together, such as ``"uint8"`` or ``"uint24"``."""
    num_channels: int
    """Values per voxel."""
    bounding_box: BoundingBox
    """Where it has data [voxels of mag 1]."""
    data_format: str
    """How it is stored: ``"wkw"``, which alone can be opened, or ``"zarr3"`` and so on."""
    listed: tuple[LayerMag, ...] = ()
    """Its mags, finest first."""
    problem: str = ""
    """What the JSON says of it that is impossible; such a layer is listed, and cannot be used. Empty where all is well."""
    entry: Any = field(default=None, compare=False)
    """All that the JSON says of it."""

    @property
    def mags(self) -> dict[Mag, LayerMag]:
        """Its mags, finest first.

        Raises
        ------
        CorruptError
            The JSON says something impossible of the layer.
        """
        self._check()
        return {mag.mag: mag for mag in self.listed}

    def __getitem__(self, mag: MagLike) -> LayerMag:
        """Find a mag: ``layer["2-2-1"]``."""
        wanted, mags = Mag.parse(mag), self.mags
        if wanted not in mags:
            raise MissingError(f"{self.dataset}: layer {self.name} has no mag {wanted}; there are {', '.join(map(str, mags)) or 'none'}")
        return mags[wanted]

    def __iter__(self) -> Iterator[LayerMag]:
        return iter(self.mags.values())

    def __len__(self) -> int:
        return len(self.mags)

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """Type of one channel, None where WKW has no such type."""
        return dtype_of(self.element_class, self.num_channels)

    @property
    def largest_segment_id(self) -> int | None:
        """The largest id that the JSON states, None where it does not."""
        return largest_segment_id(self._object)

    @property
    def view_configuration(self) -> dict[str, Any]:
        """How WEBKNOSSOS shows it by default."""
        return view_of(self._object)

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """Meshes, agglomerates and so on that belong to it."""
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
        """How it is placed among the other layers, as the JSON says it."""
        return transformations_of(self._object)

    @property
    def _object(self) -> dict[str, Any]:
        return self.entry if isinstance(self.entry, dict) else {}

    def open(self, mag: MagLike | None = None, **options: Any) -> da.Array:
        """Open a mag as a dask array, by default the finest that has files; options as for :func:`wkwdask.open`."""
        from wkwdask.api.access import open as open_array

        self._check()
        _check_listed(self.dataset, self.name, type_of=self)
        return open_array(self.dataset, layer=self.name, mag=mag, **options)

    def read(self, box: BoundingBox | Sequence[Sequence[int]] | None = None, mag: MagLike | None = None) -> npt.NDArray[Any]:
        """Read voxels, shape (c, x, y, z); the box as for :func:`wkwdask.read`, by default all."""
        from wkwdask.api.access import read

        self._check()
        _check_listed(self.dataset, self.name, type_of=self)
        return read(self.dataset, box, layer=self.name, mag=mag)

    def compute_largest_segment_id(self) -> int:
        """Find the largest value of the finest mag that has files, brick by brick, on threads or the active dask Client.

        Nothing is written: :meth:`Dataset.set_largest_segment_id` does that.

        Returns
        -------
        int
            0 where no voxel is stored.

        Raises
        ------
        MissingError
            No mag has files.
        TypeError
            The values are no integers.
        """
        from wkwdask.api.functions import apply

        self._check()
        _check_listed(self.dataset, self.name, type_of=self)
        stored = stored_layer(self.dataset, self.name)
        volume = wkw_volume(stored)
        if volume.dtype.kind not in "iu":
            raise TypeError(f"{volume.folder}: values are {volume.dtype.name}; only integers are ids")
        largest = apply(_largest, f"{self.dataset}/{self.name}", combine=max)  # the finest mag, in the box of this dataset
        return 0 if largest is None else int(largest)

    def _check(self) -> None:
        if self.problem:
            raise CorruptError(self.problem)

    def __repr__(self) -> str:
        return f"Layer {self.line()}"

    def line(self) -> str:
        """Say in one line what it is."""
        if self.problem:
            return f"{self.name!r}: cannot be used: {self.problem}"
        stored = f" ({other})" if (other := other_format(self.data_format)) else ""
        mags = ", ".join(f"{mag.mag} (at {mag.elsewhere})" if mag.elsewhere is not None else str(mag.mag) for mag in self.listed)
        return (
            f"{self.name!r}: {self.category}, {type_text(self.element_class, self.num_channels)}{stored}, {_box_text(self.bounding_box)}, mags {mags or 'none'}"
        )

    def _repr_html_(self) -> str:
        from wkwdask.viewer.cards import layer_card

        return layer_card(self)


def _check_listed(dataset: str, name: str, *, mag: Mag | None = None, type_of: Layer | None = None) -> None:
    """Make sure that a record is not that of a layer which was renamed, removed or replaced by one of another type."""
    source = read_datasource(dataset)
    now = None if source is None else source.layer(name)
    is_there = now is not None and (mag is None or any(listed.mag == mag for listed in now.mags))
    if now is not None and type_of is not None:
        is_there = (now.category, now.element_class, now.num_channels) == (type_of.category, type_of.element_class, type_of.num_channels)
    if not is_there:
        what = f"layer {name!r}" if mag is None else f"mag {mag} of layer {name!r}"
        names = "none" if source is None else ", ".join(layer.name for layer in source.layers) or "none"
        raise MissingError(f"{dataset}: {what} was renamed, removed or replaced since this record was read; open the dataset again (its layers are {names})")


def _largest(values: npt.NDArray[Any]) -> int:
    return int(values.max())


def layer_of(dataset: str, source: DataSource, record: LayerRecord) -> Layer:
    """Give a layer as its dataset's JSON describes it."""
    stored = listed_layer(dataset, source, record)
    mags = tuple(
        LayerMag(dataset, record.name, mag, folder, elsewhere(dataset, folder), record.bounding_box.in_mag(mag)) for mag, folder in stored.mags.items()
    )
    return Layer(
        dataset, record.name, record.category, record.element_class, record.num_channels, record.bounding_box, record.data_format, mags, entry=record.entry
    )


def odd_layer(dataset: str, odd: OddLayer) -> Layer:
    """Give a layer of which the JSON says something impossible."""
    said = odd.entry if isinstance(odd.entry, dict) else {}
    category, elements, stored = (str(said.get(key, "")) for key in ("category", "elementClass", "dataFormat"))
    return Layer(dataset, odd.name, category, elements, 1, BoundingBox((0, 0, 0), (0, 0, 0)), stored, problem=odd.problem, entry=odd.entry)


def _box_text(box: BoundingBox) -> str:
    return f"{box.topleft} + {box.size}"
