"""Staged mags on their way to being there: from arrays, or as pyramids; by threads or by a cluster."""

from __future__ import annotations

import os
import time
import warnings
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dask
import dask.array as da
import numpy as np

from wkwdask.errors import SpaceWarning, TaskFailedError, ViewerWarning
from wkwdask.graphs.batch import HandedOver, check_can_be_repeated, current_batch
from wkwdask.graphs.planning import export_only_planned, only_planned
from wkwdask.graphs.runners import run_job
from wkwdask.graphs.write import finished, shard_receipts, write_shards
from wkwdask.ids.components import faces_job, label_job, number, tabulate
from wkwdask.runs.job import FlatJob, Result, Task, is_given_up, kept_trace
from wkwdask.runs.job_removals import end_removal
from wkwdask.runs.journaled import entry_of
from wkwdask.runs.progress import Progress
from wkwdask.runs.report import Report, merge_reports
from wkwdask.runs.staged import is_interrupted_call
from wkwdask.runs.tally import ShardTally, tally_of
from wkwdask.runs.tolerant import NO_RESULT, Tolerance
from wkwdask.verbs.apply import ReduceJob, check_signature, function_name
from wkwdask.verbs.compare import CompareJob, EqualJob
from wkwdask.verbs.estimate import rough_space_problems
from wkwdask.verbs.remove import RemoveJob
from wkwdask.verbs.write import PART_NBYTES, WriteJob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.ids.wkw_components import StagedComponents
    from wkwdask.ids.wkw_remap import StagedRemap
    from wkwdask.model.receipts import Receipt
    from wkwdask.runs.journaled import ResumableJob
    from wkwdask.runs.staged import StagedMags
    from wkwdask.verbs.apply import Application
    from wkwdask.verbs.foreign_import import StagedImport
    from wkwdask.verbs.pyramid import PyramidJob, StagedPyramid
    from wkwdask.verbs.rechunk import StagedRechunk
    from wkwdask.verbs.splice import SpliceJob
    from wkwdask.verbs.upsample import UpsampleJob
    from wkwdask.verbs.wkw.apply import StagedApply
    from wkwdask.verbs.wkw.export import StagedExport
    from wkwdask.verbs.wkw.remove import StagedRemoval
    from wkwdask.verbs.wkw.update import StagedUpdate
    from wkwdask.verbs.wkw.upsample import StagedUpsample


def write_array(staged: StagedMags, array: da.Array | npt.NDArray[Any], trusted: str) -> Report:
    """Write an array as the one mag, or the part of one, that is staged.

    Parameters
    ----------
    staged : StagedMags
        The job.
    array : dask.array.Array or ndarray, shape (c, x, y, z)
        The voxels; an array in memory is written by this process.
    trusted : str
        Why files of an interrupted start are believed to be those of this array.

    Returns
    -------
    Report
    """
    report = staged.start()
    if report is not None:
        return report if not report.note else replace(report, note=f"{report.note}; {trusted}")
    (target,), (folder,) = staged.targets, staged.folders
    with _attempt(staged):
        receipts = staged.known_shards()
        notes = [f"{len(receipts)} files had been finished before; {trusted}"] if receipts else []
        done = set(receipts)
        with staged.journal() as journal:

            def take(receipt: Receipt) -> None:
                journal.append(entry_of("file {},{},{}".format(*receipt.shard), Result(((0, receipt),))))
                receipts[receipt.shard] = receipt

            if isinstance(array, np.ndarray):
                run_job(WriteJob(target, array.astype(target.dtype, copy=False), take, done), f"writing {folder}", here=True, folder=staged.root)
            elif array.size:
                notes.append(write_shards(array, target, f"writing {folder}", staged.root, done, take))
        return staged.publish([tally_of(target, receipts.values())], "; ".join(note for note in notes if note))


def create(staged: StagedMags) -> Report:
    """Let a mag without data appear."""
    report = staged.start()
    if report is not None:
        return report
    with _attempt(staged):
        return staged.publish([ShardTally(staged.targets[0], 0)])


def write_array_later(staged: StagedMags, array: da.Array | npt.NDArray[Any]) -> Any:
    """Check now that an array can be written, and build a graph whose last task lets the mag appear.

    Parameters
    ----------
    staged : StagedMags
        The job.
    array : dask.array.Array or ndarray, shape (c, x, y, z)
        The voxels.

    Returns
    -------
    Delayed
        Its result is a Report.
    """
    staged.check_free()
    done = staged.done()
    if done is not None:
        return dask.delayed(done)
    (target,) = staged.targets
    lazy = da.from_array(array, chunks=(array.shape[0], *target.part_shape(PART_NBYTES))) if isinstance(array, np.ndarray) else array
    if not array.size:
        return dask.delayed(_publish_nothing, pure=False)(staged)
    return finished(shard_receipts(lazy, target, _Start(staged)), _Publish(staged))


def write_now_or_later(staged: StagedMags, array: da.Array | npt.NDArray[Any], trusted: str, *, compute: bool) -> Any:
    """Write an array, or build a graph that does; a Report, or a Delayed whose result is one."""
    return write_array(staged, array, trusted) if compute else write_array_later(staged, array)


def build_pyramid(pyramid: StagedPyramid) -> Report:
    """Build a pyramid, or go on with an interrupted one.

    Parameters
    ----------
    pyramid : StagedPyramid
        What to build.

    Returns
    -------
    Report
    """
    staged = pyramid.staged.accepting_finished()
    if not staged.targets:
        return Report((), 0, 0.0, f"mag {pyramid.source.box.mag} is the coarsest already: nothing to do")
    report = staged.start()
    if report is not None:
        pyramid.check_current()
        return report
    with _attempt(staged):
        for problem in rough_space_problems(pyramid):
            warnings.warn(problem, SpaceWarning, stacklevel=4)
        return _go_on(staged, pyramid.job(), pyramid.check_unchanged, f"pyramid of {staged.parent}")


def upsample(upsampling: StagedUpsample) -> Report:
    """Make finer mags, or go on with an interrupted job.

    Parameters
    ----------
    upsampling : StagedUpsample
        What to make.

    Returns
    -------
    Report
    """
    staged = upsampling.staged
    if not staged.targets:
        staged.remove_leftovers()
        return Report((), 0, 0.0, f"nothing to do: no mag finer than {upsampling.source.box.mag} is missing; mags= names existing mags to make again")
    report = staged.start()
    if report is not None:
        upsampling.check_current()
        return report
    with _attempt(staged):
        return _go_on(staged, upsampling.job(), upsampling.check_unchanged, f"upsampling of {staged.parent}")


def rechunk(rechunking: StagedRechunk, *, verify: bool) -> Report:
    """Store a mag anew, or go on with an interrupted job.

    Parameters
    ----------
    rechunking : StagedRechunk
        What to do.
    verify : bool
        Whether all voxels are compared before the mag appears.

    Returns
    -------
    Report
    """
    staged = rechunking.staged
    report = only_planned(rechunking) or staged.start()
    if report is not None:
        return report

    def compare() -> None:
        job = EqualJob(CompareJob(rechunking.volume, rechunking.target.as_volume(), rechunking.plan))
        _run_from_journal(staged, job, f"comparing {staged.folders[0]}")

    with _attempt(staged):
        report = _go_on(staged, rechunking.job(), rechunking.check_unchanged, staged.owner.command, compare if verify else None)
    if report.voxels and not report.files:
        return replace(report, note="; ".join(filter(None, [report.note, f"{staged.folders[0]} is all zero, as {rechunking.volume.name} is"])))
    return report


def rechunk_all(stages: Sequence[Callable[[str], StagedRechunk]], existing: str, *, goes_on: bool = False) -> Report:
    """Store mags of one call anew, one after the other; all are checked before the first is made, and a call that was interrupted between two goes on.

    Parameters
    ----------
    stages : sequence of callable
        Each stages a mag, given what to do where it already exists.
    existing : str
        ``"error"``, ``"resume"`` or ``"overwrite"``.
    goes_on : bool
        Whether the call does more when they are made.

    Returns
    -------
    Report
    """
    check_can_be_repeated(len(stages), starts_anew=existing == "overwrite")
    existing = existing_of_call(stages, existing, goes_on=goes_on)
    reports = []
    for stage in stages:
        staged = stage(existing)
        for note in staged.notes:
            warnings.warn(note, ViewerWarning, stacklevel=5)
        reports.append(rechunk(staged, verify=False))
    return merge_reports(reports)


def existing_of_call(stages: Sequence[Callable[[str], StagedRechunk]], existing: str, *, goes_on: bool = False) -> str:
    """Check all mags of a call before the first is made, and say what to do where one is there: ``"resume"`` where the call was interrupted after it.

    Parameters
    ----------
    stages : sequence of callable
        Each stages a mag, given what to do where it already exists.
    existing : str
        ``"error"``, ``"resume"`` or ``"overwrite"``, as a user says.
    goes_on : bool
        Whether the call does more when they are made.

    Raises
    ------
    ExistsError, LockedError, PermissionError
        A mag cannot be made.
    """
    if len(stages) < 2 and not goes_on:
        return existing
    jobs = [stage(existing).staged for stage in stages]
    if existing == "error" and is_interrupted_call(jobs, goes_on=goes_on):
        return "resume"
    if existing == "error":
        for job in jobs:
            job.check_free()
    return existing


def try_function(trial: Task) -> None:
    """Call a function once where the tasks of a job will call it; in a batch job, only its signature is checked.

    Raises
    ------
    TaskFailedError
        The function fails.
    TypeError
        It cannot be called with as many arrays, or its result cannot be stored.
    ValueError
        Its result has another shape.
    """
    name = function_name(trial.spec.application.function)
    check_signature(trial.spec.application.function, len(trial.spec.application.sources))
    if current_batch() is not None or trial.spec.application.plan.box.is_empty:
        return
    try:
        run_job(FlatJob(lambda: iter((trial,)), 1, lambda *_: None), f"trying {name}")
    except Exception as error:
        if not is_given_up(error):
            error.exit_code = 1  # type: ignore[attr-defined]  # no other task was done
            raise
        trace = kept_trace(error)
        raise TaskFailedError(
            f"{name} failed in a trial, before anything was written: {type(error).__name__}: {error} ({error.__notes__[0]})" + (f"\n{trace}" if trace else "")
        ) from error


def apply(applying: StagedApply, *, most_failures: int) -> Report:
    """Make a mag by a function, or go on with an interrupted job; tasks that fail are listed when all others are done.

    Parameters
    ----------
    applying : StagedApply
        What to do.
    most_failures : int
        With more failed tasks than these the job ends at once.

    Returns
    -------
    Report
    """
    staged = applying.staged
    report = staged.start()
    if report is not None:
        return report
    with _attempt(staged), staged.journal() as journal:
        job = applying.job()
        journaled = staged.journaled(job, journal)
        run_job(journaled, f"applying to {staged.folders[0]}", tolerance=Tolerance(most_failures, lists_always=True))
        return staged.publish(job.tallies, f"{journaled.num_known} tasks had been finished before" if journaled.num_known else "")


def connected_components(finding: StagedComponents) -> Report:
    """Find connected components, or go on with an interrupted job.

    Parameters
    ----------
    finding : StagedComponents
        What to do.

    Returns
    -------
    Report
    """
    staged, labelling = finding.staged, finding.labelling
    report = staged.start()
    if report is not None:
        return report
    with _attempt(staged):
        _run_from_journal(staged, label_job(labelling), f"labelling {labelling.source.name}")
        tabulate(labelling)
        _run_from_journal(staged, faces_job(labelling), f"joining labels of {labelling.source.name}")
        numbering = number(labelling)
        finding = finding.numbered(numbering.num_components)
        job = finding.job()
        note = _run_from_journal(finding.staged, job, f"components into {staged.folders[0]}")
        finding.check_unchanged()
        return finding.staged.publish(job.tallies, "; ".join(filter(None, (str(numbering), note))))


def remap(remapping: StagedRemap) -> Report:
    """Map the ids of a layer, or go on with an interrupted job.

    Parameters
    ----------
    remapping : StagedRemap
        What to do.

    Returns
    -------
    Report
    """
    staged = remapping.staged
    report = staged.start()
    if report is not None:
        return report
    with _attempt(staged):
        job = remapping.job(remapping.table())
        note = _run_from_journal(staged, job, f"mapping ids into {staged.folders[0]}")
        remapping.check_unchanged()
        return staged.publish(job.tallies, "; ".join(filter(None, (remapping.note, note))))


def reduce(application: Application, combine: Callable[[Any, Any], Any], *, most_failures: int) -> Any:
    """Reduce volumes to one value.

    Parameters
    ----------
    application : Application
        What is applied to what.
    combine : callable
        Makes one value of two.
    most_failures : int
        As for :func:`apply`.

    Returns
    -------
    object
        None where nothing was computed.
    """
    job = ReduceJob(application, combine)
    run_job(job, f"reducing {application.sources[0].name}", tolerance=Tolerance(most_failures, lists_always=True, ending=NO_RESULT))
    return job.value[0] if job.value else None


def _go_on(
    staged: StagedMags, job: PyramidJob | SpliceJob | UpsampleJob, check_unchanged: Callable[[], None], title: str, then: Callable[[], None] | None = None
) -> Report:
    """Run a job from where its journal ends, do what comes then, and let its mags appear."""
    note = _run_from_journal(staged, job, title)
    if then is not None:
        then()
    check_unchanged()
    return staged.publish(job.tallies, note)


def _run_from_journal(staged: StagedMags, job: ResumableJob, title: str) -> str:
    """Run what a job's journal does not tell of, and give a note of what it does."""
    with staged.journal() as journal:
        journaled = staged.journaled(job, journal)
        run_job(journaled, title)
    return f"{journaled.num_known} tasks had been finished before" if journaled.num_known else ""


def convert(importing: StagedImport) -> Report:
    """Import a source of another format as a mag, or go on with an interrupted import.

    Parameters
    ----------
    importing : StagedImport
        What to do.

    Returns
    -------
    Report
    """
    staged = importing.staged
    report = only_planned(importing) or staged.start()
    if report is not None:
        return report
    with _attempt(staged):
        job = importing.job()
        note = _run_from_journal(staged, job, f"importing {importing.source.name}")
        importing.check_unchanged()
        return staged.publish(job.tallies, "\n".join(filter(None, [note, *importing.all_notes()])))


def export(exporting: StagedExport) -> Report:
    """Export a mag to another format, or go on with an interrupted export.

    Parameters
    ----------
    exporting : StagedExport
        What to do.

    Returns
    -------
    Report
    """
    title, begin = f"exporting {exporting.source.name}", time.monotonic()
    planned = export_only_planned(exporting)
    if planned is not None:
        return planned
    exporting.start()
    try:
        output, note = exporting.output(), ""
        if output is None:
            with Progress(title, exporting.form.box.size[2]) as progress:
                exporting.write_tiff(progress.advance)
        else:
            output.prepare()
            with exporting.journal() as journal:
                journaled = exporting.journaled(output, journal)
                run_job(journaled, title)
            note = f"{journaled.num_known} tasks had been finished before" if journaled.num_known else ""
        return exporting.publish(time.monotonic() - begin, note)
    except BaseException as error:
        exporting.leave(error)
        raise
    finally:
        exporting.release()


@contextmanager
def _attempt(staged: StagedMags) -> Iterator[None]:
    """Leave what was finished for the next attempt, where this one fails."""
    try:
        yield
    except HandedOver:
        raise
    except BaseException as error:
        staged.leave(error)
        raise


def update_pyramid(update: StagedUpdate) -> Report:
    """Bring coarser mags up to date.

    Parameters
    ----------
    update : StagedUpdate
        What to do.

    Returns
    -------
    Report
    """
    update = update.start()
    try:
        run_job(update.job, f"update of {update.folder.parent}", folder=update.folder.root)
        return update.finish()
    except BaseException:
        update.job.save_what_is_done()
        update.folder.discard()
        raise


def remove(removals: Sequence[StagedRemoval], roots: Sequence[str]) -> tuple[int, int]:
    """Remove mags, and what earlier removals that were killed left behind.

    Parameters
    ----------
    removals : sequence of StagedRemoval
        What to remove.
    roots : sequence of str
        Folders with what is left of others.

    Returns
    -------
    files, nbytes : int
        What was deleted.
    """
    counts = [_delete(roots)] if roots else []
    for root in roots:
        end_removal(root)
    for removal in removals:
        folder = removal.start()
        try:
            counts.append(_delete([folder.root]))
        except BaseException:
            folder.leave()
            raise
        folder.end()
        removal.clear()
    return sum(files for files, _ in counts), sum(nbytes for _, nbytes in counts)


def _delete(roots: Sequence[str]) -> tuple[int, int]:
    job = RemoveJob(roots)
    run_job(job, f"deleting in {os.path.dirname(roots[0])}")
    job.finish()
    return job.files, job.nbytes


class _Start:
    """The first task of a graph."""

    def __init__(self, staged: StagedMags) -> None:
        self._staged = staged

    def __call__(self) -> None:
        self._staged.start()


class _Publish:
    """The last task of a graph."""

    def __init__(self, staged: StagedMags) -> None:
        self._staged = staged

    def __call__(self, receipts: list[Receipt]) -> Report:
        return self._staged.publish([tally_of(self._staged.targets[0], receipts)])


def _publish_nothing(staged: StagedMags) -> Report:
    """Let a mag without voxels appear."""
    report = staged.start()
    return report if report is not None else staged.publish([tally_of(staged.targets[0], [])])
