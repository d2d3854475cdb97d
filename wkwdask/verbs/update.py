"""Planning and job of pyramid updates: existing coarser mags follow the changes of finer files.

Shards whose source files have changed are rebuilt, mag by mag, and each replaces its file in place.
"""

from __future__ import annotations

import errno
import math
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import (
    BoundsError,
    LockedError,
    MissingError,
    ResumeError,
    UnsupportedError,
)
from wkwdask.formats.opening import SourceSelection, describe_unusable_levels, format_of_image
from wkwdask.formats.record_paths import job_root
from wkwdask.formats.roots import level_job_folders, root_of
from wkwdask.geometry.bounding_box import BoundingBox, counted_from, moved
from wkwdask.geometry.grid import cell_range, cells
from wkwdask.geometry.mag import Mag
from wkwdask.geometry.vectors import times
from wkwdask.model.parsing import reading
from wkwdask.model.states import FILE_RECORD_COLUMNS, FILE_RECORD_NAME, grouped_digests
from wkwdask.model.summary import counted
from wkwdask.model.volume import relative_to
from wkwdask.model.writing.target_array import InPlaceWrite
from wkwdask.plans.pyramid import plan_pass, step_factors
from wkwdask.plans.regions import morton_order
from wkwdask.runs.drive import Phase, Work
from wkwdask.runs.job_folder import JobFolder
from wkwdask.runs.parts import ShardTally
from wkwdask.runs.report import Report
from wkwdask.store import by_path
from wkwdask.store.locks import Owner
from wkwdask.store.paths import is_bucket, is_remote
from wkwdask.store.records import (
    PROVENANCE_NAME,
    read_creation_settings,
    read_file_record,
    read_provenance,
    write_file_record,
    write_provenance,
)
from wkwdask.store.store import store_at
from wkwdask.verbs.pyramid import (
    ExistingMag,
    RegionSpec,
    changed_shards,
    choose_mags,
    choose_method,
    factor_of,
    footprint,
)
from wkwdask.verbs.recompute import recorded_ladder
from wkwdask.verbs.sources import box_setting, open_base_level, source_fingerprint

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.image import Image
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.receipts import Receipt
    from wkwdask.runs.job import Result, Task
    from wkwdask.verbs.pyramid import PyramidOptions


_SAVE_SECONDS = 30.0


class UpdateJob:
    """Job that brings coarser mags up to date, finest first."""

    def __init__(
        self, mags: Sequence[ExistingMag], *, by_content: bool, box: BoundingBox | None
    ) -> None:
        self.tallies = [ShardTally(mag.target, 0) for mag in mags]
        self.num_tasks = 0
        self.num_changed = [0] * len(mags)
        self.box_was_given = box is not None
        self._known: dict[int, dict[Vec3, tuple[int, int]]] = {}
        self._mags = mags
        self._by_content = by_content
        self._box = box
        self._level = -1
        self._saved = time.monotonic()

    @property
    def voxels_in(self) -> int:
        """Voxels of finer mags that were read for all rebuilt shards."""
        return sum(
            tally.voxels * math.prod(factor_of(mag.finer, mag.target))
            for tally, mag in zip(self.tallies, self._mags, strict=True)
        )

    def tasks(self) -> Iterator[Task]:
        """Return the tasks of the next mag with shards to rebuild."""
        while self._level + 1 < len(self._mags):
            self._level += 1
            shards = self._shards_to_rebuild()
            self.num_tasks += len(shards)
            self.tallies[self._level].expected = len(shards)
            if shards:
                return self._tasks_of(shards)
        return iter(())

    def _shards_to_rebuild(self) -> list[Vec3]:
        """Return the shards of the current mag to rebuild, in Morton order."""
        mag = self._mags[self._level]
        finer, target = mag.finer, mag.target
        if self._by_content:
            stored = target.as_volume().files.stored_states()[:, :3].tolist()
            candidates = set(
                grouped_digests(
                    finer.files.stored_states(), finer.shard_shape, footprint(finer, target)
                )
            ) | {(x, y, z) for x, y, z in stored}
        elif self._box is not None:
            candidates = set(
                cells(
                    counted_from(self._box.in_mag(target.box.mag), target.origin).intersection(
                        target.box
                    ),
                    target.shard_shape,
                )
            )
        else:
            candidates = changed_shards(mag)
        ranges = cell_range(target.box, target.shard_shape)
        shards = [
            shard for shard in candidates if all(n in r for n, r in zip(shard, ranges, strict=True))
        ]
        return [shards[n] for n in morton_order(np.array(shards, np.int64))]

    def _tasks_of(self, shards: Sequence[Vec3]) -> Iterator[Task]:
        mag = self._mags[self._level]
        finer, target = mag.finer, mag.target
        voxel_nbytes = target.dtype.itemsize * target.num_channels
        plan = plan_pass(
            finer.box, [target.box.mag], target.chunk_shape, voxel_nbytes, target.shard_shape
        )
        return (
            RegionSpec(
                finer, plan, (target,), mag.method, mag.ignore_zero, shard, self._level
            ).task()
            for shard in shards
        )

    def receive(self, task: Task, result: Result) -> Iterable[Task]:
        """Record the receipts of a shard; after the last shard of a mag, continue with the next
        mag."""
        for level, receipt in result.receipts:
            self.tallies[level].add(receipt)
            self.num_changed[level] += self._was_replaced(level, receipt)
        if self.tallies[self._level].is_complete:
            self.save_record()
            return self.tasks()
        if time.monotonic() - self._saved > _SAVE_SECONDS:
            self.save_record()
        return ()

    def _was_replaced(self, level: int, receipt: Receipt) -> bool:
        """Return whether a shard was replaced by a different file."""
        rows = self._mags[level].record
        if level not in self._known:
            self._known[level] = (
                {}
                if rows is None
                else {(x, y, z): (nbytes, mtime) for x, y, z, nbytes, mtime, _ in rows.tolist()}
            )
        return self._known[level].get(receipt.shard) != (receipt.nbytes, receipt.mtime_ns)

    def save_record(self) -> None:
        """Record the states of the rebuilt files, so that an interrupted update does not rebuild
        them again."""
        level = self._level
        if level < 0:
            return
        mag, rebuilt = self._mags[level], self.tallies[level].shards
        if mag.record is None and not (self.tallies[level].is_complete and self._by_content):
            # shards that a record does not list count as empty: a record of some files would be
            # wrong
            return
        old = np.empty((0, FILE_RECORD_COLUMNS), np.int64) if mag.record is None else mag.record
        # Rows of rebuilt shards replace the old rows; all others stay.
        replaced = {tuple(row) for row in rebuilt[:, :3].tolist()}
        kept = np.array(
            [row for row in old.tolist() if tuple(row[:3]) not in replaced], np.int64
        ).reshape(-1, FILE_RECORD_COLUMNS)
        write_file_record(mag.target.folder, np.concatenate([kept, rebuilt]))
        self._saved = time.monotonic()


@dataclass(slots=True)
class Update(Work[Report]):
    """Update of coarser mags, file by file in place."""

    source: Volume
    folder: JobFolder
    """Job folder, which holds the locks of the mags."""
    mags: tuple[ExistingMag, ...]
    """Mags to update, finest first."""
    job: UpdateJob
    plan_again: Callable[[], Update]
    """Function that plans the same update again, from the files that are stored now."""

    def start(self) -> None:
        """Lock the mags, create the folder for temporary parts, and plan again under the locks."""
        for mag in self.mags:
            store = store_at(mag.target.folder)
            if store.is_folder() and not store.is_writable():
                raise PermissionError(errno.EACCES, "the mag cannot be written", mag.target.folder)
        # Lock first, then plan again: the second plan sees changes that another job made before the
        # lock, and no job makes any after it.
        self.folder.start("update", {"command": "update"})
        try:
            locked = self.plan_again()
            if locked.folder.targets != self.folder.targets:
                raise LockedError(
                    f"{self.folder.parent}: another job changed the mags just now; start again"
                )
            for mag in locked.mags:
                for name in (FILE_RECORD_NAME, PROVENANCE_NAME):
                    # left by an update that was killed
                    by_path.remove_temporaries(mag.target.folder, name)
                mag.target.prepare()
        except BaseException:
            self.folder.discard()
            raise
        self.source, self.mags, self.job = locked.source, locked.mags, locked.job

    def phases(self) -> Generator[Phase, str, Report]:
        """Rebuild files, end the job and report."""
        yield Phase(self.job, f"update of {self.folder.parent}", folder=self.folder.root)
        if not self.job.box_was_given:
            for mag in self.mags:
                self._record_source(mag)
        seconds = self.folder.seconds()
        self.folder.discard()
        tallies = self.job.tallies
        rebuilt = sum(tally.expected for tally in tallies)
        note = (
            f"{counted(rebuilt, 'file')} rebuilt, {sum(self.job.num_changed)} of them changed"
            if rebuilt
            else "nothing to do: no finer file has changed"
        )
        mags = tuple(
            tally.report(tally.target.folder, whole=False) for tally in tallies if tally.expected
        )
        return Report(
            mags,
            self.job.voxels_in * self.source.dtype.itemsize * self.source.num_channels,
            seconds,
            note,
        )

    def suspend(self, error: BaseException) -> None:
        """Record the files that were rebuilt before an error."""
        self.job.save_record()
        self.folder.discard()

    def _record_source(self, mag: ExistingMag) -> None:
        """Record the current box and identity of the source in the provenance of a mag."""
        provenance = read_provenance(mag.target.folder)
        settings = read_creation_settings(mag.target.folder, mag.target.mag)
        if settings.get("command") == "build_pyramid":
            with reading(f"{mag.target.folder}/{PROVENANCE_NAME}", "record"):
                origin = Mag.parse(settings["source"])
            current = {**settings, "box": box_setting(self.source.box.in_mag(origin))}
            if origin == self.source.box.mag:
                current |= {**source_fingerprint(self.source), "source": origin.name}
            if current != settings:
                changed: dict[str, Any] = {"settings": current, "mag": mag.target.mag.name}
                if "made" in provenance:
                    changed = {"made": {**provenance["made"], **changed}}
                box = moved(mag.target.box, mag.target.origin)
                changed["box"] = [*box.topleft, *box.size]
                write_provenance(mag.target.folder, {**provenance, **changed})


def lay_out_update(
    url: str | os.PathLike[str],
    layer_name: str | None,
    options: PyramidOptions,
    *,
    by_content: bool,
    box: BoundingBox | None,
    owner: Owner | None = None,
) -> Update:
    """Plan an update from the stored mags and their provenance."""
    _check_options(options)
    layer, source = open_base_level(
        url,
        SourceSelection(
            layer_name, options.finest, "finest", allow_external=options.allow_external
        ),
    )
    if is_bucket(layer.folder):
        raise UnsupportedError(
            f'{layer.folder}: update= does not work in a bucket; existing="overwrite" builds the '
            "mags anew"
        )
    if box is not None and box.in_mag(source.box.mag).intersection(source.box).is_empty:
        raise BoundsError(f"{source.name}: box {box} lies outside {source.box}")
    its_format = format_of_image(layer)
    mags = _choose_existing_mags(layer, source, options)
    folders = {mag: level_job_folders(layer, layer.find(mag))[1] for mag in mags}
    root = root_of(layer)
    parent = root.work_folder(layer.folder, folders.values())
    owner = owner or Owner.this_process(f"build_pyramid (update) of {layer.folder}")
    trusts_records = not by_content and box is None
    existing: list[ExistingMag] = []
    volumes: dict[Mag, Volume] = {source.box.mag: source}
    for mag, folder in folders.items():
        previous = existing[-1].target.box.mag if existing else source.box.mag
        finer, method, ignore_zero = _provenance(
            layer, source, mag, previous, options, trusts_records
        )
        if finer not in volumes:
            volumes[finer] = layer.volume(finer)
        root.check_links(folder)
        volume, record, settings = (
            layer.find(mag).open(),
            read_file_record(folder),
            read_creation_settings(folder, mag),
        )
        if record is None and trusts_records:
            raise ResumeError(
                f'{folder}: has no record of its files; update="content" rebuilds and compares '
                'all, existing="overwrite" starts over'
            )
        if (volume.dtype, volume.num_channels) != (source.dtype, source.num_channels):
            raise ValueError(
                f"{folder}: {counted(volume.num_channels, 'channel')} of {volume.dtype.name}, the "
                f"finest mag has {source.num_channels} of {source.dtype}"
            )
        staging = f"{job_root(parent, owner.job)}/{mag.long_name}.parts"
        target = its_format.in_place_target(
            volume,
            InPlaceWrite(
                folder, staging, source.box.in_mag(mag), level=settings.get("level") or None
            ),
        )
        origin, old_box = times(target.origin, finer.step_to(mag)), _old_box(settings, finer)
        framed = relative_to(volumes[finer], origin)
        existing.append(
            ExistingMag(
                target,
                framed,
                method,
                ignore_zero,
                record,
                None if old_box is None else counted_from(old_box, origin),
            )
        )
        volumes[mag] = target.as_volume().moved(target.origin)
    job = UpdateJob(existing, by_content=by_content, box=box)
    job_folder = JobFolder(
        parent,
        owner,
        [mag.target.folder for mag in existing],
        datasets=[*filter(None, [root.folder])],
    )
    plan_again = partial(
        lay_out_update, url, layer_name, options, by_content=by_content, box=box, owner=owner
    )
    return Update(source, job_folder, tuple(existing), job, plan_again)


def _check_options(options: PyramidOptions) -> None:
    """Raise an error for options that have no effect on an update."""
    without_effect = [
        *options.stored.explicit(),
        *(["sampling"] if options.sampling is not None else []),
    ]
    if options.align_with is not True:
        without_effect.append("align_with")
    if without_effect:
        raise ValueError(
            f"update= and bounding_box= keep the storage of the mags; {', '.join(without_effect)}= "
            "requires building them again"
        )


def _settings(image: Image, mag: Mag) -> dict[str, Any]:
    folder = image.mags.get(mag)
    return {} if folder is None or is_remote(folder) else read_creation_settings(folder, mag)


def _made_from(layer: Image, mag: Mag, finest: Mag) -> Mag | None:
    """Return the mag from which a mag was made; None if its chain of sources does not lead to the
    finest mag."""
    ladder = recorded_ladder(_settings(layer, mag))
    if mag not in ladder[1:]:
        return None
    finer = ladder[ladder.index(mag, 1) - 1]
    if finer.x * finer.y * finer.z >= mag.x * mag.y * mag.z:
        return None
    return finer if finer == finest or _made_from(layer, finer, finest) is not None else None


def _provenance(
    layer: Image,
    source: Volume,
    mag: Mag,
    previous: Mag,
    options: PyramidOptions,
    trusts_records: bool,
) -> tuple[Mag, str, bool]:
    """Return the source mag, method and ``ignore_zero`` of a mag: as recorded, or as the options
    say for a mag that ``mags=`` names and that has no record."""
    folder, settings = layer.mags[mag], _settings(layer, mag)
    if not settings and options.mags is not None and not trusts_records:
        step_factors(previous, [mag])
        return previous, choose_method(layer, source, options), options.ignore_zero
    finer = _made_from(layer, mag, source.box.mag)
    if finer is None:
        made = (
            f"made by {settings.get('command')}"
            + (f" from mag {settings['source']}" if "source" in settings else "")
            if settings
            else "not made by wkwdask"
        )
        raise ResumeError(
            f"{folder}: {made}, not by build_pyramid from mag {source.box.mag}: it is left "
            'unchanged; existing="overwrite" rebuilds mags'
        )
    with reading(f"{folder}/{PROVENANCE_NAME}", "record"):
        method, ignore_zero = str(settings["method"]), bool(settings["ignore_zero"])
    if options.method not in ("default", method) or (options.ignore_zero and not ignore_zero):
        requested = options.method + (" with ignore_zero" if options.ignore_zero else "")
        raise ResumeError(
            f"{folder}: made with {method}{' with ignore_zero' if ignore_zero else ''}, not "
            f"{requested}; build the mags again"
        )
    return finer, method, ignore_zero


def _choose_existing_mags(layer: Image, source: Volume, options: PyramidOptions) -> list[Mag]:
    """Return the mags to update: the requested ones, else all that were built from the finest
    one."""
    finest = source.box.mag
    if options.mags is not None or options.coarsest is not None:
        mags = choose_mags(layer, source, options)
    else:
        local = [
            mag for mag, folder in layer.mags.items() if mag != finest and not is_remote(folder)
        ]
        above = [mag for mag in local if _made_from(layer, mag, finest) is not None]
        mags = sorted(above, key=lambda mag: (mag.x * mag.y * mag.z, mag.factors))
        if not mags:
            origins = sorted(
                {
                    ladder[0].name
                    for ladder in (recorded_ladder(_settings(layer, mag)) for mag in local)
                    if ladder
                }
            )
            others = (
                f"; mags were built from mag {', '.join(origins)}: name it with finest="
                if origins
                else ""
            ) + _unusable(layer)
            names = ",".join(mag.name for mag in local)
            remedy = (
                f'; mags="{names}" with update="content" builds them again, and replaces the files '
                "that differ"
                if local and not origins
                else ""
            )
            raise MissingError(
                f"{layer.folder}: no mags that build_pyramid made from mag {finest}{others}{remedy}"
            )
    missing = [
        mag.name
        for mag in mags
        if mag not in layer.mags or not store_at(layer.mags[mag]).is_folder()
    ]
    if missing:
        raise MissingError(
            f"{layer.folder}: mag {', '.join(missing)} is missing and cannot be updated; build it "
            f"first{_unusable(layer)}"
        )
    return mags


def _unusable(image: Image) -> str:
    note = describe_unusable_levels(image)
    return f"; {note}" if note else ""


def _old_box(settings: dict[str, Any], finer: Mag) -> BoundingBox | None:
    """Return the box of the finer mag from which a mag was made [voxels of the finer mag], None if
    unknown."""
    if "box" not in settings or "source" not in settings:
        return None
    try:
        box = BoundingBox.parse(settings["box"])
        return BoundingBox(box.topleft, box.size, Mag.parse(settings["source"])).in_mag(finer)
    except (AttributeError, TypeError, ValueError):
        return None
