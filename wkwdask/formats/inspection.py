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
from wkwdask.store.paths import basename, dirname, is_remote
from wkwdask.store.records import read_file_record
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from wkwdask.formats.level_folders import LevelFolders
    from wkwdask.formats.repair import DocumentRepair, LevelRepair, RepairOptions
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.faults import Findings
    from wkwdask.model.image import Container, Image, Level, ResolvedUrl
    from wkwdask.model.naming import ListedFile
    from wkwdask.model.stored_array import StoredArray

_GROUP_NBYTES = 256 << 20  # bytes of voxels of the files of one task: less than a second of work
_LARGEST_GROUP = 4096  # files of one task
_OF_SHARDS = ("pyramid.differs", "file.size_changed")  # kinds of faults of all files of a shard


class FileCheck(Protocol):
    """Check of the files of one level; picklable."""

    @property
    def folder(self) -> str:
        """Folder of the level."""

    def check_files(self, files: Sequence[Any]) -> Findings:
        """Check several files, given as :meth:`LevelScope.files` lists them."""


class LevelScope(Protocol):
    """One level to check."""

    layer: str
    """Name of its image."""
    mag: Mag | None
    folder: str
    box: BoundingBox | None
    """Bounding box that a document states [voxels of the mag]."""
    method: str | None
    """Usual downsampling method for such a level, None if unknown."""
    document: str
    """File without which the level cannot be opened."""
    stated: str | None
    """Name by which a document lists the level, None if none does."""

    @property
    def name(self) -> str:
        """Name in reports."""
        return "" if self.mag is None else self.mag.name

    @property
    def key(self) -> str:
        """Key that is unique among all levels of a scope."""
        return f"{self.folder} {self.name}"

    def files(self) -> Sequence[Any]:
        """List the stored files."""

    def check(self, *, decode: bool) -> FileCheck | None:
        """Return the check of its files, None if their expected content is unknown; with
        ``decode``, all chunks are decoded."""

    def files_per_task(self) -> int:
        """Return how many files one task checks."""

    def changed_sizes(self, broken: AbstractSet[str]) -> Iterator[Fault]:
        """Yield the faults of files, except broken ones, whose size differs from that in the record
        of the job that wrote them."""
        del broken
        return iter(())

    # --------------------------------------------------------------------------------------------
    # comparison of mags

    @property
    def can_be_read(self) -> bool:
        """Whether the level has files, or lost them, and their layout is known."""

    @property
    def can_be_written(self) -> bool:
        """Whether its files can be computed again and written."""
        return True

    def volume(self) -> Any:
        """Open the level in absolute voxels, even if its files are broken."""

    def shards(self) -> list[Vec3]:
        """List the stored shards, counted from the origin of the volume."""

    def paths_of(self, shard: Vec3) -> list[str]:
        """Return the paths of all files of a completely stored shard."""

    def target(self, box: BoundingBox, staging_folder: str, folder: str | None = None) -> Any:
        """Return the array that rewrites single shards, in place or in another folder; ``box`` is
        relative to the origin of the grid."""

    def broken_shards(self, faults: Mapping[str, Sequence[Fault]]) -> dict[Vec3, list[Fault]]:
        """Group faults of files, given by path, by the shards that they affect."""

    # --------------------------------------------------------------------------------------------
    # repair

    @property
    def absent_value(self) -> str:
        """Value of the voxels of a missing file, for people."""
        return "ZEROS"

    def files_of(self, shard: Vec3) -> list[Any]:
        """List the existing files of a shard, in the form that :meth:`FileCheck.check_files`
        accepts."""

    def state_of(self, shard: Vec3) -> tuple[int, int]:
        """Return size and modification time of a shard, or size and digest of a group of files, as
        file records have them; zeros if it is absent."""

    def repairer(self) -> LevelRepair | None:
        """Return the repair of broken shards from their intact chunks, None if there is no such
        repair."""
        return None

    def document_faults(self, faults: Sequence[Fault]) -> list[Fault]:
        """Return the faults that a new document repairs."""
        return []

    def repaired_document(self, faults: Sequence[Fault]) -> tuple[bytes, str] | None:
        """Return a new document and a note on its origin, None if its content cannot be derived."""
        return None

    def is_as_checked(self, *, is_document_good: bool) -> bool:
        """Return whether its documents have not changed since the check, in which they were valid
        if ``is_document_good``."""


@dataclass(frozen=True)
class LayerScope:
    """One image to check."""

    name: str
    folder: str
    mags: tuple[Any, ...]
    """Levels, finest first."""


@dataclass(frozen=True)
class Scope:
    """Everything to check."""

    path: str
    """Path or URL that the user named."""
    layers: tuple[Any, ...]
    faults: list[Fault] = field(default_factory=list)
    """All faults except those of the contents of data files."""
    job_folders: tuple[tuple[str, bool], ...] = ()
    """Folders that may contain job folders, and whether levels lie directly in them."""
    root: Root = NO_ROOT
    """Folder outside of which files may belong to somebody else."""
    repair_documents: Callable[[Any, Mapping[str, Findings], RepairOptions], DocumentRepair] = (
        repair_no_documents
    )
    """Returns the repair of the documents of this scope, by the findings of the files at the keys
    of their levels."""

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


# ------------------------------------------------------------------------------------------------
# stored arrays


@dataclass(frozen=True)
class ArrayScope(LevelScope):
    """Level that is a stored array."""

    layer: str
    level: Level
    array: StoredArray
    """Array in absolute voxels."""
    method: str | None
    document: str

    @property
    def mag(self) -> Mag | None:  # type: ignore[override]
        return self.level.mag

    @property
    def folder(self) -> str:  # type: ignore[override]
        return self.array.folder

    @property
    def stated(self) -> str | None:  # type: ignore[override]
        return self.level.stated

    @property
    def box(self) -> BoundingBox:  # type: ignore[override]
        return self.array.box

    @property
    def voxel_type(self) -> tuple[np.dtype[Any], int]:
        """Type and number of channels."""
        return self.array.dtype, self.array.num_channels

    @property
    def name(self) -> str:
        """Mag, or key if it has none."""
        return self.level.key if self.mag is None else self.mag.name

    def _listed(self) -> list[ListedFile]:
        naming = self.array.naming
        c, x, y, z = map(range, self.array.grid.file_counts)
        return [] if naming is None else list(naming.list_files(self.array.store, (c, x, y, z)))

    def files(self) -> Sequence[Any]:
        return sorted((listed.file, listed.variant) for listed in self._listed())

    def check(self, *, decode: bool) -> ArrayCheck:
        return ArrayCheck(
            without_listing(self.array),
            decode,
            self._find_largest(decode=decode),
            self._lost if decode else frozenset(),
        )

    def _find_largest(self, *, decode: bool) -> bool:
        return decode and self.array.dtype.kind in "iu" and self.array.dtype.itemsize >= 4

    def files_per_task(self) -> int:
        grid = self.array.grid
        return max(
            1,
            min(
                _LARGEST_GROUP,
                _GROUP_NBYTES // (math.prod(grid.file or grid.chunk) * self.array.dtype.itemsize),
            ),
        )

    @property
    def can_be_read(self) -> bool:
        """Whether the array has or had files, each with a box of chunks."""
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

    def volume(self) -> StoredArray:
        return self.array

    def shards(self) -> list[Vec3]:
        """List the stored shards, counted from the array's first voxel."""
        return [(x, y, z) for x, y, z, *_ in self._relative_array().files.stored_states().tolist()]

    def _relative_array(self) -> StoredArray:
        return relative_to(self.array, self.array.origin)

    def paths_of(self, shard: Vec3) -> list[str]:
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

    def target(
        self, box: BoundingBox, staging_folder: str, folder: str | None = None
    ) -> TargetArray:
        del box
        array = self.array if folder is None else self.array.at(self.array.store.at(folder))
        return TargetArray(array, self.array.store.at(staging_folder), is_in_place=True)

    @property
    def absent_value(self) -> str:
        return f"{self.array.fill:g}" if self.array.fill else "ZEROS"

    def files_of(self, shard: Vec3) -> list[Any]:
        paths = set(self.paths_of(shard))
        return [
            (listed.file, listed.variant) for listed in self._listed() if listed.entry.path in paths
        ]

    def state_of(self, shard: Vec3) -> tuple[int, int]:
        return self._relative_array().files.group_state(shard)[1:]

    def repairer(self) -> LevelRepair | None:
        layout = self.array.layout
        return (
            ArrayRepair(self.check(decode=True))
            if isinstance(layout, (SingleFiles, RewritableShards))
            else None
        )

    def is_as_checked(self, *, is_document_good: bool) -> bool:
        return is_document_good and self.array.is_current()

    def broken_shards(self, faults: Mapping[str, Sequence[Fault]]) -> dict[Vec3, list[Fault]]:
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
        for listed in self._listed():
            if listed.entry.path in faults:
                x, y, z = (
                    n * edge // unit
                    for n, edge, unit in zip(
                        listed.file[1:], (grid.file or grid.size)[1:], grid.unit, strict=True
                    )
                )
                known = by_shard.setdefault((x, y, z), [])
                known += [fault for fault in faults[listed.entry.path] if fault not in known]
        for shard, fault in self._lost_files().items():
            known = by_shard.get(shard, [])
            if fault in faults.get(fault.path, ()) and fault not in known:
                by_shard[shard] = [*known, fault]
        return {shard: shard_faults for shard, shard_faults in by_shard.items() if shard_faults}

    def _lost_files(self) -> dict[Vec3, Fault]:
        """Return a fault for each shard with lost files, by the record of the job that wrote the
        level."""
        array, faults = self._relative_array(), {}
        for shard, (found, nbytes) in self._other_sizes.items():
            if found is None or (found < nbytes and self._has_lost_files(shard)):
                what = (
                    "no such file" if found is None else f"{found} bytes in the files of its group"
                )
                faults[shard] = Fault(
                    "file.lost",
                    array.files.shard_path(shard),
                    what,
                    f"{nbytes} bytes, as they were written",
                )
        return faults

    @cached_property
    def _other_sizes(self) -> dict[Vec3, tuple[int | None, int]]:
        """Return the shards whose size differs from that in the record: the stored size, None if no
        file exists, and the recorded one [bytes]."""
        record = read_file_record(self.folder) if self.array.files.can_list else None
        if record is None:
            return {}
        sizes = {
            (x, y, z): nbytes
            for x, y, z, nbytes, _ in self._relative_array().files.stored_states().tolist()
        }
        recorded = {
            (x, y, z): nbytes for x, y, z, nbytes, _, _ in record[record[:, 3] > 0].tolist()
        }
        return {
            shard: (sizes.get(shard), nbytes)
            for shard, nbytes in recorded.items()
            if sizes.get(shard) != nbytes
        }

    def changed_sizes(self, broken: AbstractSet[str]) -> Iterator[Fault]:
        try:
            others, lost = self._other_sizes, self._lost
        except (CorruptError, OSError):  # named by record_faults
            return
        array = self._relative_array()
        for shard, (found, nbytes) in others.items():
            if shard not in lost and broken.isdisjoint(self.paths_of(shard)):
                files_of_group = (
                    "" if array.files.has_single_file_shards else " in the files of its group"
                )
                voxel = plus(times(shard, self.array.shard_shape), self.array.origin)
                yield Fault(
                    "file.size_changed",
                    array.files.shard_path(shard),
                    f"{found} bytes{files_of_group}",
                    f"{nbytes} when it was written",
                    voxel=voxel,
                )

    def _has_lost_files(self, shard: Vec3) -> bool:
        """Return whether files are gone from a group that is smaller than recorded."""
        array = self._relative_array()
        (recorded,), stored = (
            array.store.states([FILE_RECORD_NAME]),
            array.files.states_of_shard(shard),
        )
        # A file that other software wrote is newer than the record. Entries that are no files have
        # faults of their own.
        is_older = recorded is not None and all(
            state.mtime_ns <= recorded.mtime_ns for _, state in stored
        )
        return (
            is_older
            and not array.files.has_single_file_shards
            and len(array.files.files_of_shard(shard)) == len(stored)
        )

    @cached_property
    def _lost(self) -> frozenset[Vec3]:
        """Return the shards with lost files; none if the record is damaged."""
        try:
            return frozenset(self._lost_files())
        except (CorruptError, OSError):
            return frozenset()

    def record_faults(self) -> Iterator[Fault]:
        """Yield the faults of files that the job that wrote the level recorded."""
        try:
            yield from self._lost_files().values()
        except (CorruptError, OSError) as error:
            yield Fault(
                "record.broken",
                f"{self.folder}/{FILE_RECORD_NAME}",
                str(error).removeprefix(f"{self.folder}/{FILE_RECORD_NAME}: "),
            )

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
        listed = {file.entry.path for file in self._listed()}
        if not listed:
            yield Fault("mag.empty", self.folder, "0 files")
        yield from self.record_faults()
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


class InspectedFormat(Protocol):
    """Knowledge of a format about its documents, see
    :class:`wkwdask.formats.format.ArrayFormat`."""

    documents: ClassVar[tuple[str, ...]]
    container: ClassVar[Container]
    level_folders: ClassVar[LevelFolders]

    def document_faults(self, folder: str) -> Iterable[Fault]: ...


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
        opened = [
            array_scope(image, level, method, fmt.level_folders.record_of(level.folder), faults)
            for level in levels
        ]
        scopes = [scope for scope in opened if scope is not None]
        for scope in scopes:
            faults += scope.faults((*fmt.container.image_files, *fmt.documents))
        faults += contradictions(scopes)
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


def array_scope(
    image: Image, level: Level, method: str | None, document: str | None, faults: list[Fault]
) -> ArrayScope | None:
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
    return ArrayScope(
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


def contradictions(scopes: Sequence[ArrayScope]) -> Iterator[Fault]:
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
