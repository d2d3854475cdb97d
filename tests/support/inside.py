"""The one place where tests of public functions reach into the package: limits that are made small, and moments between two tasks of a job."""

from __future__ import annotations

import contextlib
from unittest import mock

from wkwdask.formats.precomputed import target as precomputed_target
from wkwdask.graphs import write
from wkwdask.ids import id_map, id_source, wkw_components
from wkwdask.model.faults import KINDS as KINDS_OF_FAULTS  # noqa: F401  tests look whether each is found somewhere
from wkwdask.plans import apply, chunks, components, shards, slabs, upsample
from wkwdask.runs import job as jobs
from wkwdask.viewer import cards, slices

_LIMITS = {
    "brick_nbytes": [(apply, "BRICK_NBYTES")],  # what a task of `apply` holds at once
    "card_nbytes": [(cards, "_MOST_NBYTES")],  # read for a picture in a notebook
    "card_seconds": [(cards, "_MOST_SECONDS")],
    "chunks_of_a_group": [(chunks, "_GROUP_CHUNKS"), (shards, "GROUP_CHUNKS")],  # encoded together
    "components_nbytes": [(components, "BRICK_NBYTES")],  # what a task of `connected_components` holds at once
    "ids_of_32_bits": [(wkw_components, "_MOST_OF_32_BITS")],
    "picture_tile_vx": [(slices, "_TILE_VX")],
    "picture_whole_vx": [(slices, "_WHOLE_VX")],
    "rows_of_ids": [(id_map, "ROWS"), (id_source, "ROWS")],  # of a table that are sorted in memory
    "section_nbytes": [(slabs, "READING_NBYTES")],  # of pixels that are decoded at once
    "upsample_brick_nbytes": [(upsample, "_BRICK_NBYTES")],
    "upsample_reading_nbytes": [(upsample, "_READING_NBYTES")],
    "shard_nbytes": [(precomputed_target, "_HELD_NBYTES")],  # of a shard that is written in pieces
}


@contextlib.contextmanager
def limited(**limits):
    """Let data of a test be too much for a limit."""
    with contextlib.ExitStack() as stack:
        for name, value in limits.items():
            for module, attribute in _LIMITS[name]:
                stack.enter_context(mock.patch.object(module, attribute, value))
        yield


def memory_of_tasks(nbytes):
    """Let a task that writes an array have so many bytes of memory."""
    return mock.patch.object(write, "memory_per_task", return_value=nbytes)


@contextlib.contextmanager
def before_task(number, action):
    """Let something happen before a job's task of that number, from 1 on."""
    count = 0

    def run(task):
        nonlocal count
        count += 1
        if count == number:
            action()
        return task.run()

    with mock.patch.object(jobs, "run_task", run):
        yield
