"""Where new mags go: their folders, and what the JSON is to say about them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wkwdask.errors import ExistsError, UnsupportedError
from wkwdask.formats.replaceable import is_taken
from wkwdask.formats.webknossos.dataset import dataset_above, elsewhere, layer_in, listed_layer, make_layer, read_datasource, with_external
from wkwdask.formats.webknossos.datasource import FILE_NAME, check_layer_name, format_datasource, new_document, parse_datasource
from wkwdask.formats.webknossos.datasource_edits import NewLayer
from wkwdask.formats.webknossos.layer_edit import LayerEdit
from wkwdask.formats.webknossos.layer_views import type_text
from wkwdask.geometry.mag import Mag
from wkwdask.model.coordinates import same_lengths
from wkwdask.model.levels import Lengths, lengths_in, ratio_of
from wkwdask.model.voxel_type import element_class
from wkwdask.plans.mag_ladder import check_one_ladder
from wkwdask.runs.job_records import targets_of_jobs
from wkwdask.store import files
from wkwdask.store.paths import basename, dirname, is_remote, local_path, relpath, split

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from wkwdask.formats.wkw.header import WkwHeader
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.model.image import Image
    from wkwdask.store.locks import ShardBox


@dataclass(frozen=True, slots=True)
class Place:
    """Where one new mag is to appear."""

    folder: str
    """The mag's folder."""
    mag: Mag
    """The mag."""
    layer: Image
    """The layer, with its record where a JSON is above the mag."""
    named: str = ""
    """The folder as a user names it, where links lead to another one."""

    @property
    def is_named_as_mag(self) -> bool:
        """Whether the folder has the name of the mag."""
        return basename(self.named or self.folder) in (self.mag.name, self.mag.long_name)

    def coarser_mags(self) -> tuple[Mag, ...]:
        """List the mags that could have been made from this one."""
        mags = self.layer.mags if self.layer.container.record is not None else ()
        finer = self.mag.factors
        return tuple(mag for mag in mags if mag != self.mag and all(a % b == 0 for a, b in zip(mag.factors, finer, strict=True)))


def place_of(url: str | os.PathLike[str], *, allow_external: bool = False) -> Place:
    """Find out where a new mag that a user names belongs."""
    folder = local_path(url)
    layer_folder, name = split(folder)
    dataset_folder, layer_name = split(layer_folder)
    try:
        mag = Mag.parse(name)
    except ValueError:
        for dataset, example in ((folder, f"{folder}/LAYER/1"), (layer_folder, f"{folder}/1")):
            if read_datasource(dataset) is not None:
                raise ValueError(f"{folder}: name the mag's folder, such as {example}") from None
        layer = make_layer(layer_folder, layer_name, allow_external=allow_external)
        check_inside_dataset(layer, folder)
        return Place(real_folder(layer, folder), Mag(1, 1, 1), layer)
    datasource = read_datasource(dataset_folder)
    if datasource is None:
        return Place(folder, mag, make_layer(layer_folder, layer_name, allow_external=allow_external))
    layer = layer_in(dataset_folder, datasource, layer_folder) or make_layer(layer_folder, layer_name, dataset_folder, datasource)
    if layer.container.record is not None and layer.container.record.data_format != "wkw":
        what = f"layer {layer.name} is stored as {layer.container.record.data_format}, and all mags of a layer are stored in one way"
        raise UnsupportedError(f"{folder}: {what}: write WKW to another layer")
    if allow_external:
        layer = with_external(layer)
    check_inside_dataset(layer, folder)
    listed = layer.mags.get(mag) if layer.container.record is not None else None
    if listed is not None and (is_remote(listed) or (is_taken(listed) and files.realpath(listed) != files.realpath(folder))):
        raise ExistsError(f"{folder}: mag {mag} of layer {layer.name} is at {listed}; write to that folder")
    real = real_folder(layer, folder)
    return Place(folder, mag, layer) if real == folder else Place(real, mag, replace(layer, folder=dirname(real)), folder)


def in_new_dataset(place: Place, voxel_size_nm: tuple[float, float, float]) -> Place:
    """Give a place as it will be when the JSON of its dataset is there, which appears with the mag."""
    layer = place.layer
    dataset = dirname(layer.folder)
    text = format_datasource(new_document(basename(dataset), voxel_size_nm))
    datasource = parse_datasource(text, f"{dataset}/{FILE_NAME}")
    layer = make_layer(layer.folder, layer.name, dataset, datasource, allow_external=layer.container.allow_external)
    check_inside_dataset(layer, place.folder)
    return replace(place, layer=layer)


def is_room_for_dataset(url: str | os.PathLike[str]) -> bool:
    """Tell whether the folder in which a new mag's layer is to be holds nothing but what jobs make there.

    Ask it before :func:`place_of`, which reads the JSON: a job that ends in between has written one by then.
    """
    dataset = dirname(dirname(local_path(url)))
    return not files.isdir(dataset) or all(_is_made_by_jobs(f"{dataset}/{name}") for name in files.listdir(dataset) if not name.startswith("."))


def _is_made_by_jobs(layer_folder: str) -> bool:
    """Tell whether all that is in a layer's folder are mags of jobs that run, were interrupted, or are just ending."""
    try:
        names = [name for name in files.listdir(layer_folder) if not name.startswith(".")]
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return False
    return not names or {f"{layer_folder}/{name}" for name in names} <= targets_of_jobs(layer_folder)


def dataset_of_lengths(place: Place, lengths_nm: tuple[float, float, float], *, is_room: bool) -> tuple[float, float, float] | None:
    """Give the voxel size of the dataset that an array with coordinates makes, None where it makes none."""
    size = ratio_of(lengths_nm, place.mag.factors)
    datasource = place.layer.container.datasource
    if datasource is not None:
        known = datasource.voxel_size_nm
        if known is not None and not same_lengths(size, known):
            here = ", ".join(f"{length:g}" for length in lengths_in(place.mag, known))
            there = ", ".join(f"{length:g}" for length in lengths_nm)
            raise ValueError(
                f"{place.folder}: the voxels of mag {place.mag} are {here} nm here, those of the array's coordinates {there} nm; "
                "write to the mag that they are of, or give offset="
            )
        return None
    return size if is_room and place.is_named_as_mag else None


def voxel_size_of_new(place: Place, found: Lengths | None, given: Lengths | None) -> Lengths | None:
    """Give the voxel size of a new dataset [nm], None for one that is there, where it must be the same."""
    dataset = dirname(dirname(place.named or place.folder))
    datasource = read_datasource(dataset)
    if datasource is not None:
        known = datasource.voxel_size_nm
        if given is not None and known is not None and not same_lengths(given, known):
            raise ValueError(f"{dataset}/{FILE_NAME}: the voxel size is {known} nm, not {given} nm; leave it out, or correct it there")
        return None
    size = given or (None if found is None else ratio_of(found, place.mag.factors))
    if size is None:
        raise ValueError(f"{dataset}: a new dataset needs the size of a voxel, which the source does not say: voxel_size=(4, 4, 35) in nm")
    return size


def other_layers_with(layer: Image, folder: str) -> list[str]:
    """Name the other layers of a dataset that list the mag in a folder."""
    if layer.container.datasource is None:
        return []
    real = files.realpath(folder)
    others = [listed_layer(layer.container.dataset_folder, layer.container.datasource, record) for record in layer.container.datasource.layers]
    return [
        other.name for other in others if other.name != layer.name and any(not is_remote(path) and files.realpath(path) == real for path in other.mags.values())
    ]


def check_inside_dataset(layer: Image, folder: str) -> None:
    """Refuse to write where a dataset's paths leave it, unless that is allowed: what is there may belong to somebody else."""
    real = outside_of(layer, folder)
    if real is not None and not layer.container.allow_external:
        raise UnsupportedError(
            f"{folder}: lies outside the dataset {dataset_of(layer)}, at {real}, which is read but not written through; "
            "allow_external=True writes there, or name the folder that it is in"
        )


def check_files_inside(layer: Image, folder: str, shards: ShardBox | None = None) -> None:
    """Refuse to change files of a mag that is there where folders in it are links that leave the dataset, unless that is allowed."""
    if layer.container.allow_external or dataset_of(layer) is None:
        return
    for z, z_folder in files.numbered(folder, "z"):
        if shards is not None and not shards.low[2] <= z < shards.high[2]:
            continue
        inside = (path for y, path in files.numbered(z_folder, "y") if shards is None or shards.low[1] <= y < shards.high[1])
        for path in (z_folder, *inside):
            if files.islink(path):
                check_inside_dataset(layer, path)


def dataset_of(layer: Image) -> str | None:
    """Name the dataset in whose folder a layer is, whether its JSON lists the layer or not; None where there is no JSON."""
    return layer.container.dataset_folder if layer.container.dataset_folder is not None else dataset_above(layer.folder)


def outside_of(layer: Image, folder: str) -> str | None:
    """Say where a mag really is, None where that is inside of the dataset, which need not list it."""
    above = dataset_of(layer)
    return None if above is None else elsewhere(above, local_path(folder))


def real_folder(layer: Image, folder: str) -> str:
    """Give the folder in which a mag is written: where links lead to outside of the dataset, else the one that has its name."""
    return outside_of(layer, folder) or folder


def parent_of(layer: Image, folders: Sequence[str]) -> str:
    """Give the folder in which a job on some mags of a layer works: one from which they can be moved to their places."""
    if all(outside_of(layer, folder) is None for folder in folders):
        return layer.folder
    parents = list(dict.fromkeys(dirname(folder) for folder in folders))
    disks = {files.stat(parent).st_dev for parent in parents if files.isdir(parent)}
    if len(disks) > 1:
        raise UnsupportedError(f"{layer.folder}: mags of the layer lie on several disks, in {', '.join(parents)}; name those of one with mags=")
    return parents[0]


def json_path(layer: Image, mag: Mag, folder: str) -> str:
    """Say how the JSON names the folder of a mag: as it does already, else relative to the dataset, else by where it is."""
    dataset = str(layer.container.dataset_folder)
    record = layer.container.record
    listed: str | None = next((entry.path for entry in record.mags if entry.mag == mag and entry.path), None) if record is not None else None
    if listed is not None and files.realpath(layer.mags[mag]) == files.realpath(folder):
        return listed
    named = f"{dataset}/{layer.name}/{basename(folder)}"
    inside = [path for path in (folder, named) if outside_of(layer, path) is None or (path == named and files.realpath(path) == files.realpath(folder))]
    return f"./{relpath(inside[0], dataset)}" if inside else folder


def default_category(header: WkwHeader) -> str:
    """Guess what a layer is that nobody named: integers of 32 bits and more are a segmentation."""
    return "segmentation" if header.dtype.kind in "iu" and header.dtype.itemsize >= 4 and header.num_channels == 1 else "color"


def edit_for(place: Place, header: WkwHeader, box: BoundingBox, category: str | None, *, keeps_name: bool = False) -> LayerEdit | None:
    """Decide what the JSON is to say once a mag is there."""
    layer = place.layer
    if layer.container.dataset_folder is None:
        return None
    check_one_ladder(layer.folder, [] if layer.container.record is None else [entry.mag for entry in layer.container.record.mags], [place.mag])
    named = f"./{relpath(place.named, layer.container.dataset_folder)}" if place.named else json_path(layer, place.mag, place.folder)
    mags = ((place.mag, named, header.file_len_vx),)
    own_box = box.in_mag(Mag(1, 1, 1))
    elements = element_class(header.dtype, header.num_channels)
    record = layer.container.record
    if record is None:
        if not keeps_name:
            check_layer_name(layer.name)
        new = NewLayer(category or default_category(header), own_box, elements, header.num_channels)
        return LayerEdit(layer.container.dataset_folder, layer.name, mags, new)
    listed = LayerEdit(layer.container.dataset_folder, layer.name, mags, is_listed=True)
    stays = [entry.mag for entry in record.mags if entry.mag != place.mag]
    if not stays:
        return replace(listed, new_layer=NewLayer(record.category, own_box, elements, header.num_channels))
    if (record.element_class, record.num_channels) != (elements, header.num_channels):
        raise ValueError(
            f"{layer.folder}: the layer holds {type_text(record.element_class, record.num_channels)}, "
            f"the array is {type_text(elements, header.num_channels)}; cast it, or write to another layer"
        )
    if record.bounding_box.in_mag(place.mag).contains(box):
        return listed
    return replace(listed, new_layer=NewLayer(record.category, record.bounding_box.union(own_box), elements, header.num_channels))
