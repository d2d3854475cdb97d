"""Staging the update of a WKW pyramid: what is there, how it was made, and what has changed."""

from __future__ import annotations

import errno
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from wkwdask.errors import BoundsError, LockedError, MissingError, ResumeError, UnsupportedError
from wkwdask.formats.places import open_source
from wkwdask.formats.record_paths import job_root
from wkwdask.formats.webknossos.dataset import wkw_volume
from wkwdask.formats.webknossos.place import check_files_inside, mag_folder, parent_of
from wkwdask.formats.wkw.options import DEFAULT_LEVEL
from wkwdask.formats.wkw.target import WkwTarget
from wkwdask.formats.wkw.volume import read_header
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import Mag
from wkwdask.model.parsing import reading
from wkwdask.plans.pyramid import check_steps
from wkwdask.runs.drive import Phase, Work
from wkwdask.runs.job_folder import JobFolder
from wkwdask.runs.report import Report, counted
from wkwdask.store import files
from wkwdask.store.owner import Owner
from wkwdask.store.paths import is_remote
from wkwdask.store.provenance import PROVENANCE_NAME, read_making, read_provenance, write_provenance
from wkwdask.store.records import RECORD_NAME, read_record
from wkwdask.verbs.pyramid import choose_mags, choose_method
from wkwdask.verbs.sources import box_setting, source_token
from wkwdask.verbs.update_job import LivingMag, UpdateJob

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator

    from wkwdask.formats.wkw.volume import WkwVolume
    from wkwdask.model.image import Image
    from wkwdask.verbs.pyramid import PyramidOptions


@dataclass(frozen=True, slots=True)
class Update:
    """An update that can be run."""

    source: WkwVolume
    """The finest mag."""
    folder: JobFolder
    """The hold on the mags."""
    mags: tuple[LivingMag, ...]
    """What is to be brought up to date, finest first."""
    job: UpdateJob
    """The work."""
    again: Callable[[], Update]
    """Looks at all of it once more."""

    def start(self) -> Update:
        """Lock the mags and make the folder for what is set aside."""
        for mag in self.mags:
            if files.isdir(mag.target.folder) and not files.is_writable(mag.target.folder):
                raise PermissionError(errno.EACCES, "the mag cannot be written", mag.target.folder)
        self.folder.start("update", {"command": "update"})
        try:
            now = self.again()
            if now.folder.targets != self.folder.targets:
                raise LockedError(f"{self.folder.parent}: another job changed the mags just now; start again")
            for mag in now.mags:
                for name in (RECORD_NAME, PROVENANCE_NAME):  # of an update that was killed
                    files.remove_temporaries(mag.target.folder, name)
                mag.target.prepare()
        except BaseException:
            self.folder.discard()
            raise
        return now

    def finish(self) -> Report:
        """End the job and say what it did."""
        if not self.job.box_was_given:
            for mag in self.mags:
                self._keep_box(mag)
        seconds = time.time() - self.folder.started_at()
        self.folder.discard()
        tallies = self.job.tallies
        made = sum(tally.expected for tally in tallies)
        note = f"{counted(made, 'file')} rebuilt, {sum(self.job.num_changed)} of them changed" if made else "nothing to do: no finer file has changed"
        mags = tuple(tally.report(tally.target.folder, whole=False) for tally in tallies if tally.expected)
        return Report(mags, self.job.voxels_in * self.source.header.voxel_nbytes, seconds, note)

    def _keep_box(self, mag: LivingMag) -> None:
        """Take note of the box with which a mag agrees now."""
        provenance = read_provenance(mag.target.folder)
        settings = read_making(mag.target.folder)
        if settings.get("command") == "build_pyramid":
            with reading(f"{mag.target.folder}/{PROVENANCE_NAME}", "record"):
                origin = Mag.parse(settings["source"])
            now = {**settings, "box": box_setting(self.source.box.in_mag(origin))}
            if origin == self.source.box.mag:
                now["input"] = source_token(self.source)
            if now != settings:
                changed: dict[str, Any] = {"made": {**provenance["made"], "settings": now}} if "made" in provenance else {"settings": now}
                box = mag.target.box
                changed["box"] = [*box.topleft, *box.size]
                write_provenance(mag.target.folder, {**provenance, **changed})


class Updating(Work[Report]):
    """Brings coarser mags up to date, file by file in place."""

    def __init__(self, staged: Update) -> None:
        self._staged = staged

    def start(self) -> None:
        """Lock the mags, and look once more at what has changed."""
        self._staged = self._staged.start()

    def phases(self) -> Generator[Phase, str, Report]:
        """Make files anew."""
        folder = self._staged.folder
        yield Phase(self._staged.job, f"update of {folder.parent}", folder=folder.root)
        return self._staged.finish()

    def leave(self, error: BaseException) -> None:
        """Keep what is known of the files that were made."""
        self._staged.job.save_what_is_done()
        self._staged.folder.discard()


def lay_out_update(
    url: str | os.PathLike[str], layer_name: str | None, options: PyramidOptions, *, by_content: bool, box: BoundingBox | None, owner: Owner | None = None
) -> Update:
    """Find out what is there and how it was made."""
    _check_options(options)
    layer: Any
    source: Any
    layer, source = open_source(url, layer_name, options.finest, "finest", allow_external=options.allow_external)
    if box is not None and box.in_mag(source.box.mag).intersection(source.box).is_empty:
        raise BoundsError(f"{source.name}: box {box} lies outside {source.box}")
    if layer.container is None:
        raise UnsupportedError(f"{layer.folder}: update= is for layers in WKW")
    mags = _mags(layer, source, options)
    parent = parent_of(layer, [mag_folder(layer, mag) for mag in mags])
    owner = owner or Owner.this_process(f"build_pyramid (update) of {layer.folder}")
    trusts_records = not by_content and box is None
    living: list[LivingMag] = []
    volumes = {source.box.mag: source}
    for mag in mags:
        finer, method, ignore_zero = _how_made(layer, source, mag, living[-1].target.box.mag if living else source.box.mag, options, trusts_records)
        if finer not in volumes:
            volumes[finer] = wkw_volume(layer, finer)
        folder = mag_folder(layer, mag)
        check_files_inside(layer, folder)
        header, record, settings = read_header(folder), read_record(folder), _settings(folder)
        if record is None and trusts_records:
            raise ResumeError(f'{folder}: keeps no record of its files; update="content" makes all anew and compares, existing="overwrite" starts anew')
        if (header.dtype, header.num_channels) != (source.header.dtype, source.header.num_channels):
            raise ValueError(f"{folder}: {header.num_channels} channels of {header.dtype.name}, the finest mag has {source.num_channels} of {source.dtype}")
        parts = f"{job_root(parent, owner.job)}/{mag.long_name}.parts"
        level = settings.get("level") or DEFAULT_LEVEL
        target = WkwTarget(folder, parts, header, level, source.box.in_mag(mag), is_living=True)
        living.append(LivingMag(target, volumes[finer], method, ignore_zero, record, _old_box(settings, finer)))
        volumes[mag] = target.as_volume()
    job = UpdateJob(living, by_content=by_content, box=box)
    hold = JobFolder(parent, owner, [mag.target.folder for mag in living], datasets=[*filter(None, [layer.container.dataset_folder])])
    again = partial(lay_out_update, url, layer_name, options, by_content=by_content, box=box, owner=owner)
    return Update(source, hold, tuple(living), job, again)


def _check_options(options: PyramidOptions) -> None:
    """Refuse what would be of no effect."""
    given = [*options.stored.given(), *(["sampling"] if options.sampling is not None else [])]
    if options.align_with is not True:
        given.append("align_with")
    if given:
        raise ValueError(f"update= and bounding_box= write mags as they are; {', '.join(given)}= goes with building them anew")


def _settings(folder: str) -> dict[str, Any]:
    return read_making(folder)


def _ladder(settings: dict[str, Any]) -> list[Mag]:
    """List the mags that a pyramid was made of, its finest first; none for mags that were made otherwise."""
    if settings.get("command") != "build_pyramid":
        return []
    try:
        return [Mag.parse(name) for name in (settings["source"], *settings["mags"].split(","))]
    except (AttributeError, KeyError, TypeError, ValueError):  # a record that makes no sense says nothing
        return []


def _made_from(layer: Image, mag: Mag, finest: Mag) -> Mag | None:
    """Give the mag that a mag was made from, None where that does not lead back to the finest one."""
    ladder = _ladder(_settings(mag_folder(layer, mag)))
    if mag not in ladder[1:]:
        return None
    finer = ladder[ladder.index(mag, 1) - 1]
    if finer.x * finer.y * finer.z >= mag.x * mag.y * mag.z:
        return None
    return finer if finer == finest or _made_from(layer, finer, finest) is not None else None


def _how_made(layer: Image, source: WkwVolume, mag: Mag, before: Mag, options: PyramidOptions, trusts_records: bool) -> tuple[Mag, str, bool]:
    """Tell from which mag and how a mag was made: as its provenance says, or as the user does who names a mag without any."""
    folder = mag_folder(layer, mag)
    settings = _settings(folder)
    if not settings and options.mags is not None and not trusts_records:
        check_steps(before, [mag])
        return before, choose_method(layer, source, options), options.ignore_zero
    finer = _made_from(layer, mag, source.box.mag)
    if finer is None:
        made = f"made by {settings.get('command')}" + (f" from mag {settings['source']}" if "source" in settings else "") if settings else "not made by wkwdask"
        raise ResumeError(f'{folder}: {made}, not by build_pyramid from mag {source.box.mag}: it is left as it is; existing="overwrite" makes mags anew')
    with reading(f"{folder}/{PROVENANCE_NAME}", "record"):
        method, ignore_zero = str(settings["method"]), bool(settings["ignore_zero"])
    if options.method not in ("default", method) or (options.ignore_zero and not ignore_zero):
        asked = options.method + (" with ignore_zero" if options.ignore_zero else "")
        raise ResumeError(f"{folder}: made with {method}{' with ignore_zero' if ignore_zero else ''}, not {asked}; build the mags anew")
    return finer, method, ignore_zero


def _mags(layer: Image, source: WkwVolume, options: PyramidOptions) -> list[Mag]:
    """Choose the mags: those that are asked for, else all that were built from the finest one."""
    finest = source.box.mag
    if options.mags is not None or options.coarsest is not None:
        mags = choose_mags(layer, source, options)
    else:
        local = [mag for mag, folder in layer.mags.items() if mag != finest and not is_remote(folder)]
        above = [mag for mag in local if _made_from(layer, mag, finest) is not None]
        mags = sorted(above, key=lambda mag: (mag.x * mag.y * mag.z, mag.factors))
        if not mags:
            origins = sorted({ladder[0].name for ladder in (_ladder(_settings(mag_folder(layer, mag))) for mag in local) if ladder})
            others = f"; there are such from mag {', '.join(origins)}: name it with finest=" if origins else ""
            raise MissingError(f"{layer.folder}: no mags that build_pyramid made from mag {finest}{others}")
    missing = [mag.name for mag in mags if not files.isdir(mag_folder(layer, mag))]
    if missing:
        raise MissingError(f"{layer.folder}: mag {', '.join(missing)} is not there to be updated; build it first")
    return mags


def _old_box(settings: dict[str, Any], finer: Mag) -> BoundingBox | None:
    """Give the box of the finer mag with which a mag was made [voxels of the finer mag], None where that is not known."""
    if "box" not in settings or "source" not in settings:
        return None
    try:
        box = BoundingBox.parse(settings["box"])
        return BoundingBox(box.topleft, box.size, Mag.parse(settings["source"])).in_mag(finer)
    except (AttributeError, TypeError, ValueError):
        return None
