"""Staging a check of WKW mags: from what a user names to groups of files, and from what they hold to a report."""

from __future__ import annotations

import hashlib
import re
import time
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from typing import TYPE_CHECKING, Any

from wkwdask.formats.webknossos.datasource import FILE_NAME, largest_segment_id
from wkwdask.formats.wkw.file_check import Findings, WkwCheck
from wkwdask.formats.wkw.volume import HEADER_NAME, WkwVolume
from wkwdask.geometry.bounding_box import MAG_1, BoundingBox
from wkwdask.geometry.grid import cell_range
from wkwdask.geometry.mag import Mag, vec3
from wkwdask.kernels.window.reduce import METHODS
from wkwdask.model.faults import ERROR, Fault
from wkwdask.model.translated import moved
from wkwdask.plans.pyramid import plan_pass
from wkwdask.runs.job import FlatJob
from wkwdask.store.provenance import read_making, read_provenance
from wkwdask.verbs.verify import CheckSpec, MagFindings, RecomputeSpec, Verification, VerifyReport, outside_fault, sorted_faults

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from wkwdask.geometry.mag import Vec3
    from wkwdask.runs.job import Result, Task
    from wkwdask.verbs.wkw.dataset_check import LayerScope, MagScope, Scope

_GROUP_NBYTES = 256 << 20  # voxels of the files of one task: below a second of work
_LARGEST_GROUP = 512
_METHOD_OF_CATEGORY = {"color": "median", "segmentation": "mode"}


@dataclass(frozen=True, slots=True)
class Made:
    """How a coarser mag was made, as far as anything says so."""

    finer: MagScope
    """From which mag."""
    method: str
    """How a window becomes a voxel."""
    ignore_zero: bool
    """Whether zeros do not count."""
    is_known: bool
    """Whether the mag's provenance or the user says so; else it is what most software does."""
    box: BoundingBox | None = None
    """Where the finer mag had data then [voxels of the finer mag], None where nothing says so."""

    @property
    def is_noted(self) -> bool:
        """Whether the mag's provenance says so."""
        return self.box is not None

    @property
    def source(self) -> WkwVolume:
        """The finer mag: with the box that the JSON says, else with the one that it had then."""
        volume = volume_of(self.finer)
        return volume if self.finer.box is not None or self.box is None else replace(volume, box=self.box)


class WkwVerification(Verification):
    """A check that can be run."""

    def __init__(self, scope: Scope, *, decode: bool, pyramid: float = 0.0, method: str | None = None) -> None:
        self.scope = scope
        self.path = scope.path
        self._decode = decode
        self._pyramid = pyramid
        self._method = method
        self._faults = list(scope.faults)
        self._found: dict[str, Findings] = {}
        self._compared: dict[str, int] = {}
        self._says_how: set[str] = set()
        self._started = time.monotonic()

    def file_job(self) -> FlatJob:
        """Make the job that reads the files."""
        mags = [(scope, check_of(scope, decode=self._decode, noted=noted_box(layer))) for layer in self.scope.layers for scope in layer.mags]
        checks = [(scope, check) for scope, check in mags if check is not None]

        def tasks() -> Iterator[Task]:
            for scope, check in checks:
                step, sizes = group_len(check), _recorded_sizes(scope)
                for first in range(0, len(scope.listing.shards), step):
                    shards = tuple((x, y, z) for x, y, z in scope.listing.shards[first : first + step].tolist())
                    yield CheckSpec(check, shards, tuple(sizes.get(shard, 0) for shard in shards)).task()

        return FlatJob(tasks, sum(-(-len(scope.listing.shards) // group_len(check)) for scope, check in checks), self._take_findings)

    def _take_findings(self, spec: CheckSpec, result: Result) -> None:
        findings: Findings = result.value
        self._faults += findings.faults
        folder = spec.check.folder
        self._found[folder] = self._found.get(folder, Findings()) + replace(findings, faults=())

    def pyramid_job(self) -> FlatJob:
        """Make the job that compares coarser mags with finer ones; to be made when the files have been read: broken ones are left out."""
        broken = {fault.path for fault in self._faults if fault.severity == "error"}
        tasks: list[Task] = []
        for layer in self.scope.layers if self._pyramid else ():
            for scope in (scope for scope in layer.mags if finer_mags(layer, scope)):
                made = how_made(layer, scope, self._method)
                if made is None or not broken.isdisjoint(f"{folder}/{HEADER_NAME}" for folder in (scope.folder, made.finer.folder)):
                    self._faults.append(Fault("pyramid.unknown", scope.folder, "nothing says how it was made" if made is None else "a header.wkw is broken"))
                    continue
                if made.is_noted:
                    self._says_how.add(scope.folder)
                tasks += [spec.task() for spec in recompute_specs(scope, made, broken) if is_sampled(scope.folder, spec.shard, self._pyramid)]
        return FlatJob(lambda: iter(tasks), len(tasks), self._take_differences)

    def _take_differences(self, spec: RecomputeSpec, result: Result) -> None:
        folder = spec.coarser.name
        self._compared[folder] = self._compared.get(folder, 0) + 1
        found = result.value
        if found.different:
            one = found.listed[0]
            what = f"{found.different:,} of {found.compared:,} voxels differ, the first is {one.second} in channel {one.channel}"
            expected = f"{one.first}, the {spec.method} of mag {spec.finer.box.mag}"
            graver = ERROR if folder in self._says_how else ""  # by its own word the mag is another one; else the method may be
            self._faults.append(Fault("pyramid.differs", spec.coarser.shard_path(spec.shard), what, expected, voxel=one.voxel, graver=graver))

    def report(self) -> VerifyReport:
        """Say what was found."""
        mags = []
        for layer in self.scope.layers:
            self._faults += self._layer_faults(layer)
            for scope in layer.mags:
                found = self._found.get(scope.folder, Findings())
                compared = self._compared.get(scope.folder, 0)
                mags.append(MagFindings(scope.layer, scope.mag.name, scope.folder, found.files, found.nbytes, found.blocks, found.largest, compared))
        return VerifyReport(self.scope.path, self._decode, tuple(mags), sorted_faults(self._faults), time.monotonic() - self._started)

    def _layer_faults(self, layer: LayerScope) -> Iterator[Fault]:
        """Compare what the JSON says of a layer with what its blocks hold."""
        if layer.record is None:
            return
        json_path = f"{self.scope.dataset_folder}/{FILE_NAME}"
        largest = self.largest_of(layer)
        said = largest_segment_id(layer.record.attributes)
        if largest is not None and said is not None and said < largest:
            yield Fault("json.largest_id", json_path, f"layer {layer.name}: largestSegmentId {said}", str(largest))
        grown = self.grown_box(layer)
        if grown is not None:
            yield outside_fault(json_path, layer.name, layer.record.bounding_box, grown)

    def grown_box(self, layer: LayerScope) -> BoundingBox | None:
        """Give the box around all voxels of a layer that are not zero and lie outside its box [voxels of mag 1], None where there are none."""
        outside = None
        for scope in layer.mags[:1]:  # a coarser mag's voxels reach beyond the box by rounding
            found = self._found.get(scope.folder, Findings()).outside
            if found is not None:
                outside = found.in_mag(MAG_1)
        return outside

    def box_of(self, layer: LayerScope) -> BoundingBox:
        """Give the box of a layer that the JSON does not know [voxels of mag 1]: around what its jobs noted and all voxels that are not zero."""
        there = [scope for scope in layer.mags if scope.header is not None]
        noted = noted_box(layer)
        if noted is None:
            return volume_of(there[0]).box.in_mag(MAG_1)
        outside = (self._found.get(scope.folder, Findings()).outside for scope in there)
        return reduce(BoundingBox.union, (box.in_mag(MAG_1) for box in outside if box is not None), noted)

    def largest_of(self, layer: LayerScope) -> int | None:
        """Give the largest value that was found in a layer."""
        return max((n for n in (self._found.get(scope.folder, Findings()).largest for scope in layer.mags) if n is not None), default=None)


def _recorded_sizes(scope: MagScope) -> dict[Vec3, int]:
    """Give the size that each file had when it was written, where the mag keeps a record."""
    return {} if scope.record is None else {(x, y, z): nbytes for x, y, z, nbytes, _, _ in scope.record.tolist()}


def check_of(scope: MagScope, *, decode: bool, noted: BoundingBox | None = None) -> WkwCheck | None:
    """Say how the files of a mag are to be checked, None where nothing says what they should be like."""
    if scope.header is None:
        return None
    find_largest = decode and scope.category == "segmentation" and scope.header.dtype.kind in "iu"
    return WkwCheck(scope.folder, scope.header, scope.box, decode, find_largest, None if noted is None else noted.in_mag(scope.mag))


def noted_box(layer: LayerScope) -> BoundingBox | None:
    """Read from the provenance of a layer's mags where it has data [voxels of mag 1], None where none says so."""
    return next((box for scope in layer.mags if (box := _noted_box(scope)) is not None), None)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"-?\d+", text)]


def _noted_box(scope: MagScope) -> BoundingBox | None:
    """Read where a mag has data: each command notes a box of its own kind, that of a merge is one of several sources."""
    settings: Any = read_provenance(scope.folder).get("settings")
    try:
        command, numbers = settings["command"], _numbers(settings["box"])
        mag = scope.mag if command in ("to_wkw", "convert", "apply") else Mag.parse(settings["source"])
        box = BoundingBox(vec3(numbers[:3]), vec3(numbers[3:6]), mag).in_mag(MAG_1)
        if command in ("rechunk", "copy"):
            return moved(box, vec3(_numbers(settings["translate"])))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return None if command == "merge" else box


def group_len(check: WkwCheck) -> int:
    """Choose how many files make a task."""
    voxel_nbytes = check.header.blocks_per_file * check.header.block_nbytes
    return max(1, min(_LARGEST_GROUP, _GROUP_NBYTES // voxel_nbytes))


def how_made(layer: LayerScope, scope: MagScope, method: str | None) -> Made | None:
    """Tell from which mag and how a mag was made: as its provenance says, else from the next finer one as most software does."""
    finer = {other.mag: other for other in finer_mags(layer, scope)}
    if not finer or scope.header is None:
        return None
    noted = _noted(scope, finer)
    if noted is not None:
        return noted
    nearest = max(finer.values(), key=lambda other: (other.mag.maximum, other.mag.factors))
    chosen = method or _METHOD_OF_CATEGORY.get(scope.category)
    return None if chosen is None else Made(nearest, chosen, ignore_zero=False, is_known=method is not None)


def _noted(scope: MagScope, finer: dict[Mag, MagScope]) -> Made | None:
    """Read from a mag's provenance how it was made; None where it has none, or one that makes no sense."""
    settings: Any = read_making(scope.folder)
    try:
        if settings["command"] != "build_pyramid":
            return None
        ladder = [Mag.parse(name) for name in (settings["source"], *settings["mags"].split(","))]
        origin = finer[ladder[ladder.index(scope.mag, 1) - 1]]
        box = BoundingBox.parse(settings["box"])
        box = BoundingBox(box.topleft, box.size, ladder[0]).in_mag(origin.mag)
        return Made(origin, str(settings["method"]), bool(settings["ignore_zero"]), is_known=True, box=box) if settings["method"] in METHODS else None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def finer_mags(layer: LayerScope, scope: MagScope) -> list[MagScope]:
    """List the mags of a layer that have files and from which a mag can have been made."""
    mags = [other for other in layer.mags if other.mag != scope.mag and other.header is not None and len(other.listing.shards)]
    return [other for other in mags if all(a <= b for a, b in zip(other.mag.factors, scope.mag.factors, strict=True))]


def volume_of(scope: MagScope) -> WkwVolume:
    """Open a mag by what its files should be like, even where its header.wkw is broken."""
    if scope.header is None:
        raise ValueError(f"{scope.folder}: nothing says what its files are like")
    edge = scope.header.file_len_vx
    shards = scope.listing.shards
    extent = scope.box
    if extent is None:
        low, high = (shards.min(axis=0) * edge, (shards.max(axis=0) + 1) * edge) if len(shards) else ([0, 0, 0], [0, 0, 0])
        extent = BoundingBox.from_corners([int(n) for n in low], [int(n) for n in high], scope.mag)
    return WkwVolume(scope.folder, scope.header, extent)


def recompute_specs(scope: MagScope, made: Made, broken: set[str]) -> Iterator[RecomputeSpec]:
    """Give a task for each file of a coarser mag that is there, or should be since a finer one is; files that are broken, or made from such, are left out."""
    finer = made.source
    coarser = replace(volume_of(scope), box=finer.box.in_mag(scope.mag))
    factor = finer.box.mag.step_to(scope.mag)
    footprint = (coarser.shard_shape[0] * factor[0], coarser.shard_shape[1] * factor[1], coarser.shard_shape[2] * factor[2])
    header = coarser.header
    plan = plan_pass(finer.box, [scope.mag], coarser.chunk_shape, header.voxel_nbytes, coarser.shard_shape)
    below = files_below(made.finer.listing.shards.tolist(), finer.header.file_len_vx, footprint)
    stored = {(x, y, z) for x, y, z in scope.listing.shards.tolist()}
    touched = cell_range(coarser.box, coarser.shard_shape)
    for shard in sorted(stored | set(below), key=lambda shard: shard[::-1]):
        sources = (finer.shard_path(index) for index in below.get(shard, ()))
        if all(n in r for n, r in zip(shard, touched, strict=True)) and broken.isdisjoint((coarser.shard_path(shard), *sources)):
            yield RecomputeSpec(finer, coarser, plan, made.method, made.ignore_zero, shard)


def files_below(shards: Iterable[Sequence[int]], edge: int, footprint: Vec3) -> dict[Vec3, list[Vec3]]:
    """List the files of a mag that each file of a coarser one is made from."""
    below: dict[Vec3, list[Vec3]] = {}
    for x, y, z in shards:
        ranges = (range(n * edge // cell, ((n + 1) * edge - 1) // cell + 1) for n, cell in zip((x, y, z), footprint, strict=True))
        for i, j, k in product(*ranges):
            below.setdefault((i, j, k), []).append((x, y, z))
    return below


def is_sampled(folder: str, shard: Vec3, share: float) -> bool:
    """Choose a share of the files, the same ones in each run."""
    if share >= 1:
        return True
    digest = hashlib.blake2b(f"{folder.rsplit('/', 2)[-2:]} {shard}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") < share * 2**32
