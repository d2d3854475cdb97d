"""Free space and inodes for the output of a job."""

from __future__ import annotations

from wkwdask.runs.report import format_nbytes
from wkwdask.store import files
from wkwdask.store.paths import dirname


def space_problems(folder: str, nbytes: int, num_files: int) -> list[str]:
    """Compare what will be written with the free space and inodes of a file system."""
    there = folder
    while not files.exists(there):
        there = dirname(there)
    free_nbytes, free_files = files.free(there)
    problems = []
    if nbytes > free_nbytes:
        problems.append(f"{folder}: about {format_nbytes(nbytes)} will be written, {format_nbytes(free_nbytes)} are free")
    if free_files is not None and num_files > free_files:
        problems.append(f"{folder}: up to {num_files:,} files will be written, {free_files:,} more are possible")
    return problems
