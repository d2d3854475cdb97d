"""Calls that make several mags, one after the other."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from wkwdask.errors import ViewerWarning
from wkwdask.graphs.batch import check_can_be_repeated
from wkwdask.graphs.runners import make
from wkwdask.runs.report import Report, merge_reports
from wkwdask.runs.staged import is_interrupted_call

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wkwdask.verbs.rechunk import Rechunk


def make_all(stages: Sequence[Callable[[str], Rechunk]], existing: str, *, goes_on: bool = False) -> Report:
    """Make the mags of one call in order. All are checked before the first is made. A call that was interrupted between two mags resumes."""
    check_can_be_repeated(len(stages), starts_anew=existing == "overwrite")
    existing = existing_of_call(stages, existing, goes_on=goes_on)
    reports = []
    for stage in stages:
        staged = stage(existing)
        for note in staged.notes:
            warnings.warn(note, ViewerWarning, stacklevel=5)
        reports.append(make(staged))
    return merge_reports(reports)


def existing_of_call(stages: Sequence[Callable[[str], Rechunk]], existing: str, *, goes_on: bool = False) -> str:
    """Check all mags of a call before the first is made, and say what to do where one is there: ``"resume"`` where the call was interrupted after it."""
    if len(stages) < 2 and not goes_on:
        return existing
    jobs = [stage(existing).staged for stage in stages]
    if existing == "error" and is_interrupted_call(jobs, goes_on=goes_on):
        return "resume"
    if existing == "error":
        for job in jobs:
            job.check_free()
    return existing
