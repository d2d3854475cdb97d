"""Datasets as objects: their layers, and edits of their ``datasource-properties.json``."""

from __future__ import annotations

import contextlib
import operator
from dataclasses import dataclass, field
from functools import reduce
from html import escape
from typing import TYPE_CHECKING, Any, Literal

from wkwdask.api.layers import Layer, card, invalid_layer, layer_of
from wkwdask.errors import ExistsError, FormatError, MissingError
from wkwdask.formats.opening import use_storage_options
from wkwdask.formats.registry import check_folder_name
from wkwdask.formats.webknossos.dataset import (
    STORED_IN,
    locate,
    mags_in,
    make_layer,
    record_of,
    with_folders,
)
from wkwdask.formats.webknossos.datasource import (
    FILE_NAME,
    NewLayer,
    check_layer_name,
    format_segment_id,
    new_document,
    with_box,
    with_largest_id,
    with_layer,
    with_mags,
    with_scale,
    with_view_configuration,
    without_layer,
    without_mags,
)
from wkwdask.formats.webknossos.document import read_datasource, update_datasource
from wkwdask.formats.webknossos.layer_metadata import type_text, view_of
from wkwdask.formats.wkw.layout import header_of
from wkwdask.geometry.bounding_box import MAG_1, BoundingBox
from wkwdask.geometry.mag import Mag
from wkwdask.model.coordinates import same_lengths
from wkwdask.model.levels import length_nm
from wkwdask.model.voxel_type import element_class, guess_category
from wkwdask.store.paths import any_path, basename, target_path
from wkwdask.store.store import store_at
from wkwdask.verbs.webknossos.dataset_edit import (
    datasource_of,
    kept_idle,
    list_layer,
    reference_entry,
    rename_layer,
    stored_layer,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from wkwdask.api.options import MagLike
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.viewer.view import View

    BoxLike = BoundingBox | str | Sequence[Any]

Category = Literal["color", "segmentation"]


@dataclass(frozen=True, slots=True, repr=False)
class Dataset:
    """A dataset, as its ``datasource-properties.json`` described it when it was opened.

    Methods that edit the file return the dataset with the edit; this object does not change. Each
    edit is atomic, applies to the current content of the file, and holds a lock that serializes
    processes of wkwdask (other software does not honor it).
    """

    path: str
    """Folder of the dataset."""
    name: str
    """Name of the dataset."""
    voxel_size: tuple[float, float, float] | None
    """Edge lengths of a voxel of mag 1 along x, y, z [``unit``], None if the file does not state
    them."""
    unit: str
    """Unit of the voxel size."""
    voxel_size_nm: tuple[float, float, float] | None
    """Voxel size in nanometers."""
    listed: tuple[Layer, ...] = ()
    """Layers in the order of the file."""
    document: dict[str, Any] = field(default_factory=dict, compare=False)
    """Parsed content of the file."""

    @property
    def layers(self) -> dict[str, Layer]:
        """Layers by name, in the order of the file, including layers with a ``problem``."""
        return {layer.name: layer for layer in self.listed}

    @property
    def view_configuration(self) -> dict[str, Any]:
        """Default view settings of the dataset in WEBKNOSSOS."""
        return view_of(self.document)

    def __getitem__(self, name: str) -> Layer:
        """Return a layer by name: ``dataset["color"]``."""
        layers = self.layers
        if name not in layers:
            raise MissingError(
                f"{self.path}: no layer {name!r}; there are {', '.join(layers) or 'none'}"
            )
        return layers[name]

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.listed)

    def __len__(self) -> int:
        return len(self.listed)

    def __repr__(self) -> str:
        size = (
            "unknown"
            if self.voxel_size is None
            else f"{' x '.join(f'{length:g}' for length in self.voxel_size)} {self.unit}"
        )
        return "\n".join(
            [
                f"Dataset {self.name!r} at {self.path}, voxel size {size}",
                *(f"  {layer.line()}" for layer in self.listed),
            ]
        )

    def _repr_html_(self) -> str:
        size = (
            "unknown"
            if self.voxel_size is None
            else (
                f"{' &times; '.join(f'{length:g}' for length in self.voxel_size)} "
                f"{escape(self.unit)}"
            )
        )
        return card(
            f"<b>{escape(self.name)}</b> <code>{escape(self.path)}</code><br>voxel size {size}",
            self.path,
            self.listed,
        )

    def refreshed(self) -> Dataset:
        """Open the dataset again and return its current state."""
        return open_dataset(self.path)

    def view(self, **options: Any) -> View:
        """Show the layers in Neuroglancer, in a browser or in a notebook; options as for
        :func:`wkwdask.view`."""
        from wkwdask.viewer.view import view

        return view(self.path, **options)

    # ------------------------------------------------------------------------- layers

    def add_layer(
        self,
        name: str,
        category: Category,
        dtype: npt.DTypeLike,
        bounding_box: BoxLike,
        *,
        num_channels: int = 1,
        largest_segment_id: int | None = None,
        data_format: str = "wkw",
    ) -> Dataset:
        """Add a layer without mags to the JSON. :func:`wkwdask.save` and other verbs list the mags
        that they write.

        Parameters
        ----------
        name : str
            Name of the layer.
        category : {"color", "segmentation"}
            Category of the layer.
        dtype : dtype_like
            Type of one channel.
        bounding_box : BoundingBox, str or sequence
            Box of the future data: x, y, z, width, height, depth [voxels of mag 1].
        num_channels : int
            Values per voxel.
        largest_segment_id : int, optional
            Largest id of a segmentation.
        data_format : {"wkw", "zarr3", "zarr", "n5", "neuroglancerPrecomputed"}
            Format of the files of its mags.

        Raises
        ------
        ExistsError
            A layer of this name exists.
        TypeError
            WKW has no voxel type for the dtype.
        ValueError
            The name is invalid.
        """
        if data_format not in STORED_IN:
            raise ValueError(
                f"data_format must be one of {', '.join(STORED_IN)}, got {data_format!r}"
            )
        if category not in ("color", "segmentation"):
            raise ValueError(f'category must be "color" or "segmentation", got {category!r}')
        box, elements = BoundingBox.parse(bounding_box), element_class(dtype, num_channels)
        attributes = {}
        if largest_segment_id is not None:
            attributes["largestSegmentId"] = format_segment_id(
                _segment_id(largest_segment_id, name, category)
            )
        new = NewLayer(category, box, elements, num_channels)
        document = with_layer({}, name, new, attributes, data_format)
        return self._add_entry(document["dataLayers"][0])

    def add_layer_from_disk(
        self, name: str, *, category: Category | None = None, bounding_box: BoxLike | None = None
    ) -> Dataset:
        """Add a folder with mags to the JSON as a layer, such as a folder that :meth:`remove_layer`
        kept.

        Parameters
        ----------
        name : str
            Name of the folder and of the layer.
        category : {"color", "segmentation"}, optional
            Category of the layer; by default integers of 32 bits and more are a segmentation.
        bounding_box : BoundingBox, str or sequence, optional
            Box of its data [voxels of mag 1]; by default the extent of its files.

        Raises
        ------
        ExistsError
            A layer of this name exists.
        MissingError
            The folder has no mags.
        ValueError
            The name is invalid.
        """
        check_layer_name(name)
        folder = f"{self.path}/{name}"
        volumes = _mags_on_disk(folder, name)
        if not volumes:
            raise MissingError(
                f"{folder}: no mags (subfolders such as 1 or 2-2-1 with header.wkw) here"
            )
        header = header_of(next(iter(volumes.values())))
        extents = [volume.box.in_mag(MAG_1) for volume in volumes.values()]
        box = (
            reduce(BoundingBox.union, extents)
            if bounding_box is None
            else BoundingBox.parse(bounding_box)
        )
        elements = element_class(header.dtype, header.num_channels)
        document = with_layer(
            {},
            name,
            NewLayer(
                category or guess_category(header.dtype, header.num_channels),
                box,
                elements,
                header.num_channels,
            ),
        )
        entries = _json_entries(folder, name, volumes, (elements, header.num_channels))
        return self._add_entry(with_mags(document, name, entries)["dataLayers"][0])

    def add_layer_as_ref(
        self,
        other: Layer | str | os.PathLike[str],
        name: str | None = None,
        *,
        relative: bool = False,
        any_voxel_size: bool = False,
    ) -> Dataset:
        """Add a layer of another dataset by reference. Its mags and attachments are not copied or
        moved.

        Parameters
        ----------
        other : Layer, str or path
            The layer, or its folder in the other dataset.
        name : str, optional
            Name of the layer in this dataset, by default the same.
        relative : bool
            Write paths relative to this dataset, so that both datasets can be moved together; by
            default absolute paths.
        any_voxel_size : bool
            Allow another voxel size in the other dataset.

        Raises
        ------
        ExistsError
            A layer of this name exists.
        MissingError
            The layer does not exist.
        UnsupportedError
            No JSON describes the other layer.
        ValueError
            The voxel sizes of the two datasets differ, or the name is invalid.
        """
        source = (
            stored_layer(other.dataset, other.name)
            if isinstance(other, Layer)
            else locate(other).choose_listed(None)
        )
        theirs = source.voxel_size_nm
        ours = datasource_of(self.path).voxel_size_nm
        if (
            not any_voxel_size
            and theirs is not None
            and ours is not None
            and not same_lengths(ours, theirs)
        ):
            raise ValueError(
                f"{source.folder}: voxels are {theirs} nm, those of {self.path} {ours} nm; "
                "any_voxel_size=True allows it"
            )
        return self._add_entry(
            reference_entry(source, self.path, name or source.name, relative=relative)
        )

    def rename_layer(self, old: str, new: str) -> Dataset:
        """Rename a layer, and its folder if it lies in the dataset.

        The paths in the JSON are valid at any moment, and the same call completes an interrupted
        one. If the file system cannot swap two names in one step, the folder keeps its old name.

        Raises
        ------
        ExistsError
            A layer or file of the new name exists, or a folder that contains more than what a
            killed job left.
        LockedError
            A job writes the layer, or an interrupted one can be resumed.
        MissingError
            The layer does not exist.
        ValueError
            The new name is invalid.
        """
        rename_layer(self.path, old, new)
        return self.refreshed()

    def remove_layer(
        self, name: str, *, delete_files: bool = False, allow_external: bool = False
    ) -> Dataset:
        """Remove a layer from the JSON. Its files stay unless ``delete_files`` is set.

        Parameters
        ----------
        name : str
            The layer; may have a ``problem``.
        delete_files : bool
            Delete its mags, as :func:`wkwdask.rm` does. Mags outside the dataset are refused.
        allow_external : bool
            Also delete mags outside the dataset.

        Raises
        ------
        LockedError
            A job writes the layer, or an interrupted one can be resumed.
        MissingError
            The layer does not exist.
        UnsupportedError
            ``delete_files`` is set, and a mag lies outside the dataset or has another format.
        """
        if delete_files:
            from wkwdask.api.copies import rm

            rm(self.path, layer=name, allow_external=allow_external)
            if name not in self.refreshed().layers:
                return self.refreshed()
        is_invalid = any(layer.name == name for layer in datasource_of(self.path).invalid_layers)
        with (
            contextlib.nullcontext()
            if is_invalid or delete_files
            else kept_idle(stored_layer(self.path, name))
        ):
            return self._edit(lambda document: without_layer(document, name))

    # ------------------------------------------------------------------------- mags

    def add_mags_from_disk(self, layer: str) -> Dataset:
        """Add mags in a layer's folder that the JSON does not list.

        Raises
        ------
        MissingError
            The layer does not exist.
        ValueError
            The type of a mag differs from that of the layer.
        """
        stored_image = stored_layer(self.path, layer)
        record = record_of(stored_image)
        new_mags = _mags_on_disk(stored_image.folder, layer, stored_image.mags)
        entries = _json_entries(
            stored_image.folder, layer, new_mags, (record.element_class, record.num_channels)
        )
        return (
            self._edit(lambda document: with_mags(document, layer, entries))
            if entries
            else self.refreshed()
        )

    def remove_mag(
        self, layer: str, mag: MagLike, *, delete_files: bool = False, allow_external: bool = False
    ) -> Dataset:
        """Remove a mag from the JSON. Its files stay unless ``delete_files`` is set.

        Parameters
        ----------
        layer : str
            The layer, which stays even without mags.
        mag : Mag, str, int or sequence of 3 int
            The mag.
        delete_files : bool
            Delete its files, as :func:`wkwdask.rm` does.
        allow_external : bool
            Also delete a mag outside the dataset.

        Raises
        ------
        LockedError
            A job writes the layer, or an interrupted one can be resumed.
        MissingError
            The layer or mag does not exist.
        UnsupportedError
            ``delete_files`` is set, and the mag lies outside the dataset or has another format.
        """
        parsed_mag, stored_image = Mag.parse(mag), stored_layer(self.path, layer)
        if parsed_mag not in stored_image.mags:
            raise MissingError(
                f"{self.path}: layer {layer} has no mag {parsed_mag}; there are "
                f"{', '.join(map(str, stored_image.mags)) or 'none'}"
            )
        if delete_files:
            from wkwdask.api.copies import rm

            rm(self.path, layer=layer, mags=[parsed_mag], allow_external=allow_external)
            return self.refreshed()
        with kept_idle(stored_image):
            return self._edit(lambda document: without_mags(document, layer, [parsed_mag]))

    # ------------------------------------------------------------------------- other fields of the
    # JSON

    def set_voxel_size(self, voxel_size: Sequence[float], unit: str = "nanometer") -> Dataset:
        """Set the edge lengths of a voxel of mag 1 along x, y, z [``unit``]. Voxels are not
        changed."""
        return self._edit(lambda document: with_scale(document, voxel_size, unit))

    def set_bounding_box(self, layer: str, bounding_box: BoxLike) -> Dataset:
        """Set the bounding box of a layer: x, y, z, width, height, depth [voxels of mag 1]. Voxels
        are not changed."""
        box = BoundingBox.parse(bounding_box).in_mag(MAG_1)
        stored_layer(self.path, layer)
        return self._edit(lambda document: with_box(document, layer, box))

    def set_largest_segment_id(self, layer: str, value: int | None) -> Dataset:
        """Set the largest id of a segmentation; None removes it.
        :meth:`Layer.compute_largest_segment_id` computes it."""
        record = record_of(stored_layer(self.path, layer))
        if value is not None:
            value = _segment_id(value, layer, record.category)
        return self._edit(lambda document: with_largest_id(document, layer, value))

    def set_view_configuration(
        self, values: Mapping[str, Any], layer: str | None = None
    ) -> Dataset:
        """Set fields of the default view settings of a layer, or of the whole dataset; None removes
        a field, other fields stay."""
        if layer is not None:
            stored_layer(self.path, layer)
        return self._edit(lambda document: with_view_configuration(document, layer, dict(values)))

    def _add_entry(self, entry: dict[str, Any]) -> Dataset:
        if any(layer.name == entry["name"] for layer in open_dataset(self.path)):
            raise ExistsError(f"{self.path}: layer {entry['name']!r} already exists")
        list_layer(self.path, entry)
        return self.refreshed()

    def _edit(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Dataset:
        update_datasource(self.path, change)
        return self.refreshed()


def open_dataset(
    url: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> Dataset:
    """Open a dataset with a ``datasource-properties.json``.

    Parameters
    ----------
    url : str or path
        Folder or remote URL of the dataset. A dataset on a web server cannot be edited.
    storage_options : mapping, optional
        Access to a remote server, as for :func:`open`.

    Returns
    -------
    Dataset

    Raises
    ------
    CorruptError
        The file is invalid. A single invalid layer is no error; it is listed with its ``problem``.
    MissingError
        The file does not exist.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> dataset = wkwdask.create_dataset(tempfile.mkdtemp() + "/cells", (4, 4, 35))
    >>> _ = wkwdask.write(
    ...     f"{dataset.path}/raw/1", (0, 0, 0), np.ones((64, 64, 64), np.uint8), file_len=1
    ... )
    >>> wkwdask.open_dataset(dataset.path)["raw"]
    Layer 'raw': color, uint8, (0, 0, 0) + (64, 64, 64), mags 1
    """
    use_storage_options(url, storage_options)
    path = any_path(url)
    source = read_datasource(path)
    if source is None:
        raise MissingError(
            f"{path}: not a dataset: {FILE_NAME} is missing; create_dataset() makes one"
        )
    # Valid and invalid layers are parsed into two lists. Merge them in the order of the file, in
    # which an invalid layer records its JSON path.
    invalid, valid = {layer.path: layer for layer in source.invalid_layers}, iter(source.layers)
    json_paths = [f"dataLayers[{number}]" for number in range(len(source.layers) + len(invalid))]
    layers = [
        invalid_layer(path, invalid[key]) if key in invalid else layer_of(path, source, next(valid))
        for key in json_paths
    ]
    return Dataset(
        path,
        source.name or basename(path),
        source.voxel_size,
        source.unit,
        source.voxel_size_nm,
        tuple(layers),
        source.document,
    )


def create_dataset(
    url: str | os.PathLike[str],
    voxel_size: Sequence[float],
    *,
    unit: str = "nanometer",
    name: str | None = None,
    existing: Literal["error", "keep"] = "error",
) -> Dataset:
    """Create a dataset without layers.

    Parameters
    ----------
    url : str or path
        Folder of the dataset, which may exist, or its URL in a bucket.
    voxel_size : sequence of 3 float
        Edge lengths of a voxel of mag 1 along x, y, z [``unit``].
    unit : str
        A unit of length, such as ``"nanometer"``, ``"micrometer"`` or ``"mm"``.
    name : str, optional
        Name of the dataset, by default that of the folder.
    existing : {"error", "keep"}
        Action if the dataset exists; ``"keep"`` opens it if it has the same voxel size.

    Returns
    -------
    Dataset

    Raises
    ------
    ExistsError
        The dataset exists and ``existing="error"``.
    LockedError
        Another process holds the lock of its JSON.
    ValueError
        An option is invalid, the name is that of another format, or the existing dataset has
        another voxel size.

    Examples
    --------
    >>> import tempfile
    >>> import wkwdask
    >>> wkwdask.create_dataset(
    ...     tempfile.mkdtemp() + "/cells", (0.004, 0.004, 0.035), unit="micrometer"
    ... ).voxel_size_nm
    (4.0, 4.0, 35.0)
    """
    if existing not in ("error", "keep"):
        raise ValueError(f'existing must be "error" or "keep", got {existing!r}')
    path = target_path(url)
    if read_datasource(path) is None:
        check_folder_name(path)
    new = with_scale(new_document(name or basename(path), (1.0, 1.0, 1.0)), voxel_size, unit)

    def check_new(document: dict[str, Any]) -> dict[str, Any]:
        if document is not new and existing == "error":
            raise ExistsError(
                f'{path}/{FILE_NAME}: already exists; open_dataset() opens it, existing="keep" '
                "keeps it"
            )
        return document

    store_at(path).make()
    update_datasource(path, check_new, new)
    dataset = open_dataset(path)
    stored_size, requested_size = (
        dataset.voxel_size_nm,
        tuple(length_nm(length, unit) for length in voxel_size),
    )
    if stored_size is not None and not same_lengths(stored_size, requested_size):
        raise ValueError(
            f"{path}: the existing dataset has voxels of {stored_size} nm, expected "
            f"{requested_size} nm"
        )
    return dataset


def _segment_id(value: int, layer: str, category: str) -> int:
    """Return the largest id of a layer as an int, or raise if the layer cannot have it."""
    if category != "segmentation":
        raise ValueError(f"layer {layer} is not a segmentation, so it has no largest id")
    number = operator.index(value)
    if not 0 <= number < 2**64:
        raise ValueError(
            f"the largest id of layer {layer} must be a whole number from 0 to {2**64 - 1}, got "
            f"{value}"
        )
    return int(number)


def _mags_on_disk(folder: str, name: str, known: Iterable[Mag] = ()) -> dict[Mag, StoredArray]:
    """Open the mags in a layer's folder, except the known ones."""
    if not store_at(folder).is_folder():
        return {}
    layer = with_folders(make_layer(folder, name), mags_in(folder))
    return {mag: layer.volume(mag) for mag in layer.mags if mag not in known}


def _json_entries(
    folder: str, name: str, volumes: Mapping[Mag, StoredArray], expected: tuple[str, int]
) -> list[tuple[Mag, str, int]]:
    """Return the JSON entries of mags on disk; their type must be that of the layer."""
    for volume in volumes.values():
        found = element_class(volume.dtype, volume.num_channels), volume.num_channels
        if found != expected:
            raise FormatError(
                f"{volume.folder}: holds {type_text(*found)}, the layer at {folder} "
                f"{type_text(*expected)}"
            )
    return [
        (mag, f"./{name}/{basename(volume.folder)}", volume.shard_shape[0])
        for mag, volume in volumes.items()
    ]
