"""Staging a source of another format as one WKW mag: from what a user asks for to source, target, plan and job."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from wkwdask.formats.webknossos.dataset import read_datasource
from wkwdask.formats.webknossos.datasource import check_layer_name
from wkwdask.geometry.mag import Mag
from wkwdask.runs.stage import stage
from wkwdask.runs.staged import settings_of
from wkwdask.store.paths import basename, dirname, local_path
from wkwdask.verbs.foreign_import import Import, SourceOptions, staged_import, token_of
from wkwdask.verbs.wkw.mags import box_setting
from wkwdask.verbs.wkw.places import Place, edit_for, in_new_dataset, place_of, voxel_size_of_new
from wkwdask.verbs.wkw.write import check_category, header_for, staged_target, stored_settings

if TYPE_CHECKING:
    import os

    from wkwdask.formats.pictures.foreign import Foreign
    from wkwdask.formats.webknossos.layer_edit import LayerEdit
    from wkwdask.formats.wkw.header import WkwHeader
    from wkwdask.formats.wkw.options import WkwOptions
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.verbs.convert import Source

    VoxelSize = tuple[float, float, float]

COMMAND = "convert"


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What a user may choose for an import."""

    stored: WkwOptions
    """How the mag is stored."""
    taken: SourceOptions = field(default_factory=SourceOptions)
    """What of the source is taken over, and where it goes."""
    category: str | None = None
    """What a new layer is."""
    allow_external: bool = False
    """Whether links may lead out of the dataset."""


def target_folder(target: str | os.PathLike[str], layer: str | None, mag: Mag | None, category: str) -> str:
    """Say where the mag goes that a user means with a dataset, a layer or a mag."""
    folder = local_path(target)
    named = _mag_named(basename(folder))
    if layer is None and named is not None and read_datasource(folder) is None:
        if mag is not None and mag != named:
            raise ValueError(f"{folder}: is mag {named}, but what is to be written is mag {mag}")
        return folder
    name = (mag or Mag(1, 1, 1)).name
    if layer is not None:
        datasource = read_datasource(folder)
        _check_outside(folder, is_dataset=datasource is not None)
        if datasource is None or datasource.layer(layer) is None:
            check_layer_name(layer)
        return f"{folder}/{layer}/{name}"
    if read_datasource(dirname(folder)) is not None and read_datasource(folder) is None:
        return f"{folder}/{name}"
    return f"{folder}/{category}/{name}"


def _check_outside(folder: str, *, is_dataset: bool) -> None:
    """Make sure that a dataset is not made inside of a layer or mag of another one."""
    above = [folder.rpartition("/")[0], folder.rpartition("/")[0].rpartition("/")[0]]
    outer = None if is_dataset else next((path for path in above if path and read_datasource(path) is not None), None)
    if outer is not None:
        raise ValueError(f"{folder}: lies in the dataset {outer}, and layer= names a layer of a dataset: give {outer} as the target, or no layer")


def _mag_named(name: str) -> Mag | None:
    try:
        return Mag.parse(name)
    except ValueError:
        return None


def lay_out_import(source: Source, foreign: Foreign, url: str, options: ImportOptions, existing: str, workers: int) -> tuple[Import, Place]:
    """Check and lay out the import of one mag, or find the interrupted job that is to go on."""
    check_category(options.category)
    header = header_for(options.stored, source.dtype, source.num_channels, source.box)
    place = place_of(url, allow_external=options.allow_external)
    box = source.box
    token = token_of(source)
    settings = convert_settings(place, header, box, options.stored.chosen_level) | {"on_error": options.taken.on_error, "input": token}
    place, edit = placed(place, header, box, options.category, foreign.voxel_size_nm, options.taken.voxel_size_nm)
    draft = stage(f"{COMMAND} into {place.folder}", place.layer.folder, [place.folder], settings, existing)
    target = staged_target(draft, header, options.stored.chosen_level, box)
    staged = draft.mags([target], box.volume * header.voxel_nbytes, edit)
    return staged_import(source, foreign, draft, staged, options.taken, workers), place


def convert_settings(place: Place, header: WkwHeader, box: BoundingBox, level: int) -> dict[str, Any]:
    """Write down what mag a conversion makes, and how it is stored."""
    return settings_of(
        COMMAND, folder=place.folder, box=box_setting(box), dtype=header.dtype.name, channels=header.num_channels,
        **stored_settings(header, level),
    )  # fmt: skip


def placed(
    place: Place, header: WkwHeader, box: BoundingBox, category: str | None, found: VoxelSize | None, given: VoxelSize | None
) -> tuple[Place, LayerEdit | None]:
    """Say where a mag goes, in a new dataset where there is none, and what the JSON says of it then; errors as for :func:`voxel_size_of_new`."""
    size = voxel_size_of_new(place, found, given)
    if size is not None:
        place = in_new_dataset(place, size)
    edit = edit_for(place, header, box, category)
    return place, edit if edit is None else replace(edit, voxel_size_nm=size)
