"""By what the source of a job is known again, whatever its format."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import IncompleteWriteError
from wkwdask.model.states import digest
from wkwdask.plans.cells import SparseCells

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.volume import Volume


def source_token(source: Volume) -> str:
    """Name what is read so that something else in its place has another name."""
    return token_of(source.content_token)


def token_of(values: Any) -> str:
    """Name values so that others have another name."""
    return hashlib.blake2b(repr(values).encode(), digest_size=8).hexdigest()


def known_by(source: Volume) -> dict[str, Any]:
    """Say by what a source is known again. Of a regular one, each region of a job and each shard that is made keeps the state of its own files."""
    if source.is_regular:
        return {"source": source.box.mag.name, "input": source_token(source)}
    return {"source": source.name, "input": source_token(source), "states": digest(source.stored_states())}


def box_setting(box: BoundingBox) -> str:
    """Write down a box [voxels of its mag]."""
    return ",".join(map(str, (*box.topleft, *box.size)))


def presence(source: Volume, cell_shapes: Iterable[Vec3]) -> str:
    """Name which cells of some grids touch a stored file: a file that appears in an empty cell, or the last one that goes, changes it."""
    state = hashlib.blake2b(digest_size=8)
    for shape in cell_shapes:
        found = source.occupied(shape)
        state.update(found.places().tobytes() if isinstance(found, SparseCells) else np.packbits(found).tobytes())
    return state.hexdigest()


def check_not_replaced(source: Volume) -> None:
    """Make sure that a source that was read is still the one that is there."""
    if not source.is_current():
        raise IncompleteWriteError(f'{source.name}: was replaced while it was read; existing="overwrite" starts anew with what is there now')
