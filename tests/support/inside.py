"""The one place where tests of public functions reach into the package: limits that are made small,
and moments between two tasks of a job."""

from __future__ import annotations

import contextlib
from unittest import mock

from wkwdask.api import layers
from wkwdask.formats.pictures import outputs
from wkwdask.graphs import job_array, runners, write
from wkwdask.ids import guards, id_map, id_source, id_types, stitching
from wkwdask.model import array_files
from wkwdask.model.faults import KINDS as KINDS_OF_FAULTS  # noqa: F401  tests look whether each is found somewhere
from wkwdask.model.writing import splice
from wkwdask.plans import apply, chunks, pyramid, slabs, upsample
from wkwdask.runs import job as jobs
from wkwdask.store import files, locks
from wkwdask.store.objects import fsspec_files, object_store, remote
from wkwdask.verbs import pyramid as pyramid_jobs
from wkwdask.verbs import remove
from wkwdask.verbs import write as write_jobs
from wkwdask.verbs.update import in_place
from wkwdask.viewer import slices

_LIMITS = {
    "answer_seconds": [(object_store, "_NO_ANSWER_SECONDS")],  # that a server may take
    "brick_source_nbytes": [(pyramid, "_BRICK_SOURCE_NBYTES")],  # that a pyramid makes a brick from
    "brick_nbytes": [(apply, "BRICK_NBYTES")],  # what a task of `apply` holds at once
    "card_nbytes": [(layers, "_MOST_NBYTES")],  # read for a picture in a notebook
    "card_seconds": [(layers, "_MOST_SECONDS")],
    "chunks_of_a_group": [(chunks, "_GROUP_CHUNKS")],  # encoded together
    # what a task of `connected_components` holds at once
    "components_nbytes": [(apply, "BRICK_NBYTES")],
    # held while files are written
    "exported_nbytes": [(outputs, "SLAB_NBYTES"), (outputs, "_STRETCH_NBYTES")],
    "folders_of_a_task": [(remove, "_FOLDERS_PER_TASK")],  # that is removed
    "ids_of_32_bits": [(id_types, "_MOST_OF_32_BITS")],
    # of a file that is written in parts
    "part_nbytes": [(write, "PART_NBYTES"), (write_jobs, "PART_NBYTES")],
    # before a server is asked again
    "pauses": [(object_store, "_PAUSES_SECONDS"), (fsspec_files, "_PAUSES_SECONDS")],
    "listed_nodes": [(guards, "_LEAST_LISTED")],  # of an object, before its blocks become bits
    "pairs_at_once": [(guards, "_PAIRS_AT_ONCE")],  # that are sorted in memory
    "refused_at_once": [(stitching, "_ROWS_AT_ONCE")],  # of a table that are in memory
    "picture_tile_vx": [(slices, "_TILE_VX")],
    "picture_whole_vx": [(slices, "_WHOLE_VX")],
    # edge of what a task of a pyramid makes of its first mag
    "region_vx": [(pyramid, "_REGION_VX")],
    "request_nbytes": [(remote.RemoteStore, "batch_nbytes")],  # of one request to a server
    "rows_of_ids": [(id_map, "ROWS"), (id_source, "ROWS")],  # of a table that are sorted in memory
    "sampled_files": [(array_files, "_SAMPLED_FILES")],  # that an estimate looks at
    "save_seconds": [(in_place, "_SAVE_SECONDS")],  # between two records of an update
    "section_nbytes": [(slabs, "READING_NBYTES")],  # of pixels that are decoded at once
    "small_task_nbytes": [(pyramid, "_SMALL_TASK_NBYTES")],
    "smallest_region_vx": [(pyramid, "_SMALLEST_REGION_VX")],
    "tile_nbytes": [(pyramid_jobs, "_TILE_NBYTES")],  # that a pyramid reads at once
    "upsample_brick_nbytes": [(upsample, "_BRICK_NBYTES")],
    "upsample_reading_nbytes": [(upsample, "_READING_NBYTES")],
    "shard_nbytes": [(splice, "SORT_BUFFER_NBYTES")],  # of a shard that is written in pieces
}


@contextlib.contextmanager
def limited(**limits):
    """Let data of a test be too much for a limit."""
    with contextlib.ExitStack() as stack:
        for name, value in limits.items():
            for module, attribute in _LIMITS[name]:
                stack.enter_context(mock.patch.object(module, attribute, value))
        yield


def exchanging(change):
    """Let the step that swaps two names be made another one."""
    return mock.patch.object(files, "exchange", change(files.exchange))


@contextlib.contextmanager
def without_exchange():
    """Be a file system that cannot swap two names in one step."""
    with mock.patch.object(files, "exchange", return_value=False):
        yield


def memory_of_tasks(nbytes):
    """Let a task that writes an array have so many bytes of memory."""
    return mock.patch.object(write, "memory_per_task", return_value=nbytes)


@contextlib.contextmanager
def before_task(number, action):
    """Let something happen before a job's task of that number, from 1 on, or before each where it
    is None."""
    count = 0

    def run(task):
        nonlocal count
        count += 1
        if number in (None, count):
            action()
        return task.run()

    with mock.patch.object(jobs, "run_task", run):
        yield


def submitted_to(commands):
    """Let the commands of submitted jobs go into a list, in place of SLURM."""
    return mock.patch.object(
        job_array,
        "submit_job",
        lambda script, command, options, folder: commands.append(command[3:]) or str(len(commands)),
    )


def shared_memory():
    """Let the memory of this process stand for a bucket that other processes reach."""
    return mock.patch.object(runners, "need_file_system")


def last_jobs_of(num_tasks):
    """Let the job after an array have time for so many tasks."""
    return mock.patch.object(job_array, "finish_job_tasks", return_value=num_tasks)


def workers_of(number):
    """Let a plan be made for so many workers."""
    return mock.patch.multiple(
        runners, num_workers=lambda: number, num_sharing_workers=lambda: number
    )


def impatient():
    """Let nobody wait for a lock."""
    return mock.patch.dict(locks.locked_file.__wrapped__.__kwdefaults__, timeout_seconds=0.05)


def run_serially(job):
    """Run a job in this thread, in order."""
    waiting = [iter(job.tasks())]
    while waiting:
        task = next(waiting[-1], None)
        if task is None:
            waiting.pop()
        else:
            waiting.append(iter(job.receive(task, jobs.run_task(task))))
