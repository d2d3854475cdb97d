"""Limits of the package, lowered so that small volumes take many tasks, pieces and batches."""

from __future__ import annotations

import contextlib
from unittest import mock

from wkwdask.formats.pictures import exported
from wkwdask.graphs import write as graph
from wkwdask.plans import apply, components, pyramid, slabs
from wkwdask.store import local, store
from wkwdask.verbs import update
from wkwdask.verbs import write as written
from wkwdask.verbs.wkw import mags as wkw_mags


def small_regions(edge, smallest=None):
    """Let tasks of a pyramid make regions of so many voxels of the first coarser mag."""
    return mock.patch.multiple(pyramid, _REGION_VX=edge, _SMALLEST_REGION_VX=min(edge, 128) if smallest is None else smallest)


def small_tasks():
    """Let no task of a pyramid be too small."""
    return mock.patch.object(pyramid, "_SMALL_TASK_NBYTES", 0)


def few_samples(files):
    """Let an estimate look at so many files."""
    return mock.patch.object(wkw_mags, "_SAMPLED_FILES", files)


@contextlib.contextmanager
def small_parts(nbytes):
    """Let files be made in parts of so many bytes."""
    with mock.patch.object(written, "PART_NBYTES", nbytes), mock.patch.object(graph, "PART_NBYTES", nbytes):
        yield


def small_bricks(edge):
    """Let components and functions work on cubes of so many voxels."""
    return mock.patch.multiple(components, BRICK_NBYTES=edge**3 * 8), mock.patch.multiple(apply, BRICK_NBYTES=edge**3 * 8)


def small_readings(nbytes):
    """Let imports read so many bytes at once."""
    return mock.patch.object(slabs, "READING_NBYTES", nbytes)


def small_exports(nbytes):
    """Let exports hold so many bytes."""
    return mock.patch.multiple(exported, SLAB_NBYTES=nbytes, _STRETCH_NBYTES=nbytes)


def no_pauses():
    """Ask a server again at once."""
    return mock.patch.object(store, "_PAUSES", (0.0, 0.0))


def save_often():
    """Let updates keep their records after every task."""
    return mock.patch.object(update, "_SAVE_SECONDS", 0.0)


def without_exchange():
    """Be a file system that cannot swap two names in one step."""
    return mock.patch.object(local, "exchange", return_value=False)
