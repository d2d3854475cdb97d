"""What the verbs do with Neuroglancer precomputed volumes: pyramids, storing anew, and conversion from and to WKW."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from wkwdask.api.options import items_of, parse_mags
from wkwdask.errors import ViewerWarning
from wkwdask.formats.precomputed.info import default_key
from wkwdask.formats.precomputed.layer import location_of, open_precomputed_layer
from wkwdask.formats.precomputed.writable import is_lossy
from wkwdask.geometry.bounding_box import MAG_1
from wkwdask.model.image import mag_or_key
from wkwdask.model.levels import lengths_in
from wkwdask.runs.report import Report, merge_reports
from wkwdask.runs.staged import finish_what_was_left
from wkwdask.store import files
from wkwdask.store.paths import is_remote
from wkwdask.verbs.others.precomputed_copy import ScaleCopy, lay_out_copy
from wkwdask.verbs.others.precomputed_pyramid import ScalePyramid, ScalePyramidOptions, lay_out_scale_pyramid
from wkwdask.verbs.others.precomputed_scales import source_settings, stored_like
from wkwdask.verbs.others.precomputed_write import VolumeType, default_kind, new_scale
from wkwdask.verbs.taken import check_alike
from wkwdask.verbs.wkw.convert import target_folder
from wkwdask.verbs.wkw.mags import check_not_replaced
from wkwdask.verbs.wkw.store import StoreOptions, check_not_below_zero, lay_out_store

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from wkwdask.api.options import MagLike
    from wkwdask.formats.precomputed.info import Scale
    from wkwdask.formats.precomputed.options import PrecomputedOptions
    from wkwdask.formats.wkw.options import WkwOptions
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.image import Image, Level
    from wkwdask.model.levels import Lengths
    from wkwdask.verbs.rechunk import Copy, Rechunk
    from wkwdask.verbs.taken import Taken


def refuse_options(what: str, values: dict[str, Any]) -> None:
    """Refuse options of the other format."""
    given = [name for name, value in values.items() if value is not None and value is not False]
    if given:
        raise ValueError(f"{what}: {', '.join(f'{name}=' for name in given)} {'is' if len(given) == 1 else 'are'} not for it")


def lay_out_pyramid_of_scales(
    url: str | os.PathLike[str], existing: str, workers: int, stored: PrecomputedOptions, of_ladder: dict[str, Any]
) -> ScalePyramid:  # fmt: skip
    """Stage the pyramid of a precomputed volume; see :func:`wkwdask.api.pyramids.build_pyramid`."""
    options = {**of_ladder, **{name: mag_or_key(of_ladder.get(name)) for name in ("finest", "coarsest")}, "mags": parse_mags(of_ladder.get("mags"))}
    staged = lay_out_scale_pyramid(url, ScalePyramidOptions(stored=stored, **options), existing, workers)
    _warn(staged.notes)
    return staged


def rechunk_scales(
    url: str | os.PathLike[str],
    target: str | os.PathLike[str] | None,
    mags: Sequence[MagLike] | str | None,
    existing: str,
    verify: bool | None,
    stored: PrecomputedOptions,
    *,
    goes_on: bool = False,
) -> Report:
    """Store scales of a precomputed volume anew; see :func:`wkwdask.api.reshape.rechunk`. ``goes_on`` says that the call does more then."""
    from wkwdask.graphs.batch import check_can_be_repeated
    from wkwdask.graphs.runners import existing_of_call, make, num_workers

    layer = open_precomputed_layer(url)
    place = layer.folder if target is None else location_of(target)
    in_place = files.realpath(place) == files.realpath(layer.folder)
    if in_place:
        for level in _chosen(layer, mags):
            finish_what_was_left(place, f"{place}/{level.key}", "rechunk")
        layer = open_precomputed_layer(url)
    volume = VolumeType(layer.details.info.type, layer.details.info.dtype, layer.details.info.num_channels)
    pairs: list[tuple[Scale, Scale]] = [(level.details, stored_like(level.details, stored, volume)) for level in _chosen(layer, mags)]
    if in_place and stored.compression is None:
        pairs = [(scale, new) for scale, new in pairs if scale != (new if stored.chunk_shape else replace(new, chunk_sizes=scale.chunk_sizes))]
    check_can_be_repeated(len(pairs), starts_anew=existing == "overwrite" and not in_place)
    workers = num_workers()

    def stage(scale: Scale, new: Scale, existing: str) -> Rechunk:
        source: Any = layer.find(scale.key).open()
        copy = ScaleCopy(source, source_settings(source), partial(check_not_replaced, source), new)
        return lay_out_copy(place, volume.kind, copy, stored, "rechunk", existing, workers, in_place=in_place)

    if not in_place:
        existing = existing_of_call([partial(stage, scale, new) for scale, new in pairs], existing, goes_on=goes_on)
    reports = []
    for scale, new in pairs:
        staged = stage(scale, new, existing)
        _warn(staged.notes)
        loses = staged.decodes and is_lossy(new.encoding, new.options.get("jxl_quality"))
        if loses and new.encoding == scale.encoding:
            _warn([f"scale {scale.key!r} is decoded and encoded as {new.encoding} once more, which changes its voxels"], UserWarning)
        compares = in_place and not loses
        reports.append(make(replace(staged, verify=compares if verify is None else verify)))
    return merge_reports(reports) if reports else Report((), 0, 0.0, "nothing to do: all scales are stored like that")


def _chosen(layer: Image, mags: Sequence[MagLike] | str | None) -> list[Level]:
    """List the scales that a user means: by their mags or keys, else all."""
    if mags is not None:
        return [layer.find(mag_or_key(mag)) for mag in items_of(mags)]
    for level in layer.levels:
        if level.problem:
            level.open()  # says it
    return list(layer.meant)


def local_mags(layer: Image) -> list[Mag]:
    """List the mags of a layer that can be read; those of a dataset in WKW that are elsewhere cannot."""
    return [mag for mag, folder in layer.mags.items() if layer.container is None or not is_remote(folder)]


def convert_to_scales(
    layer: Image, target: str | os.PathLike[str], taken: Taken, stored: PrecomputedOptions, voxel_size: Lengths | None, existing: str
) -> Report:
    """Convert mags of a layer in WKW, N5 or Zarr to scales of a precomputed volume; see :func:`wkwdask.api.conversion.convert`."""
    from wkwdask.graphs.runners import make_all, num_workers

    size = voxel_size or layer.voxel_size_nm
    if size is None:
        raise ValueError(f"{layer.folder}: no JSON says how large its voxels are; give voxel_size= in nm")
    kind = None if layer.category is None else "segmentation" if layer.category == "segmentation" else "image"
    mags = taken.mags_of(layer.folder, local_mags(layer))
    copies = [taken.copy_of(layer.volume(mag)) for mag in mags]
    check_alike(copies)
    first = copies[0].source
    volume = VolumeType(kind or default_kind(first.dtype, first.num_channels), first.dtype, first.num_channels)
    workers = num_workers()

    def stage(copy: Copy, existing: str) -> Rechunk:
        box = copy.source.box
        lengths = lengths_in(box.mag, size)
        scale = new_scale(stored, default_key(lengths), box, lengths, volume)
        into = ScaleCopy(copy.source, copy.input, copy.check_unchanged, scale)
        return lay_out_copy(location_of(target), volume.kind, into, stored, "convert", existing, workers)

    # The finest comes first, so that the volume is never without the one that says where it lies.
    return make_all([partial(stage, copy) for copy in copies], existing, goes_on=taken.finest_only)


def convert_from_scales(
    layer: Image, target: str | os.PathLike[str], layer_name: str | None, taken: Taken, stored: WkwOptions, category: str | None,
    voxel_size: Lengths | None, existing: str, *, allow_external: bool,
) -> Report:  # fmt: skip
    """Convert a precomputed volume, N5 or Zarr to mags of a WKW layer; see :func:`wkwdask.api.conversion.convert`."""
    from wkwdask.graphs.runners import make_all, num_workers

    if not layer.mags and layer.container is None:
        layer.volume()  # says why nothing can be used
    mags = taken.mags_of(layer.folder, list(layer.mags))
    first = layer.volume(mags[0])
    category = category or layer.category or {"image": "color"}.get(guess := default_kind(first.dtype, first.num_channels), guess)
    options = StoreOptions(stored, category, voxel_size or layer.voxel_size_nm, allow_external)
    copies = [taken.copy_of(layer.volume(mag)) for mag in mags]
    check_alike(copies)
    for copy in copies:  # before the first is made
        check_not_below_zero(copy.source)
    workers = num_workers()

    def stage(copy: Copy, mag: Mag, existing: str) -> Rechunk:
        folder = target_folder(target, layer_name, mag if len(mags) > 1 or taken.mags is not None or mag != MAG_1 else None, options.category)
        return lay_out_store(copy, folder, options, existing, workers)

    report = make_all([partial(stage, copy, mag) for copy, mag in zip(copies, mags, strict=True)], existing, goes_on=taken.finest_only)
    left = _left_out(layer) if taken.mags is None and not taken.finest_only else ""
    return replace(report, note="\n".join(filter(None, [report.note, left])))


def _left_out(layer: Image) -> str:
    """Say which scales of a volume, or arrays of an image, cannot become mags."""
    left = [f"{level.key!r} ({level.problem or 'no mag'})" for level in layer.levels if level.mag is None or level.problem]
    return f"scales that are left out: {', '.join(left)}" if left else ""


def _warn(notes: Sequence[str], category: type[Warning] = ViewerWarning) -> None:
    for note in notes:
        warnings.warn(note, category, stacklevel=4)
