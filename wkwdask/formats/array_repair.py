"""Repair of the broken files of a stored array. Every chunk that decodes is kept byte for byte;
others become absent, or are taken from a spare array.

A shard is written again, a file with a single chunk is replaced or removed::

    broken shard  | 0 | 1 | X | 3 | index |
    spare shard           | 2 | index |
    new shard     | 0 | 1 | 3 | 2 | index |
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from wkwdask.errors import CorruptError
from wkwdask.formats.leftovers import quarantine, withdraw_equal
from wkwdask.formats.repair import Probe
from wkwdask.model.codec import max_file_nbytes
from wkwdask.model.layout import RewritableShards
from wkwdask.model.volume import relative_to
from wkwdask.model.writing.file_buffer import FileBuffer
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.formats.array_check import ArrayCheck
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.chunk_grid import Vec4
    from wkwdask.model.faults import Fault
    from wkwdask.model.store import Store, StoredFile


@dataclass(frozen=True, slots=True)
class ArrayRepair:
    """Repair of the files of an array; picklable."""

    keeps_files: ClassVar[bool] = True
    check: ArrayCheck

    @property
    def folder(self) -> str:
        return self.check.folder

    @property
    def replacement(self) -> str:
        return f"absent and read as {self.check.array.fill:g}"

    @property
    def _store(self) -> Store:
        return self.check.array.store

    def probe(self, shard: Vec3, kinds: frozenset[str]) -> Probe:
        del kinds
        num_intact = num_chunks = 0
        for file, variant in self.check.array.files.files_of_shard(shard):
            with self.check.opened(self.check.name_of(file, variant)) as opened:
                if opened is not None:
                    num_intact += sum(1 for _ in self.check.intact_chunks(file, opened))
                    num_chunks += len(self.check.stored_cells(file, opened))
        return Probe(None, num_intact, num_chunks)

    def repair_shard(
        self, shard: Vec3, head: Any, why: str, spare_folder: str | None, *, salvage: bool
    ) -> tuple[int, int]:
        del head
        spare, array = (
            None if spare_folder is None else self._store.at(spare_folder),
            self.check.array,
        )
        for file, variant in array.files.files_of_shard(shard):
            if not self._errors(file, variant):
                continue
            name = self.check.name_of(file, variant)
            if not salvage:
                raise CorruptError(f"{self._store.path_of(name)}: some of its chunks are broken")
            if isinstance(array.layout, RewritableShards):
                self._rewrite(file, name, array.layout, why, spare)
            else:
                self._replace(file, name, why, spare)
            assert array.naming is not None
            remaining = [
                fault
                for state in array.naming.file_states(self._store, file)
                for fault in self._errors(file, state.variant)
            ]
            if remaining:
                raise CorruptError(f"still broken after the repair: {remaining[0]}")
        return self._state_of(shard)

    def _errors(self, file: Vec4, variant: int) -> list[Fault]:
        return [
            fault
            for fault in self.check.check_file(file, variant).faults
            if fault.severity == "error"
        ]

    def _set_aside(self, key: str, why: str) -> str:
        """Keep the old file, before a new one replaces it, so that no crash loses what could not be
        decoded; a folder with its name is moved."""
        path = self._store.path_of(key)
        return quarantine(path, self.folder, key, why, keep=store_at(path).is_file())

    def _replace(self, file: Vec4, name: str, why: str, spare: Store | None) -> None:
        """Replace a file with one chunk by that of the spare array, which may have another name, or
        remove it."""
        array = self.check.array
        assert array.naming is not None
        names = () if spare is None else array.naming.names(file)
        contents = (
            []
            if spare is None
            else spare.read_whole(names, max_file_nbytes(array.codec, array.grid.chunk))
        )
        new = {
            new_name: data
            for new_name, data in zip(names, contents, strict=True)
            if data is not None
        }
        place = self._set_aside(
            name, f"{why}\nIts chunk was {'computed again' if new else 'removed'}."
        )
        for new_name, data in new.items():
            self._store.put(new_name, data)
        if name not in new:
            self._store.delete(name)
        withdraw_equal(self._store.path_of(name), place)

    def _rewrite(
        self, file: Vec4, name: str, layout: RewritableShards, why: str, spare: Store | None
    ) -> None:
        """Write a shard again from its intact chunks, and the lost ones from the spare array."""
        check = self.check
        with ExitStack() as stack:
            own = stack.enter_context(check.opened(name)) if self._store.is_file(name) else None
            other = None if spare is None else stack.enter_context(layout.opened(spare, name))
            chunks: dict[Vec4, tuple[StoredFile, int, int]] = {}
            lost: set[Vec4] = {(c, x, y, z) for c, x, y, z in check.cells_of(file).tolist()}
            for opened in filter(None, (own, other)):
                found = {
                    chunk.cell: (opened, chunk.offset, chunk.nbytes)
                    for chunk in check.intact_chunks(file, opened)
                }
                chunks.update(
                    found
                    if opened is own
                    else {cell: place for cell, place in found.items() if cell in lost}
                )
                lost = check.stored_cells(file, opened) - found.keys() if opened is own else lost
            text = (
                f"{why}\n{len(lost)} of its {len(lost | chunks.keys())} chunks were broken, "
                f"{len(lost - chunks.keys())} of them became absent."
            )
            self._write_chunks(name, layout, list(chunks.items()), text)

    def _write_chunks(
        self,
        key: str,
        layout: RewritableShards,
        chunks: Sequence[tuple[Vec4, tuple[StoredFile, int, int]]],
        why: str,
    ) -> None:
        """Replace a shard by one with some chunks; without chunks remove it."""
        if not chunks:
            self._set_aside(key, why)
            self._store.delete(key)
            return
        output = FileBuffer(lambda: self._store.new_file(key), layout.head_nbytes)
        try:
            head = layout.write_chunks(
                np.array([cell for cell, _ in chunks], np.int64),
                lambda row: output.copy(*chunks[row][1]),
                output,
            )
            new = output.close()
            if head:
                new.write(head, 0)
            place = self._set_aside(key, why)
        except BaseException:
            output.discard()
            raise
        new.publish(keep_equal=True)
        withdraw_equal(self._store.path_of(key), place)

    def _state_of(self, shard: Vec3) -> tuple[int, int]:
        """Return size and modification time of a shard, or size and digest of a group of files, as
        file records have them."""
        return relative_to(self.check.array, self.check.array.origin).files.group_state(shard)[1:]
