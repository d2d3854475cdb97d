"""Planning of :func:`wkwdask.meshes`."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import FormatError, MissingError
from wkwdask.formats.mesh_folders import PROPERTIES_NAME, check_mesh_folder
from wkwdask.formats.precomputed.mesh_writer import choose_mesh_sharding
from wkwdask.formats.precomputed.meshes import (
    format_mesh_info,
    format_segment_properties,
    meshed_volume,
)
from wkwdask.formats.registry import formats, location_of
from wkwdask.formats.replaceable import replaces
from wkwdask.geometry.mag import real_number
from wkwdask.ids.id_map import saved_map
from wkwdask.ids.id_source import as_ids, is_id
from wkwdask.ids.remap_layer import note_on, open_id_source
from wkwdask.ids.survey import open_layer
from wkwdask.meshing.cell_file import CellFile
from wkwdask.meshing.grid import CellGrid
from wkwdask.meshing.label_tables import LabelRows, LabelTables, LevelLabels, SomeLabels
from wkwdask.meshing.shard_tasks import MeshFiles, batches, sort_job, write_job
from wkwdask.meshing.surface import SIMPLIFIERS, Simplifier, are_outside, check_packages, encode
from wkwdask.meshing.tasks import (
    MOST_FRAGMENT_FACES,
    Meshing,
    MeshJob,
    cells_to_mesh,
    join_job,
)
from wkwdask.model.levels import lengths_in
from wkwdask.model.placement import plain_name
from wkwdask.model.summary import counted, format_nbytes
from wkwdask.model.volume import voxel_nbytes
from wkwdask.runs.drive import Outcome, Phase, Plan
from wkwdask.runs.space import Need, Size
from wkwdask.runs.staged import settings_of, stage
from wkwdask.runs.staged_files import StagedFiles, staged_files
from wkwdask.store.by_path import temporary_folder
from wkwdask.store.paths import basename, dirname, local_path, target_path
from wkwdask.store.store import store_at
from wkwdask.verbs.sources import (
    box_setting,
    check_not_replaced,
    digest_of_cells,
    source_token,
    token_of,
    where_box,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.formats.format import MeshPlace
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.ids.id_source import IdSource
    from wkwdask.ids.survey import OpenedMag

    Ids = npt.NDArray[np.uint64]

_COMMAND = "meshes"
_MESH_FOLDER = "mesh"
_REPLACES = "replaces"
_MOST_IDS_NBYTES = 1 << 30  # of a file of ids
_SAMPLE, _SAMPLES = 64, 64  # edge [voxels] and number of small cells that an estimate meshes
_LARGE_SAMPLE = 128  # edge of cells that it simplifies
_MOST_CELL = 1000  # a limit of zmesh is 1023 voxels
_CELLS_PER_GROUP, _MOST_GROUPS = 8, 32
_MOST_NBYTES_PER_VOXEL = 64  # of meshes of noise
_FACE_NBYTES, _VOXEL_NBYTES = 100, 2  # memory of a raw face, and copies of labels
_BASE_NBYTES = 150 << 20


@dataclass(frozen=True, slots=True)
class MeshOptions:
    """Options of meshes."""

    lods: int | None = None
    """Most levels of detail; None until each label is in one cell."""
    error: float = 0.35
    reduction: float = 4
    cell: int = 128
    simplifier: str = SIMPLIFIERS[0]
    where: BoundingBox | Sequence[Sequence[int]] | None = None
    ids: str | os.PathLike[str] | Sequence[int] | None = None
    mapping: Any = None
    min_voxels: int = 0
    close: bool = True
    sharded: bool = True
    segment_properties: bool = False

    def check(self) -> None:
        """Raise an error for invalid options."""
        if self.simplifier not in SIMPLIFIERS:
            known = " or ".join(map(repr, SIMPLIFIERS))
            raise ValueError(f"simplifier must be {known}, got {self.simplifier!r}")
        if not 0 <= real_number(self.error, "error") < math.inf:
            raise ValueError(f"error must be a number of voxels, at least 0, got {self.error}")
        if not 1 <= real_number(self.reduction, "reduction") < math.inf:
            raise ValueError(f"reduction must be at least 1, got {self.reduction}")
        if not 2 <= self.cell <= _MOST_CELL:
            raise ValueError(f"cell must be from 2 to {_MOST_CELL} voxels, got {self.cell}")


@dataclass(frozen=True, slots=True)
class MeshPlan:
    """Plan of meshes that are not made."""

    path: str
    """Folder of the meshes."""
    voxels: int
    """Voxels of the box."""
    cells: int
    """Cells to mesh, each by one task."""
    cell_shape: tuple[int, int, int]
    """Shape of a cell [voxels]."""
    lods: int
    """Levels of detail of the largest labels, at most."""
    raw_faces: int
    """Estimated faces before simplification."""
    faces: int
    """Estimated faces of the finest level."""
    nbytes: int
    """Estimated size of the files [bytes]."""
    memory_nbytes: int
    """Estimated memory of one task [bytes]."""

    def __str__(self) -> str:
        shape = " x ".join(map(str, self.cell_shape))
        return (
            f"{self.path}: {counted(self.voxels, 'voxel')} in {counted(self.cells, 'cell')} of "
            f"{shape}, {counted(self.lods, 'level')} of detail; about {self.raw_faces:,} faces, "
            f"simplified to {self.faces:,} in the finest level, {format_nbytes(self.nbytes)} of "
            f"files, {format_nbytes(self.memory_nbytes)} for a task"
        )


@dataclass(frozen=True, slots=True)
class _Sample:
    """Estimated sums over all cells."""

    raw_faces: int = 0
    faces: int = 0
    nbytes: int = 0
    """Bytes of the fragments of all levels."""


@dataclass(slots=True)
class _Totals:
    """Sums over all cells."""

    simplifier: str
    labels: LevelLabels = field(default_factory=LevelLabels)
    """Labels of the finest level."""
    raw_faces: int = 0
    faces: tuple[int, ...] = ()
    """Faces of each level."""
    num_kept: int = 0
    """Surfaces that the library could not simplify."""
    ended: SomeLabels = field(default_factory=SomeLabels)
    """Labels whose levels end before they are in one cell."""
    cells: list[npt.NDArray[np.int64]] = field(default_factory=list)
    """Cells of each level: level, x, y, z."""
    fragments: list[npt.NDArray[np.int64]] = field(default_factory=list)
    """Number and bytes of the fragments of each of these cells."""

    def add(self, record: dict[str, Any]) -> None:
        """Count the surfaces of a cell in the last level."""
        self.raw_faces += record.get("raw", 0)
        self.num_kept += record["kept"]
        self.faces = (*self.faces[:-1], self.faces[-1] + record["faces"])

    def __str__(self) -> str:
        of_levels = ", ".join(f"{number:,}" for number in self.faces)
        parts = [
            f"{counted(self.labels.num_meshed, 'label')}; {self.raw_faces:,} faces, simplified to "
            f"{of_levels or 0} in {counted(len(self.faces), 'level')} of detail",
            f"{counted(self.num_kept, 'surface')} not simplified, since {self.simplifier} lost all "
            "faces or a vertex at a plane between cells"
            if self.num_kept
            else "",
            _named(
                self.ended,
                f"without coarse levels, which would have more than {MOST_FRAGMENT_FACES:,} faces "
                "in a cell",
            ),
            _named(self.labels.left_out, "smaller than min_voxels"),
            _named(self.labels.without_surface, "without a surface"),
            _named(self.labels.missing, "of ids not found"),
        ]
        return "; ".join(filter(None, parts))


def _named(labels: SomeLabels, why: str) -> str:
    """Name some labels that have no mesh."""
    if not labels.count:
        return ""
    more = [] if labels.count == len(labels.first) else ["..."]
    return f"{counted(labels.count, 'label')} {why}: {', '.join([*map(str, labels.first), *more])}"


@dataclass(frozen=True, slots=True)
class Meshes(Plan):
    """Plan of meshes."""

    staged: StagedFiles
    meshing: Meshing
    cells: npt.NDArray[np.int64]
    """Cells to mesh, shape (n, 3)."""
    num_levels: int
    min_voxels: int
    ids: Ids | None
    """Labels to mesh, ascending."""
    mapping: IdSource | None
    is_sharded: bool
    detail_nm: float
    """Size of the details of the finest level, by which Neuroglancer chooses a level."""
    has_properties: bool

    def phases(self) -> Generator[Phase, str, Outcome]:
        """Mesh all cells, join them level by level, and write the files of labels."""
        meshing, name = self._with_tables(), self.meshing.source.name
        totals, lod, cells = _Totals(meshing.simplifier.name), 0, self.cells
        finest = MeshJob(meshing, cells)
        yield Phase(finest, f"meshes of {name}")
        finest.check_unchanged()
        while self._finish_level(meshing, totals, lod, cells) and lod + 1 < self.num_levels:
            lod += 1
            yield Phase(join_job(meshing, lod, cells), f"level of detail {lod} of {name}")
            cells = np.unique(cells >> 1, axis=0)
        counts, nbytes = np.concatenate(totals.fragments).T
        sharding = choose_mesh_sharding(totals.labels.num_meshed, int(nbytes.sum()))
        files = MeshFiles(meshing, sharding, self.is_sharded)
        of_labels = f"files of {counted(totals.labels.num_meshed, 'label')}"
        sorting = list(batches(np.concatenate(totals.cells), counts, nbytes))
        yield Phase(sort_job(files, sorting), f"fragments for {of_labels}")
        target = store_at(meshing.target)
        target.make()
        sharding_or_none = sharding if self.is_sharded else None
        info = format_mesh_info(meshing.grid.origin_nm, self.detail_nm, sharding_or_none)
        with target.new_file("info", meshing.folder) as file:
            file.write(info, 0)
        if self.has_properties:
            self._write_properties(meshing)
        yield Phase(write_job(files, len(sorting)), of_labels)
        files.check_complete(totals.labels.num_meshed)
        return Outcome((), "; ".join(filter(None, (str(totals), note_on(self.mapping)))))

    def _with_tables(self) -> Meshing:
        """Write the tables that tasks need, or use those of an earlier start."""
        meshing, store = self.meshing, store_at(self.meshing.folder)
        store.make()
        if self.ids is not None:
            meshing.save_ids(self.ids)
        if self.mapping is not None:
            table = saved_map(meshing.folder) or self.mapping.write(meshing.folder)
            if table.of_zero():
                raise ValueError(f"{self.mapping.name}: maps id 0, which is background, to an id")
            table.save(meshing.folder)
            meshing = replace(meshing, mapping=table)
        return meshing

    def _finish_level(
        self, meshing: Meshing, totals: _Totals, lod: int, cells: npt.NDArray[np.int64]
    ) -> bool:
        """Write the tables of a level; return whether some labels continue in the next one."""
        fragments = np.zeros((len(cells), 2), np.int64)
        totals.faces += (0,)

        def rows() -> Iterator[LabelRows]:
            for n, cell in enumerate(_triples(cells)):
                file = CellFile(meshing.folder, lod, cell)
                totals.add(file.record)
                fragments[n] = len(file.labels), file.record["nbytes"]
                yield from _label_rows(file, lod)

        tables, is_finest = LabelTables(meshing.folder), lod == 0
        found = tables.write(lod, rows(), *((self.min_voxels, self.ids) if is_finest else ()))
        if is_finest:
            totals.labels = found
        else:
            totals.ended.extend(found.left_out)
            if not found.num_meshed:
                totals.faces = totals.faces[:-1]
        totals.cells.append(np.insert(cells, 0, lod, axis=1))
        totals.fragments.append(fragments)
        return found.num_continued > 0

    def _write_properties(self, meshing: Meshing) -> None:
        """Write the voxels of each label that is not too small; all of them are in memory."""
        parts = [CellFile(meshing.folder, 0, cell).voxels() for cell in _triples(self.cells)]
        labels, numbers = np.unique(
            np.concatenate([np.zeros(0, np.uint64), *(part[0] for part in parts)]),
            return_inverse=True,
        )
        voxels = np.zeros(len(labels), np.int64)
        for start, part in zip(np.cumsum([0, *(len(p[0]) for p in parts)]), parts, strict=False):
            np.add.at(voxels, numbers.reshape(-1)[start : start + len(part[0])], part[1])
        is_kept = voxels >= self.min_voxels
        properties = format_segment_properties(labels[is_kept], voxels[is_kept])
        target = store_at(f"{meshing.target}/{PROPERTIES_NAME}")
        target.make()
        with target.new_file("info", meshing.folder) as file:
            file.write(properties, 0)

    def check_unchanged(self) -> None:
        check_not_replaced(self.meshing.source)

    def need(self) -> Need:
        """Return the space of the meshes and of the surfaces in scratch files, estimated from a
        few small cells."""
        most = _MOST_NBYTES_PER_VOXEL * self.meshing.grid.box.volume
        return Need(
            self.staged.parent,
            most,
            0,
            lambda _: Size(0, 5 * self._estimate().nbytes, 0),
            self.staged.count_leftovers,
        )

    def _estimate(self) -> _Sample:
        """Count the faces of some small cells, simplify those of three larger ones, and scale the
        sums to all cells with stored voxels."""
        edge = min(self.meshing.grid.edge, _SAMPLE)
        # whole small cells: what one of them has is in the larger one around it
        large_edge = min(self.meshing.grid.edge, _LARGE_SAMPLE) // edge * edge
        with temporary_folder() as folder:
            own = replace(self, meshing=replace(self.meshing, folder=folder))._with_tables()
            small, large = (
                replace(own, grid=replace(own.grid, edge=each)) for each in (edge, large_edge)
            )
            cells = cells_to_mesh(own.source, small.grid)
            voxels = small.grid.own_volumes(cells)
            if not voxels.any():
                return _Sample()
            # a fixed step could choose cells of one plane
            number = min(_SAMPLES * (_SAMPLE // edge) ** 3, int(np.count_nonzero(voxels)))
            shares = voxels / voxels.sum()
            rows = np.random.default_rng(0).choice(len(cells), number, replace=False, p=shares)
            chosen = cells[rows]
            counts = np.array([_num_faces(small, cell) for cell in _triples(chosen)], np.int64)
            filled = chosen[np.argsort(counts)[(counts == 0).sum() :]]
            middle = filled[len(filled) * np.arange(1, 4) // 4] if len(filled) else filled
            around = np.unique(middle * edge // large_edge, axis=0)
            sums = np.zeros(5, np.int64)
            for cell in _triples(around):
                sums += _measured(large, cell)
        num_raw = int(counts.sum() * voxels.sum() / max(1, voxels[rows].sum()))
        raw_faces, faces, nbytes, of_continued, of_coarser = sums.tolist()
        ratio = min(1.0, of_coarser / max(1, of_continued))
        nbytes += int(of_continued * sum(ratio**lod for lod in range(1, self.num_levels)))
        return _Sample(num_raw, *(num_raw * each // max(1, raw_faces) for each in (faces, nbytes)))

    def describe(self) -> MeshPlan:
        """Return what the job would do."""
        estimate, grid = self._estimate(), self.meshing.grid
        per_cell = estimate.raw_faces // max(1, len(self.cells))
        memory = (
            _BASE_NBYTES
            + grid.edge**3 * self.meshing.source.dtype.itemsize * _VOXEL_NBYTES
            + per_cell * _FACE_NBYTES
        )
        return MeshPlan(
            self.staged.target,
            grid.box.volume,
            len(self.cells),
            (grid.edge,) * 3,
            self.num_levels,
            estimate.raw_faces,
            estimate.faces,
            estimate.nbytes,
            memory,
        )


def _num_faces(meshing: Meshing, cell: Vec3) -> int:
    labels = meshing.read(cell)
    surfaces = () if labels is None else meshing.surfaces(labels, meshing.grid.voxels(cell))
    return sum(len(surface.faces) for _, surface in surfaces)


def _measured(meshing: Meshing, cell: Vec3) -> npt.NDArray[np.int64]:
    """Return the raw faces of a cell, faces and bytes of the finest level, and bytes of labels that
    reach other cells, in the finest level and in the next one."""
    grid, labels = meshing.grid, meshing.read(cell)
    x, y, z = cell
    bounds, parent = grid.bounds(cell, 0), (x >> 1, y >> 1, z >> 1)
    sums = np.zeros(5, np.int64)
    for _, surface in () if labels is None else meshing.surfaces(labels, grid.voxels(cell)):
        simple = meshing.simplified(surface, cell, 0, meshing.error, math.inf) or surface
        nbytes = len(encode(grid.quantised(simple, cell, 0), simple.faces))
        sums[:3] += len(surface.faces), len(simple.faces), nbytes
        if are_outside(surface.vertices, bounds).any():
            error = 2 * meshing.error
            coarse = meshing.simplified(simple, cell, 0, error, meshing.reduction) or simple
            sums[3:] += nbytes, len(encode(grid.quantised(coarse, parent, 1), coarse.faces))
    return sums


def _label_rows(file: CellFile, lod: int) -> Iterator[LabelRows]:
    """Yield the labels of a cell with their surfaces, and in the finest level with their voxels."""
    ones = np.ones(len(file.labels), np.int64)
    yield LabelRows(file.labels, ones, np.zeros_like(ones))
    if lod == 0:
        labels, voxels = file.voxels()
    else:
        labels = np.array(sorted(file.record.get("ended", ())), np.uint64)
        voxels = np.ones(len(labels), np.int64)
    yield LabelRows(labels, np.zeros_like(voxels), voxels)


def _triples(cells: npt.NDArray[np.int64]) -> Iterator[Vec3]:
    return ((x, y, z) for x, y, z in cells.tolist())


# ------------------------------------------------------------------------------------------------
# planning


def lay_out_meshes(
    url: str | os.PathLike[str],
    target: str | os.PathLike[str] | None,
    selection: tuple[str | None, Mag | str | None],
    options: MeshOptions,
    existing: str,
) -> Meshes:
    """Plan meshes of a layer and a mag, or resume the interrupted job of the same settings."""
    options.check()
    check_packages(options.simplifier)
    opened = open_layer(url, *selection, None, "segmentation")
    source = opened.volume
    if source.dtype.kind not in "iu" or source.num_channels != 1:
        raise TypeError(
            f"{source.name}: labels are integers in one channel, these voxels are "
            f"{source.num_channels} x {source.dtype}"
        )
    folder = _target_folder(opened, target)
    place = _place_of(folder, options, is_replacing=replaces(existing))
    if place.is_for_webknossos and not options.sharded:
        raise ValueError(f"{folder}: WEBKNOSSOS reads meshes in shards, expected sharded=True")
    voxel_size = opened.voxel_size_nm or place.voxel_size_nm
    if voxel_size is None:
        raise MissingError(
            f"{source.name}: states no voxel size, and neither does the image of {folder}, which "
            "has no level yet; mesh a mag of a dataset or volume"
        )
    box = where_box(source.name, options.where, source.box) or source.box
    grid = CellGrid(box, options.cell, lengths_in(box.mag, voxel_size), options.close)
    ids = None if options.ids is None else _parse_ids(options.ids)
    mapping = None if options.mapping is None else open_id_source(options.mapping, source)
    num_levels = grid.num_levels if options.lods is None else min(options.lods, grid.num_levels)
    cells = cells_to_mesh(source, grid)
    settings = settings_of(
        _COMMAND,
        source=source.name,
        box=box_setting(box),
        voxel_size=",".join(map(str, grid.lengths_nm)),
        cell=options.cell,
        lods=num_levels,
        error=options.error,
        reduction=options.reduction,
        simplifier=options.simplifier,
        ids=None if ids is None else token_of(ids.tolist()),
        mapping=None if mapping is None else mapping.digest(),
        min_voxels=options.min_voxels,
        close=int(options.close),
        sharded=int(options.sharded),
        segment_properties=int(options.segment_properties),
        input=source_token(source),
        states=digest_of_cells([source.files.occupied((options.cell,) * 3)]),
    )
    draft = stage(f"{_COMMAND} into {folder}", dirname(folder), [folder], settings, existing)
    # an element or the finish job of an array resumes what the first start may replace
    is_replacing = replaces(existing) or bool((draft.before or {}).get(_REPLACES))
    staged = staged_files(
        draft,
        box.volume,
        voxel_nbytes(source, box),
        check_mesh_folder,
        edit=_place_of(folder, options, is_replacing=is_replacing).edit,
        plan={_REPLACES: is_replacing},
    )
    edges = grid.lengths_nm
    mean = math.prod(edges) ** (1 / 3)
    meshing = Meshing(
        source,
        grid,
        Simplifier(options.simplifier, tuple(edge / mean for edge in edges)),
        options.error,
        options.reduction,
        max(1, min(_MOST_GROUPS, len(cells) // _CELLS_PER_GROUP)),
        staged.scratch,
        staged.built,
        ids is not None,
    )
    return Meshes(
        staged,
        meshing,
        cells,
        num_levels,
        options.min_voxels,
        ids,
        mapping,
        options.sharded,
        # the server of WEBKNOSSOS multiplies positions by it
        1.0 if place.is_for_webknossos else mean,
        options.segment_properties,
    )


def _place_of(folder: str, options: MeshOptions, *, is_replacing: bool) -> MeshPlace:
    """Return the volume or layer around a folder of meshes, and how its document names them."""
    place = _find_place(folder, is_replacing, options.segment_properties)
    if place is None:
        meshed_volume(folder)  # raises an error that says what a target is
        raise AssertionError(folder)
    return place


def _find_place(folder: str, is_replacing: bool, has_properties: bool) -> MeshPlace | None:
    places = (
        fmt.mesh_place(folder, replaces=is_replacing, has_properties=has_properties)
        for fmt in formats()
    )
    return next((place for place in places if place is not None), None)


def _target_folder(opened: OpenedMag, target: str | os.PathLike[str] | None) -> str:
    """Return the folder of the meshes; by default that of the volume or layer which is the
    source."""
    if target is None:
        image = opened.layer
        default = f"{image.folder}/{_MESH_FOLDER}"
        if _find_place(default, is_replacing=True, has_properties=False) is None:
            raise ValueError(
                f"{image.folder}: name the folder of the meshes in a Neuroglancer precomputed "
                "volume, such as precomputed://volume/mesh, or in a layer of a WEBKNOSSOS dataset, "
                "such as dataset/segmentation/mesh"
            )
        folder = default
    else:
        folder = location_of(target)
    return plain_name(target_path(folder))


def _parse_ids(ids: str | os.PathLike[str] | Sequence[int]) -> Ids:
    """Return ids, ascending, from a list or from a file with one id per line."""
    what = "ids"
    if not isinstance(ids, (str, os.PathLike)):
        listed = as_ids(ids, what)
    else:
        what = path = local_path(ids)
        (raw,) = store_at(dirname(path)).read_whole([basename(path)], _MOST_IDS_NBYTES)
        if raw is None:
            raise MissingError(f"{path}: no such file")
        lines = raw.decode("utf-8-sig", "replace").splitlines()
        numbers = [(n, line.strip()) for n, line in enumerate(lines, 1) if line.strip()]
        for n, text in numbers:
            if not is_id(text):
                raise FormatError(
                    f"{path}: line {n}: {text[:40]!r}: expected one id from 0 to 2^64 - 1 per line"
                )
        listed = as_ids([int(text) for _, text in numbers], path)
    unique = np.unique(listed.reshape(-1))
    if not unique.any():
        raise ValueError(f"{what}: lists no id above 0")
    return unique[unique > 0]
