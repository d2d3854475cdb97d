"""A mag as lazy xarray variables with coordinates in nanometers."""

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
    from collections.abc import Iterable, Mapping, Sequence

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.graphs.read import BoxReader
    from wkwdask.model.image import Image
    from wkwdask.model.stored_array import StoredArray


_LONGEST = 1 << 27  # maximum number of coordinates along an axis: 1 GiB of float64


class WkwArray(BackendArray):
    """Lazy array for xarray, which decodes only the blocks that a selection touches."""

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


def open_variables(
    layer: Image,
    volume: StoredArray,
    bounding_box: BoundingBox | str | Sequence[Any] | None = None,
    extent: BoundingBox | None = None,
    index: Mapping[str, int] | None = None,
) -> xr.Dataset:
    """Return the variable and the coordinates of one mag, of a part of it, or of an extent in which
    the rest is zero; ``index`` is that by which the layer was found."""
    from wkwdask.graphs.read import box_reader

    data = parse_box_of(volume, bounding_box)
    box = extent or data
    one_channel = volume.num_channels == 1
    reader = box_reader(
        volume, data, box, "xyz" if one_channel else "cxyz", 0 if one_channel else None
    )
    voxel_size = layer.voxel_size_of(volume)
    coordinates = {
        axis: _coordinate(volume.name, n, axis, box, voxel_size) for n, axis in enumerate("xyz")
    }
    if not one_channel:
        coordinates["c"] = xr.Variable(
            ("c",), np.arange(volume.num_channels), {"long_name": "channel"}
        )
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
        "source": volume.name if layer.is_layer else f"{layer.format}://{layer.folder}",
        **({} if index is None else {"index": dict(index)}),
    }
    variable = xr.Variable(
        tuple(reader.axes), indexing.LazilyIndexedArray(WkwArray(reader)), attrs, encoding
    )
    dataset_attrs = {key: attrs[key] for key in ("mag", "key", "voxel_size_nm") if key in attrs}
    return xr.Dataset({name: variable}, coords=coordinates, attrs=dataset_attrs)


def node_of(layer: str) -> str:
    """Return the path of a layer's node. A slash in its name would begin another node, so it is
    replaced."""
    return f"/{layer.replace('/', '_')}"


def drop(dataset: xr.Dataset, drop_variables: str | Iterable[str] | None) -> xr.Dataset:
    """Drop the variables that the argument ``drop_variables`` of an engine names."""
    if drop_variables is None:
        return dataset
    names = [drop_variables] if isinstance(drop_variables, str) else drop_variables
    return dataset.drop_vars(names, errors="ignore")


def _coordinate(
    name: str, n: int, axis: str, box: BoundingBox, voxel_size_nm: Sequence[float] | None
) -> xr.Variable:
    """Return the centers of voxels along an axis, in nanometers, or in voxels of mag 1 if the voxel
    size is unknown."""
    if box.size[n] > _LONGEST:
        raise UnsupportedError(
            f"{name}: found {box.size[n]:,} voxels along {axis}, expected at most {_LONGEST:,}, "
            "because xarray stores a coordinate for each; "
            "select a part with bounding_box="
        )
    factor = box.mag.factors[n]
    length = 1.0 if voxel_size_nm is None else voxel_size_nm[n]
    centers = (np.arange(box.topleft[n], box.bottomright[n]) + 0.5) * (factor * length)
    attrs: dict[str, Any] = {
        "units": "voxel" if voxel_size_nm is None else "nm",
        "long_name": axis,
        "mag": factor,
    }
    if voxel_size_nm is not None:
        attrs["voxel_size_nm"] = length
    return xr.Variable((axis,), centers, attrs)


def _preferred_chunks(reader: BoxReader) -> tuple[tuple[int, ...], ...]:
    """Choose chunks for ``chunks={}`` from which ``chunks="auto"`` derives no chunk that splits a
    block.

    For ``"auto"``, dask starts from the median length of the preferred chunks. It joins whole
    chunks only if these are equal and fit into its limit; otherwise it cuts the axis evenly, across
    blocks. Smaller chunks are tried until dask only joins them.
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
        requests: list[tuple[Any, ...]] = [("auto",) * reader.ndim]
        requests += [(*chunks[:axis], "auto", *chunks[axis + 1 :]) for axis in range(reader.ndim)]
        results = [
            normalize_chunks(request, reader.shape, dtype=reader.dtype, previous_chunks=chunks)
            for request in requests
        ]
        if all(
            set(np.cumsum(lengths).tolist()) <= borders
            for result in results
            for lengths, borders in zip(result, grid, strict=True)
        ):
            return chunks
        nbytes //= 2
