"""Verify the meshes of a precomputed volume: each manifest and each fragment, and that no file and
no byte belongs to none. Never writes."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.errors import FormatError, MissingError, UnsupportedError
from wkwdask.formats.leftovers import temporary_fault
from wkwdask.formats.mesh_folders import PROPERTIES_NAME
from wkwdask.formats.precomputed.mesh_reader import (
    MeshShard,
    StoredMesh,
    decode_fragment,
    fragments,
    open_meshes,
)
from wkwdask.formats.precomputed.meshes import MANIFEST_SUFFIX
from wkwdask.model.extras import import_extra
from wkwdask.model.faults import Fault, FaultList, Findings
from wkwdask.store.paths import basename

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wkwdask.formats.precomputed.mesh_reader import MeshFolder
    from wkwdask.model.store import StoredFile

_LABELS_PER_TASK = 256


@dataclass(frozen=True)
class MeshCheck:
    """Check of labels or of shards of meshes; small to pickle."""

    meshes: MeshFolder
    decode: bool
    """Whether to decode fragments."""

    @property
    def folder(self) -> str:
        return self.meshes.folder

    def check_files(self, names: Sequence[str]) -> Findings:
        """Check shards, or labels with two files each."""
        check = self._label if self.meshes.info.sharding is None else self._shard
        return sum(map(check, names), Findings())

    def _label(self, label: str) -> Findings:
        """Check the manifest of a label, and its file of fragments."""
        store, faults = self.meshes.store, FaultList()
        manifest = store.path_of(f"{label}{MANIFEST_SUFFIX}")
        try:
            mesh = self.meshes.find(int(label))
        except MissingError:
            fault = Fault("mesh.orphan", store.path_of(label), "a file", f"with {manifest}")
            return Findings((fault,), 1)
        except (FormatError, OSError) as error:
            return Findings((_fault("mesh.manifest", manifest, error),), 1)
        file = store.open(label)
        if file is None:
            what = "no file", f"a file of {mesh.manifest.nbytes} bytes of fragments"
            return Findings((Fault("mesh.fragment", store.path_of(label), *what),), 1)
        with file:
            found, stated = file.nbytes, mesh.manifest.nbytes
            if found is not None and found > stated:
                what = f"{found} bytes", f"{stated}, as its manifest states"
                faults.add(Fault("mesh.orphan", file.name, *what, offset=stated))
            count = self._fragments(mesh, file, faults)
        return Findings(
            faults.to_tuple(), 2, (stated if found is None else found) + _nbytes(mesh), count
        )

    def _fragments(self, mesh: StoredMesh, file: StoredFile, faults: FaultList) -> int:
        """Decode all fragments of a label; return their number."""
        count = 0
        try:
            lods = range(len(mesh.manifest.levels)) if self.decode else ()
            for lod, cell, data in fragments(mesh, file, lods):
                where = "label {}, level {}, cell {},{},{}".format(mesh.label, lod, *cell.tolist())
                try:
                    decode_fragment(data, self.meshes.info, where)
                except FormatError as error:
                    faults.add(Fault("mesh.fragment", file.name, str(error)))
                count += 1
        except (FormatError, OSError) as error:
            faults.add(_fault("mesh.fragment", file.name, error))
        if not self.decode and file.nbytes is not None:
            end = mesh.start + mesh.manifest.nbytes
            if end > file.nbytes:
                what = f"{file.nbytes} bytes", f"{end}, as the manifest of {mesh.label} states"
                faults.add(Fault("mesh.fragment", file.name, *what))
        return count

    def _shard(self, name: str) -> Findings:
        """Check the tables of a shard, and all its labels."""
        faults, count, nbytes = FaultList(), 0, 0
        path = self.meshes.store.path_of(name)
        try:
            with self.meshes.opened(name) as file:
                nbytes = file.nbytes or self.meshes.store.status(name).st_size
                count = self._labels_of(file, name, faults)
        except (FormatError, OSError) as error:
            faults.add(_fault("mesh.shard", path, error))
        return Findings(faults.to_tuple(), 1, nbytes, count)

    def _labels_of(self, file: StoredFile, name: str, faults: FaultList) -> int:
        """Check the labels of a shard, and that fragments and manifests do not overlap; return the
        number of fragments."""
        sharding, count = self.meshes.info.sharding, 0
        assert sharding is not None
        shard, used = MeshShard(file, sharding), [(0, sharding.index_nbytes)]
        for number, table in shard.minishards():
            shards, minishards = sharding.locate(table[0])
            for n, (label, start, nbytes) in enumerate(table.T.tolist()):
                expected = sharding.shard_name(int(shards[n])), int(minishards[n])
                if expected != (name, number):
                    found = f"label {label} in minishard {number}"
                    where = f"minishard {expected[1]} of {expected[0]}"
                    faults.add(Fault("mesh.foreign", file.name, found, where, offset=start))
                try:
                    manifest = shard.manifest(label, start, nbytes)
                except FormatError as error:
                    faults.add(replace(_fault("mesh.manifest", file.name, error), offset=start))
                    continue
                first = start - manifest.nbytes
                used.append((first, start + nbytes))
                if first < sharding.index_nbytes:
                    found = f"{manifest.nbytes} bytes of fragments before the manifest of {label}"
                    expected_start = f"at least byte {sharding.index_nbytes}"
                    faults.add(
                        Fault("mesh.manifest", file.name, found, expected_start, offset=start)
                    )
                    continue
                count += self._fragments(StoredMesh(label, manifest, name, first), file, faults)
        self._add_overlaps(file, used, faults)
        return count

    def _add_overlaps(
        self, file: StoredFile, used: list[tuple[int, int]], faults: FaultList
    ) -> None:
        parts = np.array(sorted(used), np.int64)
        ends = np.maximum.accumulate(parts[:, 1])
        for n in np.flatnonzero(parts[1:, 0] < ends[:-1]).tolist():
            found = f"a label that begins inside the one before it, which ends at byte {ends[n]}"
            faults.add(Fault("mesh.overlap", file.name, found, offset=int(parts[n + 1, 0])))


def _nbytes(mesh: StoredMesh) -> int:
    """Return the size of a manifest."""
    counts = [len(level.sizes) for level in mesh.manifest.levels]
    return 28 + 20 * len(counts) + 16 * sum(counts)


def _fault(kind: str, path: str, error: Exception) -> Fault:
    text = os.strerror(error.errno or 0) if isinstance(error, OSError) and error.errno else error
    return Fault(kind, path, str(text).removeprefix(f"{path}: "))


@dataclass(frozen=True)
class MeshScope:
    """Meshes to check."""

    layer: str
    """Name of the volume."""
    meshes: MeshFolder
    can_decode: bool

    @property
    def folder(self) -> str:
        return self.meshes.folder

    @property
    def name(self) -> str:
        return basename(self.folder)

    @property
    def key(self) -> str:
        return f"{self.folder} meshes"

    def files(self) -> list[str]:
        """List the shards, or the labels that have a file."""
        if self.meshes.info.sharding is not None:
            return self.meshes.shard_names()
        stems = {name.removesuffix(MANIFEST_SUFFIX) for name in self.meshes.store.names()}
        return sorted((stem for stem in stems if stem.isdecimal()), key=int)

    def files_per_task(self) -> int:
        return 1 if self.meshes.info.sharding is not None else _LABELS_PER_TASK

    def check(self, *, decode: bool) -> MeshCheck:
        return MeshCheck(self.meshes, decode and self.can_decode)

    def faults(self) -> Iterator[Fault]:
        """Yield faults of names in the folder."""
        known = {"info", PROPERTIES_NAME, *self.files()}
        if self.meshes.info.sharding is None:
            known |= {f"{label}{MANIFEST_SUFFIX}" for label in known}
        for name in self.meshes.store.names():
            path = self.meshes.store.path_of(name)
            leftover = temporary_fault(path)
            if leftover is not None:
                yield leftover
            elif name not in known and not name.startswith("."):
                yield Fault("name.stray", path, "not part of meshes")


def mesh_scope(meshes: str, document: str, layer: str) -> tuple[tuple[MeshScope, ...], list[Fault]]:
    """Return the meshes of a layer in a folder that a document names, with faults of the
    folder."""
    try:
        opened = open_meshes(meshes)
    except MissingError:
        return (), [Fault("mesh.missing", document, f"names meshes in {meshes}", "its info")]
    except UnsupportedError as error:
        return (), [_fault("mesh.unsupported", meshes, error)]
    except (FormatError, OSError) as error:
        return (), [_fault("mesh.info", f"{meshes}/info", error)]
    if not (opened.store.can.lists or opened.store.can.compares):
        return (), [Fault("mesh.unsupported", meshes, "on a server that lists no files")]
    faults: list[Fault] = []
    try:
        import_extra("DracoPy", "verify decodes meshes", "meshes")
    except ModuleNotFoundError as error:
        faults.append(_fault("mesh.unsupported", meshes, error))
    scope = MeshScope(layer, opened, can_decode=not faults)
    return (scope,), [*faults, *scope.faults()]
