"""By what the source of a job is known again, whatever its format."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import IncompleteWriteError, ReplacedError, UnsupportedError
from wkwdask.formats.opening import find, format_of_image, open_source
from wkwdask.formats.registry import fallback, format_of
from wkwdask.model.states import digest
from wkwdask.plans.cells import SparseCells
from wkwdask.runs.staged import finish_what_was_left

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.image import Image
    from wkwdask.model.volume import Volume


def open_to_build(
    url: str | os.PathLike[str], name: str | None, mag: Mag | str | None, option: str, default: Callable[[Image], Mag | None] = lambda _: None,
    *, allow_external: bool = False,
) -> tuple[Image, Volume]:  # fmt: skip
    """Open the level that others of its image are made from; what a job that was killed there left half-published is finished first."""
    open_it = partial(open_source, url, name, mag, option, default, allow_external=allow_external)
    try:
        image, volume = open_it()
    except ReplacedError:
        left = find(url).choose(name)
        for level in left.levels:
            finish_what_was_left(*format_of_image(left).hold(left, level), option)
        image, volume = open_it()
    if image.container is None and (format_of(url) or fallback()) is fallback():
        raise UnsupportedError(
            f"{image.folder}: the layer is stored as {image.format}, only wkw gets mags in a dataset; name it as {image.format}://{image.folder}"
        )
    return image, volume


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
