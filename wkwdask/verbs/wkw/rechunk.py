"""Staging mags that are stored anew: from what a user asks for to sources, targets, plans and jobs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from wkwdask.errors import BoundsError, MissingError
from wkwdask.formats.replaceable import check_targets, is_taken
from wkwdask.formats.webknossos.dataset import locate, read_datasource, update_datasource, wkw_volume
from wkwdask.formats.webknossos.datasource_edits import with_name
from wkwdask.formats.webknossos.place import LayerPlace, check_inside_dataset, mag_place, other_layers_with, parent_of, real_folder
from wkwdask.formats.wkw.new_mag import header_anew
from wkwdask.formats.wkw.options import DEFAULT_LEVEL, WkwOptions
from wkwdask.formats.wkw.stored_file import open_if_stored
from wkwdask.formats.wkw.volume import files_box, filled_box
from wkwdask.geometry.mag import Mag
from wkwdask.model.place import Destination, LevelSpec
from wkwdask.model.translated import TranslatedVolume, moved
from wkwdask.runs.job_records import find_unfinished, is_untouched
from wkwdask.runs.stage import check_existing
from wkwdask.runs.staged import finish_what_was_left, settings_of
from wkwdask.store import files
from wkwdask.store.paths import basename, dirname, is_below, is_remote, local_path
from wkwdask.store.provenance import read_provenance
from wkwdask.verbs.rechunk import Copy, Rechunk, copy_into
from wkwdask.verbs.sources import box_setting, check_not_replaced, known_by

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from wkwdask.formats.webknossos.layer_edit import LayerEdit
    from wkwdask.formats.wkw.header import WkwHeader
    from wkwdask.formats.wkw.volume import WkwVolume
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.image import Found, Image
    from wkwdask.model.place import NewLevels, Place
    from wkwdask.model.volume import Volume


_MUCH = 2


@dataclass(frozen=True, slots=True)
class RechunkOptions:
    """How mags are to be stored; None leaves it as it is."""

    stored: WkwOptions = field(default_factory=WkwOptions)
    """Blocks, files and compression; blocks are encoded anew where a level is given."""
    box: BoundingBox | None = None
    """What is taken over [voxels of mag 1]; everything outside is left behind."""
    translate: Vec3 = (0, 0, 0)
    """By what voxels are moved [voxels of mag 1]."""
    command: str = "rechunk"
    """What a user asked for; a file that a copy can take over as it is keeps all of its bytes."""
    allow_external: bool = False
    """Whether mags may be written where paths and links lead out of their dataset."""


@dataclass(frozen=True, slots=True)
class Move:
    """One mag, and where it goes."""

    layer: Image
    """Its layer."""
    mag: Mag
    """The mag."""
    folder: str | None
    """Where it is to appear; None in its own place."""


def find_moves(
    url: str | os.PathLike[str],
    target: str | os.PathLike[str] | None,
    layers: Sequence[str] | None,
    mags: Sequence[Mag] | None,
    *,
    allow_external: bool = False,
) -> list[Move]:
    """List the mags that a user means, and where they go: a dataset becomes a dataset, a layer a layer, a mag a mag."""
    located = locate(url, allow_external=allow_external)
    root = None if target is None else local_path(target)
    if root is not None and files.realpath(root) == files.realpath(located.path):
        raise ValueError(f"{root}: is the source; give another place (rechunk and compress take none to work in place)")
    moves = [
        Move(layer, mag, None if root is None else _place_in(root, located, layer, mag))
        for layer in _chosen_layers(located, layers)
        for mag in _chosen_mags(located, layer, mags)
    ]
    if not moves:
        raise MissingError(f"{located.path}: no mags found")
    return moves


def _chosen_layers(located: Found, names: Sequence[str] | None) -> list[Image]:
    if names is None and located.odd:
        located.odd[0].refuse()
    return list(located.layers) if names is None else [located.pick(name) for name in names]


def _chosen_mags(located: Found, layer: Image, mags: Sequence[Mag] | None) -> list[Mag]:
    there = [located.mag] if located.mag is not None else [mag for mag, folder in layer.mags.items() if not is_remote(folder)]
    missing = [mag for mag in mags or () if mag not in there]
    if missing:
        raise MissingError(f"{located.path}: layer {layer.name} has no mag {missing[0]}; there are {', '.join(map(str, there)) or 'none'}")
    return there if mags is None else [mag for mag in there if mag in mags]


def _place_in(root: str, located: Found, layer: Image, mag: Mag) -> str:
    if located.mag is not None:
        _check_name(root, located, mag)
        return root
    return f"{root}/{mag.name}" if layer.container.dataset_folder != located.path else f"{root}/{layer.name}/{mag.name}"


def _check_name(folder: str, located: Found, mag: Mag) -> None:
    """Refuse to let voxels of one mag appear as another one."""
    try:
        named, _ = Mag.parse(basename(folder)), Mag.parse(basename(located.path))
    except ValueError:  # one of the names says nothing
        return
    if named != mag:
        raise ValueError(f"{folder}: has the name of mag {named}, but {located.path} is mag {mag}; name it {mag.name}")


def prepare_dataset(url: str | os.PathLike[str], target: str | os.PathLike[str] | None) -> None:
    """Make the JSON of a new dataset, with the voxel size and no layers, where a whole dataset goes somewhere else."""
    located = locate(url)
    datasource = read_datasource(located.path)
    if target is None or datasource is None:
        return
    root = local_path(target)
    if read_datasource(root) is None:
        files.makedirs(root)
        update_datasource(root, lambda document: document, with_name(datasource.document, basename(root)))


def lay_out_rechunk(move: Move, options: RechunkOptions, existing: str, workers: int) -> Rechunk | None:
    """Check and lay out one mag that is to be stored anew."""
    check_existing(existing)
    in_place = move.folder is None
    if in_place:
        listed = move.layer.mags[move.mag]
        check_inside_dataset(move.layer, listed)
        real = real_folder(move.layer, listed)
        finish_what_was_left(parent_of(move.layer, [real]), real, options.command, move.layer.container.dataset_folder)  # it may be replaced here
    shown = _source_of(move, options)
    source = replace(_with_all_files(shown), folder=real) if in_place else shown
    volume = _translated(source, options.translate)
    if in_place and options.box is not None:
        raise ValueError("a bounding box in place would lose what lies outside it: give another place")
    levels = _place_of(move, options).new_levels([LevelSpec.like(volume, is_copy=True)], options.stored, _like(move, source, in_place=in_place))
    target: Any = levels.targets[0]
    if in_place and options.stored.level is None and target.header == source.header.with_block_type(source.header.block_type) and _is_stored_alike(source):
        return None
    target = replace(target, keeps_files=options.command == "copy" and options.box is None and _shows_no_more(levels.edit, volume.box))
    job = lay_out(source, volume, replace(levels, targets=(target,)), options, existing, workers)
    if not in_place:
        return job
    changed = replace(job.staged, existing="overwrite", box=shown.box, nbytes_in=shown.box.volume * source.header.voxel_nbytes)
    return replace(job, staged=changed, in_place=True)


def _like(move: Move, source: WkwVolume, *, in_place: bool) -> WkwVolume:
    """Give what a mag is stored like: all of it, of which a part may be taken."""
    return source if in_place else wkw_volume(move.layer, move.mag)


def _place_of(move: Move, options: RechunkOptions) -> Place:
    """Give the place of a mag: its own, or another one, whose layer shows as much as the old one did."""
    if move.folder is None:
        return LayerPlace(move.layer, Destination(move.layer.folder, allow_external=options.allow_external))
    record, box = move.layer.container.record, None
    if record is not None:
        box = moved(record.bounding_box if options.box is None else record.bounding_box.intersection(options.box), options.translate)
    wanted = Destination(move.folder, image=move.layer, image_box=box, needs_container=False, allow_external=options.allow_external)
    return mag_place(wanted)


def lay_out(source: WkwVolume, volume: Volume, levels: NewLevels, options: RechunkOptions, existing: str, workers: int) -> Rechunk:
    """Lay out the job that makes one mag."""
    known = {**settings_of(options.command, box=box_setting(source.box), translate=options.translate), **known_by(source)}
    job = copy_into(Copy(volume, known, partial(check_not_replaced, source)), levels, existing, workers, options.command)
    before = read_provenance(source.folder)
    made = before.get("made", before) if options.command != "merge" and options.box is None else None
    return replace(job, staged=replace(job.staged, made=made))


def _shows_no_more(edit: LayerEdit | None, box: BoundingBox) -> bool:
    """Tell whether the layer that a mag goes to shows nothing outside of a box: then what files hold there stays hidden."""
    if edit is None:
        return False
    if edit.new_layer is not None:
        return box.contains(edit.new_layer.box.in_mag(box.mag))
    datasource = read_datasource(edit.dataset_folder)
    record = None if datasource is None else datasource.layer(edit.layer)
    return record is not None and box.contains(record.bounding_box.in_mag(box.mag))


def _source_of(move: Move, options: RechunkOptions) -> WkwVolume:
    source = wkw_volume(move.layer, move.mag)
    if options.box is None:
        return source
    box = options.box.in_mag(move.mag).intersection(source.box)
    if box.is_empty:
        raise BoundsError(f"{source.folder}: the bounding box {options.box} holds nothing of the mag, whose box is {source.box}")
    return replace(source, box=box)


def _with_all_files(source: WkwVolume) -> WkwVolume:
    """Give a mag with all that its files hold: what lies outside of the layer's box must not be lost where it is replaced."""
    files = files_box(source.folder, source.header, source.box.mag)
    is_mostly_outside = files.volume > _MUCH * source.box.volume  # then files are few, and most of their blocks are likely to be zeros
    return replace(source, box=filled_box(source, DEFAULT_LEVEL) if is_mostly_outside else source.box.union(files))


def _is_stored_alike(source: WkwVolume) -> bool:
    """Tell whether all files are encoded as ``header.wkw`` says; those of other software need not be."""
    for index in source.shards():
        file = open_if_stored(source.shard_path(index), source.header)
        if file is not None and file.header.block_type is not source.header.block_type:
            return False
    return True


def check_moves(moves: Sequence[Move], options: RechunkOptions, existing: str) -> None:
    """Make sure, before the first mag, that all can be moved."""
    between = dict.fromkeys(move.mag for move in moves if any(a % n for a, n in zip(options.translate, move.mag.factors, strict=True)))
    if between:
        raise ValueError(
            f"translate must be a multiple of every mag that is copied, got {options.translate}, but there are mags {', '.join(map(str, between))}"
        )
    for move in moves:
        source = _source_of(move, options)
        _translated(source, options.translate)
        if move.folder is None:
            _check_listed_once(move.layer, source, header_anew(source.header, options.stored, source.box, is_part=False, name=source.name))
        else:
            _check_target(local_path(move.folder), source.folder, existing)
    listed = [files.realpath(move.layer.mags[move.mag]) for move in moves if move.folder is None]
    if len(set(listed)) < len(listed):
        raise ValueError("several layers list the same mag: name one of them with layer=")


def _check_target(folder: str, source: str, existing: str) -> None:
    real, inside = files.realpath(folder), files.realpath(source)
    if is_below(real, inside) and real != inside:
        raise ValueError(f"{folder}: lies inside of {source}, which is copied")
    if existing == "error" and is_taken(folder) and find_unfinished(dirname(folder), [folder]) is None and is_untouched(dirname(folder), [folder]):
        check_targets([folder], existing)


def _check_listed_once(layer: Image, source: WkwVolume, header: WkwHeader) -> None:
    """Refuse to change, in place, the files of a mag that another layer lists too: its record would be wrong."""
    if layer.container.datasource is None or (header.block_len, header.file_len) == (source.header.block_len, source.header.file_len):
        return
    for other in other_layers_with(layer, source.folder):
        raise ValueError(f"{source.folder}: layer {other} lists this mag too, and says how long its files are; store it anew in another place")


def _translated(source: WkwVolume, by: Vec3) -> WkwVolume | TranslatedVolume[WkwVolume]:
    """Move a mag."""
    if not any(by):
        return source
    x, y, z = by
    mag = source.box.mag
    volume = TranslatedVolume(source, (x // mag.x, y // mag.y, z // mag.z))
    if min(volume.box.topleft) < 0:
        raise ValueError(f"{source.folder}: moved by {by}, its box would begin at {volume.box.topleft}; no voxel can lie below 0")
    return volume
