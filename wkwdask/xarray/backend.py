"""xarray engines ``"wkw"``, ``"precomputed"``, ``"n5"`` and ``"ngff"``. A mag becomes a lazy
variable with coordinates in nanometers, a layer a tree of mags.

xarray imports this module together with all other engines, so its imports are light. It also
registers the accessor ``.wkw``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar

import xarray as xr
from xarray.backends import BackendEntrypoint

import wkwdask.xarray.accessor  # noqa: F401  # registers .wkw
from wkwdask.errors import FormatError, MissingError, UnsupportedError
from wkwdask.formats.opening import find, open_stored, use_storage_options
from wkwdask.formats.registry import format_named
from wkwdask.formats.webknossos.dataset import dataset_of
from wkwdask.formats.webknossos.datasource import data_format_of
from wkwdask.model.image import mag_or_key
from wkwdask.xarray.all_layers import open_layers
from wkwdask.xarray.variables import drop, node_of, open_variables

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from wkwdask.api.options import MagLike
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.image import Image, Level, ResolvedUrl


class GroupsBackend(BackendEntrypoint):
    """Base class of all engines."""

    supports_groups: ClassVar[bool] = True

    format_name: ClassVar[str]
    """Name of the engine's format in the registry."""

    def qualified_url(self, url: str | os.PathLike[str]) -> str | os.PathLike[str]:
        """Add the format's prefix to a path that does not determine the format."""
        name = format_named(self.format_name).url_name
        return (
            f"{name.prefixes[0]}{os.fspath(url)}" if name.prefixes and not name.is_in(url) else url
        )

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Return whether a path or URL has the engine's format."""
        return format_named(self.format_name).guess_can_open(filename_or_obj)

    def open_datatree(  # type: ignore[override]
        self,
        filename_or_obj: str | os.PathLike[str],
        *,
        drop_variables: str | Iterable[str] | None = None,
        chunk_size: Sequence[int] | None = None,
        index: Mapping[str, int] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> xr.DataTree:
        """Open a container or layer as a tree, with a leaf for each mag and, if there are several
        layers, a node for each layer."""
        use_storage_options(filename_or_obj, storage_options)
        return xr.DataTree.from_dict(
            self.open_groups_as_dict(
                filename_or_obj, drop_variables=drop_variables, chunk_size=chunk_size, index=index
            )
        )

    def open_groups_as_dict(  # type: ignore[override]
        self,
        filename_or_obj: str | os.PathLike[str],
        *,
        drop_variables: str | Iterable[str] | None = None,
        chunk_size: Sequence[int] | None = None,
        index: Mapping[str, int] | None = None,
    ) -> dict[str, xr.Dataset]:
        """Open a container or layer as groups, as :func:`image_groups` does."""
        located = find(self.qualified_url(filename_or_obj), chunk_size, index)
        return image_groups(located.layers, drop_variables, index)


class LayersBackend(GroupsBackend):
    """Base class of engines for formats with several layers."""

    open_dataset_parameters: ClassVar[tuple[str, ...]] = (
        "filename_or_obj",
        "drop_variables",
        "layer",
        "mag",
        "bounding_box",
        "index",
        "storage_options",
    )

    def open_dataset(  # type: ignore[override]
        self,
        filename_or_obj: str | os.PathLike[str],
        *,
        drop_variables: str | Iterable[str] | None = None,
        layer: str | None = None,
        mag: MagLike | None = None,
        bounding_box: BoundingBox | str | Sequence[Any] | None = None,
        index: Mapping[str, int] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> xr.Dataset:
        """Open one mag of a layer as a lazy variable named after the layer."""
        use_storage_options(filename_or_obj, storage_options)
        url = self.qualified_url(filename_or_obj)
        level = self.open_level(url, layer, mag_or_key(mag), bounding_box, index)
        return drop(level, drop_variables)

    def open_level(
        self,
        url: str | os.PathLike[str],
        layer: str | None,
        mag: Mag | str | None,
        bounding_box: BoundingBox | str | Sequence[Any] | None,
        index: Mapping[str, int] | None,
    ) -> xr.Dataset:
        """Open one mag of a layer."""
        return open_variables(*open_stored(url, layer, mag, index=index), bounding_box, index=index)


class N5Backend(LayersBackend):
    """The engine ``"n5"``."""

    description: ClassVar[str] = "N5 containers, groups and datasets, local and remote"
    format_name: ClassVar[str] = "n5"


class NgffBackend(LayersBackend):
    """The engine ``"ngff"``, for OME-NGFF images with all their resolutions and for other Zarr
    arrays."""

    description: ClassVar[str] = (
        "OME-NGFF (OME-Zarr) images with their resolutions, local and remote"
    )
    format_name: ClassVar[str] = "zarr"


def image_groups(
    images: Sequence[Image],
    drop_variables: str | Iterable[str] | None,
    index: Mapping[str, int] | None = None,
) -> dict[str, xr.Dataset]:
    """Open images as groups, one for each level, named by its mag, else by its key, as ``level_1``
    where that reads as a mag. A level that cannot be opened has the attribute ``problem``.
    ``index`` is that by which the images were found."""
    several = len(images) > 1
    groups = {"/": xr.Dataset(attrs={} if several else _image_attrs(images[0]))}
    for image in images:
        node = node_of(image.name) if several else ""
        if node:
            groups[node] = xr.Dataset(attrs=_image_attrs(image))
        for name, level in _named_levels(image.selected):
            groups[f"{node}{name}"] = drop(_level_or_problem(image, level, index), drop_variables)
    return groups


def _named_levels(levels: Sequence[Level]) -> Iterator[tuple[str, Level]]:
    """Yield levels with the names of their groups: the mag, else the key, which does not read as
    another mag."""
    by_mag: dict[str, Level] = {}
    for level in levels:
        if level.mag is not None and not level.problem:
            by_mag.setdefault(level.mag.name, level)
    for level in levels:
        if level.mag is not None and by_mag.get(level.mag.name) is level:
            yield f"/{level.mag.name}", level
        else:
            is_key = isinstance(mag_or_key(level.key), str)
            yield node_of(level.key if is_key else f"level_{level.key}"), level


def _image_attrs(image: Image) -> dict[str, Any]:
    attrs: dict[str, Any] = {
        "layer": image.name,
        "data_format": data_format_of(image.format),
    }
    if image.category is not None:
        attrs["category"] = image.category
    if image.voxel_size_nm is not None:
        attrs["voxel_size_nm"] = image.voxel_size_nm
    return attrs


def _level_or_problem(layer: Image, level: Level, index: Mapping[str, int] | None) -> xr.Dataset:
    if level.problem:
        return xr.Dataset(attrs={"key": level.key, "problem": level.problem})
    volume = level.open()
    return open_variables(layer, volume, index=index)


__all__ = ["N5Backend", "NgffBackend", "PrecomputedBackend", "WkwBackend"]


class WkwBackend(LayersBackend):
    """The engine ``"wkw"``."""

    description: ClassVar[str] = "webKNOSSOS-wrap (WKW) layers and WEBKNOSSOS datasets"
    format_name: ClassVar[str] = "webknossos"

    def open_level(
        self,
        url: str | os.PathLike[str],
        layer: str | None,
        mag: Mag | str | None,
        bounding_box: BoundingBox | str | Sequence[Any] | None,
        index: Mapping[str, int] | None,
    ) -> xr.Dataset:
        """Open one mag of a layer, or of all layers of a dataset."""
        if layer is None and index is None and not isinstance(mag, str):
            located = find(url)
            if len(located.layers) > 1:
                return open_layers(located, mag, bounding_box)
        return super().open_level(url, layer, mag, bounding_box, index)

    def open_groups_as_dict(  # type: ignore[override]
        self,
        filename_or_obj: str | os.PathLike[str],
        *,
        drop_variables: str | Iterable[str] | None = None,
        chunk_size: Sequence[int] | None = None,
        index: Mapping[str, int] | None = None,
    ) -> dict[str, xr.Dataset]:
        """Open a dataset or layer as groups. Layers and mags that cannot be opened are groups
        without variables, with the attribute ``problem``."""
        located = find(filename_or_obj, chunk_size, index)
        if any(not layer.is_layer for layer in located.layers):
            return image_groups(located.layers, drop_variables, index)
        groups = {"/": xr.Dataset(attrs=_dataset_attrs(located))}
        is_layer = (
            len(located.layers) == 1
            and dataset_of(located.layers[0]).dataset_folder != located.path
        )
        for layer in located.layers:
            node = "" if is_layer else node_of(layer.name)
            groups[node or "/"] = xr.Dataset(
                attrs={**groups["/"].attrs, **_layer_attrs(layer)}
                if is_layer
                else _layer_attrs(layer)
            )
            readable = located.readable(layer)
            for mag in layer.mags:
                if located.mag in (None, mag):
                    groups[f"{node}/{mag.name}"] = drop(
                        _open_or_explain(readable, mag), drop_variables
                    )
        groups.update(
            {
                node_of(odd.name): xr.Dataset(attrs={"layer": odd.name, "problem": odd.problem})
                for odd in located.invalid_layers
            }
        )
        return groups


class PrecomputedBackend(GroupsBackend):
    """The engine ``"precomputed"``."""

    description: ClassVar[str] = "Neuroglancer precomputed volumes, local and remote"
    open_dataset_parameters: ClassVar[tuple[str, ...]] = (
        "filename_or_obj",
        "drop_variables",
        "mag",
        "bounding_box",
        "chunk_size",
        "storage_options",
    )
    format_name: ClassVar[str] = "precomputed"

    def open_dataset(  # type: ignore[override]
        self,
        filename_or_obj: str | os.PathLike[str],
        *,
        drop_variables: str | Iterable[str] | None = None,
        mag: MagLike | None = None,
        bounding_box: BoundingBox | str | Sequence[Any] | None = None,
        chunk_size: Sequence[int] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> xr.Dataset:
        """Open one scale as a lazy variable named after the volume's folder."""
        use_storage_options(filename_or_obj, storage_options)
        layer, volume = open_stored(
            self.qualified_url(filename_or_obj), None, mag_or_key(mag), chunk_size
        )
        return drop(open_variables(layer, volume, bounding_box), drop_variables)


def _open_or_explain(layer: Image, mag: Mag) -> xr.Dataset:
    try:
        volume = layer.volume(mag)
    except (FormatError, MissingError, ModuleNotFoundError, UnsupportedError) as error:
        return xr.Dataset(attrs={"mag": mag.name, "problem": str(error)})
    return open_variables(layer, volume)


def _dataset_attrs(located: ResolvedUrl) -> dict[str, Any]:
    sources = [
        source for layer in located.layers if (source := dataset_of(layer).datasource) is not None
    ]
    if not sources:
        return {}
    attrs: dict[str, Any] = {"name": sources[0].name}
    if sources[0].voxel_size_nm is not None:
        attrs["voxel_size_nm"] = sources[0].voxel_size_nm
    return attrs


def _layer_attrs(layer: Image) -> dict[str, Any]:
    box = layer.stated_box
    if box is None:
        return {"layer": layer.name}
    return {
        "layer": layer.name,
        "category": layer.category,
        "data_format": layer.format,
        "bounding_box": (*box.topleft, *box.size),
    }
