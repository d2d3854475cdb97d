"""Staging a check of a precomputed volume: from what a user names to groups of files, and from what they hold to a report."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wkwdask.errors import FormatError, MissingError, UnsupportedError
from wkwdask.formats.precomputed.file_check import PrecomputedCheck, ScaleListing, list_scale
from wkwdask.formats.precomputed.info import FILE_NAME, VolumeInfo
from wkwdask.formats.precomputed.layer import location_of, open_precomputed_layer
from wkwdask.formats.wkw.file_check import Findings
from wkwdask.model.faults import Fault
from wkwdask.runs.job import FlatJob, Result, Task
from wkwdask.store import files
from wkwdask.store.paths import basename
from wkwdask.verbs.verify import MagFindings, Verification, VerifyReport, sorted_faults

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from wkwdask.formats.precomputed.info import Scale
    from wkwdask.formats.precomputed.layer import VolumeSource
    from wkwdask.formats.precomputed.volume import PrecomputedVolume
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.image import Image

_GROUP_NBYTES = 256 << 20  # voxels of the chunks of one task
_LARGEST_GROUP = 4096


@dataclass(frozen=True, slots=True)
class PrecomputedCheckSpec:
    """Check a group of chunks that are files, or some shards."""

    check: PrecomputedCheck
    """How."""
    chunks: tuple[tuple[Vec3, int], ...] = ()
    """Which chunks, as :class:`wkwdask.formats.precomputed.file_check.ScaleListing` lists them."""
    shards: tuple[int, ...] = ()
    """Which shards."""

    def task(self) -> Task:
        """Give the task."""
        first = self.shards[0] if self.shards else self.chunks[0]
        return Task(
            f"check of {len(self.chunks) or len(self.shards)} files of {self.check.folder}",
            f"check {self.check.folder} {first}",
            PrecomputedCheckSpec.run,
            self,
        )

    def run(self) -> Result:
        """Read the files; the value of the result is what was found."""
        return Result((), value=self.check.check_chunks(self.chunks) + self.check.check_shards(self.shards))


@dataclass(frozen=True, slots=True)
class _ScaleScope:
    """One scale in one chunk size that is to be checked."""

    name: str
    volume: PrecomputedVolume
    listing: ScaleListing


class ScaleVerification(Verification):
    """A check of a precomputed volume that can be run."""

    def __init__(self, url: str | os.PathLike[str], mags: Sequence[Mag] | None, *, decode: bool) -> None:
        self._started = time.monotonic()
        self._decode = decode
        self._faults: list[Fault] = []
        self._found: dict[str, Findings] = {}
        self._scopes: list[_ScaleScope] = []
        self.path = location_of(url)
        try:
            layer = open_precomputed_layer(url)
        except FormatError as error:
            path = f"{self.path}/{FILE_NAME}"
            self._faults.append(Fault("info.broken", path, str(error).removeprefix(f"{path}: ")))
            return
        self.path = layer.folder
        if not layer.details.store.is_local:
            raise UnsupportedError(f"{self.path}: files of a remote volume cannot be listed, so that it cannot be verified; verify a local copy")
        self._stage(layer, mags)

    def _stage(self, layer: Image, mags: Sequence[Mag] | None) -> None:
        if layer.key is None and mags is None:
            self._faults += _info_faults(layer.details.info, f"{self.path}/{FILE_NAME}")
        unknown = [mag for mag in mags or () if mag not in layer.mags]
        if unknown:
            raise MissingError(f"{self.path}: no mag {unknown[0]}; there are {', '.join(map(str, layer.mags)) or 'none'}")
        for level in layer.meant:
            if not level.problem and (mags is None or level.mag in mags):
                self._look_at(layer.details, level.details, level.mag)

    def _look_at(self, source: VolumeSource, scale: Scale, mag: Mag | None) -> None:
        """List the files of a scale, in each of its chunk sizes."""
        sizes = scale.chunk_sizes or (scale.chunk_size,)
        volumes = [replace(source, chunk_size=size).open_scale(scale, mag).volume for size in sizes]
        for number, volume in enumerate(volumes):
            listing = list_scale(volume, [other for other in volumes if other is not volume])
            if not number:
                self._faults += listing.faults
            size = f" in chunks of {'x'.join(map(str, volume.chunk_shape))}" if len(volumes) > 1 else ""
            self._scopes.append(_ScaleScope((scale.key if mag is None else mag.name) + size, volume, listing))
        folder = volumes[0].folder
        if not any(len(scope.listing) for scope in self._scopes[-len(volumes) :]) and (files.isdir(folder) or not files.lexists(folder)):
            self._faults.append(Fault("mag.empty", folder, "0 files" if files.isdir(folder) else "no folder"))

    def file_job(self) -> FlatJob:
        """Make the job that reads the files."""
        groups = [(scope, list(self._groups(scope))) for scope in self._scopes]
        return FlatJob(lambda: (task for _, tasks in groups for task in tasks), sum(len(tasks) for _, tasks in groups), self._take)

    def _groups(self, scope: _ScaleScope) -> Iterator[Task]:
        volume, listing = scope.volume, scope.listing
        check = PrecomputedCheck(volume, self._decode, self._decode and volume.dtype.kind in "iu" and volume.dtype.itemsize >= 4)
        x, y, z = volume.chunk_shape
        chunk_nbytes = x * y * z * volume.num_channels * volume.dtype.itemsize
        step = max(1, min(_LARGEST_GROUP, _GROUP_NBYTES // chunk_nbytes))
        for first in range(0, len(listing.chunks), step):
            yield PrecomputedCheckSpec(check, chunks=listing.chunks[first : first + step]).task()
        cells = volume.scale.shard_cells
        step = 1 if cells is None else max(1, min(_LARGEST_GROUP, _GROUP_NBYTES // (chunk_nbytes * cells[0] * cells[1] * cells[2])))
        for first in range(0, len(listing.shards), step):
            yield PrecomputedCheckSpec(check, shards=listing.shards[first : first + step]).task()

    def _take(self, spec: PrecomputedCheckSpec, result: Result) -> None:
        findings: Findings = result.value
        self._faults += findings.faults
        key = _key(spec.check.volume)
        self._found[key] = self._found.get(key, Findings()) + replace(findings, faults=())

    def pyramid_job(self) -> FlatJob:
        """Make a job without tasks: nothing says how scales were made."""
        return FlatJob(lambda: iter(()), 0, lambda task, result: None)

    def report(self) -> VerifyReport:
        """Say what was found."""
        mags = []
        for scope in self._scopes:
            found = self._found.get(_key(scope.volume), Findings())
            name = basename(self.path)
            mags.append(MagFindings(name, scope.name, scope.volume.folder, found.files, found.nbytes, found.blocks, found.largest))
        return VerifyReport(self.path, self._decode, tuple(mags), sorted_faults(self._faults), time.monotonic() - self._started)


def _key(volume: PrecomputedVolume) -> str:
    return f"{volume.folder} {volume.chunk_shape}"


def _info_faults(info: VolumeInfo, path: str) -> Iterator[Fault]:
    """Say what of an ``info`` cannot be used, or only here."""
    for odd in info.odd:
        kind = "info.unsupported" if odd.is_unsupported else "info.scale"
        yield Fault(kind, path, odd.problem.removeprefix(f"{path}: "))
    document = info.document
    for name in ("@type", "type", "num_channels"):
        if name not in document:
            yield Fault("info.absent", path, f"no {name}")
    keys = [scale.key for scale in info.scales]
    for key in sorted({key for key in keys if keys.count(key) > 1}):
        yield Fault("info.twice", path, f"{keys.count(key)} scales in the folder {key!r}", "one")
    for scale in info.scales:
        if "sharding" in scale.entry and scale.entry["sharding"] is None:
            yield Fault("info.null", path, f"scales[{scale.index}].sharding: null", "an object, or nothing")
