"""Check of the files of a stored array: tables of shards, and every chunk. Never writes."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wkwdask.errors import FormatError, MissingError, UnsupportedError
from wkwdask.model.codec import max_file_nbytes
from wkwdask.model.faults import Fault, FaultList, Findings
from wkwdask.model.layout import Shards, SingleFiles, box_cells, read_located

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.chunk_grid import Vec4
    from wkwdask.model.layout import InspectedShard
    from wkwdask.model.store import StoredFile
    from wkwdask.model.stored_array import StoredArray


class CheckedChunk(NamedTuple):
    """Chunk that a file stores."""

    cell: Vec4
    voxels: npt.NDArray[Any] | None
    """Decoded voxels, None if it cannot be decoded."""
    offset: int
    """First byte in the file."""
    nbytes: int
    """Stored size [bytes]."""


@dataclass(frozen=True)
class ArrayCheck:
    """Check of the files of a stored array; small to pickle."""

    array: StoredArray
    """Array in absolute voxels."""
    decode: bool
    """Whether chunks are decoded."""
    find_largest: bool = False
    """Whether the largest value is determined."""
    lost: frozenset[Vec3] = frozenset()
    """Shards with lost files, counted from the array's first voxel."""

    @property
    def folder(self) -> str:
        return self.array.folder

    def name_of(self, file: Vec4, variant: int) -> str:
        assert self.array.naming is not None
        return self.array.naming.names(file)[variant]

    @contextmanager
    def opened(self, name: str) -> Iterator[StoredFile | None]:
        """Open a file of the array, None if it does not exist."""
        layout, store = self.array.layout, self.array.store
        with (
            layout.opened(store, name)
            if isinstance(layout, Shards)
            else store.open(name) or nullcontext() as file
        ):
            yield file

    def check_files(self, files: Sequence[Any]) -> Findings:
        return sum((self.check_file(*file) for file in files), Findings())

    def check_file(self, file: Vec4, variant: int) -> Findings:
        """Check the file at an index in the grid of files, under one of the names that it may
        have."""
        name = self.name_of(file, variant)
        path = self.array.store.path_of(name)
        faults, blocks, largest = FaultList(), 0, None
        try:
            (opened,) = self.array.store.open_heads([name], self.array.store.gap_nbytes)
        except MissingError as error:
            return Findings(
                (Fault("file.dangling", path, str(error).removeprefix(f"{path}: ")),), 1
            )
        except FormatError as error:
            return Findings(
                (Fault("file.no_file", path, str(error).removeprefix(f"{path}: "), "a file"),), 1
            )
        except OSError as error:
            return Findings((Fault("file.unreadable", path, error.strerror or str(error)),), 1)
        if opened is None:
            return Findings()
        with opened:
            try:
                for chunk in self.chunks(file, opened, faults):
                    if chunk.voxels is not None:
                        blocks += 1
                        chunk_largest = (
                            self._largest_in(chunk.cell, chunk.voxels) if self.find_largest else 0
                        )
                        largest = chunk_largest if largest is None else max(largest, chunk_largest)
            except (FormatError, OSError) as error:  # the file shrinks meanwhile, or its disk fails
                faults.add(Fault("file.unreadable", path, str(error).removeprefix(f"{path}: ")))
            return Findings(
                faults.to_tuple(),
                1,
                opened.nbytes or 0,
                blocks,
                largest if self.find_largest else None,
            )

    def _largest_in(self, cell: Vec4, voxels: npt.NDArray[Any]) -> int:
        """Return the largest value of a chunk inside the bounding box."""
        low, box = self._voxel(cell), self.array.box
        inside = voxels[
            (
                slice(None),
                *(
                    slice(max(0, a - n), max(0, b - n))
                    for n, a, b in zip(low, box.topleft, box.bottomright, strict=True)
                ),
            )
        ]
        return int(inside.max()) if inside.size else 0

    def chunks(
        self,
        file: Vec4,
        opened: StoredFile,
        faults: FaultList,
        cells: npt.NDArray[np.int64] | None = None,
    ) -> Iterator[CheckedChunk]:
        """Decode the stored chunks of a file, by default all, and list all faults; without
        ``decode``, read nothing but its tables."""
        array, grid = self.array, self.array.grid
        if not opened.nbytes and not array.layout.is_sharded:
            faults.add(
                Fault(
                    "chunk.empty",
                    opened.name,
                    "0 bytes",
                    "an encoded chunk",
                    voxel=self._voxel(file),
                    offset=0,
                )
            )
        elif array.codec.is_opaque:
            for c, x, y, z in self.cells_of(file).tolist() if self.decode else ():
                yield CheckedChunk(
                    (c, x, y, z), self._read_box((c, x, y, z), opened.name, faults), 0, 0
                )
        elif isinstance(array.layout, Shards):
            yield from self._shard_chunks(
                self.cells_of(file) if cells is None else cells, opened, faults
            )
        elif not isinstance(array.layout, SingleFiles):
            try:
                for cell, data, path, offset in (
                    array.layout.chunks_at(array, self.cells_of(file) if cells is None else cells)
                    if self.decode
                    else ()
                ):
                    yield CheckedChunk(
                        cell, self._decode(cell, data, path, offset, faults), offset, len(data)
                    )
            except FormatError as error:
                faults.add(
                    Fault("shard.index", opened.name, str(error).removeprefix(f"{opened.name}: "))
                )
        elif self.decode:
            nbytes, max_nbytes = opened.nbytes or 0, max_file_nbytes(array.codec, grid.chunk)
            if nbytes > max_nbytes:
                faults.add(
                    Fault(
                        "chunk.undecodable",
                        opened.name,
                        f"{nbytes} bytes",
                        f"at most {max_nbytes}",
                        voxel=self._voxel(file),
                        offset=0,
                    )
                )
                return
            (data,) = opened.read([(0, nbytes)]) or [b""]
            yield CheckedChunk(file, self._decode(file, data, opened.name, 0, faults), 0, nbytes)
        elif (expected := array.layout.exact_nbytes(array, file, opened.name)) not in (
            None,
            opened.nbytes,
        ):
            faults.add(
                Fault(
                    "chunk.undecodable",
                    opened.name,
                    f"{opened.nbytes} bytes",
                    str(expected),
                    voxel=self._voxel(file),
                    offset=0,
                )
            )

    def _shard_chunks(
        self, cells: npt.NDArray[np.int64], opened: StoredFile, faults: FaultList
    ) -> Iterator[CheckedChunk]:
        shard = self.inspect_shard(opened, cells)
        faults.add(
            *(
                replace(fault, voxel=self._voxel(cells[row].tolist())) if row >= 0 else fault
                for fault, row in shard.faults
            )
        )
        if not self.decode:
            return
        for row, data, offset in read_located(opened, shard.places, self.array.store):
            c, x, y, z = cells[row].tolist()
            yield CheckedChunk(
                (c, x, y, z),
                self._decode((c, x, y, z), data, opened.name, offset, faults),
                offset,
                len(data),
            )

    def cells_of(self, file: Vec4) -> npt.NDArray[np.int64]:
        """List the chunks of the array that belong to a shard, shape (n, 4)."""
        grid = self.array.grid
        assert grid.file is not None
        low = [
            n * edge // chunk for n, edge, chunk in zip(file, grid.file, grid.chunk, strict=True)
        ]
        counts = [edge // chunk for edge, chunk in zip(grid.file, grid.chunk, strict=True)]
        return box_cells(
            [range(a, min(a + n, end)) for a, n, end in zip(low, counts, grid.counts, strict=True)]
        )

    def inspect_shard(self, opened: StoredFile, cells: npt.NDArray[np.int64]) -> InspectedShard:
        assert isinstance(self.array.layout, Shards)
        return self.array.layout.inspect(opened, cells)

    def intact_chunks(
        self, file: Vec4, opened: StoredFile, cells: npt.NDArray[np.int64] | None = None
    ) -> Iterator[CheckedChunk]:
        """Yield the chunks of a file, by default all, that are certainly the stored ones."""
        # bytes of another place decode too
        may_mix_up = isinstance(self.array.layout, Shards) and not self.array.codec.is_delimited
        if may_mix_up and not self.inspect_shard(opened, self.cells_of(file)).is_intact:
            return
        yield from (
            chunk
            for chunk in self.chunks(file, opened, FaultList(), cells)
            if chunk.voxels is not None
        )

    def stored_cells(
        self, file: Vec4, opened: StoredFile, cells: npt.NDArray[np.int64] | None = None
    ) -> set[Vec4]:
        """Return the chunks, by default all, that a file should contain."""
        if not isinstance(self.array.layout, Shards):
            return {file}
        cells = self.cells_of(file) if cells is None else cells
        return {
            (c, x, y, z)
            for c, x, y, z in cells[self.inspect_shard(opened, cells).is_stored].tolist()
        }

    def open_damaged(self, shard: Vec3) -> ArrayCheck:
        """Return the reader of the chunks of a broken shard."""
        return replace(self, lost=self.lost & {shard})

    def intact_parts(self, block: Vec3) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Yield first channel and voxels (c, x, y, z) of each intact chunk at an index along x, y,
        z.

        Absent chunks are intact, unless files of the shard are lost.
        """
        array, grid = self.array, self.array.grid
        assert array.naming is not None
        assert grid.file is not None
        for cell in ((c, *block) for c in range(grid.counts[0])):
            c, x, y, z = (
                n * edge // whole
                for n, edge, whole in zip(cell, grid.chunk, grid.file, strict=True)
            )
            out = np.full(grid.chunk, array.fill, array.dtype, order="F")
            state = next(array.naming.file_states(array.store, (c, x, y, z)), None)
            with (
                nullcontext()
                if state is None
                else self.opened(self.name_of((c, x, y, z), state.variant)) as opened
            ):
                if opened is not None:
                    one = np.array([cell])
                    chunk = next(self.intact_chunks((c, x, y, z), opened, one), None)
                    if chunk is not None and chunk.voxels is not None:
                        out[...] = 0
                        out[tuple(map(slice, chunk.voxels.shape))] = chunk.voxels
                    elif self.stored_cells((c, x, y, z), opened, one):
                        continue
                elif self.lost:
                    continue
            yield cell[0] * grid.chunk[0], out[: grid.size[0] - cell[0] * grid.chunk[0]]

    def _decode(
        self, cell: Vec4, data: bytes, path: str, offset: int, faults: FaultList
    ) -> npt.NDArray[Any] | None:
        """Decode a chunk; None if that is not possible."""
        grid = self.array.grid
        voxel, place = self._voxel(cell), offset if self.array.layout.is_sharded else None
        try:
            if isinstance(self.array.layout, SingleFiles):
                data = self.array.layout.content(self.array, cell, data, path)
            voxels = self.array.codec.decode(data, grid.shape_at(cell), path, offset)
        except (FormatError, UnsupportedError) as error:
            text = str(error).removeprefix(f"{path}: ").removeprefix(f"byte {offset}: ")
            faults.add(Fault("chunk.undecodable", path, text, voxel=voxel, offset=place))
            return None
        expected = grid.clipped_shape_at(cell)
        if any(n < least for n, least in zip(voxels.shape, expected, strict=True)):
            faults.add(
                Fault(
                    "chunk.shape",
                    path,
                    f"{voxels.shape[1:]} voxels",
                    f"at least {expected[1:]}",
                    voxel=voxel,
                    offset=place,
                )
            )
        return voxels

    def _read_box(self, cell: Vec4, path: str, faults: FaultList) -> npt.NDArray[Any] | None:
        """Read a chunk that only other software can decode."""
        array, voxel = self.array, self._voxel(cell)
        voxels: npt.NDArray[Any] = np.empty(
            array.grid.clipped_shape_at(cell), array.dtype, order="F"
        )
        try:
            array.read_into(voxels, voxel, cell[0] * array.grid.chunk[0])
        except (FormatError, UnsupportedError) as error:
            faults.add(Fault("chunk.undecodable", path, str(error), voxel=voxel))
            return None
        return voxels

    def _voxel(self, cell: Sequence[int]) -> Vec3:
        """Return the lowest absolute voxel of a chunk."""
        grid = self.array.grid
        x, y, z = (
            n * edge + o for n, edge, o in zip(cell[1:], grid.chunk[1:], grid.origin, strict=True)
        )
        return x, y, z
