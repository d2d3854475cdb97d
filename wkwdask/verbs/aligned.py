"""Reading volumes of any mag so that their voxels lie on those of another mag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.kernels.window.reduce import repeat_voxels

if TYPE_CHECKING:
    import numpy.typing as npt

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.volume import Volume


def is_finer(mag: Mag, other: Mag) -> bool:
    """Tell whether a mag is another one or finer."""
    if all(a <= b for a, b in zip(mag.factors, other.factors, strict=True)):
        return True
    if all(a >= b for a, b in zip(mag.factors, other.factors, strict=True)):
        return False
    raise ValueError(f"mag {mag} is finer than mag {other} on one axis and coarser on another; they cannot be read together")


def read_padded(volume: Volume, box: BoundingBox) -> npt.NDArray[Any]:
    """Read a box of a volume in its own mag, with zeros outside of the volume."""
    inside = box.intersection(volume.box)
    out = np.zeros((volume.num_channels, *box.size), volume.dtype, order="F")
    if not inside.is_empty:
        x, y, z = (slice(a - t, b - t) for a, b, t in zip(inside.topleft, inside.bottomright, box.topleft, strict=True))
        volume.read_into(out[:, x, y, z], inside.topleft)
    return out


def read_aligned(volume: Volume, box: BoundingBox) -> npt.NDArray[Any]:
    """Read what lies in a box of another mag."""
    if is_finer(volume.box.mag, box.mag):
        return read_padded(volume, box.in_mag(volume.box.mag))
    share = box.in_mag(volume.box.mag)
    planes = read_padded(volume, share).transpose(0, 3, 2, 1)
    factor = box.mag.step_to(volume.box.mag)
    depth, height, width = (n * f for n, f in zip(planes.shape[1:], reversed(factor), strict=True))
    out = np.empty((volume.num_channels, depth, height, width), volume.dtype)
    repeat_voxels(planes, factor, out)
    x, y, z = (slice(a - t * f, b - t * f) for a, b, t, f in zip(box.topleft, box.bottomright, share.topleft, factor, strict=True))
    return out.transpose(0, 3, 2, 1)[:, x, y, z]


def read_mask(volume: Volume, box: BoundingBox) -> npt.NDArray[np.bool_]:
    """Tell which voxels of a box of another mag hold anything but zero, in any channel."""
    found: npt.NDArray[np.bool_] = (read_aligned(volume, box) != 0).any(axis=0)
    if not is_finer(volume.box.mag, box.mag):
        return found
    (x, y, z), (fx, fy, fz) = box.size, volume.box.mag.step_to(box.mag)
    return np.logical_or.reduce(found.reshape(x, fx, y, fy, z, fz), axis=(1, 3, 5))  # type: ignore[no-any-return]
