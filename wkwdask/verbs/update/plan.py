"""Planning of updates: the mags, and the mag from which each is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from wkwdask.errors import BoundsError, MissingError, ResumeError
from wkwdask.formats.mesh_folders import warn_of_meshes
from wkwdask.formats.opening import (
    SourceSelection,
    describe_unusable_levels,
    format_of_documents,
    format_of_image,
)
from wkwdask.formats.record_paths import job_root
from wkwdask.formats.roots import level_job_folders, root_of
from wkwdask.geometry.bounding_box import counted_from
from wkwdask.geometry.vectors import times
from wkwdask.model.summary import counted
from wkwdask.model.volume import relative_to
from wkwdask.model.writing.target_array import InPlaceWrite
from wkwdask.runs.job_folder import JobFolder
from wkwdask.store.locks import Owner
from wkwdask.store.paths import is_bucket
from wkwdask.store.records import read_creation_settings, read_file_record
from wkwdask.store.store import store_at
from wkwdask.verbs.pyramid import ExistingMag, choose_mags
from wkwdask.verbs.recompute import recorded_ladder
from wkwdask.verbs.sources import open_base_level
from wkwdask.verbs.update.in_place import Update, UpdateJob
from wkwdask.verbs.update.new_levels import SwitchedUpdate, lay_out_versions
from wkwdask.verbs.update.provenance import (
    box_of_source,
    is_beside,
    made_from,
    method_of_mag,
    settings_of_mag,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.image import Image
    from wkwdask.model.volume import Volume
    from wkwdask.verbs.pyramid import PyramidOptions


def lay_out_update(
    url: str | os.PathLike[str],
    layer_name: str | None,
    options: PyramidOptions,
    *,
    by_content: bool,
    box: BoundingBox | None,
    owner: Owner | None = None,
) -> Update | SwitchedUpdate:
    """Plan an update from the stored mags and their provenance."""
    _check_options(options)
    layer, source = open_base_level(
        url,
        SourceSelection(
            layer_name, options.finest, "finest", allow_external=options.allow_external
        ),
    )
    if box is not None and box.in_mag(source.box.mag).intersection(source.box).is_empty:
        raise BoundsError(f"{source.name}: box {box} lies outside {source.box}")
    mags = _choose_existing_mags(layer, source, options)
    folders = {mag: level_job_folders(layer, layer.find(mag))[1] for mag in mags}
    root = root_of(layer)
    parent = root.work_folder(layer.folder, folders.values())
    owner = owner or Owner.this_process(f"build_pyramid (update) of {layer.folder}")
    scratch = job_root(parent, owner.job)
    trusts_records = not by_content and box is None
    existing = _existing_mags(layer, source, folders, options, scratch, trusts_records)
    warn_of_meshes(*format_of_documents(layer).mesh_folders(layer))
    if is_bucket(parent):
        return lay_out_versions(layer, source, existing, options, by_content=by_content, box=box)
    job = UpdateJob(existing, by_content=by_content, box=box)
    job_folder = JobFolder(
        parent,
        owner,
        [mag.target.folder for mag in existing],
        datasets=[*filter(None, [root.folder])],
    )

    def plan_again() -> Update:
        again = lay_out_update(
            url, layer_name, options, by_content=by_content, box=box, owner=owner
        )
        assert isinstance(again, Update)
        return again

    return Update(source, job_folder, tuple(existing), job, plan_again)


def _existing_mags(
    layer: Image,
    source: Volume,
    folders: Mapping[Mag, str],
    options: PyramidOptions,
    scratch: str,
    trusts_records: bool,
) -> list[ExistingMag]:
    """Open the mags to update from fine to coarse, each with the volume that it is made from."""
    its_format, root = format_of_image(layer), root_of(layer)
    existing: list[ExistingMag] = []
    volumes: dict[Mag, Volume] = {source.box.mag: source}
    for mag, folder in folders.items():
        previous = existing[-1].target.box.mag if existing else source.box.mag
        finer, method, ignore_zero = method_of_mag(
            layer, source, mag, previous, options, trusts_records
        )
        if finer not in volumes:
            volumes[finer] = layer.volume(finer)
        root.check_links(folder)
        volume, record = layer.find(mag).open(), read_file_record(folder)
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
        settings, staging = read_creation_settings(folder, mag), f"{scratch}/{mag.long_name}.parts"
        level, box = settings.get("level") or None, source.box.in_mag(mag)
        target = its_format.in_place_target(volume, InPlaceWrite(folder, staging, box, level=level))
        origin, old_box = times(target.origin, finer.step_to(mag)), box_of_source(settings, finer)
        framed = relative_to(volumes[finer], origin)
        old = None if old_box is None else counted_from(old_box, origin)
        existing.append(ExistingMag(target, framed, method, ignore_zero, record, old))
        volumes[mag] = target.as_volume().moved(target.origin)
    return existing


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


def _choose_existing_mags(layer: Image, source: Volume, options: PyramidOptions) -> list[Mag]:
    """Return the mags to update: the requested ones, else all that were built from the finest
    one."""
    finest = source.box.mag
    if options.mags is not None or options.coarsest is not None:
        mags = choose_mags(layer, source, options)
    else:
        local = [
            mag for mag, folder in layer.mags.items() if mag != finest and is_beside(layer, folder)
        ]
        above = [mag for mag in local if made_from(layer, mag, finest) is not None]
        mags = sorted(above, key=_fineness)
        _check_chains(layer, [mag for mag in local if mag not in mags], finest, mags)
        if not mags:
            _raise_no_mags(layer, local, finest)
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


def _raise_no_mags(layer: Image, local: Sequence[Mag], finest: Mag) -> NoReturn:
    """Raise MissingError that says what can be done where no mag was made from the finest one."""
    ladders = (recorded_ladder(settings_of_mag(layer, mag)) for mag in local)
    origins = sorted({ladder[0].name for ladder in ladders if ladder})
    others = remedy = ""
    if origins:
        others = f"; mags were built from mag {', '.join(origins)}: name it with finest="
    elif local:
        names = ",".join(mag.name for mag in local)
        remedy = (
            f'; mags="{names}" with update="content" builds them again, and replaces the files '
            "that differ"
        )
    raise MissingError(
        f"{layer.folder}: no mags that build_pyramid made from mag {finest}{others}"
        f"{_unusable(layer)}{remedy}"
    )


def _check_chains(layer: Image, mags: Iterable[Mag], finest: Mag, others: Sequence[Mag]) -> None:
    """Raise an error for a mag that was made from one that does not exist, or that belongs to a
    pyramid of the finest mag, but whose source is not made from that any more; the others can be
    updated."""
    remedy = f'; mags="{",".join(mag.name for mag in others)}" updates the others' if others else ""
    for mag in sorted(mags, key=_fineness):
        settings = settings_of_mag(layer, mag)
        ladder = recorded_ladder(settings)
        if mag not in ladder[1:]:
            continue
        finer = ladder[ladder.index(mag, 1) - 1]
        if _fineness(finer) < _fineness(finest):  # of another pyramid
            continue
        made = f"{layer.folder}: mag {mag} was made from mag {finer}, which"
        if finer not in layer.mags or not store_at(layer.mags[finer]).is_folder():
            if unusable := _unusable(layer):
                raise MissingError(f"{made} is not there{unusable}")
            below = ladder[max(0, ladder.index(finer) - 1)]
            is_base = below in layer.mags and below != min(layer.mags, key=_fineness)
            base = f', finest="{below}"' if is_base else ""
            ignores = ", ignore_zero=True" if settings.get("ignore_zero") else ""
            raise MissingError(
                f'{made} does not exist; build_pyramid(mags="{finer}"{base}, '
                f'method="{settings["method"]}"{ignores}) builds it again, and then update=True '
                f"rebuilds the mags that were made from it{remedy}"
            )
        if ladder[0] == finest:
            raise MissingError(
                f"{made} build_pyramid did not make from mag {finest}: name it with finest={remedy}"
            )


def _fineness(mag: Mag) -> tuple[int, Vec3]:
    return mag.x * mag.y * mag.z, mag.factors


def _unusable(image: Image) -> str:
    note = describe_unusable_levels(image)
    return f"; {note}" if note else ""
