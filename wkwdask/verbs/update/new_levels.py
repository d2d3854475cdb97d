"""Update of mags in a bucket: each mag with changes gets a new version. Changed shards are rebuilt,
the server copies all others, and one change of the document switches to all new versions."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from wkwdask.errors import LockedError, ResumeError, UnsupportedError
from wkwdask.formats.container import container_of
from wkwdask.formats.opening import target_in
from wkwdask.geometry.grid import cell_range, cells, clipped_cell, is_inside
from wkwdask.geometry.mag import vec3
from wkwdask.geometry.vectors import times
from wkwdask.model.placement import plain_name
from wkwdask.model.states import add_digests, digest, grouped_digests
from wkwdask.model.stored_array import StoredArray, by_files, with_states
from wkwdask.model.summary import counted
from wkwdask.model.volume import relative_to, voxel_nbytes
from wkwdask.model.writing.receipts import Receipt
from wkwdask.model.writing.target_image import LevelSpec, NewLevels
from wkwdask.runs.drive import Outcome, Phase, Plan
from wkwdask.runs.job import Result, Task
from wkwdask.runs.job_records import find_interrupted
from wkwdask.runs.parts import ShardTally
from wkwdask.runs.report import Report
from wkwdask.runs.staged import is_copied, settings_of, stage
from wkwdask.store import by_path
from wkwdask.store.paths import basename
from wkwdask.store.records import read_file_record, read_provenance
from wkwdask.verbs.pyramid import changed_shards, factor_of, footprint, shards_in
from wkwdask.verbs.recompute import shards_by_coarser
from wkwdask.verbs.sources import box_setting, check_not_replaced
from wkwdask.verbs.update.provenance import with_source

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.image import Image
    from wkwdask.model.states import States
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.target_array import TargetArray
    from wkwdask.runs.staged import StagedMags
    from wkwdask.verbs.pyramid import ExistingMag, PyramidOptions

_COMMAND = "build_pyramid (update)"
_DOCUMENT_NBYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class CopySpec:
    """Task that lets the server copy the files of a shard."""

    source: StoredArray
    """Stored version of the mag, in the coordinates of the target."""
    target: TargetArray
    level: int
    shard: Vec3

    def task(self) -> Task:
        return Task(
            f"copy of {self.source.files.shard_path(self.shard)}",
            "copy {} {},{},{}".format(self.level, *self.shard),
            CopySpec.run,
            self,
        )

    def run(self) -> Result:
        source, files = self.source, self.target.files
        found = source.files.states_of_shard(self.shard)
        names = [files.naming.names(file)[state.variant] for file, state in found]
        by_path.copy_objects(source.store.url, self.target.folder, names)
        box = clipped_cell(self.shard, files.array.shard_shape, files.array.box)
        receipt = Receipt(self.shard, box, voxels=box.volume)
        return Result(((self.level, files.published_receipt(receipt)),))


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of the shards of a mag."""

    rebuilt: frozenset[Vec3]
    copied: frozenset[Vec3]
    sources: dict[Vec3, int]
    """Digest of the stored source files of each shard."""
    digest: int
    """Digest of the states of all files that they depend on."""

    def sources_after(self, mag: ExistingMag, now: Mapping[Vec3, int]) -> dict[Vec3, int]:
        """Return the digests to record, given those of the source files as the job leaves them:
        shards that are copied although they are not up to date keep theirs."""
        rows = [] if mag.record is None else mag.record.tolist()
        recorded = {vec3(row[:3]): row[5] for row in rows}
        stale = {
            shard: recorded.get(shard, 0)
            for shard in self.copied
            if recorded.get(shard, 0) != self.sources.get(shard, 0)
        }
        return {**now, **stale}


@dataclass(frozen=True, slots=True)
class NewVersion:
    """Mag with changes, and the level that takes its place."""

    mag: ExistingMag
    changes: Changes
    target: TargetArray
    finer: Volume
    """Mag from which it is made: the new version, if it has one."""
    level: int
    """Index in the job."""

    def tasks(self) -> Iterator[Task]:
        """Yield a task for each shard."""
        new = replace(self.mag, target=self.target, finer=self.finer)
        yield from new.rebuilding(sorted(self.changes.rebuilt), self.level)
        for shard in sorted(self.changes.copied):
            yield CopySpec(self.mag.target.as_volume(), self.target, self.level, shard).task()

    @property
    def num_tasks(self) -> int:
        return len(self.changes.rebuilt) + len(self.changes.copied)


class VersionJob:
    """Job that writes the new version of one mag."""

    def __init__(self, version: NewVersion) -> None:
        self.num_tasks = version.num_tasks
        self.tally = ShardTally(version.target, self.num_tasks)
        self._version = version

    def tasks(self) -> Iterator[Task]:
        return self._version.tasks()

    def receive(self, task: Task, result: Result) -> Iterable[Task]:
        del task
        for _, receipt in result.receipts:
            self.tally.add(receipt)
        return ()

    def holds(self, task: Task, result: Result, known: Callable[[str], Result | None]) -> bool:
        del task, known
        files = self._version.target.files
        return all(files.has_files_of(receipt) for _, receipt in result.receipts)


@dataclass(frozen=True, slots=True)
class SwitchedUpdate(Plan):
    """Plan of an update by new versions."""

    source: Volume
    staged: StagedMags
    versions: tuple[NewVersion, ...]
    """New version of each mag with changes, finest first."""
    find_changes: Callable[[], Sequence[Changes]]
    """Function that finds the changes of all mags again, from the files that are stored now."""

    def nothing_to_do(self) -> Report | None:
        if self.versions:
            return None
        self.staged.remove_leftovers()
        return Report((), 0, 0.0, "nothing to do: no finer file has changed")

    def phases(self) -> Generator[Phase, str, Outcome]:
        """Write the new versions, finest first, after a check that no job has changed the mags
        before this one took the locks."""
        if [each for each in self.find_changes() if each.rebuilt] != [
            version.changes for version in self.versions
        ]:
            raise LockedError(
                f"{self.staged.parent}: another job changed the mags just now; start again"
            )
        tallies: dict[Any, ShardTally] = {}
        notes = []
        for version in self.versions:
            job = VersionJob(version)
            notes.append((yield Phase(job, f"update of {version.mag.target.folder}")))
            finer = tallies.get(version.finer.box.mag)
            now = version.changes.sources
            if finer is not None:
                now = grouped_digests(
                    version.finer.files.recorded_states(finer.shards),  # type: ignore[attr-defined]
                    version.finer.shard_shape,
                    footprint(version.finer, version.target),
                )
            job.tally.set_sources(version.changes.sources_after(version.mag, now))
            tallies[version.target.mag] = job.tally
        rebuilt, copied = (
            sum(len(getattr(version.changes, name)) for version in self.versions)
            for name in ("rebuilt", "copied")
        )
        notes.append(f"{counted(rebuilt, 'file')} rebuilt, {copied} copied by the server")
        return Outcome(list(tallies.values()), "; ".join(filter(None, notes)))

    def check_unchanged(self) -> None:
        check_not_replaced(self.source)


def find_changes(
    mags: Sequence[ExistingMag], *, by_content: bool, box: BoundingBox | None
) -> list[Changes]:
    """Find the changes of some mags, finest first; with ``by_content``, all shards count as
    changed, and with ``box`` those that show a part of the layer."""
    stores: dict[str, Any] = {}

    def states_of(volume: Any) -> States:
        url = volume.store.url
        if url not in stores:
            stores[url] = with_states(volume, read_file_record(url)).store
        states: States = volume.at(stores[url]).files.stored_states()
        return states

    found: dict[Any, Changes] = {}
    for mag in mags:
        target, finer = mag.target, mag.finer
        sources, stored = states_of(finer), states_of(target.as_volume())
        ranges = cell_range(target.box, target.shard_shape)
        whole = set(cells(target.box, target.shard_shape))
        if by_content:
            rebuilt = whole
        elif box is not None:
            rebuilt = shards_in(target, box)
        else:
            rebuilt = changed_shards(mag, sources, stored)
        below = found.get(finer.box.mag)
        if below is not None:
            above = shards_by_coarser(
                below.rebuilt, finer.shard_shape, finer.origin, footprint(finer, target)
            )
            rebuilt |= {shard for shard in above if is_inside(shard, ranges)}
        known = (
            whole
            if mag.record is None
            else {vec3(row[:3]) for row in (*stored.tolist(), *mag.record.tolist()) if row[3]}
        )
        found[target.mag] = Changes(
            frozenset(rebuilt),
            frozenset(known - rebuilt),
            grouped_digests(sources, finer.shard_shape, footprint(finer, target)),
            add_digests(digest(sources), digest(stored)),
        )
    return list(found.values())


def lay_out_versions(
    image: Image,
    source: Volume,
    mags: Sequence[ExistingMag],
    options: PyramidOptions,
    *,
    by_content: bool,
    box: BoundingBox | None,
) -> SwitchedUpdate:
    """Plan new versions of the mags that need one, or resume the interrupted job that writes
    them."""

    mags = [replace(mag, finer=by_files(mag.finer)) for mag in mags]  # type: ignore[arg-type]

    def find() -> list[Changes]:
        return find_changes(mags, by_content=by_content, box=box)

    changed = [(mag, each) for mag, each in zip(mags, find(), strict=True) if each.rebuilt]
    levels = _new_levels(image, [mag for mag, _ in changed], options)
    settings = settings_of(
        _COMMAND,
        source=source.box.mag.name,
        mags=",".join(mag.target.mag.name for mag, _ in changed),
        by_content=by_content,
        box=None if box is None else box_setting(box),
        replaces=",".join(basename(mag.target.folder) for mag, _ in changed),
        states=add_digests(*(each.digest for _, each in changed)),
    )
    interrupted = find_interrupted(levels.parent, levels.folders)
    is_update = interrupted is not None and interrupted.settings.get("command") == _COMMAND
    if interrupted is not None and not is_update:
        raise ResumeError(
            f"{interrupted.root}: an interrupted job writes the same mags; the call that started "
            f"it resumes it, wkwdask cancel {levels.parent} --discard removes it"
        )
    existing = (
        "restart" if interrupted is not None and interrupted.settings != settings else "overwrite"
    )
    draft = stage(
        f"{_COMMAND} of {image.folder}", levels.parent, levels.folders, settings, existing
    )
    versions: list[NewVersion] = []
    nbytes_in = task_nbytes = 0
    for level, target in enumerate(draft.staged_levels(levels)):
        mag, changes = changed[level]
        below = [each.target for each in versions if each.target.mag == mag.finer.box.mag]
        finer = mag.finer
        if below:
            origin = times(target.origin, factor_of(finer, target))
            finer = relative_to(below[0].as_volume().moved(below[0].origin), origin)
        versions.append(NewVersion(mag, changes, target, finer, level))
        nbytes = math.prod(footprint(finer, target)) * voxel_nbytes(target)
        nbytes_in += nbytes * len(changes.rebuilt)
        task_nbytes = max(task_nbytes, nbytes)
    staged = draft.mags([version.target for version in versions], nbytes_in, levels.edit)
    made = [
        read_provenance(mag.target.folder)
        if box is not None
        else with_source(read_provenance(mag.target.folder), mag.target, source)
        for mag, _ in changed
    ]
    staged = replace(
        staged,
        edit=None
        if levels.edit is None
        else levels.edit.placed(draft.owner.job, tuple(target.listed for target in levels.targets)),
        discarded_by=f"wkwdask cancel {levels.parent} --discard removes it",
        voxel_provenance=tuple(provenance.get("made", provenance) for provenance in made),
    )
    return SwitchedUpdate(source, staged, tuple(versions), find)


def _new_levels(image: Image, mags: Sequence[ExistingMag], options: PyramidOptions) -> NewLevels:
    """Lay out levels that are stored exactly like existing ones, in the places of these."""
    if not mags:
        return NewLevels(image.folder, (), (), {})
    target_image, found = target_in(image, options.allow_external), []
    for mag in mags:
        volume = container_of(image).with_all_files(image.find(mag.target.mag).open())
        spec = replace(LevelSpec.like(volume, is_copy=True), extent=volume.extent)
        levels = target_image.new_levels([spec], options.stored, volume, "overwrite")
        (new,) = levels.targets
        names = [name for name, _ in new.documents]
        documents = mag.target.array.store.read_whole(names, _DOCUMENT_NBYTES)
        stored = replace(
            mag.target,
            array=replace(mag.target.array, identity=new.array.identity),
            documents=tuple(
                (name, data)
                for name, data in zip(names, documents, strict=True)
                if data is not None
            ),
            is_in_place=False,
            listed=new.listed,
            record="",
        )
        found.append(replace(levels, targets=(stored,)))
    folders = tuple(plain_name(folder) for levels in found for folder in levels.folders)
    edits = [levels.edit for levels in found if levels.edit is not None]
    if is_copied(image.folder, found[0].edit):
        raise UnsupportedError(
            f"{folders[0]}: an update in a bucket makes new levels, and no document could switch "
            "to them; convert() stores the image as OME-NGFF or precomputed"
        )
    return replace(
        found[0],
        folders=folders,
        targets=tuple(target for levels in found for target in levels.targets),
        edit=reduce(lambda edit, other: edit.joined(other), edits),
    )
