"""Verification: jobs that read stored files and compare coarser levels with finer ones, and the
report of all faults."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError, LockedError, MissingError
from wkwdask.formats.opening import explain_missing, recognised_url
from wkwdask.formats.registry import opening_format
from wkwdask.geometry.vectors import plus
from wkwdask.kernels.window.reduce import METHODS
from wkwdask.model.faults import ERROR, NOTE, SEVERITIES, UNCHECKED, WARNING, Fault, Findings
from wkwdask.model.summary import Card, counted, format_nbytes, html_table
from wkwdask.runs.drive import Phase, Work
from wkwdask.runs.job import FlatJob, Result, Task
from wkwdask.runs.job_records import JobState, job_states, problem_of
from wkwdask.store.locks import is_lock, read_owner
from wkwdask.store.paths import ZIP, basename
from wkwdask.store.store import store_at
from wkwdask.verbs.recompute import (
    find_provenance,
    finer_levels,
    is_sampled,
    left_out_windows,
    recompute_specs,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from wkwdask.formats.format import ArrayFormat
    from wkwdask.formats.inspection import FilesCheck, FilesScope, LevelScope, Scope
    from wkwdask.geometry.mag import Mag
    from wkwdask.verbs.recompute import RecomputeSpec

_MAX_LISTED = 50


@dataclass(frozen=True, slots=True)
class CheckSpec:
    """Task that checks a group of files."""

    level: str
    check: FilesCheck
    files: tuple[Any, ...]
    """The files, in the format's own listing."""

    def task(self) -> Task:
        what = f"{counted(len(self.files), 'file')} of {self.check.folder} from {self.files[0]} on"
        return Task(f"check of {what}", f"check {self.level} {self.files[0]}", CheckSpec.run, self)

    def run(self) -> Result:
        """Read the files; the value of the result is their :class:`Findings`."""
        return Result((), value=self.check.check_files(self.files))


@dataclass(frozen=True, slots=True)
class ZippedCheck:
    """Comparison of files in a zip with their checksums: reads of stored shards cannot check
    these."""

    folder: str

    def check_files(self, files: Sequence[str]) -> Findings:
        return Findings(tuple(filter(None, map(_content_fault, files))))


def _content_fault(path: str) -> Fault | None:
    try:
        store_at(path).check_content()
    except CorruptError as error:
        return Fault("file.checksum", path, str(error).removeprefix(f"{path}: "))
    return None


@dataclass(frozen=True, slots=True)
class MagFindings:
    """Findings of a verification in one mag, or in the meshes of a layer."""

    layer: str
    """Name of its layer."""
    mag: str
    """The mag, or the name of the folder of meshes."""
    folder: str
    """Its folder."""
    files: int
    """Number of data files."""
    nbytes: int
    """Size of the data files."""
    blocks: int
    """Number of decoded blocks, or of fragments of meshes."""
    largest: int | None
    """Largest value of a segmentation, None if it was not determined."""
    compared: int = 0
    """Number of files that were compared with the finer mag."""


@dataclass(frozen=True, slots=True)
class VerifyReport(Card):
    """Report of a verification."""

    path: str
    """Path that was checked."""
    decoded: bool
    """Whether all blocks were decoded."""
    mags: tuple[MagFindings, ...]
    """The mags, layer by layer, finest first."""
    faults: tuple[Fault, ...]
    """Errors, warnings and notes, in this order."""
    seconds: float
    """Wall time."""

    @property
    def is_sound(self) -> bool:
        """Whether files were checked and have no error; warnings and notes are allowed."""
        return not self.count(ERROR) and (bool(self.mags) or not self.unchecked)

    @property
    def unchecked(self) -> tuple[str, ...]:
        """Layers and mags that were not checked."""
        return tuple(fault.path for fault in self.faults if fault.kind in UNCHECKED)

    @property
    def files(self) -> int:
        """Number of checked data files."""
        return sum(mag.files for mag in self.mags)

    @property
    def nbytes(self) -> int:
        """Size of the checked data files."""
        return sum(mag.nbytes for mag in self.mags)

    def count(self, severity: str) -> int:
        """Count the faults of a severity, including those that an entry summarizes."""
        return sum(1 + fault.more for fault in self.faults if fault.severity == severity)

    def kinds(self) -> Counter[str]:
        """Count the faults of each kind."""
        counts: Counter[str] = Counter()
        for fault in self.faults:
            counts[fault.kind] += 1 + fault.more
        return counts

    def remedies(self, limit: int = _MAX_LISTED) -> list[str]:
        """Return the remedies of the first faults, one line for each kind."""
        return list(
            dict.fromkeys(
                f"remedy of {fault.kind}: {fault.remedy}"
                for fault in self.faults[:limit]
                if fault.remedy
            )
        )

    @property
    def verdict(self) -> str:
        """Summary line."""
        blocks = sum(mag.blocks for mag in self.mags)
        if not self.decoded:
            how = "headers, tables, names and JSON; no block was decoded"
        elif not self.count(ERROR) and not self.unchecked and blocks:
            how = "every block was decoded"
        else:
            how = f"{blocks:,} blocks were decoded"
        if self.unchecked:
            how += f"; not checked: {', '.join(self.unchecked)}"
        counts = ", ".join(counted(self.count(severity), severity) for severity in SEVERITIES)
        state = "sound" if self.is_sound else "NOT SOUND" if self.count(ERROR) else "NOT CHECKED"
        return (
            f"{state}: {counts}; {counted(self.files, 'file')}, {format_nbytes(self.nbytes)}, "
            f"{self.seconds:.1f} s ({how})"
        )

    def _tables(self) -> str:
        mags = html_table(
            ("layer", "mag", "files", "bytes", "blocks"),
            [
                (mag.layer, mag.mag, f"{mag.files:,}", format_nbytes(mag.nbytes), f"{mag.blocks:,}")
                for mag in self.mags
            ],
        )
        faults = [
            (fault.severity, fault.kind, fault.path, fault.found, fault.expected, fault.remedy)
            for fault in self.faults[:_MAX_LISTED]
        ]
        listed = (
            html_table(("", "fault", "file", "found", "expected", "remedy"), faults)
            if faults
            else ""
        )
        return f"{escape(self.path)}{mags}{listed}{escape(self.verdict)}"

    def _drawn(self) -> Iterable[str]:
        return (mag.folder for mag in self.mags)

    def __str__(self) -> str:
        lines = [str(fault) for fault in self.faults[:_MAX_LISTED]]
        if len(self.faults) > _MAX_LISTED:
            lines.append(f"... and {len(self.faults) - _MAX_LISTED} more")
        return "\n".join([*lines, *self.remedies(), self.verdict])

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``json.dumps``."""
        return {
            "path": self.path,
            "sound": self.is_sound,
            "errors": self.count(ERROR),
            "warnings": self.count(WARNING),
            "decoded": self.decoded,
            "seconds": round(self.seconds, 3),
            "mags": [
                {name: getattr(mag, name) for name in MagFindings.__slots__} for mag in self.mags
            ],
            "faults": [fault.to_json() for fault in self.faults],
        }


class Verification(Work["VerifyReport"]):
    """Verification of stored files, and of coarser levels against finer ones."""

    def __init__(
        self,
        its_format: ArrayFormat,
        scope: Scope,
        *,
        decode: bool,
        pyramid: float = 0.0,
        method: str | None = None,
    ) -> None:
        self.format = its_format
        self.scope = scope
        self.path = scope.path
        self.found: dict[str, Findings] = {}
        self._decode = decode
        self._pyramid = pyramid
        self._method = method
        self._faults = [
            *scope.faults,
            *(
                fault
                for folder, has_levels in scope.job_folders
                for fault in job_leftovers(folder, has_levels=has_levels)
            ),
        ]
        self._compared: Counter[str] = Counter()
        self._recorded: set[str] = set()  # folders of levels whose method is recorded
        self._started = time.monotonic()

    @property
    def _levels(self) -> list[LevelScope]:
        return [scope for layer in self.scope.layers for scope in layer.mags]

    @property
    def _all_files(self) -> list[FilesScope]:
        return [*self._levels, *self.scope.others]

    def phases(self) -> Generator[Phase, str, VerifyReport]:
        """Read all files, then compare levels."""
        yield Phase(self._file_job(), f"checking {self.path}")
        yield Phase(self._pyramid_job(), f"comparing mags of {self.path}")
        return self._report()

    def _file_job(self) -> FlatJob:
        """Return the job that reads the files."""
        checks: list[tuple[FilesScope, FilesCheck, Sequence[Any]]]
        checks = [
            (scope, check, scope.files())
            for scope in self._all_files
            if (check := scope.check(decode=self._decode)) is not None
        ]
        for scope in self._all_files if self._decode else ():
            if ZIP in scope.folder:
                zipped = [
                    f"{folder}/{name}"
                    for folder, _, names in store_at(scope.folder).walk()
                    for name in names
                ]
                checks.append((scope, ZippedCheck(scope.folder), zipped))

        def tasks() -> Iterator[Task]:
            for scope, check, stored in checks:
                step = scope.files_per_task()
                for first in range(0, len(stored), step):
                    yield CheckSpec(scope.key, check, tuple(stored[first : first + step])).task()

        return FlatJob(
            tasks,
            sum(-(-len(stored) // scope.files_per_task()) for scope, _, stored in checks),
            self._add_findings,
        )

    def _add_findings(self, spec: CheckSpec, result: Result) -> None:
        findings: Findings = result.value
        self._faults += findings.faults
        self.found[spec.level] = self.found.get(spec.level, Findings()) + replace(
            findings, faults=()
        )

    def _pyramid_job(self) -> FlatJob:
        """Return the job that compares coarser levels with finer ones, except broken files and
        files with broken sources."""
        broken = {fault.path for fault in self._faults if fault.severity == "error"}
        tasks: list[Task] = []
        for layer in self.scope.layers if self._pyramid else ():
            for scope in (scope for scope in layer.mags if finer_levels(layer, scope)):
                provenance = find_provenance(layer, scope, self._method)
                if provenance is None or not broken.isdisjoint(
                    (scope.document, provenance.finer.document)
                ):
                    what = (
                        "its method is not recorded"
                        if provenance is None
                        else f"a {basename(scope.document)} is broken"
                    )
                    self._faults.append(Fault("pyramid.unknown", scope.folder, what))
                    continue
                if provenance.is_recorded:
                    self._recorded.add(scope.folder)
                whole = left_out_windows(scope, provenance)
                if whole is not None:
                    expected = (
                        f"at least {whole}, the complete windows of mag {provenance.finer.mag}"
                    )
                    self._faults.append(
                        Fault("pyramid.smaller", scope.folder, f"box {scope.box}", expected)
                    )
                tasks += [
                    spec.task()
                    for spec in recompute_specs(scope, provenance, broken)
                    if is_sampled(scope.folder, spec.shard, self._pyramid)
                ]
        return FlatJob(lambda: iter(tasks), len(tasks), self._add_differences)

    def _add_differences(self, spec: RecomputeSpec, result: Result) -> None:
        folder = spec.coarser.name
        self._compared[folder] += 1
        differences = result.value
        if differences.different:
            first = differences.listed[0]
            what = (
                f"{differences.different:,} of {differences.compared:,} voxels differ, the first "
                f"is {first.second} in channel {first.channel}"
            )
            expected = f"{first.first}, the {spec.method} of mag {spec.finer.box.mag}"
            # a level without a recorded method may have been made by another method
            severity = ERROR if folder in self._recorded else ""
            self._faults.append(
                Fault(
                    "pyramid.differs",
                    spec.coarser.files.shard_path(spec.shard),
                    what,
                    expected,
                    voxel=plus(first.voxel, spec.origin),
                    severity_override=severity,
                )
            )

    def _report(self) -> VerifyReport:
        self._faults += self.scope.conclude(self.found)
        broken = {
            fault.path
            for fault in self._faults
            if fault.severity != NOTE and not fault.kind.startswith("pyramid.")
        }
        for scope in self._levels:
            self._faults += scope.changed_sizes(broken)
        mags = []
        for each in self._all_files:
            findings = self.found.get(each.key, Findings())
            compared = self._compared[each.folder]
            mags.append(
                MagFindings(
                    each.layer,
                    each.name,
                    each.folder,
                    findings.files,
                    findings.nbytes,
                    findings.blocks,
                    findings.largest,
                    compared,
                )
            )
        faults = sorted(
            self._faults,
            key=lambda fault: (
                SEVERITIES.index(fault.severity),
                fault.path,
                fault.block or 0,
                fault.offset or 0,
                fault.kind,
            ),
        )
        return VerifyReport(
            self.scope.path,
            self._decode,
            tuple(mags),
            tuple(faults),
            time.monotonic() - self._started,
        )


def lay_out_verification(
    url: str | os.PathLike[str],
    layers: Sequence[str] | None,
    mags: Sequence[Mag] | None,
    *,
    decode: bool,
    pyramid: float = 0.0,
    method: str | None = None,
) -> Verification:
    """Plan the verification of a path or URL; ``pyramid`` is the share of the shards of coarser
    levels to compare."""
    its_format = opening_format(url)
    if method is not None and method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    if not 0 <= pyramid <= 1:
        raise ValueError(f"pyramid must be True, False or a fraction from 0 to 1, got {pyramid!r}")
    try:
        scope = its_format.inspect(url, layers, mags)
    except MissingError:
        recognised = recognised_url(url)
        if recognised != url:
            return lay_out_verification(
                recognised, layers, mags, decode=decode, pyramid=pyramid, method=method
            )
        explain_missing(url)
        raise
    return Verification(its_format, scope, decode=decode, pyramid=pyramid, method=method)


_JOB_KINDS = {
    JobState.RUNNING: "job.running",
    JobState.UNPUBLISHED: "job.unpublished",
    JobState.CAN_GO_ON: "job.interrupted",
    JobState.REFUSED: "job.refused",
    JobState.DEAD: "job.dead",
}
UNREADABLE_LOCK = "unreadable lock"


def job_leftovers(folder: str, *, has_levels: bool) -> Iterator[Fault]:
    """Yield the leftovers of jobs in the folder of an image or container."""
    for name in filter(is_lock, store_at(folder).names()):
        yield from _judge_lock(f"{folder}/{name}")
    for root, state in job_states(folder):
        if state is JobState.REFUSED:
            yield Fault(_JOB_KINDS[state], root, problem_of(root).removeprefix(f"{root}/"))
        elif has_levels:
            yield Fault(_JOB_KINDS[state], root, state.value)


def _judge_lock(path: str) -> Iterator[Fault]:
    try:
        owner = read_owner(path)
    except LockedError:
        yield Fault("leftover.lock", path, UNREADABLE_LOCK)
        return
    if owner is not None:
        yield Fault("leftover.lock" if owner.is_gone() else "job.running", path, str(owner))
