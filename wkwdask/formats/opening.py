"""Resolve the path or URL that a user names to the image to read, or to the place where levels are
written."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from wkwdask.errors import FormatError, MissingError, UnsupportedError, WkwDaskError
from wkwdask.formats.axes import parse_index
from wkwdask.formats.file_suffixes import EXPORT_SUFFIXES
from wkwdask.formats.mesh_folders import warn_of_meshes
from wkwdask.formats.registry import (
    check_folder_name,
    default_format,
    format_named,
    format_of,
    format_of_suffix,
    formats,
    location_of,
    named_format,
    opening_format,
    recognised_format,
)
from wkwdask.formats.roots import checked_folder
from wkwdask.formats.webknossos.dataset import (
    check_supported,
    dataset_of,
    layer_around,
    stored_format,
)
from wkwdask.formats.webknossos.document import read_datasource
from wkwdask.formats.zarr.single_file import zipped_image
from wkwdask.geometry.bounding_box import MAG_1
from wkwdask.kernels.window.reduce import BOOL_METHOD
from wkwdask.model.options import StorageOptions
from wkwdask.model.voxel_type import guess_category
from wkwdask.store.objects.access import remember_access
from wkwdask.store.paths import ZIP, is_remote, local_path, target_path
from wkwdask.store.store import open_store, store_at

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wkwdask.formats.format import ArrayFormat, SingleFile, Url
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.image import Image, ResolvedUrl
    from wkwdask.model.levels import Lengths
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.target_image import Destination, TargetImage

_LARGEST_RECORD = 16 << 20  # bytes
_MOST_LISTED = 5
_logger = logging.getLogger(__name__)


def find(
    url: Url, chunk_size: Sequence[int] | None = None, index: Mapping[str, int] | None = None
) -> ResolvedUrl:
    """Resolve a path or URL to the images that it can mean, read in chunks of a size and at an
    index along further axes if these are given."""
    its_format = opening_format(url)
    _logger.debug("%s: opened as %s", os.fspath(url), its_format.name)
    try:
        resolved = its_format.find(url)
    except MissingError:
        recognised = recognised_url(url)
        if recognised != url:
            return find(recognised, chunk_size, index)
        if chunk_size is not None and format_of(url) is None:
            raise _no_chunk_sizes(url) from None
        explain_missing(url)
        raise
    if chunk_size is not None:
        in_chunks = [image.in_chunks for image in resolved.layers]
        resolved = _chosen(resolved, in_chunks, chunk_size, _no_chunk_sizes(url))
    if index is not None:
        refused = f"{os.fspath(url)}: index= applies to OME-NGFF images and Zarr arrays only"
        at_index = [image.at_index for image in resolved.layers]
        resolved = _chosen(resolved, at_index, parse_index(index), ValueError(refused))
    return resolved


def _no_chunk_sizes(url: Url) -> ValueError:
    return ValueError(f"{os.fspath(url)}: chunk_size= applies to precomputed volumes only")


def _chosen(
    resolved: ResolvedUrl, choices: Sequence[Any], value: Any, refused: ValueError
) -> ResolvedUrl:
    """Return the images with a value chosen in each; raises ``refused`` if an image has no such
    choice."""
    if None in choices or not choices:
        raise refused
    images = [
        replace(choose(value), container=image.container, key=image.key, root=image.root)
        for choose, image in zip(choices, resolved.layers, strict=True)
    ]
    return replace(resolved, layers=tuple(images))


def recognised_url(url: Url) -> Url:
    """Return a remote URL that names no format with the prefix of the format whose documents are
    there; other URLs are returned unchanged."""
    text = os.fspath(url)
    if is_remote(text) and format_of(url) is None:
        store = open_store(text)
        for fmt in formats():
            store.read_ahead(fmt.documents)
            if any(store.read_document(name, _LARGEST_RECORD) for name in fmt.documents):
                return fmt.url_name.prefixes[0] + text
    return url


def prefixed_url(url: Url) -> Url:
    """Return a URL as ``find`` opens it: with the prefix of the format that was recognised, if it
    names none and is remote."""
    if is_remote(os.fspath(url)) and format_of(url) is None:
        try:
            default_format().find(url)
        except MissingError:
            return recognised_url(url)
    return url


def use_storage_options(url: Url, options: Mapping[str, Any] | None) -> None:
    """Use options for the server or bucket of a remote URL in the rest of this process."""
    if options is None:
        return
    location = location_of(url)
    if not is_remote(location):
        raise ValueError(f"{location}: storage_options= applies to remote URLs only")
    remember_access(location, options)


def explain_missing(url: Url) -> None:
    """Raise an error that says how to name what a user may mean: a format by a prefix, or a path in
    a zip. Other URLs pass."""
    text = os.fspath(url)
    _check_zips_exist(location_of(text))
    if not is_remote(location_of(text)):
        _explain_missing_in_zip(text)
    if not is_remote(text) or format_of(url) is not None:
        return
    prefixes = [fmt.url_name.prefixes[0] for fmt in formats() if fmt.url_name.prefixes]
    raise MissingError(
        f"{text}: no dataset, layer or mag of WEBKNOSSOS here; other formats need a prefix: "
        f"{' or '.join(f'{each}{text}' for each in prefixes)}"
    )


def _check_zips_exist(location: str) -> None:
    """Raise MissingError that names the zip, if one that a path leads through does not exist."""
    path = location if is_remote(location) else local_path(location)
    for end in (match.start() for match in re.finditer(re.escape(ZIP), path)):
        if not store_at(path[:end]).exists():
            raise MissingError(f"{path[:end]}: no such zip file")


def _explain_missing_in_zip(text: str) -> None:
    """Raise MissingError with URLs of images if a path leads through a zip as if it were a folder,
    or is a zip without an image at its root."""
    through = re.match(r"(.*?\.(?:zip|ozx))/+(.*[^/])/*$", text, re.IGNORECASE)
    if (
        through is not None
        and store_at(local_path(location_of(through[1])).removesuffix(ZIP)).is_file()
    ):
        raise MissingError(f"{text}: is a path in a zip; write {through[1]}{ZIP}{through[2]}")
    path = local_path(location_of(text))
    if path.endswith(ZIP) and store_at(path).is_folder():
        named = named_format(text)
        plain = text if named is None else named.url_name.stripped(text)
        urls = [
            f"{plain}{ZIP}{name}"
            for name in sorted(store_at(path).names())
            if recognised_format(f"{path}/{name}") is not None
        ]
        if urls:
            raise MissingError(
                f"{text}: no image at the root of the zip; it contains "
                f"{', '.join(urls[:_MOST_LISTED])}"
            )


def open_stored(
    url: Url,
    layer: str | None = None,
    mag: Mag | str | None = None,
    chunk_size: Sequence[int] | None = None,
    index: Mapping[str, int] | None = None,
) -> tuple[Image, StoredArray]:
    """Open the level that a user names."""
    return find(url, chunk_size, index).open(layer, mag)


def is_readable(layer: Image, mag: Mag) -> bool:
    """Return whether a mag can be opened and was written."""
    with contextlib.suppress(MissingError, ModuleNotFoundError, FormatError, UnsupportedError):
        return layer.is_written(layer.volume(mag))
    return False


def describe_unusable_levels(image: Image) -> str:
    """Return a note on the levels of an image that have no mag or cannot be opened, an empty string
    if there are none."""
    unusable = [
        f"{level.key!r} ({level.problem or 'no mag'})"
        for level in image.levels
        if level.problem or level.mag is None
    ]
    return f"levels left out: {', '.join(unusable)}" if unusable else ""


def is_export(url: Url) -> bool:
    """Return whether the suffix of a target is that of an image file or array."""
    return os.fspath(url).lower().endswith(EXPORT_SUFFIXES)


def is_dataset(url: Url) -> bool:
    """Return whether a folder or URL is a dataset of WEBKNOSSOS."""
    return read_datasource(target_path(url)) is not None


def single_file_of(url: object) -> SingleFile | None:
    """Return the new file that a target names, if it shall contain a whole image; None for other
    targets."""
    return zipped_image(url)


def format_of_target(url: object) -> ArrayFormat:
    """Return the format of a new target: the format that its URL names, else that of datasets;
    raises UnsupportedError if it is read-only."""
    found = next((fmt for fmt in formats() if fmt.url_name.names_target(url)), default_format())
    found.check_writable(str(url))
    return found


def format_to_save(url: Url) -> ArrayFormat:
    """Return the format in which an array is saved: that of the prefix, of the suffix of a folder,
    or of the existing image, else that of datasets."""
    named = format_of_target(url)
    if named is not default_format():
        return named
    suffixed = format_of_suffix(os.fspath(url))
    if suffixed is not None:
        return suffixed
    found = format_of(url)
    if found is None or found.url_name.is_in(url):
        return found or named
    # a killed job may have published the mag of a layer that no JSON lists yet
    return found if layer_around(target_path(str(url))) is None else named


def target_for(destination: Destination) -> TargetImage:
    """Return the image, new or existing, at a destination; raises UnsupportedError for one in a
    zip."""
    named = location_of(destination.url)
    _check_not_zipped(named if is_remote(named) else local_path(named))
    return format_of_target(destination.url).target(destination)


def _check_not_zipped(path: str) -> None:
    if ZIP in path:
        raise UnsupportedError(
            f"{path.partition(ZIP)[0]}: a zip is read-only; write to a folder, such as "
            "image.ome.zarr, and convert() that to a new .ozx"
        )


def target_in(image: Image, allow_external: bool) -> TargetImage:
    """Return an existing image as the target of levels that are computed from one of its levels."""
    _check_not_zipped(image.folder)
    if not image.is_layer:
        checked_folder(replace(image, allow_external=allow_external), image.folder)
    return format_of_documents(image).target_in(image, allow_external=allow_external)


def open_in_place(url: Url, mag: Mag | None, *, allow_external: bool) -> tuple[Image, StoredArray]:
    """Open a level that is written in place; names and links may leave the root of its image only
    with ``allow_external``."""
    resolved = find(url)
    image, volume = resolved.open(None, mag)
    warn_of_meshes(*format_of_documents(image).mesh_folders(image))
    return replace(image, allow_external=allow_external), volume


def why_not_written(layer: Image) -> str:
    """Return why jobs do not write into a layer of a dataset, an empty string if they do."""
    try:
        check_supported(layer)
    except UnsupportedError as error:
        return str(error)
    return ""


def format_of_documents(image: Image) -> ArrayFormat:
    """Return the format of the documents of an image: of a layer, that of its dataset."""
    return default_format() if image.is_layer else format_named(image.format)


def format_of_image(image: Image) -> ArrayFormat:
    """Return the format of the files of an image, which may be a layer of a dataset."""
    return stored_format(image) if image.is_layer else format_named(image.format)


def check_target_name(url: Url) -> None:
    """Raise ValueError if the suffix of a target names another format than the target would get."""
    if not (is_export(url) or is_dataset(url)):
        check_folder_name(os.fspath(url))


def place_of_copy(url: Url, its_format: ArrayFormat) -> str:
    """Return the location of a copy in the format of its source; raises ValueError if its name is
    that of another format or of an image file."""
    named, text = named_format(url), os.fspath(url)
    is_other_file = False
    if named is None and its_format is not default_format():  # mags of WKW are checked one by one
        named = format_of_suffix(text)
        is_other_file = named is None and is_export(url)
    if named not in (None, its_format) or is_other_file:
        raise ValueError(
            f"{text}: a copy has the format of its source, {its_format.options.title}; convert() "
            "(wkwdask convert) writes other formats"
        )
    return its_format.url_name.location(url)


def options_class(url: Url, layers: Sequence[str | None] | None = None) -> type[StorageOptions]:
    """Return the class of storage options of an existing image or of some layers of a dataset, by
    default all; one without options for layers of several formats."""
    its_format = opening_format(url)
    if not its_format.container.holds_layers:
        return its_format.options
    try:
        found = find(url)
        images = found.layers if layers is None else tuple(map(found.choose_listed, layers))
    except (OSError, ValueError, WkwDaskError):  # errors of options come before those of the source
        return its_format.options
    kinds = {format_of_image(image).options for image in images if not why_not_written(image)}
    return kinds.pop() if len(kinds) == 1 else MixedOptions if kinds else its_format.options


def options_of_target(url: object, layer: str | None = None) -> type[StorageOptions]:
    """Return the class of storage options of a new level: those of the layer of a dataset that
    gets it, if there is one."""
    its_format = format_of_target(url)
    if not its_format.container.holds_layers:
        return its_format.options
    found = layer_around(target_path(str(url)), layer)
    return its_format.options if found is None else format_of_image(found).options


class MixedOptions(StorageOptions):
    """Storage options of layers of several formats; none applies to all."""

    name: ClassVar[str] = "a dataset with layers of several formats"


class SourceSelection(NamedTuple):
    """Choice of the level from which other levels are computed."""

    layer: str | None
    mag: Mag | str | None
    option: str
    """Name of the argument ``mag``, for errors."""
    default: Callable[[Image], Mag | None] = lambda _: None
    """Return the mag if neither the selection nor the URL names one."""
    allow_external: bool = False
    voxel_size_nm: Lengths | None = None
    """Voxel size from which mags count [nm], by default that of the image."""


def open_source(url: Url, selection: SourceSelection) -> tuple[Image, Volume]:
    """Open the level from which other levels are computed."""
    resolved, mag = find(url), selection.mag
    image = resolved.choose(selection.layer)
    if selection.voxel_size_nm is not None:
        image = _counted_from(image, selection.voxel_size_nm)
    named = image.mag or resolved.mag
    if mag is not None and named not in (None, mag):
        raise ValueError(f"{os.fspath(url)}: is mag {named}, but {selection.option}= says {mag}")
    image = replace(image, allow_external=selection.allow_external)
    volume = image.volume(mag or named or selection.default(image))
    if image.needs_files and not image.is_written(volume):
        # in other formats an array without files is valid, and all zero
        raise MissingError(f"{volume.name}: the mag has no data files")
    return image, volume


def _counted_from(image: Image, voxel_size_nm: Lengths) -> Image:
    """Return an image with mags that count from a voxel size; other formats than those that count
    from the finest level have just one."""
    counted = image.counted_from(voxel_size_nm)
    if counted is not image and not image.counts_from_finest:
        raise ValueError(
            f"{image.folder}: voxels of mag 1 have {image.voxel_size_nm} nm, got voxel_size "
            f"{voxel_size_nm}"
        )
    return counted


def default_method(image: Image, source: Volume) -> str:
    """Return the default downsampling method for an image, by its type and its category, which is
    guessed if the image does not state it; that of a layer without a JSON is not."""
    if source.dtype == np.bool_:
        return BOOL_METHOD
    category = image.category
    if category is None and not image.is_layer:
        category = guess_category(source.dtype, source.num_channels)
    if category is None:
        raise ValueError(
            f"{image.folder}: no datasource-properties.json states the category of this layer; "
            "give method= (median or mean for images, mode for labels)"
        )
    return image.method_of(category)


def image_box(image: Image, source: Volume) -> BoundingBox:
    """Return the bounding box that an image states, or else that of one of its levels [voxels of
    mag 1]."""
    return source.box.in_mag(MAG_1) if image.stated_box is None else image.stated_box


def aligned_mags(image: Image, align_with: str | bool) -> list[Mag]:
    """Return the mags of the other layers of the dataset that a new pyramid follows."""
    if align_with is False or not image.is_layer:
        return []
    dataset = dataset_of(image)
    layers = [] if dataset.datasource is None else dataset.datasource.layers
    others = [other for other in layers if other.name != image.name]
    if align_with is not True:
        others = [other for other in others if other.name == align_with]
        if not others:
            raise MissingError(
                f"{dataset.dataset_folder or image.folder}: no other layer {align_with!r} to align "
                "with"
            )
    return [entry.mag for other in others for entry in other.mags]
