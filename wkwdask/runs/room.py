"""Free space and inodes for the output of a job."""

from __future__ import annotations

import os

from wkwdask.runs.report import format_nbytes


def space_problems(folder: str, nbytes: int, files: int) -> list[str]:
    """Compare what will be written with the free space and inodes of a file system."""
    there = folder
    while not os.path.exists(there):
        there = os.path.dirname(there)
    free = os.statvfs(there)
    problems = []
    if nbytes > free.f_bavail * free.f_frsize:
        problems.append(f"{folder}: about {format_nbytes(nbytes)} will be written, {format_nbytes(free.f_bavail * free.f_frsize)} are free")
    if free.f_files and files > free.f_favail:
        problems.append(f"{folder}: up to {files:,} files will be written, {free.f_favail:,} more are possible")
    return problems
