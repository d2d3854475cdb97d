"""Scope of verify: levels of images, checks of their files, and faults of documents, folders and
file names. Never writes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from wkwdask.errors import CorruptError, FormatError, MissingError, UnsupportedError
from wkwdask.formats.array_check import ArrayCheck
from wkwdask.formats.array_repair import ArrayRepair
from wkwdask.formats.leftovers import leftovers_in, temporary_fault
from wkwdask.formats.repair import repair_no_documents
from wkwdask.formats.roots import NO_ROOT, Root, root_of
from wkwdask.geometry.vectors import divide, minus, plus, times
from wkwdask.kernels.window.reduce import BOOL_METHOD
from wkwdask.model.faults import Fault, FaultList
from wkwdask.model.layout import RewritableShards, SingleFiles
from wkwdask.model.naming import GridNaming
from wkwdask.model.states import FILE_RECORD_NAME
from wkwdask.model.stored_array import with_listing, without_listing
from wkwdask.model.volume import relative_to
from wkwdask.model.writing.target_array import TargetArray
from wkwdask.store.locks import locks_of
from wkwdask.store.paths import basename, dirname, is_remote
from wkwdask.store.records import read_file_record
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from wkwdask.formats.level_folders import LevelFolders
    from wkwdask.formats.repair import DocumentRepair, RepairOptions
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.chunk_grid import Vec4
    from wkwdask.model.faults import Findings
    from wkwdask.model.image import Container, Image, Level, ResolvedUrl
    from wkwdask.model.stored_array import StoredArray

_GROUP_NBYTES = 256 << 20  # bytes of voxels of the files of one task: less than a second of work
_LARGEST_GROUP = 4096  # files of one task
_OF_SHARDS = ("pyramid.differs", "file.size_changed")  # kinds of faults of all files of a shard


@dataclass(frozen=True)
class LevelScope:
    """One level to check."""

    layer: str
    """Name of its image."""
    level: Level
    array: StoredArray
    """Array in absolute voxels, which opens even if files are broken."""
    method: str | None
    """Usual downsampling method for such a level, None if unknown."""
    document: str
    """File without which the level cannot be opened."""
    recorded_size: ClassVar[str] = "{} bytes, as they were written"
    """Expected size in faults of lost files."""

    @property
    def mag(self) -> Mag | None:
        return self.level.mag

    @property
    def folder(self) -> str:
        return self.array.folder

    @property
    def stated(self) -> str | None:
        """Name by which a document lists the level, None if none does."""
        return self.level.stated

    @property
    def box(self) -> BoundingBox | None:
        """Bounding box that a document states [voxels of the mag]."""
        return self.array.box

    @property
    def voxel_type(self) -> tuple[np.dtype[Any], int] | None:
        """Type and number of channels, None if they are unknown."""
        return self.array.dtype, self.array.num_channels

    @property
    def name(self) -> str:
        """Name in reports: the mag, or the key if it has none."""
        return self.level.key if self.mag is None else self.mag.name

    @property
    def key(self) -> str:
        """Key that is unique among all levels of a scope."""
        return f"{self.folder} {self.name}"

    # --------------------------------------------------------------------------------------------
    # files

    def stored(self) -> Iterator[tuple[Vec4, int, str]]:
        """Yield index, variant and path of each stored file."""
        naming = self.array.naming
        c, x, y, z = map(range, self.array.grid.file_counts)
        for file, entry, variant in (
            () if naming is None else naming.list_files(self.array.store, (c, x, y, z))
        ):
            yield file, variant, entry.path

    def files(self) -> Sequence[tuple[Vec4, int]]:
        """List the stored files, as :meth:`ArrayCheck.check_files` accepts them."""
        return sorted((file, variant) for file, variant, _ in self.stored())

    def files_of(self, shard: Vec3) -> Sequence[tuple[Vec4, int]]:
        """List the existing files of a shard."""
        return self.array.files.files_of_shard(shard)

    def check(self, *, decode: bool) -> ArrayCheck | None:
        """Return the check of its files, None if their expected content is unknown; with
        ``decode``, all chunks are decoded."""
        return ArrayCheck(*self._check_fields(decode=decode))

    def _check_fields(self, *, decode: bool) -> tuple[StoredArray, bool, bool, frozenset[Vec3]]:
        return (
            without_listing(self.array),
            decode,
            decode and self.array.dtype.kind in "iu" and self.array.dtype.itemsize >= 4,
            self._lost if decode else frozenset(),
        )

    def files_per_task(self) -> int:
        """Return how many files one task checks."""
        grid = self.array.grid
        return max(
            1,
            min(
                _LARGEST_GROUP,
                _GROUP_NBYTES // (math.prod(grid.file or grid.chunk) * self.array.dtype.itemsize),
            ),
        )

    def shards(self) -> list[Vec3]:
        """List the stored shards, counted from the array's first voxel."""
        return list(self._stored_sizes())

    def _stored_sizes(self) -> dict[Vec3, int]:
        """Return the size of each stored shard [bytes]."""
        states = self._relative_array().files.stored_states()
        return {(x, y, z): nbytes for x, y, z, nbytes, _ in states.tolist()}

    def _relative_array(self) -> StoredArray:
        return relative_to(self.array, self.array.origin)

    def paths_of(self, shard: Vec3) -> list[str]:
        """Return the paths of all files of a completely stored shard."""
        naming, grid = self.array.naming, self.array.grid
        assert naming is not None
        axes = zip(
            shard, grid.unit, (grid.file or grid.size)[1:], grid.file_counts[1:], strict=True
        )
        x, y, z = (
            range(n * unit // edge, min(-(-(n + 1) * unit // edge), count))
            for n, unit, edge, count in axes
        )
        indices = (file for file, _ in naming.keys((range(grid.file_counts[0]), x, y, z)))
        return [self.array.store.path_of(name) for file in indices for name in naming.names(file)]

    def state_of(self, shard: Vec3) -> tuple[int, int]:
        """Return size and modification time of a shard, or size and digest of a group of files, as
        file records have them; zeros if it is absent."""
        return without_listing(self._relative_array()).files.group_state(shard)[1:]

    # --------------------------------------------------------------------------------------------
    # comparison of levels, and repair

    @property
    def can_be_read(self) -> bool:
        """Whether the level has files, or lost them, each with a box of chunks."""
        return self.array.grid.file is not None and (
            self.array.files.has_shards() or bool(self._lost)
        )

    @property
    def can_be_written(self) -> bool:
        """Whether its codec can encode, and an absent chunk reads as zeros."""
        try:
            self.array.codec.check_packages(self.folder)
        except (ModuleNotFoundError, UnsupportedError):
            return False
        return not self.array.fill

    def target(
        self, box: BoundingBox, staging_folder: str, folder: str | None = None
    ) -> TargetArray:
        """Return the array that rewrites single shards, in place or in another folder; ``box`` is
        relative to the origin of the grid."""
        del box
        array, store = without_listing(self.array), self.array.store
        array = array if folder is None else array.at(store.at(folder))
        return TargetArray(array, store.at(staging_folder), is_in_place=True)

    @property
    def absent_value(self) -> str:
        """Value of the voxels of a missing file, for people."""
        return f"{self.array.fill:g}" if self.array.fill else "ZEROS"

    def repairer(self) -> ArrayRepair | None:
        """Return the repair of broken shards from their intact chunks, None if there is no such
        repair."""
        check = self.check(decode=True)
        layout = self.array.layout
        return (
            ArrayRepair(check)
            if check is not None and isinstance(layout, (SingleFiles, RewritableShards))
            else None
        )

    def document_faults(self, faults: Sequence[Fault]) -> list[Fault]:
        """Return the faults that a new document repairs."""
        del faults
        return []

    def repaired_document(self, faults: Sequence[Fault]) -> tuple[bytes, str] | None:
        """Return a new document and a note on its origin, None if its content cannot be derived."""
        del faults
        return None

    def is_as_checked(self, *, is_document_good: bool) -> bool:
        """Return whether its documents have not changed since the check, in which they were valid
        if ``is_document_good``."""
        return is_document_good and self.array.is_current()

    def broken_shards(self, faults: Mapping[str, Sequence[Fault]]) -> dict[Vec3, list[Fault]]:
        """Group faults of files, given by path, by the shards that they affect."""
        grid = self.array.grid
        by_shard: dict[Vec3, list[Fault]] = {}
        for fault in chain.from_iterable(faults.values()):  # its first file may not exist
            shard = (
                None
                if fault.kind not in _OF_SHARDS or fault.voxel is None
                else divide(minus(fault.voxel, self.array.origin), grid.unit)
            )
            if shard is not None and fault.path == self._relative_array().files.shard_path(shard):
                by_shard.setdefault(shard, []).append(fault)
        for file, _, path in self.stored():
            if path in faults:
                x, y, z = (
                    n * edge // unit
                    for n, edge, unit in zip(
                        file[1:], (grid.file or grid.size)[1:], grid.unit, strict=True
                    )
                )
                known = by_shard.setdefault((x, y, z), [])
                known += [fault for fault in faults[path] if fault not in known]
        for shard, lost in self._lost_files().items():
            known = by_shard.setdefault(shard, [])
            known += [
                fault for fault in faults.get(lost.path, ()) if fault == lost and fault not in known
            ]
        return {shard: shard_faults for shard, shard_faults in by_shard.items() if shard_faults}

    def _lost_files(self) -> dict[Vec3, Fault]:
        """Return a fault for each shard with lost files, by the record of the job that wrote the
        level."""
        array, faults = self._relative_array(), {}
        for shard, (found, nbytes) in self._record[0].items():
            if found is None or (found < nbytes and self._has_lost_files(shard)):
                what = (
                    "no such file" if found is None else f"{found} bytes in the files of its group"
                )
                faults[shard] = Fault(
                    "file.lost",
                    array.files.shard_path(shard),
                    what,
                    self.recorded_size.format(nbytes),
                )
        return faults

    @cached_property
    def _record(self) -> tuple[dict[Vec3, tuple[int | None, int]], tuple[Fault, ...]]:
        """Return the shards whose size differs from that in the record: the stored size, None if no
        file exists, and the recorded one [bytes]; and the fault of a damaged record."""
        try:
            record = read_file_record(self.folder) if self.array.files.can_list else None
            sizes = {} if record is None else self._stored_sizes()
        except (CorruptError, OSError) as error:
            path = f"{self.folder}/{FILE_RECORD_NAME}"
            return {}, (Fault("record.broken", path, str(error).removeprefix(f"{path}: ")),)
        rows = [] if record is None else record[record[:, 3] > 0].tolist()
        recorded = {(x, y, z): nbytes for x, y, z, nbytes, _, _ in rows}
        differing = {
            shard: (sizes.get(shard), nbytes)
            for shard, nbytes in recorded.items()
            if sizes.get(shard) != nbytes
        }
        # the write of a region records its files when it ends; a web server lists no locks
        locks = locks_of(self.folder) if differing and self.array.store.can.writes else []
        regions = [lock.region for lock in locks if lock.region is not None]
        return {
            shard: each
            for shard, each in differing.items()
            if not any(region.contains(shard) for region in regions)
        }, ()

    def changed_sizes(self, broken: AbstractSet[str]) -> Iterator[Fault]:
        """Yield the faults of files, except broken ones, whose size differs from that in the record
        of the job that wrote them."""
        array = self._relative_array()
        for shard, (found, nbytes) in self._record[0].items():
            if shard not in self._lost and broken.isdisjoint(self.paths_of(shard)):
                files_of_group = (
                    "" if array.files.has_single_file_shards else " in the files of its group"
                )
                yield Fault(
                    "file.size_changed",
                    array.files.shard_path(shard),
                    f"{found} bytes{files_of_group}",
                    f"{nbytes} when it was written",
                    voxel=plus(times(shard, self.array.shard_shape), self.array.origin),
                )

    def _has_lost_files(self, shard: Vec3) -> bool:
        """Return whether files are gone from a group that is smaller than recorded."""
        array = self._relative_array()
        if array.files.has_single_file_shards or array.naming is None:
            return False
        stored = array.files.files_of_shard(shard)
        if len(array.files.states_of_shard(shard)) != len(stored):
            return False  # entries that are no files have other faults
        recorded = array.store.written_at(FILE_RECORD_NAME)
        times = (
            array.store.written_at(array.naming.names(file)[variant]) for file, variant in stored
        )
        # a file that other software wrote is newer than the record
        return recorded is not None and all(
            written is not None and written <= recorded for written in times
        )

    @cached_property
    def _lost(self) -> frozenset[Vec3]:
        """Return the shards with lost files; none if the record is damaged."""
        return frozenset(self._lost_files())

    def record_faults(self) -> Iterator[Fault]:
        """Yield the faults of the record of the job that wrote the level, and of lost files."""
        yield from self._record[1]
        yield from self._lost_files().values()

    def faults(self, known_names: Sequence[str]) -> Iterator[Fault]:
        """Yield faults of the folder: lost files, and unexpected names."""
        if store_at(self.folder).link_target() and not store_at(self.folder).exists():
            yield Fault(
                "folder.dangling",
                self.folder,
                f"a symbolic link to {store_at(self.folder).link_target()}",
                "a folder",
            )
            return
        listed = {path for *_, path in self.stored()}
        if not listed:
            yield Fault("mag.empty", self.folder, "0 files")
        yield from self.record_faults()
        yield from self.name_faults(listed, known_names)

    def name_faults(self, listed: AbstractSet[str], known_names: Sequence[str]) -> Iterator[Fault]:
        """Yield the faults of names in the folder that are neither those of listed files nor known
        ones."""
        strays = []
        for folder, _, names in store_at(self.folder).walk() if self.array.store.can.states else ():
            for name in sorted(names):
                path = f"{folder}/{name}"
                leftover = temporary_fault(path)
                if leftover is not None:
                    yield leftover
                elif (
                    path not in listed
                    and path != self.document
                    and not name.startswith(".")
                    and not (folder == self.folder and name in known_names)
                ):
                    strays.append(path)
        yield from self._stray_faults(strays, has_chunks=bool(listed))

    def _numbers_in(self, path: str) -> tuple[int, ...] | None:
        """Return the numbers in the name of a chunk or shard, inside or outside of the grid; None
        for another name."""
        naming = self.array.naming
        return (
            naming.parse(path[len(self.folder) + 1 :]) if isinstance(naming, GridNaming) else None
        )

    def _stray_faults(self, paths: Sequence[str], *, has_chunks: bool) -> Iterator[Fault]:
        """Yield the faults of files that no reader of the array requests."""
        naming, others, misnamed = self.array.naming, FaultList(), []
        for path in paths:
            if self._numbers_in(path) is not None:
                others.add(
                    Fault(
                        "chunk.outside",
                        path,
                        basename(path),
                        f"files of a grid of {self.array.grid.file_counts[1:]}",
                    )
                )
            elif isinstance(naming, GridNaming) and any(
                other.parse(path[len(self.folder) + 1 :]) is not None
                for other in _other_namings(naming)
            ):
                misnamed.append(path)
            else:
                others.add(Fault("name.stray", path, "a file"))
        if misnamed and naming is not None:
            found, expected = (
                misnamed[0][len(self.folder) + 1 :],
                f"names such as {naming.key((0, 0, 0, 0))}, as {basename(self.document)} states",
            )
            if has_chunks:
                others.add(
                    *(Fault("name.unread", path, basename(path), expected) for path in misnamed)
                )
            else:
                yield Fault(
                    "level.names",
                    self.document,
                    f"{len(misnamed)} files with names such as {found}",
                    expected,
                )
        yield from others.to_tuple()


@dataclass(frozen=True)
class LayerScope:
    """One image to check."""

    name: str
    folder: str
    mags: tuple[LevelScope, ...]
    """Levels, finest first."""


class FilesScope(Protocol):
    """Group of files to check: a level, or files that belong to an image and are no level."""

    @property
    def layer(self) -> str: ...
    @property
    def folder(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def key(self) -> str: ...
    def files(self) -> Sequence[Any]: ...
    def files_per_task(self) -> int: ...
    def check(self, *, decode: bool) -> FilesCheck | None: ...


class FilesCheck(Protocol):
    """Check of some files; picklable."""

    @property
    def folder(self) -> str: ...
    def check_files(self, files: Sequence[Any]) -> Findings: ...


@dataclass(frozen=True)
class Scope:
    """Everything to check."""

    path: str
    """Path or URL that the user named."""
    layers: tuple[LayerScope, ...]
    faults: list[Fault] = field(default_factory=list)
    """All faults except those of the contents of data files."""
    job_folders: tuple[tuple[str, bool], ...] = ()
    """Folders that may contain job folders, and whether levels lie directly in them."""
    root: Root = NO_ROOT
    """Files outside of this folder may belong to somebody else."""
    repair_documents: Callable[[Any, Mapping[str, Findings], RepairOptions], DocumentRepair] = (
        repair_no_documents
    )
    """Returns the repair of the documents of this scope, by the findings of the files at the keys
    of their levels."""
    others: tuple[FilesScope, ...] = ()
    """Files that are no level, such as meshes."""

    def is_inside(self, path: str) -> bool:
        """Return whether a file or folder belongs to the scope: documents and links can lead to
        files of others."""
        return self.root.outside(path) is None

    def copies(self, path: str, layer: Any) -> Iterator[tuple[Any, Any] | None]:
        """Yield pairs of an open level and its copy in a leftover folder; None if they cannot be
        compared."""
        del path, layer
        yield None

    def conclude(self, findings: Mapping[str, Findings]) -> Iterator[Fault]:
        """Yield faults of documents that contradict the contents of files; ``findings`` are those
        of the files, by the keys of their levels."""
        del findings
        return iter(())


class InspectedFormat(Protocol):
    """Knowledge of a format about its documents, see
    :class:`wkwdask.formats.format.ArrayFormat`."""

    documents: ClassVar[tuple[str, ...]]
    container: ClassVar[Container]
    level_folders: ClassVar[LevelFolders]

    def document_faults(self, folder: str) -> Iterable[Fault]: ...

    def level_scopes(
        self, image: Image, level: Level, method: str | None, faults: list[Fault]
    ) -> Sequence[LevelScope]: ...


def inspect_arrays(
    location: str, resolved: ResolvedUrl, mags: Sequence[Mag] | None, fmt: InspectedFormat
) -> Scope:
    """Return the scope of images whose levels are stored arrays."""
    faults: list[Fault] = []
    layers, folders = [], []
    is_whole = mags is None and not any(image.key for image in resolved.layers)
    for folder in (
        _groups_above([image.folder for image in resolved.layers], location) if is_whole else ()
    ):
        faults += [*fmt.document_faults(folder), *leftovers_in(folder)]
    for image in resolved.layers:
        if is_whole:
            faults += fmt.document_faults(image.folder)
        selected_mags = {level.mag for level in image.selected}
        for mag in mags or ():
            if mag not in selected_mags:
                raise MissingError(
                    f"{image.folder}: no mag {mag}; there are "
                    f"{', '.join(map(str, image.mags)) or 'none'}"
                )
        method = None if image.category is None else image.method_of(image.category)
        levels = [level for level in image.selected if mags is None or level.mag in mags]
        scopes = [
            scope for level in levels for scope in fmt.level_scopes(image, level, method, faults)
        ]
        faults += [*folder_faults(scopes, fmt), *contradictions(scopes)]
        is_alone = any(scope.folder == image.folder for scope in scopes)
        layers.append(
            LayerScope(
                image.name, dirname(image.folder) if is_alone else image.folder, tuple(scopes)
            )
        )
        if (
            image.key is None
            and mags is None
            and not is_remote(image.folder)
            and store_at(image.folder).is_folder()
        ):
            folders.append((image.folder, True))
            faults += leftovers_in(image.folder)
    return Scope(
        resolved.path,
        tuple(layers),
        faults,
        tuple(folders),
        root_of(resolved.layers[0]) if resolved.layers else NO_ROOT,
    )


def folder_faults(scopes: Sequence[LevelScope], fmt: InspectedFormat) -> Iterator[Fault]:
    """Yield the faults of the folders of the levels of an image."""
    for scope in scopes:
        yield from scope.faults((*fmt.container.image_files, *fmt.documents))


def array_scope(
    image: Image, level: Level, method: str | None, document: str | None, faults: list[Fault]
) -> LevelScope | None:
    """Return the scope of a level; None, with a fault, if it cannot be opened."""
    try:
        volume = level.open()
    except (FormatError, ModuleNotFoundError, OSError, UnsupportedError) as error:
        kinds = {
            MissingError: "level.missing",
            UnsupportedError: "level.unsupported",
            ModuleNotFoundError: "level.unsupported",
        }
        kind = next(
            (kind for error_type, kind in kinds.items() if isinstance(error, error_type)),
            "level.broken",
        )
        faults.append(Fault(kind, level.folder, str(error).removeprefix(f"{level.folder}: ")))
        return None
    if not volume.files.can_list:
        if volume.naming is None:
            raise UnsupportedError(
                f"{level.folder}: only zarr-python knows the names of its files, so it cannot be "
                "verified"
            )
        volume = with_listing(volume)
    return LevelScope(
        image.name,
        level,
        by_written_units(volume),
        BOOL_METHOD if volume.dtype == np.bool_ else method,
        document or level.folder,
    )


def _groups_above(folders: Sequence[str], location: str) -> list[str]:
    """Return the groups in which images lie, from the named location on."""
    above = set()
    for folder in folders:
        while folder.startswith(f"{location}/"):
            folder = dirname(folder)
            above.add(folder)
    return sorted(above.difference(folders))


def contradictions(scopes: Sequence[LevelScope]) -> Iterator[Fault]:
    """Yield the differences of levels from the finest one that an image does not allow."""
    for scope in scopes[1:]:
        first, array = scopes[0].array, scope.array
        if array.dtype != first.dtype:
            yield Fault(
                "level.dtype",
                scope.document,
                array.dtype.name,
                f"{first.dtype.name}, as in {scopes[0].folder}",
            )
        if array.num_channels != first.num_channels:
            yield Fault(
                "level.axes",
                scope.document,
                f"{array.num_channels} channels",
                f"{first.num_channels}, as in {scopes[0].folder}",
            )


def _other_namings(naming: GridNaming) -> Iterator[GridNaming]:
    """Yield the other naming schemes of software of the same format."""
    if not naming.is_lettered:
        for separator in "/.":
            yield from (
                replace(naming, prefix=prefix, separator=separator)
                for prefix in ("", f"c{separator}")
            )


def by_written_units(array: StoredArray) -> StoredArray:
    """Return a sharded array with each file as one shard, as tasks write them; readers group small
    files."""
    grid = array.grid
    return (
        replace(array, grid=replace(grid, unit=grid.file[1:]))
        if array.layout.is_sharded and grid.file is not None
        else array
    )
