"""Where N5 datasets are written: their folder, what is around it, and how new datasets are stored."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from wkwdask.errors import CorruptError, ExistsError, MissingError, UnsupportedError
from wkwdask.formats.n5.array import N5Description, n5_array, read_attributes
from wkwdask.formats.n5.attributes import DTYPES, FILE_NAME, LARGEST_BLOCK, N5Dataset, is_dataset
from wkwdask.formats.n5.compression import make_compression
from wkwdask.formats.n5.layer import PREFIX, location_of, stripped
from wkwdask.formats.n5.metadata_edit import LevelPlace, N5Edit, dataset_document
from wkwdask.formats.n5.placement import lengths_of, level_attributes, level_number
from wkwdask.formats.precomputed.layer import holds_wkw
from wkwdask.geometry.bounding_box import MAG_1
from wkwdask.geometry.mag import Mag
from wkwdask.model.json_text import format_json
from wkwdask.model.levels import lengths_in
from wkwdask.model.place import Destination, FolderPlace, NewLevels
from wkwdask.model.placement import Placement
from wkwdask.model.stored_array import StoredArray
from wkwdask.store import files
from wkwdask.store.paths import basename, dirname, is_remote
from wkwdask.store.store import FolderStore, open_store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wkwdask.formats.n5.options import N5Options
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.image import Image
    from wkwdask.model.levels import Lengths
    from wkwdask.model.place import LevelSpec
    from wkwdask.model.volume import Volume

_LARGEST_BLOCK_LEN = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class N5Place(FolderPlace):
    """A local folder in which a dataset is or will be, or a group of such, a :class:`wkwdask.model.place.Place`."""

    prefix: ClassVar[str] = PREFIX
    """What URLs of the format begin with."""
    root: str
    """The container."""
    group: str | None
    """The group of which datasets are levels, None where the dataset is by itself."""
    others: tuple[str, ...] = ()
    """Levels of the group that stay as they are."""
    levels: Mapping[Mag, str] = field(default_factory=dict)
    """Names of the levels of the group, beside which others are made; none where one dataset is meant."""

    def new_levels(self, specs: Sequence[LevelSpec], options: N5Options, like: Volume | None = None, existing: str = "error") -> NewLevels:
        """Lay out datasets, see :class:`wkwdask.model.place.Place`."""
        del existing
        places = [LevelPlace(self._relative(spec.box.mag), spec.box.topleft, self._base_lengths()) for spec in specs]
        folders = self._folders([spec.box.mag for spec in specs])
        datasets = [_dataset(spec, options, like) for spec in specs]
        targets, settings = [], []
        for spec, at, dataset, folder in zip(specs, places, datasets, folders, strict=True):
            dataset = replace(dataset, document=dataset_document(dataset, at, is_level=self.group is not None, is_root=self.root == folder))
            store = open_store(folder)
            array = n5_array(store, dataset, "xyzc"[: len(dataset.dimensions)], spec.box.mag, is_new=True).moved(at.offset)
            targets.append(Placement(array, store, ((FILE_NAME, format_json(dataset.document).encode()),)))
            lengths = None if at.base_lengths_nm is None else list(at.base_lengths_nm)
            settings.append({"dataset": dataset.to_json(), "mag": at.mag.name, "offset": list(at.offset), "voxel_size": lengths})
        edit = N5Edit(self.root, self.group, len(datasets[0].dimensions), tuple(zip(map(basename, folders), places, strict=True)))
        stored_as = f"{datasets[0].compression.type}, blocks of {' x '.join(map(str, datasets[0].block_size[:3]))} voxels, each a file"
        said = settings[0] if len(settings) == 1 else {"datasets": settings}
        return NewLevels(dirname(folders[0]), folders, tuple(targets), said, edit, stored_as=stored_as)

    def _folders(self, mags: Sequence[Mag]) -> tuple[str, ...]:
        """Say where datasets are or will be: new ones get the next numbers, which grow as voxels do."""
        if not self.levels:
            return (self.folder,)
        names, coarsest = dict(self.levels), max(self.levels, key=lambda mag: mag.maximum)
        number = max((level_number(name) or 0 for name in names.values()), default=0)
        for mag in mags:
            if mag in names:
                continue
            if mag.maximum <= coarsest.maximum:
                raise UnsupportedError(f"{self.folder}: levels of N5 are numbered as their voxels grow, and mag {mag} is not coarser than mag {coarsest}")
            number, coarsest = number + 1, mag
            names[mag] = f"s{number}"
        return tuple(f"{self.folder}/{names[mag]}" for mag in mags)

    def unchanged_levels(self, existing: str) -> str:
        """Say which levels stay as they are."""
        del existing
        return f"other levels that are there are not changed: {', '.join(self.others)}" if self.others else ""

    def _relative(self, mag: Mag) -> Mag:
        """Give a mag relative to the finest one of the group."""
        finest = self.wanted.together[0] if self.wanted.together else MAG_1
        if any(a % b for a, b in zip(mag.factors, finest.factors, strict=True)):
            raise MissingError(f"{self.folder}: mag {mag} is not coarser than mag {finest} along all axes; choose mags that are, with mag=")
        return Mag.parse(finest.step_to(mag))

    def _base_lengths(self) -> Lengths | None:
        """Give the lengths of a voxel of the finest level: as a user says, else as the source or the group does."""
        size = _size_of(self.wanted)
        return size or (None if self.group is None else _known_lengths(self.group))


def _size_of(wanted: Destination) -> Lengths | None:
    size = wanted.given_nm or wanted.found_nm
    return size if size is None or not wanted.together else lengths_in(wanted.together[0], size)


def _dataset(spec: LevelSpec, stored: N5Options, like: Volume | None) -> N5Dataset:
    """Describe a dataset."""
    before = like.identity.dataset if isinstance(like, StoredArray) and isinstance(like.identity, N5Description) else None
    compression = None if before is None or stored.compression is not None or stored.level is not None else before.compression
    options: Any = (stored if before is None else replace(stored, chunk_shape=stored.chunk_shape or like.chunk_shape)).of_new()  # type: ignore[union-attr]
    native = np.dtype(spec.dtype).newbyteorder("=")
    if native.name not in DTYPES:
        hint = {"bool": "uint8", "float16": "float32"}.get(native.name)
        advice = f'cast with .astype("{hint}")' if hint else "cast to one of these"
        raise TypeError(f"N5 has no type for {native.name}; it stores {', '.join(DTYPES)}: {advice}")
    channels = (spec.num_channels,) if spec.num_channels > 1 else ()
    block: Vec3 = options.chunk_shape
    dataset = N5Dataset((*spec.box.size, *channels), (*block, *channels), native, compression or make_compression(options.compression, options.level))
    if max(block) > _LARGEST_BLOCK_LEN or dataset.block_nbytes > LARGEST_BLOCK:
        raise ValueError(f"chunk_shape must be three lengths of a block of at most {LARGEST_BLOCK} bytes, got {block} of {native.name}")
    return dataset


def n5_place(wanted: Destination) -> N5Place:
    """Find out what is around a dataset that is written: the folder that is named, or a level of the group, where levels of another image become its levels."""
    folder = _local_folder(wanted.url)
    if wanted.names_image and not wanted.together and wanted.mag not in (None, MAG_1):
        raise ValueError(f"{wanted.url} gets its finest level of images: mag= is not for it")
    if not wanted.names_image:
        return _place_in(folder, wanted, ())
    number = wanted.together.index(wanted.mag or MAG_1) if wanted.together else 0
    return _place_in(f"{folder}/s{number}", wanted, tuple(_other_levels(folder, wanted)))


def place_beside(image: Image) -> N5Place:
    """Give the place of levels that are made from a level of a group."""
    levels = {level.mag: level.key for level in image.levels if level.mag is not None and not level.problem}
    if "" in levels.values():
        raise UnsupportedError(f"{image.folder}: is one N5 dataset, and levels are made in a group of them: write it as {image.folder}/s0")
    wanted = Destination(PREFIX + image.folder, found_nm=image.voxel_size_nm)
    place = _place_in(f"{_local_folder(image.folder)}/s0", wanted, ())
    return replace(place, folder=dirname(place.folder), levels=levels)


def _place_in(folder: str, wanted: Destination, others: tuple[str, ...]) -> N5Place:
    is_level = level_number(basename(folder)) is not None
    for path in (folder, dirname(folder)) if is_level else (folder,):
        if holds_wkw(path):
            raise ExistsError(f"{path}: holds WKW data; write N5 to a folder of its own")
    above, root = dirname(folder), None
    while dirname(above) != above:
        document = read_attributes(FolderStore(above))
        if document is not None and is_dataset(document):
            raise ExistsError(f"{folder}: lies inside of the N5 dataset {above}, whose blocks are stored there")
        if root is None and ((document is not None and "n5" in document) or above.endswith(".n5")):
            root = above
        above = dirname(above)
    group = dirname(folder) if is_level and (root is None or root != folder) else None
    return N5Place(folder, wanted, root or group or folder, group, others)


def _local_folder(url: str) -> str:
    """Turn what a user names into a local folder."""
    text = stripped(url)
    if is_remote(text):
        raise UnsupportedError(f"{text}: N5 is written to local folders only; write to one and copy it there, such as with gsutil or aws s3")
    return files.realpath(location_of(text))


def _known_lengths(group: str) -> Lengths | None:
    """Read the lengths of a voxel of the finest level that a group has already."""
    document = read_attributes(FolderStore(group)) or {}
    try:
        own = read_attributes(FolderStore(group), "s0") or {}
    except CorruptError:
        own = {}
    return lengths_of(level_attributes(own, document, "s0"), "xyz")


def _other_levels(group: str, wanted: Destination) -> list[str]:
    """List the levels of a group that stay as they are where the first ones are written."""
    numbers = [number for number in map(level_number, files.listdir(group)) if number is not None] if files.isdir(group) else []
    others = [f"s{number}" for number in sorted(numbers) if number >= max(1, len(wanted.together)) and files.isfile(f"{group}/s{number}/{FILE_NAME}")]
    before, lengths = _known_lengths(group) if others else None, _size_of(wanted)
    if others and not (before is None and lengths is None) and (before is None or lengths is None or not np.allclose(before, lengths, rtol=1e-6)):
        what = f"holds {', '.join(others)} too, which would not fit to voxels of {lengths} nm in s0; those that are there are {before} nm long"
        raise ExistsError(f"{group}: {what}: choose another group, or remove it first")
    return others
