"""What is in an N5 container or a Zarr group: the numbers behind ``wkwdask info``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wkwdask.model.stored_array import StoredArray
from wkwdask.model.summary import ScaleSummary, VolumeSummary

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from wkwdask.model.image import Image, Level


def summarize_arrays(url: str | os.PathLike[str], layers: Sequence[Image]) -> VolumeSummary:
    """Summarise arrays; only metadata are read, but files are counted where they can be."""
    volumes = [level.open() for layer in layers for level in layer.levels if not level.problem]
    several = len(layers) > 1
    scales = [_summarize(layer, level, several=several) for layer in layers for level in layer.meant]
    dtypes = {volume.dtype.name for volume in volumes}
    path = str(url) if several else layers[0].folder
    kind = "container" if several else layers[0].category or "volume"
    channels = max((volume.num_channels for volume in volumes), default=1)
    return VolumeSummary(path, kind, ", ".join(sorted(dtypes)), channels, tuple(scales), layers[0].format)


def _summarize(layer: Image, level: Level, *, several: bool) -> ScaleSummary:
    key = "/".join(filter(None, [layer.name if several else "", level.key])) or layer.name
    if level.problem:
        return ScaleSummary(key, f"{layer.folder}/{level.key}", problem=level.problem)
    volume = level.open()
    assert isinstance(volume, StoredArray)
    files, nbytes = volume.count_files() or (None, None)
    chunks = (volume.chunk_shape,)
    return ScaleSummary(key, volume.name, level.mag, volume.lengths_nm, volume.box, chunks, volume.codec.name, _shards(volume), files=files, nbytes=nbytes)


def _shards(volume: StoredArray) -> str:
    grid = volume.grid
    return "" if grid.file in (None, grid.chunk) else f"shards of {' x '.join(map(str, (grid.file or grid.chunk)[1:]))} voxels"
