"""Summary of images outside of datasets, for ``wkwdask info``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.image import Image, Level
    from wkwdask.model.levels import Lengths
    from wkwdask.model.stored_array import StoredArray


@dataclass(frozen=True, slots=True)
class ScaleSummary:
    """Summary of one level."""

    key: str
    folder: str
    mag: Mag | None = None
    """Mag relative to the first scale, None if it has none."""
    resolution: Lengths | None = None
    """Edge lengths of a voxel [nm]."""
    box: BoundingBox | None = None
    """Bounding box [absolute voxels of the scale], None if the level cannot be opened."""
    chunk_sizes: tuple[Vec3, ...] = ()
    """All chunk sizes in which it is stored [voxels]."""
    encoding: str = ""
    """Encoding of chunks."""
    sharding: str = ""
    """Sharding, empty if each chunk is a file."""
    hidden: bool = False
    """Whether viewers hide it."""
    files: int | None = None
    """Number of stored chunks or shards, None for a remote volume."""
    nbytes: int | None = None
    """Total size of these files, None for a remote volume."""
    problem: str = ""
    """Reason why it cannot be opened, empty if it can."""


@dataclass(frozen=True, slots=True)
class VolumeSummary:
    """Summary of an image, one of its levels, or the images of a container."""

    path: str
    type: str
    """``"image"`` or ``"segmentation"``."""
    dtype: str
    num_channels: int
    scales: tuple[ScaleSummary, ...]
    """Levels, finest first, or in the order of the document."""
    format: str
    notes: tuple[str, ...] = ()
    """Further properties, such as transformations that are not applied."""

    def to_json(self) -> dict[str, Any]:
        head = {"path": self.path, "format": self.format, "type": self.type, "dtype": self.dtype, "num_channels": self.num_channels}
        return {**head, "scales": [_scale_json(scale) for scale in self.scales], **({"notes": list(self.notes)} if self.notes else {})}


def _scale_json(scale: ScaleSummary) -> dict[str, Any]:
    return {
        "key": scale.key, "folder": scale.folder, "mag": None if scale.mag is None else scale.mag.name, "resolution": scale.resolution,
        "box": None if scale.box is None else [*scale.box.topleft, *scale.box.size], "chunk_sizes": [list(size) for size in scale.chunk_sizes],
        "encoding": scale.encoding, "sharding": scale.sharding or None, "hidden": scale.hidden, "files": scale.files, "nbytes": scale.nbytes,
        "problem": scale.problem or None,
    }  # fmt: skip


def summarize_arrays(url: str | os.PathLike[str], layers: Sequence[Image]) -> VolumeSummary:
    """Summarise images from their metadata; local files are counted."""
    volumes = [level.open() for layer in layers for level in layer.levels if not level.problem]
    several = len(layers) > 1
    scales = [_summarize(layer, level, several=several) for layer in layers for level in layer.selected]
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
    files, nbytes = volume.count_files() or (None, None)
    chunks = (volume.chunk_shape,)
    return ScaleSummary(key, volume.name, level.mag, volume.lengths_nm, volume.box, chunks, volume.codec.name, _shards(volume), files=files, nbytes=nbytes)


def _shards(volume: StoredArray) -> str:
    grid = volume.grid
    return "" if grid.file in (None, grid.chunk) else f"shards of {' x '.join(map(str, (grid.file or grid.chunk)[1:]))} voxels"
