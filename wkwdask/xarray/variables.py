"""One mag as xarray variables: voxels that are read when they are needed, and coordinates in nanometers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from xarray.backends import BackendArray
from xarray.core import indexing

from wkwdask.errors import UnsupportedError
from wkwdask.model.image import parse_box_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.graphs.read import BoxReader
    from wkwdask.model.image import Image
    from wkwdask.model.stored_array import StoredArray


_LONGEST = 1 << 27  # voxels along an axis that have coordinates


class WkwArray(BackendArray):
    """What xarray slices: decodes the blocks that a selection touches."""

    def __init__(self, reader: BoxReader) -> None:
        self.reader = reader
        self.shape = reader.shape
        self.dtype = reader.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        from wkwdask.graphs.selection import read_orthogonal, read_points

        read = read_points if isinstance(key, indexing.VectorizedIndexer) else read_orthogonal
        return read(self.reader, key.tuple)

    async def async_getitem(self, key: indexing.ExplicitIndexer) -> Any:
        """Read in another thread."""
        return await asyncio.to_thread(self.__getitem__, key)


def open_variables(layer: Image, volume: StoredArray, bounding_box: BoundingBox | str | Sequence[Any] | None = None) -> xr.Dataset:
    """Make the variable and the coordinates of one mag, or of the part of it that a user names."""
    from wkwdask.graphs.read import box_reader

    box = parse_box_of(volume, bounding_box)
    one_channel = volume.num_channels == 1
    reader = box_reader(volume, box, box.topleft, "xyz" if one_channel else "cxyz", 0 if one_channel else None)
    voxel_size = layer.voxel_size_of(volume)
    coordinates = {axis: _coordinate(volume.name, n, axis, box, voxel_size) for n, axis in enumerate("xyz")}
    if not one_channel:
        coordinates["c"] = xr.Variable(("c",), np.arange(volume.num_channels), {"long_name": "channel"})
    key = layer.key_without_mag(volume)
    attrs: dict[str, Any] = {"mag": box.mag.name} if key is None else {"key": key}
    if voxel_size is not None:
        attrs["voxel_size_nm"] = voxel_size
    if layer.category is not None:
        attrs["category"] = layer.category
    name = layer.name.replace("/", "_")
    name = name if name not in ("c", "x", "y", "z") else f"layer_{name}"
    chunks = _preferred_chunks(reader)
    encoding = {
        "preferred_chunks": dict(zip(reader.axes, chunks, strict=True)),
        "source": volume.name if layer.container is not None else f"{layer.format}://{layer.folder}",
    }
    variable = xr.Variable(tuple(reader.axes), indexing.LazilyIndexedArray(WkwArray(reader)), attrs, encoding)
    dataset_attrs = {key: attrs[key] for key in ("mag", "key", "voxel_size_nm") if key in attrs}
    return xr.Dataset({name: variable}, coords=coordinates, attrs=dataset_attrs)


def node_of(layer: str) -> str:
    """Give the path of a layer's node; a slash in its name would begin another one."""
    return f"/{layer.replace('/', '_')}"


def without(dataset: xr.Dataset, drop_variables: str | Iterable[str] | None) -> xr.Dataset:
    """Leave out variables that a user does not want."""
    if drop_variables is None:
        return dataset
    names = [drop_variables] if isinstance(drop_variables, str) else drop_variables
    return dataset.drop_vars(names, errors="ignore")


def _coordinate(name: str, n: int, axis: str, box: BoundingBox, voxel_size_nm: Sequence[float] | None) -> xr.Variable:
    """Give the centres of voxels along an axis: in nanometers, or in voxels of mag 1 where nobody says how large these are."""
    if box.size[n] > _LONGEST:
        raise UnsupportedError(f"{name}: found {box.size[n]:,} voxels along {axis}, and xarray holds a coordinate of each; name a part with bounding_box=")
    factor = box.mag.factors[n]
    length = 1.0 if voxel_size_nm is None else voxel_size_nm[n]
    centres = (np.arange(box.topleft[n], box.bottomright[n]) + 0.5) * (factor * length)
    attrs: dict[str, Any] = {"units": "voxel" if voxel_size_nm is None else "nm", "long_name": axis, "mag": factor}
    if voxel_size_nm is not None:
        attrs["voxel_size_nm"] = length
    return xr.Variable((axis,), centres, attrs)


def _preferred_chunks(reader: BoxReader) -> tuple[tuple[int, ...], ...]:
    """Choose chunks for ``chunks={}`` of which ``chunks="auto"`` makes none that split blocks.

    dask reshapes them for ``"auto"`` by their median lengths, and makes even chunks where these are too large for the limit, or uneven: such chunks
    are made smaller until it only joins them.
    """
    import dask
    from dask.array.core import normalize_chunks

    from wkwdask.graphs.read import reader_chunks

    nbytes = dask.utils.parse_bytes(dask.config.get("array.chunk-size"))
    blocks = reader_chunks(reader, "block")
    grid = [set(np.cumsum(lengths).tolist()) for lengths in blocks]
    while True:
        chunks = reader_chunks(reader, f"{nbytes}B")
        if chunks == blocks or 0 in reader.shape:
            return chunks
        asked: list[tuple[Any, ...]] = [("auto",) * reader.ndim]
        asked += [(*chunks[:axis], "auto", *chunks[axis + 1 :]) for axis in range(reader.ndim)]
        made = [normalize_chunks(some, reader.shape, dtype=reader.dtype, previous_chunks=chunks) for some in asked]
        if all(set(np.cumsum(lengths).tolist()) <= borders for some in made for lengths, borders in zip(some, grid, strict=True)):
            return chunks
        nbytes //= 2
