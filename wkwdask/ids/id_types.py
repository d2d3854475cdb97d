"""Types of new ids: 32 bits, or 64 bits if there are too many, which is known only in the middle of
a job."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.model.voxel_type import parse_dtype

if TYPE_CHECKING:
    from collections.abc import Callable

    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.target_image import LevelSpec, NewLevels, TargetImage
    from wkwdask.runs.staged import StagedMags

_MOST_OF_32_BITS = 2**32 - 1


def dtype_of_ids(dtype: Any) -> np.dtype[Any]:
    """Return the type that the user chose for ids; uint32 for None."""
    chosen = parse_dtype(np.uint32 if dtype is None else dtype)
    if chosen.kind not in "iu":
        raise TypeError(f"ids are integers, got dtype {chosen.name}")
    return chosen


def layout_of_longer_ids(
    target: TargetImage, spec: LevelSpec, stored: Any, source: Volume, *, is_chosen: bool
) -> Callable[[], NewLevels] | None:
    """Return a function that lays out the same level with ids of 64 bits; None if the user chose
    the type."""
    longer = replace(spec, dtype=np.dtype(np.uint64))
    return None if is_chosen else partial(target.new_levels, [longer], stored, source, "overwrite")


def staged_for_ids(
    staged: StagedMags, lay_out_longer: Callable[[], NewLevels] | None, num_ids: int, what: str
) -> StagedMags:
    """Return the staged level with a type that fits the number of ids."""
    (target,), (folder,) = staged.targets, staged.folders
    if num_ids <= np.iinfo(target.dtype).max and (
        lay_out_longer is None or num_ids <= _MOST_OF_32_BITS
    ):
        return staged
    if lay_out_longer is None:
        raise ValueError(
            f"{folder}: {num_ids} {what} are too many for {target.dtype.name}; set dtype= to a "
            "longer type"
        )
    # The level was staged as uint32, before the number of ids was known. No voxel is written yet,
    # so its metadata are replaced by those of uint64.
    staged = staged.laid_out_again(lay_out_longer())
    staged.targets[0].describe()
    return staged
