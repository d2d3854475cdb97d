"""Staged checks, repairs and comparisons, run by threads or by a cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wkwdask.graphs.runners import run_job
from wkwdask.verbs.repair import RepairReport
from wkwdask.verbs.wkw.repair import StagedRepair

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.verbs.manifest import Hashes
    from wkwdask.verbs.others.precomputed_verify import StagedPrecomputedVerify
    from wkwdask.verbs.repair import RepairOptions
    from wkwdask.verbs.verify import VerifyReport
    from wkwdask.verbs.wkw.diff import Diff, StagedDiff
    from wkwdask.verbs.wkw.verify import StagedVerify


def verify(staged: StagedVerify | StagedPrecomputedVerify) -> VerifyReport:
    """Check what is staged.

    Parameters
    ----------
    staged : StagedVerify or StagedPrecomputedVerify
        What to check, and how.

    Returns
    -------
    VerifyReport
    """
    run_job(staged.file_job(), f"checking {staged.path}")
    run_job(staged.pyramid_job(), f"comparing mags of {staged.path}")
    return staged.report()


def repair(staged: StagedVerify, options: RepairOptions, *, dry_run: bool) -> RepairReport:
    """Check, decide and mend.

    Parameters
    ----------
    staged : StagedVerify
        The check, with all blocks decoded.
    options : RepairOptions
        What may be done.
    dry_run : bool
        Change nothing.

    Returns
    -------
    RepairReport
    """
    repairing = StagedRepair(staged, verify(staged), options)
    run_job(repairing.probe_job(), f"looking for what can be saved of {staged.scope.path}")
    repairing.plan()
    if not dry_run:
        repairing.run(run_job)
    return RepairReport(staged.scope.path, dry_run, tuple(repairing.actions), tuple(repairing.left))


def diff(staged: Sequence[StagedDiff], alone: Diff) -> Diff:
    """Compare what both have.

    Parameters
    ----------
    staged : sequence of StagedDiff
        The mags.
    alone : Diff
        What only one has.

    Returns
    -------
    Diff
    """
    volumes = []
    for one in staged:
        job = one.job()
        if job is not None:
            run_job(job, f"comparing {one.name}")
        volumes.append(one.report(job))
    return replace(alone, volumes=tuple(volumes))


def hash_files(hashes: Hashes) -> None:
    """Hash all files of a folder."""
    run_job(hashes.job(), f"hashing {hashes.root}")
