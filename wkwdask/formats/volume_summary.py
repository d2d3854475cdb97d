"""What is in a precomputed volume, or in N5 or Zarr: the numbers behind ``wkwdask info``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wkwdask.formats.precomputed.files import file_sizes
from wkwdask.formats.precomputed.layer import open_precomputed_layer
from wkwdask.geometry.bounding_box import MAG_1, BoundingBox

if TYPE_CHECKING:
    import os

    from wkwdask.formats.precomputed.info import Lengths, Scale
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.image import Image, Level


@dataclass(frozen=True, slots=True)
class ScaleSummary:
    """One scale."""

    key: str
    """Its key."""
    folder: str
    """Its folder or URL."""
    mag: Mag | None = None
    """Its mag relative to the first scale, None where it has none."""
    resolution: Lengths | None = None
    """Edge lengths of a voxel [nm]."""
    box: BoundingBox | None = None
    """Where it has data, absolute [voxels of the scale]; None where it cannot be opened."""
    chunk_sizes: tuple[Vec3, ...] = ()
    """All chunk sizes that it is stored in [voxels]."""
    encoding: str = ""
    """How chunks are encoded."""
    sharding: str = ""
    """How chunks are put into files, empty where each is one."""
    hidden: bool = False
    """Whether viewers leave it out."""
    files: int | None = None
    """Chunks or shards that are stored, None for a remote volume."""
    nbytes: int | None = None
    """Their bytes, None for a remote volume."""
    problem: str = ""
    """Why it cannot be opened, empty where it can."""


@dataclass(frozen=True, slots=True)
class VolumeSummary:
    """A precomputed volume, or what N5 or Zarr holds; or one of its scales."""

    path: str
    """Its folder or URL."""
    type: str
    """``"image"`` or ``"segmentation"``."""
    dtype: str
    """Type of one channel."""
    num_channels: int
    """Values per voxel."""
    scales: tuple[ScaleSummary, ...]
    """The scales, as ``info`` lists them; or the arrays of N5 or Zarr, finest first."""
    format: str = "precomputed"
    """``"precomputed"``, ``"n5"`` or ``"zarr"``."""

    def to_json(self) -> dict[str, Any]:
        """Give plain values for ``json.dumps``."""
        head = {"path": self.path, "format": self.format, "type": self.type, "dtype": self.dtype, "num_channels": self.num_channels}
        return {**head, "scales": [_scale_json(scale) for scale in self.scales]}


def summarize_precomputed(url: str | os.PathLike[str]) -> VolumeSummary:
    """Look at a precomputed volume or one of its scales; only ``info`` is read, but the files of a local one are counted."""
    image = open_precomputed_layer(url)
    info = image.details.info
    levels = sorted(image.meant, key=lambda level: int(level.details.index))
    return VolumeSummary(image.folder, info.type, info.dtype.name, info.num_channels, tuple(_summarize(image, level) for level in levels))


def _summarize(image: Image, level: Level) -> ScaleSummary:
    if level.problem:
        return ScaleSummary(level.key, level.folder, resolution=level.lengths_nm, problem=level.problem)
    scale: Scale = level.details
    files, nbytes = file_sizes(level.folder, scale) if image.details.store.is_local else (None, None)
    box = BoundingBox(scale.voxel_offset, scale.size, level.mag or MAG_1)
    sharding = describe_sharding(scale)
    return ScaleSummary(
        scale.key, level.folder, level.mag, scale.resolution, box, scale.chunk_sizes, scale.encoding, sharding, scale.hidden, files, nbytes
    )  # fmt: skip


def describe_sharding(scale: Scale) -> str:
    """Say in a few words how the chunks of a scale are put into files.

    Examples
    --------
    >>> from wkwdask.formats.precomputed.info import Scale
    >>> from wkwdask.formats.precomputed.sharding import Sharding
    >>> describe_sharding(Scale("1", (512, 512, 64), (0, 0, 0), (64, 64, 64), (1, 1, 1), "raw", Sharding(3, 1, 2, data_encoding="gzip")))
    'shards of 256 x 256 x 64 voxels, gzip'
    """
    sharding = scale.sharding
    if sharding is None:
        return ""
    shape = "murmur shards" if sharding.hash != "identity" else "shards that are no boxes"
    if scale.shard_cells is not None:
        shape = f"shards of {' x '.join(str(cells * edge) for cells, edge in zip(scale.shard_cells, scale.chunk_size, strict=True))} voxels"
    return shape if sharding.data_encoding == "raw" else f"{shape}, {sharding.data_encoding}"


def _scale_json(scale: ScaleSummary) -> dict[str, Any]:
    return {
        "key": scale.key, "folder": scale.folder, "mag": None if scale.mag is None else list(scale.mag.factors), "resolution": scale.resolution,
        "box": None if scale.box is None else [*scale.box.topleft, *scale.box.size], "chunk_sizes": [list(one) for one in scale.chunk_sizes],
        "encoding": scale.encoding, "sharding": scale.sharding or None, "hidden": scale.hidden, "files": scale.files, "nbytes": scale.nbytes,
        "problem": scale.problem or None,
    }  # fmt: skip
