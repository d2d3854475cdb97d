"""Targets of writes: the folder of an N5 dataset or group, and the storage and names of new
datasets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from wkwdask.errors import ExistsError, MetadataWarning, MissingError, UnsupportedError
from wkwdask.formats.axes import axis_letter
from wkwdask.formats.marks import contains_wkw
from wkwdask.formats.n5.array import N5Codec, N5Description, dataset_of, n5_array, read_attributes
from wkwdask.formats.n5.attributes import DTYPES, FILE_NAME, N5Dataset, is_dataset, level_number
from wkwdask.formats.n5.block import MAX_BLOCK_NBYTES, make_compression
from wkwdask.formats.n5.edit import LevelGeometry, N5Edit, dataset_document
from wkwdask.formats.n5.factor_lists import (
    check_list_of_setup,
    has_lists,
    is_coarser,
    other_time_points,
    setup_factors,
    setup_of,
)
from wkwdask.formats.n5.layer import (
    PREFIX,
    group_attributes,
    group_levels,
    outermost_group,
    stripped,
)
from wkwdask.formats.n5.placement import level_sizes, ratios_to, stated_lengths_nm
from wkwdask.formats.roots import Root, check_links_to
from wkwdask.geometry.bounding_box import MAG_1
from wkwdask.geometry.mag import Mag, mag_order
from wkwdask.geometry.vectors import is_multiple, minus, times
from wkwdask.model.json_text import format_json
from wkwdask.model.levels import finest_first, lengths_in, mag_from_ratio
from wkwdask.model.stored_array import StoredArray
from wkwdask.model.writing.target_array import TargetArray
from wkwdask.model.writing.target_image import Destination, NewLevels, TargetFolder
from wkwdask.store import by_path
from wkwdask.store.paths import basename, dirname, target_path
from wkwdask.store.store import open_store, store_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from wkwdask.formats.n5.options import N5Options
    from wkwdask.formats.n5.placement import LevelMetadata
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.image import Image
    from wkwdask.model.levels import Lengths
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.target_image import LevelSpec

_MAX_BLOCK_LEN = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class N5Target(TargetFolder):
    """Local folder of a dataset or group, existing or new; implements
    :class:`wkwdask.model.writing.target_image.TargetImage`."""

    prefix: ClassVar[str] = PREFIX
    root: str
    group: str | None
    """Group whose levels are the datasets; None for a single dataset."""
    others: tuple[str, ...] = ()
    """Existing levels of the group that stay unchanged."""
    levels: Mapping[Mag, tuple[str, Vec3]] = field(default_factory=dict)
    """Name and first voxel [voxels of the mag] of existing levels, if new levels are computed from
    one of them; else empty."""
    stated: tuple[str, ...] = ()
    """Names of all existing levels, usable or not."""
    stored: tuple[tuple[str, LevelMetadata], ...] = ()
    """Names of the existing levels of the group, finest first, and what their attributes state."""

    def new_levels(
        self,
        specs: Sequence[LevelSpec],
        options: N5Options,
        like: Volume | None = None,
        existing: str = "error",
    ) -> NewLevels:
        mags = [spec.box.mag for spec in specs]
        names = (
            self._names_in_setup(mags)
            if self._setup is not None and self.levels
            else self._names_with(mags)
        )
        folders = tuple(self._level_folder(names[mag]) for mag in mags) if names else (self.folder,)
        new_names = [names[mag] for mag in mags] if names else [basename(self.folder)]
        base = self._base(new_names)
        geometries = [
            replace(base, mag=self._relative_mag(mag), offset=spec.box.topleft)
            for mag, spec in zip(mags, specs, strict=True)
        ]
        axes = [self._axes(spec, new_names) for spec in specs]
        datasets = [
            choose_dataset(spec, options, like, names)
            for spec, names in zip(specs, axes, strict=True)
        ]
        targets, settings = [], []
        for spec, geometry, dataset, folder, axis_names in zip(
            specs, geometries, datasets, folders, axes, strict=True
        ):
            style: dict[str, Any] = {
                "is_level": self.group is not None,
                "is_root": self.root == folder,
                "states_own_size": self._states_own_sizes,
            }
            dataset = replace(
                dataset, document=dataset_document(dataset, geometry, axis_names, **style)
            )
            store = open_store(folder)
            array = n5_array(
                store, dataset, "".join(map(axis_letter, axis_names)), spec.box.mag, is_new=True
            ).moved(geometry.offset)
            targets.append(
                TargetArray(array, store, ((FILE_NAME, format_json(dataset.document).encode()),))
            )
            lengths = None if geometry.base_lengths_nm is None else list(geometry.base_lengths_nm)
            settings.append(
                {
                    "dataset": dataset.to_json(),
                    "mag": geometry.mag.name,
                    "offset": list(geometry.offset),
                    "voxel_size": lengths,
                }
            )
        self._check_mags(mags, new_names)
        edit = N5Edit(
            self.root,
            self.group,
            tuple(zip(new_names, geometries, strict=True)),
            self._others_with(names, base),
        )
        self._check_setup(edit, axes)
        if edit.makes_room and existing == "error" and not self.levels.keys().isdisjoint(mags):
            # with other folders, the job itself finds what exists
            raise ExistsError(
                f"{self.folder}: has {', '.join(str(mag) for mag in mags if mag in self.levels)}; "
                'existing="overwrite" replaces it'
            )
        # journals of a single dataset keep its settings without a list
        journal_settings = settings[0] if len(settings) == 1 else {"datasets": settings}
        parent = self._root.work_folder(self.folder, folders) if names else dirname(folders[0])
        shifts = tuple(self._shift_warnings(specs, new_names))
        return NewLevels(
            parent,
            folders,
            tuple(targets),
            journal_settings,
            edit,
            shifts,
            stored_as=_describe(datasets[0]),
        )

    @property
    def _root(self) -> Root:
        return Root(self.folder, f"{self.folder}/{FILE_NAME}", self.destination.allow_external)

    def _level_folder(self, name: str) -> str:
        return self._root.level_folder(name, [other for other in self.stated if other != name])

    def _names_with(self, mags: Sequence[Mag]) -> dict[Mag, str]:
        """Return the names of all levels beside new ones. N5 numbers levels from fine to coarse, so
        levels after a new one can get another number."""
        order = sorted({*self.levels, *mags} if self.levels else (), key=mag_order)
        names = {mag: self.levels[mag][0] for mag in order if mag in self.levels}
        numbers = [number for name in names.values() if (number := level_number(name)) is not None]
        # other levels keep their numbers, which tell nothing
        is_ordered = numbers == sorted(numbers)
        usable = set(names.values())
        taken = {level_number(name) for name in self.stated if name not in usable}
        last = -1 if is_ordered else max(numbers)
        for mag in order:
            number = level_number(names[mag]) if mag in names else 0
            if number is None or (mag in names and not is_ordered):
                # named by other software: its place is that in `multiscales`
                continue
            last = max(last + 1, number)
            while last in taken:
                last += 1
            names[mag] = f"s{last}"
        return names

    def _others_with(
        self, names: Mapping[Mag, str], base: LevelGeometry
    ) -> tuple[tuple[str, str, LevelGeometry], ...]:
        """Return names now and afterwards, and geometries, of the existing levels; empty if nothing
        changes."""
        if not self.levels or (
            MAG_1 in self.levels
            and all(names[mag] == name for mag, (name, _) in self.levels.items())
        ):
            return ()
        others, finest, size = (
            [],
            min(self.levels, key=mag_order),
            base.base_lengths_nm,
        )
        transforms = {name: level.transform for name, level in self.stored}
        for mag, (name, offset) in self.levels.items():
            self._root.check(f"{self.folder}/{name}", name)
            self._root.check_documents(f"{self.folder}/{name}")
            before = LevelGeometry(
                Mag.parse(finest.step_to(mag)),
                offset,
                None if size is None else lengths_in(finest, size),
            )
            after, transform = replace(base, mag=mag, offset=offset), transforms.get(name)
            if transform is not None and not any(
                transform.is_close(geometry.placement) for geometry in (before, after)
            ):
                raise UnsupportedError(
                    f"{self.folder}/{name}/{FILE_NAME}: transform places voxels off the grid of "
                    "the finest level, and a level before it would change them; "
                    "copy() writes an image on the grid"
                )
            others.append((name, names[mag], after))
        return tuple(sorted(others, key=lambda other: level_number(other[0]) or 0))

    # In a setup of BigDataViewer, one list states the factors of levels by their numbers, for all
    # time points.

    @property
    def _setup(self) -> str | None:
        """Folder of the setup if other time points share its list, else None."""
        setup = None if self.group is None else setup_of(self.group)
        return setup if setup is not None and other_time_points(str(self.group)) else None

    def _names_in_setup(self, mags: Sequence[Mag]) -> dict[Mag, str]:
        """Return the names of all levels beside new ones: those of the list of the setup, and the
        next ones."""
        listed, axes = (
            setup_factors(str(self._setup)),
            next((level.names for _, level in self.stored), ("x", "y", "z")),
        )
        names = {mag: name for mag, (name, _) in self.levels.items()}
        free = max(
            [
                len(listed),
                *(number + 1 for number in map(level_number, self.stated) if number is not None),
            ]
        )
        for mag in sorted(set(mags) - names.keys(), key=mag_order):
            factors = replace(self._base([]), mag=mag).factors(axes)
            names[mag] = f"s{listed.index(factors) if factors in listed else free}"
            free += factors not in listed
        return names

    def _check_setup(self, edit: N5Edit, axes: Sequence[Sequence[str]]) -> None:
        """Raise UnsupportedError if the list of a setup would state other factors than those of a
        level."""
        if self._setup is None:
            return
        listed, new = (
            setup_factors(self._setup),
            [
                (name, geometry.factors(names))
                for (name, geometry), names in zip(edit.levels, axes, strict=True)
            ],
        )
        together = [
            (f"s{n}", LevelGeometry(self._relative_mag(mag), (0, 0, 0), None).factors(axes[0]))
            for n, mag in enumerate(self.destination.all_mags)
        ]
        taken = {
            name
            for mag, (name, _) in self.levels.items()
            if mag not in {geometry.mag for _, geometry in edit.levels}
        }
        others = [(name, geometry.factors(axes[0])) for _, name, geometry in edit.others]
        for n, (name, factors) in enumerate([*new, *together, *others]):
            number = level_number(name) or 0
            if (n < len(new) and name in taken) or not (
                listed[number] == factors
                if number < len(listed)
                else is_coarser(factors, listed[-1])
            ):
                raise UnsupportedError(
                    f"{self.group}/{name}: would have the factors {factors}, but "
                    f"{self._setup}/{FILE_NAME} lists {listed} for s0, s1... of all time points; "
                    "write levels of these factors (mags=) or coarser ones, or copy() the image "
                    "out of the setup"
                )

    def _check_mags(self, mags: Sequence[Mag], new_names: Sequence[str]) -> None:
        """Raise ExistsError if a level beside the finest one would have the mag of another
        level."""
        finest = None if self.levels else self._remaining_finest(new_names)
        if finest is None:
            return
        ratios = ratios_to(finest, [level for _, level in self.stored])
        for (name, _), ratio in zip(self.stored, ratios, strict=True):
            if name not in new_names and (mag := mag_from_ratio(ratio)) in mags:
                raise ExistsError(
                    f"{self.group}: {name} is mag {mag} already; mag= states the mag of a new "
                    "level beside it"
                )

    def _shift_warnings(
        self, specs: Sequence[LevelSpec], new_names: Sequence[str]
    ) -> Iterator[Warning]:
        """Yield a warning for each added level that other software shows elsewhere: it lets all
        levels start where the finest one does."""
        finest = self._remaining_finest(new_names)
        if self.levels:
            base, first = min(
                ((mag, offset) for mag, (_, offset) in self.levels.items()),
                key=lambda level: mag_order(level[0]),
            )
        elif self.destination.levels:
            base, first = self.destination.levels[0].box.mag, self.destination.levels[0].box.topleft
        elif finest is not None:
            base, first = MAG_1, finest.geometry(finest, (1.0, 1.0, 1.0)).offset
        else:
            return
        if self._is_placed_by_transforms:
            return
        for name, spec in zip(new_names, specs, strict=True):
            mag = spec.box.mag
            is_stored_again = bool(self.levels) and spec.is_copy
            if is_stored_again or not is_multiple(mag.factors, base.factors):
                continue
            step = base.step_to(mag)
            start = times(spec.box.topleft, step)
            shift = minus(first, start)
            if any(shift):
                yield MetadataWarning(
                    f"{self.group}/{name}: other software shows mag {mag} shifted by {shift} "
                    f"voxels of mag {base}: it lets all levels start at one place, but "
                    f"mag {base} starts at {first}, and mag {mag} at {start}. Give the image an "
                    "offset that is a multiple of the factors of its coarsest mag, "
                    "or write OME-NGFF or WKW"
                )

    @property
    def _is_placed_by_transforms(self) -> bool:
        """Whether other software places all levels of the group by their transforms, since nothing
        else describes them."""
        if (
            self.group is None
            or not self.stored
            or not all(level.transform for _, level in self.stored)
        ):
            return False
        store = store_at(self.group)
        attributes = group_attributes(store, read_attributes(store) or {})
        return not has_lists(attributes) and "axes" not in attributes

    def _axes(self, spec: LevelSpec, new_names: Sequence[str]) -> tuple[str, ...]:
        """Return the axis names of a new dataset, x first: those of the other levels, and the axes
        that these lack."""
        names = next(
            (level.names for name, level in self.stored if name not in new_names or self.levels),
            ("x", "y", "z"),
        )
        letters = list(map(axis_letter, names))
        lengths = dict(zip("xyzc", (*spec.box.size, spec.num_channels), strict=True))
        starts = dict(zip("xyz", spec.box.topleft, strict=True))
        return *names, *(
            letter
            for letter in "xyzc"
            if letter not in letters and (lengths[letter] > 1 or starts.get(letter))
        )

    @property
    def _states_own_sizes(self) -> bool:
        """Whether the existing levels state own resolutions, and no factors."""
        return bool(self.stored) and all(level.states_own_size for _, level in self.stored)

    def unchanged_levels_note(self, existing: str) -> str:
        del existing
        return (
            f"existing other levels are not changed: {', '.join(self.others)}"
            if self.others
            else ""
        )

    def _relative_mag(self, mag: Mag) -> Mag:
        """Return a mag relative to the finest mag of the group."""
        finest = self.destination.all_mags[0] if self.destination.all_mags else MAG_1
        if not is_multiple(mag.factors, finest.factors):
            raise MissingError(
                f"{self.folder}: mag {mag} is not a multiple of mag {finest} along all axes; mag= "
                "selects other mags"
            )
        return Mag.parse(finest.step_to(mag))

    def _base(self, new_names: Sequence[str]) -> LevelGeometry:
        """Return the geometry of the finest level, to which new ones are relative."""
        lengths, finest = _base_voxel_size(self.destination), self._remaining_finest(new_names)
        if finest is None:
            return LevelGeometry(
                MAG_1,
                (0, 0, 0),
                lengths
                or (
                    None
                    if self.group is None
                    else _stored_voxel_size(self.group, new_names[0], self.stored)
                ),
            )
        lengths = lengths or finest.lengths_nm
        return LevelGeometry(
            MAG_1, (0, 0, 0), lengths, finest.factors or (1.0, 1.0, 1.0), finest.origin_in(lengths)
        )

    def _remaining_finest(self, new_names: Sequence[str]) -> LevelMetadata | None:
        """Return the finest existing level if new ones are relative to it."""
        if self.levels:
            return (
                None if MAG_1 not in self.levels else dict(self.stored).get(self.levels[MAG_1][0])
            )
        if not self.stored or self.destination.all_mags:
            return None
        name, finest = self.stored[0]
        number = level_number(name) or 0
        return finest if all((level_number(new) or 0) > number for new in new_names) else None


@dataclass(frozen=True, slots=True)
class DatasetTarget(TargetFolder):
    """Single dataset that is stored again with other blocks or compression; shape, type, axes and
    attributes stay."""

    prefix: ClassVar[str] = PREFIX

    def new_levels(
        self,
        specs: Sequence[LevelSpec],
        options: N5Options,
        like: Volume | None = None,
        existing: str = "error",
    ) -> NewLevels:
        del existing
        spec = specs[0]
        if (
            not isinstance(like, StoredArray)
            or not isinstance(like.codec, N5Codec)
            or [each.box.mag for each in specs] != [like.mag]
        ):
            raise UnsupportedError(
                f"{self.folder}: is a single N5 dataset, and levels need a group: write it as "
                f"{self.folder}/s0"
            )
        axes, before, chosen = (
            like.codec.axes,
            dataset_of(like),
            choose_dataset(spec, options, like),
        )
        lengths = {
            **dict(zip("xyz", chosen.block_size, strict=False)),
            "c": spec.num_channels,
            "-": 1,
        }
        dataset = replace(
            chosen,
            dimensions=before.dimensions,
            block_size=tuple(lengths[letter] for letter in axes),
        )
        document = {
            key: value for key, value in before.document.items() if key != "compressionType"
        } | dataset.to_json()
        store = open_store(self.folder)
        array = n5_array(
            store, replace(dataset, document=document), axes, like.mag, is_new=True
        ).moved(like.origin)
        target = TargetArray(array, store, ((FILE_NAME, format_json(document).encode()),))
        return NewLevels(
            dirname(self.folder),
            (self.folder,),
            (target,),
            {"dataset": dataset.to_json()},
            stored_as=_describe(dataset),
        )


def _describe(dataset: N5Dataset) -> str:
    return (
        f"{dataset.compression.type}, blocks of {' x '.join(map(str, dataset.block_size[:3]))} "
        "voxels, each a file"
    )


def _base_voxel_size(destination: Destination) -> Lengths | None:
    size = destination.required_voxel_size_nm or destination.source_voxel_size_nm
    return (
        size
        if size is None or not destination.all_mags
        else lengths_in(destination.all_mags[0], size)
    )


def choose_dataset(
    spec: LevelSpec,
    stored: N5Options,
    like: Volume | None,
    names: Sequence[str] = ("x", "y", "z", "c"),
) -> N5Dataset:
    """Choose the storage of a new dataset; missing options are those of ``like`` if it is N5."""
    like_dataset = (
        like.identity.dataset
        if isinstance(like, StoredArray) and isinstance(like.identity, N5Description)
        else None
    )
    compression = (
        None
        if like_dataset is None or stored.compression is not None or stored.level is not None
        else like_dataset.compression
    )
    options: Any = stored
    if like_dataset is not None and like is not None:
        options = replace(stored, chunk_shape=stored.chunk_shape or like.chunk_shape)
    options = options.with_defaults()
    native = np.dtype(spec.dtype).newbyteorder("=")
    if native.name not in DTYPES:
        hint = {"bool": "uint8", "float16": "float32"}.get(native.name)
        advice = f'cast with .astype("{hint}")' if hint else "cast to one of these"
        raise TypeError(
            f"N5 has no type for {native.name}; it stores {', '.join(DTYPES)}: {advice}"
        )
    block: Vec3 = options.chunk_shape
    sizes = (
        dict(zip("xyzc", (*lengths, spec.num_channels), strict=True))
        for lengths in (spec.box.size, block)
    )
    dimensions, block_size = (
        tuple(size.get(letter, 1) for letter in map(axis_letter, names)) for size in sizes
    )
    dataset = N5Dataset(
        dimensions,
        block_size,
        native,
        compression or make_compression(options.compression, options.level),
    )
    if max(block) > _MAX_BLOCK_LEN or dataset.block_nbytes > MAX_BLOCK_NBYTES:
        raise ValueError(
            f"chunk_shape must be three lengths of a block of at most {MAX_BLOCK_NBYTES} bytes, "
            f"got {block} of {native.name}"
        )
    return dataset


def n5_target(destination: Destination) -> N5Target:
    """Return the target of a dataset: the named folder, or a level in it if the levels of an image
    are written."""
    folder = _local_folder(destination.url, allow_external=destination.allow_external)
    if (
        destination.names_image
        and not destination.all_mags
        and destination.mag not in (None, MAG_1)
    ):
        raise ValueError(f"{destination.url} gets its finest level of images: mag= is not for it")
    if not destination.names_image:
        return _target_in(folder, destination, ())
    number = destination.all_mags.index(destination.mag or MAG_1) if destination.all_mags else 0
    return _target_in(f"{folder}/s{number}", destination, tuple(_other_levels(folder, destination)))


def target_beside(image: Image) -> N5Target:
    """Return an existing group as the target of levels that are computed from one of its levels."""
    levels = {
        level.mag: (level.key, level.open().origin)
        for level in image.levels
        if level.mag is not None and not level.problem
    }
    destination = Destination(
        PREFIX + image.folder,
        source_voxel_size_nm=image.voxel_size_nm,
        allow_external=image.allow_external,
    )
    target = _target_in(
        f"{_local_folder(image.folder, allow_external=image.allow_external)}/s0", destination, ()
    )
    return replace(
        target,
        folder=dirname(target.folder),
        levels=levels,
        stated=tuple(level.key for level in image.levels),
    )


def _target_in(folder: str, destination: Destination, others: tuple[str, ...]) -> N5Target:
    """Return the target of a dataset folder, after checks of the folder and all folders above
    it."""
    is_level = level_number(basename(folder)) is not None
    for path in (folder, dirname(folder)) if is_level else (folder,):
        if contains_wkw(path):
            raise ExistsError(f"{path}: holds WKW data; write N5 to another folder")
    above, root = dirname(folder), None
    while dirname(above) != above:
        document = read_attributes(store_at(above))
        if document is not None and is_dataset(document):
            raise ExistsError(f"{folder}: lies inside the N5 dataset {above}, among its blocks")
        if root is None and ((document is not None and "n5" in document) or above.endswith(".n5")):
            root = above
        above = dirname(above)
    group = dirname(folder) if is_level and (root is None or root != folder) else None
    return N5Target(
        folder,
        destination,
        root or group or folder,
        group,
        others,
        stored=() if group is None else _stored_levels(group),
    )


def _stored_levels(group: str) -> tuple[tuple[str, LevelMetadata], ...]:
    """Return the readable levels of a group, finest first."""
    levels = list(group_levels(store_at(group)))
    return tuple(levels[n] for n in finest_first(level_sizes([level for _, level in levels])))


def _local_folder(url: str, *, allow_external: bool = False) -> str:
    text = stripped(url)
    location = target_path(text)
    name = basename(location) if level_number(basename(location)) is not None else None
    group = location if name is None else dirname(location)
    check_links_to(location, outermost_group(group), allow_external, f"{group}/{FILE_NAME}", name)
    check_list_of_setup(group)
    return by_path.real_target(location)


def _stored_voxel_size(
    group: str, name: str, stored: Sequence[tuple[str, LevelMetadata]]
) -> Lengths | None:
    """Return the voxel size that a group states for a level, which may be missing, or None."""
    level = dict(stored).get(name)
    store = store_at(group)
    return (
        stated_lengths_nm(group_attributes(store, read_attributes(store) or {}), "xyz")
        if level is None
        else level.lengths_nm
    )


def _other_levels(group: str, destination: Destination) -> list[str]:
    """Return the existing levels of a group that a write to its first levels does not replace;
    raises ExistsError if their voxel size differs."""
    numbers = (
        [number for number in map(level_number, store_at(group).names()) if number is not None]
        if store_at(group).is_folder()
        else []
    )
    others = [
        f"s{number}"
        for number in sorted(numbers)
        if number >= max(1, len(destination.all_mags))
        and store_at(group).is_file(f"s{number}/{FILE_NAME}")
    ]
    stored_lengths = _stored_voxel_size(group, "s0", _stored_levels(group)) if others else None
    lengths = _base_voxel_size(destination)
    if (
        others
        and not (stored_lengths is None and lengths is None)
        and (
            stored_lengths is None
            or lengths is None
            or not np.allclose(stored_lengths, lengths, rtol=1e-6)
        )
    ):
        what = (
            f"holds {', '.join(others)} too, for a voxel size of {stored_lengths} nm in s0, got "
            f"{lengths} nm"
        )
        raise ExistsError(f"{group}: {what}: choose another group, or remove this one first")
    return others
