"""Repair of the broken files of a stored array. Every chunk that decodes is kept byte for byte;
others become absent, or are taken from a spare array.

A shard is written again, a file with a single chunk is replaced or removed::

    broken shard  | 0 | 1 | X | 3 | index |
    spare shard           | 2 | index |
    new shard     | 0 | 1 | 3 | 2 | index |
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from wkwdask.errors import CorruptError
from wkwdask.formats.leftovers import quarantine, withdraw_equal
from wkwdask.model.codec import max_file_nbytes
from wkwdask.model.layout import RewritableShards
from wkwdask.model.volume import relative_to
from wkwdask.model.writing.file_buffer import FileBuffer

if TYPE_CHECKING:
    from wkwdask.formats.array_check import ArrayCheck
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.chunk_grid import Vec4
    from wkwdask.model.faults import Fault
    from wkwdask.model.store import Store


class Probe(NamedTuple):
    """Intact chunks of a broken shard."""

    head: Any = None
    """Header under which all chunks are intact, None if there is no such header."""
    num_intact: int = 0
    num_chunks: int = 0
    """Number of chunks that the shard stores, intact or not."""


@dataclass(frozen=True)
class ArrayRepair:
    """Repair of the broken shards of a level from their intact chunks; picklable."""

    check: ArrayCheck
    keeps_files: ClassVar[bool] = True
    """Whether a shard can be a group of files, and sound ones among them stay."""
    noun: ClassVar[str] = "chunks"
    """Word of the format for chunks."""
    loss: ClassVar[str] = "absent"
    """Description of lost chunks after the repair."""

    @property
    def replacement(self) -> str:
        """Description of a lost chunk after the repair, for people."""
        return f"absent and read as {self.check.array.fill:g}"

    @property
    def _store(self) -> Store:
        return self.check.array.store

    def probe(self, shard: Vec3, kinds: frozenset[str]) -> Probe:
        """Find the intact chunks of a shard with faults of some kinds, without writing."""
        del kinds
        num_intact = num_lost = 0
        for file, variant in self.check.array.files.files_of_shard(shard):
            with self.check.opened(self.check.name_of(file, variant)) as opened:
                if opened is not None:
                    chunks = self.check.intact(file, opened)
                    num_intact += len(chunks.cells)
                    num_lost += len(chunks.lost)
        return Probe(None, num_intact, num_intact + num_lost)

    def repair_shard(
        self, shard: Vec3, head: Any, why: str, spare_folder: str | None, *, salvage: bool
    ) -> tuple[int, int]:
        """Rewrite a shard from its intact chunks, and the others from a level in ``spare_folder``;
        returns its size and modification time [ns].

        ``head`` replaces a broken header. Without ``salvage``, all chunks must be intact.
        """
        spare, array = (
            None if spare_folder is None else self._store.at(spare_folder),
            self.check.array,
        )
        assert array.naming is not None
        for file, variant in array.files.files_of_shard(shard):
            if self.keeps_files and not self._errors(file, variant):
                continue
            name = self.check.name_of(file, variant)
            if isinstance(array.layout, RewritableShards):
                self._rewrite(file, name, head, why, spare, salvage=salvage)
            else:
                self._replace(file, name, why, spare)
            remaining = [
                fault
                for state in array.naming.file_states(self._store, file)
                for fault in self._errors(file, state.variant)
            ]
            if remaining:
                raise CorruptError(f"still broken after the repair: {remaining[0]}")
        return relative_to(array, array.origin).files.group_state(shard)[1:]

    def with_snapshot(self, record: str) -> Self:
        """Return the repair of files that replaces or removes them only if they stay as it has
        read them, while a record of the job exists; on disk, locks protect them."""
        array = self.check.array.at(self._store.snapshot(record))
        return replace(self, check=replace(self.check, array=array))

    def _errors(self, file: Vec4, variant: int) -> list[Fault]:
        return [
            fault
            for fault in self.check.check_file(file, variant).faults
            if fault.severity == "error"
        ]

    def _place(self, name: str) -> tuple[Store, str]:
        """Return folder and name of a file that is written again."""
        return self._store, name

    def _set_aside(self, name: str, why: str) -> str:
        """Keep the old file, before a new one replaces it, so that no crash loses what could not be
        decoded; a folder with its name is moved. Return its new place, empty for an object that
        is absent."""
        store, key = self._place(name)
        if store.can.compares and not store.is_file(key):
            return ""
        return quarantine(store.path_of(key), self.check.folder, name, why, keep=store.is_file(key))

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
            output = self._store.new_file(new_name)
            output.write(data, 0)
            output.publish()
        if name not in new:
            self._store.delete(name)
        if place:
            withdraw_equal(self._store.path_of(name), place)

    def _rewrite(
        self, file: Vec4, name: str, head: Any, why: str, spare: Store | None, *, salvage: bool
    ) -> None:
        """Write a shard again from its intact chunks, and the lost ones from the spare array."""
        check = self.check
        with ExitStack() as stack:
            opened = stack.enter_context(check.opened(name)) if self._store.is_file(name) else None
            own = check.no_chunks(file) if opened is None else check.intact(file, opened, head)
            num_intact, num_lost = len(own.cells), len(own.lost)
            total, layout = num_intact + num_lost, own.layout
            assert isinstance(layout, RewritableShards)
            if (num_lost and not salvage) or (layout.is_dense and not num_intact):
                raise CorruptError(
                    f"{self._store.path_of(name)}: {num_lost} of its {total} {self.noun} are broken"
                )
            cells, places, other = own.cells, own.places, None
            if spare is not None:
                other_check = replace(check, array=check.array.at(spare))
                other = stack.enter_context(other_check.opened(name))
            if other is not None and layout.has_same_encoding(other):
                found = other_check.intact(file, other)
                lost = set(map(tuple, own.lost.tolist()))
                is_used = [tuple(cell) in lost for cell in found.cells.tolist()]
                cells = np.concatenate([cells, found.cells[is_used]])
                places = np.concatenate([places, found.places[is_used]])
            text = (
                f"{why}\n{num_lost} of its {total} {self.noun} were broken, "
                f"{total - len(cells)} of them became {self.loss}."
            )
            if not len(cells):
                self._set_aside(name, text)
                self._store.delete(name)
                return

            def append(row: int) -> None:
                source = opened if row < num_intact else other
                assert source is not None
                start, end = places[row].tolist()
                output.copy(source, start, end - start)

            folder, key = self._place(name)
            output = FileBuffer(lambda: folder.new_file(key), layout.head_nbytes)
            try:
                tables = layout.write_chunks(cells, append, output)
                new = output.close()
                if tables:
                    new.write(tables, 0)
                is_kept = salvage or folder.can.compares
                place = self._set_aside(name, text) if is_kept else ""
            except BaseException:
                output.discard()
                raise
        new.publish(keep_equal=True)
        if place:
            withdraw_equal(folder.path_of(key), place)
