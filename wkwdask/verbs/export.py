"""Export of a level to image files or an array file."""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import BoundsError, ExistsError, UnsupportedError
from wkwdask.formats.file_suffixes import EXPORT_SUFFIXES, READ_SUFFIXES, TIFF_SUFFIXES
from wkwdask.formats.pictures.options import TiffOptions
from wkwdask.formats.pictures.outputs import (
    ExportedArray,
    NpyOutput,
    SectionsOutput,
    ZarrOutput,
    is_exported_zarr,
    is_section,
    write_tiff,
)
from wkwdask.formats.replaceable import replaces
from wkwdask.geometry.bounding_box import BoundingBox, counted_from, moved
from wkwdask.geometry.grid import cell_box, cells
from wkwdask.geometry.mag import Mag
from wkwdask.model.levels import lengths_in
from wkwdask.model.options import make_options
from wkwdask.model.states import digest
from wkwdask.model.volume import read_voxels, voxel_nbytes
from wkwdask.model.voxel_type import common_dtype
from wkwdask.plans.cells import count_cells
from wkwdask.runs.drive import Outcome, Phase, Plan
from wkwdask.runs.job import FlatJob, Result, Task
from wkwdask.runs.progress import Progress
from wkwdask.runs.space import Need, Size
from wkwdask.runs.staged import check_existing, settings_of, stage
from wkwdask.runs.staged_files import StagedFiles, staged_files
from wkwdask.store.paths import basename, dirname, local_path, splitext
from wkwdask.store.store import store_at
from wkwdask.verbs.region_job import SourceSpec, check_source
from wkwdask.verbs.sources import box_setting, cast_note, check_not_replaced, source_token
from wkwdask.verbs.space import SURE_SHARE

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from wkwdask.formats.format import SingleFile
    from wkwdask.formats.pictures.outputs import Output
    from wkwdask.model.states import States
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.model.volume import Volume
    from wkwdask.verbs.sources import VolumeSelection

    VoxelSize = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class ExportSpec(SourceSpec):
    """Task that writes one cell, a box of the target that is written at once."""

    source: Volume
    output: Output
    box: BoundingBox
    """The cell, clipped to the exported box."""

    def task(self) -> Task:
        return Task(
            f"export of {self.box} of {self.source.name}",
            "export {},{},{}".format(*self.box.topleft),
            ExportSpec.run,
            self,
        )

    def states(self) -> States:
        return self.source.files.shard_states(self.box)

    def run(self) -> Result:
        # before reading: a file that changes during the read then fails the check on resume
        states = self.states()
        self.output.write(self.source, self.box)
        return Result((), digest(states), nbytes_in=voxel_nbytes(self.source, self.box))


class ExportJob(FlatJob):
    """Job that writes a volume to files of another format."""

    def __init__(self, source: Volume, output: Output, box: BoundingBox) -> None:
        cell_shape, corner = output.cell_shape, output.corner
        relative_box = counted_from(box, corner)

        def tasks() -> Iterator[Task]:
            for index in cells(relative_box, cell_shape):
                yield ExportSpec(
                    source,
                    output,
                    moved(cell_box(index, cell_shape, box).intersection(relative_box), corner),
                ).task()

        # tasks write their cells themselves
        super().__init__(tasks, output.num_cells, lambda *_: None)

    def holds(self, task: Task, result: Result, known: Callable[[str], Result | None]) -> bool:
        """Return True: a journaled cell exists. A changed source is an error."""
        check_source(task, result)
        return True


_COMMAND = "export"
_LARGEST_RATIO = 1.01  # what compression adds to noise
_SAMPLES, _MOST_LISTED = 8, 10_000  # chunks
_TARGETS = (
    "use .tif, .ome.tif, .npy, .zarr, .ome.zarr, precomputed://PATH, n5://PATH, or a folder of "
    "TIFFs (with / at the end if its name has a dot)"
)
_SUFFIX = re.compile(r"\.[A-Za-z][A-Za-z0-9_]*(:.*)?$")
_READ_ONLY = {*READ_SUFFIXES} - {*EXPORT_SUFFIXES}
_OME_SUFFIXES = tuple(f".ome{suffix}" for suffix in TIFF_SUFFIXES)


@dataclass(frozen=True, slots=True)
class Export(Plan):
    """Plan of an export."""

    staged: StagedFiles
    mag: StoredArray
    source: Any
    """Voxels to write: the mag, or some of its channels, as the selected type."""
    form: ExportedArray
    compression: str
    """Compression of TIFF files."""

    @property
    def target(self) -> str:
        return self.staged.target

    @property
    def remarks(self) -> tuple[str, ...]:
        """Differences of the result from the mag, for the plan and the report."""
        return tuple(filter(None, [cast_note(self.mag, self.form.dtype)]))

    def output(self) -> Output | None:
        """Return the writer of the target, None for a single TIFF file, which is written section by
        section."""
        name, built = self.target.lower(), self.staged.built
        if name.endswith(TIFF_SUFFIXES):
            return None
        if name.endswith(".npy"):
            return NpyOutput(built, self.form)
        if name.endswith(".zarr"):
            return ZarrOutput(built, self.form)
        return SectionsOutput(built, self.form, self.compression)

    def need(self) -> Need:
        """Return the space of the files; compressed ones are estimated from a few cells, compressed
        on trial."""
        nbytes = voxel_nbytes(self.source, self.form.box)
        return Need(
            self.staged.parent,
            int(_LARGEST_RATIO * nbytes),
            0,
            lambda _: self._size(nbytes),
            self.staged.count_leftovers,
        )

    def _size(self, nbytes: int) -> Size:
        box, shape = self.form.box, self.source.chunk_shape
        if self.target.lower().endswith(".npy"):  # cells without data become holes of the file
            share = int(self.source.files.occupied(self.source.shard_shape).sum()) / max(
                1, count_cells(self.source.box, self.source.shard_shape)
            )
            return Size(int(SURE_SHARE * nbytes * share), nbytes, 0)
        chunks = list(islice(cells(counted_from(box, self.source.origin), shape), _MOST_LISTED))
        stored = decoded = 0
        for chunk in chunks[:: -(-len(chunks) // _SAMPLES)]:
            voxels = read_voxels(
                self.source,
                moved(cell_box(chunk, shape, box), self.source.origin).intersection(box),
            )
            decoded += voxels.nbytes
            stored += (
                voxels.nbytes
                if self.compression == "raw" and not self.target.lower().endswith(".zarr")
                else len(zlib.compress(voxels.tobytes("F"), 1))
            )
        likely = nbytes * stored // max(1, decoded)
        return Size(int(SURE_SHARE * likely), likely, 0)

    def phases(self) -> Generator[Phase, str, Outcome]:
        """Write all cells that the journal does not list, or one TIFF section by section."""
        title, output, note = f"exporting {self.source.name}", self.output(), ""
        if output is None:
            with Progress(title, self.form.box.size[2]) as progress:
                write_tiff(
                    self.staged.built,
                    self.source,
                    self.form,
                    self.compression,
                    ome=self.target.lower().endswith(_OME_SUFFIXES),
                    on_section=progress.advance,
                )
        else:
            output.prepare()
            note = yield Phase(ExportJob(self.source, output, self.form.box), title)
            note = "\n".join(filter(None, [note, output.note]))
        return Outcome((), "\n".join(filter(None, [note, *self.remarks])))

    def check_unchanged(self) -> None:
        check_not_replaced(self.mag)


def lay_out_export(
    mag: StoredArray,
    target: str | os.PathLike[str],
    part: VolumeSelection,
    options: Mapping[str, Any],
    existing: str,
    voxel_size_nm: VoxelSize | None,
) -> Export:
    """Plan the export of a mag to image files or an array file."""
    stored = make_options(TiffOptions, **options)
    check_existing(existing)
    path = local_path(target)
    check_suffix(target)
    if not store_at(path).is_folder() and not os.fspath(target).endswith("/"):
        suffix = _SUFFIX.search(basename(path))
        if suffix is not None and not path.lower().endswith(EXPORT_SUFFIXES):
            raise UnsupportedError(f"{path}: nothing is written as {suffix[0]}; {_TARGETS}")
    with contextlib.suppress(ValueError):
        Mag.parse(basename(path))
        raise UnsupportedError(
            f"{path}: is the folder of a mag, and the source is WKW too: use rechunk to store a "
            "mag in another place"
        )
    box = mag.box if part.box is None else part.box.in_mag(mag.box.mag).intersection(mag.box)
    if box.is_empty:
        raise BoundsError(
            f"{mag.name}: nothing to export: the box of the mag is "
            f"{mag.box}{'' if part.box is None else f', requested was {part.box}'}"
        )
    source = (
        part
        if path.lower().endswith((".npy", ".zarr"))
        else part.stored_by(common_dtype, mag.dtype)
    ).converted(mag)
    channels, dtype = (
        range(mag.num_channels) if part.channels is None else part.channels,
        source.dtype,
    )
    if path.lower().endswith(_OME_SUFFIXES) and dtype.kind in "iu" and dtype.itemsize == 8:
        raise UnsupportedError(
            f"{path}: OME-TIFF has no {dtype}: cast it with dtype=, or export to .tif, .npy or "
            ".zarr"
        )
    compression = _compression(path, stored.compression)
    settings = settings_of(
        _COMMAND,
        source=mag.name,
        box=box_setting(box),
        channels=",".join(map(str, channels)),
        dtype=dtype.name,
        value_range=part.value_range,
        compression=compression,
        input=source_token(mag),
    )
    form = ExportedArray(
        box,
        len(channels),
        np.dtype(dtype),
        mag.chunk_shape,
        mag.shard_shape,
        _voxel_size(mag, voxel_size_nm),
    )
    draft = stage(f"{_COMMAND} to {path}", dirname(path), [path], settings, existing)
    nbytes_in = box.volume * mag.num_channels * mag.dtype.itemsize
    staged = staged_files(draft, box.volume, nbytes_in, _check_free)
    return Export(staged, mag, source, form, compression)


def check_suffix(target: str | os.PathLike[str]) -> None:
    """Raise an error for a target in a format that is only read, such as ``out.h5`` or
    ``out.h5:/raw``."""
    text = os.fspath(target)
    for end in (*(match.start() for match in re.finditer(":", text)), len(text.rstrip("/"))):
        suffix = splitext(text[:end])[1].lower()
        if suffix in _READ_ONLY and not store_at(local_path(text)).is_folder():
            raise UnsupportedError(f"{text}: {suffix} is read but not written; {_TARGETS}")


def _compression(path: str, requested: str | None) -> str:
    if path.lower().endswith((".npy", ".zarr")):
        if requested is not None:
            raise ValueError(f"{path}: compression is for TIFF; .npy has none, .zarr its own")
        return "raw"
    return requested or "zlib"


def _voxel_size(mag: StoredArray, voxel_size_nm: VoxelSize | None) -> VoxelSize | None:
    """Return the voxel size of a mag [nm], None if that of mag 1 is unknown."""
    return None if voxel_size_nm is None else lengths_in(mag.box.mag, voxel_size_nm)


@dataclass(slots=True)
class Packing(Plan):
    """Plan that packs an image into one file."""

    staged: StagedFiles
    file: SingleFile
    build: Callable[[str], str]
    """Makes the image below a folder for scratch, and returns its folder."""
    packed: str = ""
    """Folder of the image."""
    num_files: int = 0

    def phases(self) -> Generator[Phase, str, Outcome]:
        self.packed = self.build(self.staged.scratch)
        self.num_files = self.file.pack(self.packed, self.staged.built)
        yield from ()
        return Outcome(())


def lay_out_packing(
    file: SingleFile,
    build: Callable[[str], str],
    settings: Mapping[str, Any],
    existing: str,
) -> Packing:
    """Plan to pack an image into one file; ``build`` makes it, from the same settings."""
    path = file.path
    draft = stage(
        f"{_COMMAND} to {path}", dirname(path), [path], settings_of(_COMMAND, **settings), existing
    )
    return Packing(staged_files(draft, 0, 0, _check_free_file), file, build)


def _check_free_file(target: str, existing: str) -> None:
    """Raise ExistsError unless a file may be written."""
    there = store_at(target)
    if there.is_folder():
        raise ExistsError(f"{target}: is a folder, expected nothing or a file")
    if there.is_taken() and not replaces(existing):
        raise ExistsError(f'{target}: already exists; existing="overwrite" replaces it whole')


def _is_file(target: str) -> bool:
    return target.lower().endswith((*TIFF_SUFFIXES, ".npy"))


def _check_free(target: str, existing: str) -> None:
    """Raise ExistsError unless the target may be written. A folder is replaced only if it looks
    like the result of an export."""
    there, is_file = store_at(target), _is_file(target)
    if not there.is_taken():
        return
    if there.link_target():
        raise ExistsError(
            f"{target}: is a symbolic link, which is not replaced; export to where it points to, "
            "or remove it"
        )
    if there.is_folder() and is_file:
        raise ExistsError(f"{target}: is a folder, expected nothing or a file")
    if there.is_folder() and not there.names():
        return
    if not replaces(existing):
        raise ExistsError(f'{target}: already exists; existing="overwrite" replaces it whole')
    if not there.is_folder() and not is_file:
        raise ExistsError(f"{target}: is a file, expected nothing or a folder")
    if there.is_folder() and not is_exported_zarr(target):
        _check_sections(target)


def _check_sections(target: str) -> None:
    """Raise ExistsError unless a folder contains only sections, named as exports name them."""
    other = min(
        (
            entry.name
            for entry in store_at(target).entries()
            if not is_section(entry.name) or not entry.is_file(follow_symlinks=False)
        ),
        default=None,
    )
    if other is not None:
        raise ExistsError(
            f"{target}: holds something else ({other}) than sections z0000.tif, z0001.tif... or a "
            "Zarr array of an export, and is not replaced"
        )
