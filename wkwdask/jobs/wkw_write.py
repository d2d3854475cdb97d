"""Staging an array as one WKW mag: from what a user asks for to what is staged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wkwdask.formats.wkw.header import BlockType, WkwHeader, make_header
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.jobs.places import edit_for, place_of
from wkwdask.jobs.staged import StagedMags, check_existing, settings_of
from wkwdask.storage.owner import Owner
from wkwdask.storage.wkw_target import WkwTarget

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from wkwdask.geometry.mag import Vec3


@dataclass(frozen=True, slots=True)
class WkwEncoding:
    """How a new mag is to be stored."""

    block_len: int
    """Edge of a block [voxels]."""
    file_len: int
    """Edge of a file [blocks]."""
    compression: str
    """``"lz4hc"``, ``"lz4"`` or ``"raw"``."""
    level: int
    """LZ4HC level."""
    any_length: bool = False
    """Allow lengths that the reference library cannot read."""

    def header(self, dtype: Any, num_channels: int) -> WkwHeader:
        """Make the header of a mag of some type.

        Raises
        ------
        TypeError
            WKW has no voxel type for the dtype.
        ValueError
            An option makes no sense.
        """
        check_level(self.level)
        block_type = BlockType.parse(self.compression)
        return make_header(dtype, num_channels, block_len=self.block_len, file_len=self.file_len, block_type=block_type, any_length=self.any_length)


def check_level(level: int) -> None:
    """Make sure that an LZ4HC level is one that there is.

    Raises
    ------
    ValueError
        It is not.
    """
    if not 1 <= level <= 12:
        raise ValueError(f"level must be in 1..12, got {level}")


def check_category(category: str | None) -> None:
    """Make sure that the category of a layer is one that there is.

    Raises
    ------
    ValueError
        It is not.
    """
    if category not in (None, "color", "segmentation"):
        raise ValueError(f'category must be "color" or "segmentation", got {category!r}')


def stage_write(
    url: str | os.PathLike[str], topleft: Vec3, shape: Sequence[int], dtype: Any, encoding: WkwEncoding, existing: str, category: str | None
) -> StagedMags:
    """Check and lay out the writing of an array as one mag.

    Parameters
    ----------
    url : str or path
        The mag's folder.
    topleft : tuple of 3 int
        Absolute voxel of the mag that element 0 goes to.
    shape : sequence of 4 int
        Shape of the array, (c, x, y, z).
    dtype : dtype_like
        Type of one channel.
    encoding : WkwEncoding
        How the mag is stored.
    existing : str
        ``"error"`` or ``"overwrite"``.
    category : str, optional
        What a new layer is.

    Returns
    -------
    StagedMags

    Raises
    ------
    TypeError
        WKW has no voxel type for the dtype.
    ValueError
        An option makes no sense, or the layer has another type.
    UnsupportedError
        The folder leaves its dataset.
    """
    check_existing(existing, ("error", "overwrite"))
    check_category(category)
    header = encoding.header(dtype, shape[0])
    place = place_of(url)
    box = BoundingBox(topleft, (shape[1], shape[2], shape[3]), place.mag)
    settings = settings_of(
        "to_wkw", folder=place.folder, box=box, dtype=header.dtype.name, channels=header.num_channels, block_len=encoding.block_len,
        file_len=encoding.file_len, compression=encoding.compression, level=encoding.level,
    )  # fmt: skip
    owner = Owner.this_process(f"to_wkw into {place.folder}")
    target = staged_target(owner, place.layer.folder, header, encoding.level, box)
    edit = edit_for(place, header, box, category)
    return StagedMags(owner, place.layer.folder, (target,), (place.folder,), box.volume * header.voxel_nbytes, edit, settings, existing)


def staged_target(owner: Owner, parent: str, header: WkwHeader, level: int, box: BoundingBox) -> WkwTarget:
    """Lay out a mag that is built in a job's folder."""
    folder = StagedMags.staged_folder(owner, parent, box.mag.long_name)
    return WkwTarget(folder, f"{folder}.parts", header, level, box)
