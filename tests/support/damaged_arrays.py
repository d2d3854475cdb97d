"""Kinds of damage to Zarr and N5 images of any software: what is done, what ``verify`` must report,
and what ``repair`` must do.

The counterpart for WEBKNOSSOS datasets is ``support.damage_matrix``, which prints both tables.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from support.foreign_arrays import ABSENT, multiscales, read_rows, row_of, write_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.foreign_arrays import Writer

HOURS_AGO = time.time() - 86400
TARGET, NEIGHBOUR = (1, 1, 1), (1, 1, 0)
"""Chunks z, y, x of one shard."""
COARSE = (1, 0, 0)


@dataclass(frozen=True)
class Case:
    """One kind of damage."""

    name: str
    damage: Callable[[Path, Writer], None]
    says: dict[str, Any]
    """Kinds of faults, and the file in the image, or a function that returns it for a writer."""
    does: tuple[str, ...] = ()
    """Actions of ``repair``."""
    stays: tuple[str, ...] = ()
    """Kinds of faults that stay, notes left out."""
    options: dict[str, Any] = field(default_factory=dict)
    """Allowed repairs."""
    lost: tuple[tuple[int, int, int], ...] | None = ()
    """Chunks of the fine level that read as zeros after the repair; None if the level cannot be
    read afterwards."""
    fits: Callable[[Writer], bool] = lambda writer: True
    """Writers whose images can have this damage."""


def is_sharded(writer):
    return writer.is_sharded


def is_single(writer):
    return not writer.is_sharded


def is_foreign(writer):
    return not writer.knows_method


def is_ours(writer):
    return writer.knows_method


def is_zarr(writer):
    return not writer.is_n5


def is_n5(writer):
    return writer.is_n5


def is_single_zarr(writer):
    return is_single(writer) and is_zarr(writer)


def is_v2(writer):
    return writer.documents[1] == ".zattrs"


def fine(writer):
    return writer.file(0, TARGET)


def fine_0(writer):
    return writer.file(0, (0, 0, 0))


def coarse(writer):
    return writer.file(1, COARSE)


def document(level):
    return lambda writer: f"{writer.paths[level]}/{writer.documents[0]}"


def level_1(writer):
    return writer.paths[1]


def attributes(writer):
    return writer.documents[1]


# ----------------------------------------------------------------------------- files


def rewrite(path_of, change):
    """Change the content of a file."""

    def damage(folder, writer):
        path = folder / path_of(writer)
        path.write_bytes(change(path.read_bytes()))

    return damage


def cut(path_of, nbytes):
    """Cut a file off; a negative number counts from its end."""
    return rewrite(path_of, lambda raw: raw[:nbytes])


def flip(path_of, at):
    """Damage one byte."""
    return rewrite(
        path_of,
        lambda raw: (
            raw[:at] + bytes([raw[at] ^ 0x40]) + raw[at + 1 :]
            if at >= 0
            else flipped_from_end(raw, at)
        ),
    )


def flipped_from_end(raw, at):
    changed = bytearray(raw)
    changed[at] ^= 0x40
    return bytes(changed)


def row(values):
    """Change a row of the index, whose checksum follows: to offset and size, or as a function of
    the rows and the size of the file."""

    def damage(folder, writer):
        path = folder / fine(writer)
        rows = read_rows(writer, path)
        rows[row_of(path, TARGET)] = (
            values(rows, path.stat().st_size) if callable(values) else values
        )
        write_rows(writer, path, rows)

    return damage


def garbage(level, cell):
    """Overwrite the header of a compressed chunk: without a checksum, other bytes may decode to
    other voxels."""

    def damage(folder, writer):
        path = folder / writer.file(level, cell)
        raw = bytearray(path.read_bytes())
        start = (
            int(read_rows(writer, path)[row_of(path, cell), 0])
            if writer.is_sharded
            else 16
            if writer.is_n5
            else 0
        )
        raw[start : start + 9] = b"\xff" * 9
        path.write_bytes(raw)

    return damage


def encoded_as(shape):
    """Store a chunk of other lengths, encoded like the others."""

    def damage(folder, writer):
        import gzip
        import zlib

        values = np.full(shape, 7, np.uint16)
        head = struct.pack(">HH3I", 0, 3, *shape) if writer.is_n5 else b""
        data = values.astype(">u2" if writer.is_n5 else "<u2").tobytes()
        (folder / fine(writer)).write_bytes(
            head
            + (zlib.compress(data) if writer.name == "tensorstore zarr2" else gzip.compress(data))
        )

    return damage


def folder_instead(path_of):
    def damage(folder, writer):
        (folder / path_of(writer)).unlink()
        (folder / path_of(writer)).mkdir()

    return damage


def link(folder, writer):
    (folder / fine(writer)).unlink()
    (folder / fine(writer)).symlink_to("/nowhere/at/all")


def add(path_of, *, hours_ago=True):
    """Make a file."""

    def damage(folder, writer):
        path = folder / path_of(writer)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half a chunk")
        if hours_ago:
            os.utime(path, (HOURS_AGO, HOURS_AGO))

    return damage


def beside(suffix):
    return lambda writer: f"{fine(writer)}{suffix}"


def outside(writer):
    return writer.file(0, (64, 0, 0))


def other_name(writer):
    """Name a chunk with the other separator."""
    separator = "." if writer.separator == "/" else "/"
    return f"{writer.paths[0]}/{writer.prefix.replace(writer.separator, separator)}{separator.join('111')}"  # noqa: E501


def both(*damages):
    def damage(folder, writer):
        for one in damages:
            one(folder, writer)

    return damage


# ----------------------------------------------------------------------------- documents


def edit(path_of, change):
    """Change a JSON document."""

    def damage(folder, writer):
        path = folder / path_of(writer)
        value = json.loads(path.read_text())
        change(value)
        path.write_text(json.dumps(value))

    return damage


def image(change):
    """Change the entry of ``multiscales``."""

    def change_document(value):
        inner = value.get("attributes", value)
        change(inner.get("ome", inner)["multiscales"][0])

    return edit(attributes, change_document)


def set_transform(level, number, values):
    def change(entry):
        entry["datasets"][level]["coordinateTransformations"][number].update(values)

    return image(change)


def other_separator(value):
    value["dimension_separator"] = "." if value.get("dimension_separator") == "/" else "/"


def remove(path_of):
    def damage(folder, writer):
        path = folder / path_of(writer)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()

    return damage


def other_version(change=lambda entry: None):
    """Put the documents of the other version of Zarr beside those of an image."""

    def damage(folder, writer):
        version = "0.5" if is_v2(writer) else "0.4"
        value = multiscales(version, writer.paths)
        change(value.get("ome", value)["multiscales"][0])
        if is_v2(writer):
            (folder / "zarr.json").write_text(
                json.dumps({"zarr_format": 3, "node_type": "group", "attributes": value})
            )
        else:
            (folder / ".zgroup").write_text('{"zarr_format": 2}')
            (folder / ".zattrs").write_text(json.dumps(value))

    return damage


def other_type(folder, writer):
    """Replace the coarse level by an array of another type."""
    import zarr

    path = folder / writer.paths[1]
    shutil.rmtree(path)
    array = zarr.create_array(
        path,
        shape=(16, 8, 16),
        chunks=(8, 8, 16),
        dtype="uint8",
        zarr_format=2 if is_v2(writer) else 3,
    )
    array[...] = 1


def consolidate(folder, writer):
    import warnings

    import zarr

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not part of the specification of Zarr 3
        zarr.consolidate_metadata(folder)


METHOD = {"method": "mean"}
SALVAGE, QUARANTINE = {"salvage": True}, {"quarantine": True}
PARTNERS = tuple((z, y, x) for z in (0, 1) for y in (0, 1) for x in (0, 1))
ALL_OF_SHARD = tuple(cell for cell in PARTNERS if cell != (0, 0, 0))
MIDDLE = 2000  # byte of a shard between its chunks and its index at either end
SCALE = {"scale": [4.0, 4.0, 4.0]}


def at_end(writer):
    return writer.is_sharded and writer.index_at_end


def at_start(writer):
    return writer.is_sharded and not writer.index_at_end


CASES = [
    # files with one chunk
    Case(
        "chunk empty",
        cut(fine, 0),
        {"chunk.empty": fine},
        stays=("chunk.empty",),
        lost=None,
        fits=is_single,
    ),
    Case(
        "chunk cut off",
        cut(fine, -9),
        {"chunk.undecodable": fine},
        stays=("chunk.undecodable",),
        lost=None,
        fits=is_single,
    ),
    Case(
        "chunk overwritten",
        garbage(0, TARGET),
        {"chunk.undecodable": fine},
        stays=("chunk.undecodable",),
        lost=None,
        fits=is_single,
    ),
    Case(
        "the same, --salvage",
        garbage(0, TARGET),
        {"chunk.undecodable": fine},
        ("salvage",),
        options=SALVAGE,
        lost=(TARGET,),
        fits=is_single,
    ),
    Case(
        "the same, --quarantine",
        garbage(0, TARGET),
        {"chunk.undecodable": fine},
        ("quarantine",),
        options=QUARANTINE,
        lost=(TARGET,),
        fits=is_single,
    ),
    Case(
        "chunk too short",
        encoded_as((16, 8, 4)),
        {"chunk.undecodable": fine},
        stays=("chunk.undecodable",),
        lost=None,
        fits=is_single_zarr,
    ),
    Case(
        "block that states other lengths",
        encoded_as((16, 8, 4)),
        {"chunk.shape": fine},
        stays=("chunk.shape",),
        lost=None,
        fits=is_n5,
    ),
    Case(
        "chunk too long",
        encoded_as((16, 8, 9)),
        {"chunk.undecodable": fine},
        stays=("chunk.undecodable",),
        lost=None,
        fits=is_single,
    ),
    Case(
        "folder instead of a file",
        folder_instead(fine),
        {"file.no_file": fine},
        stays=("file.no_file",),
        lost=None,
        fits=is_foreign,
    ),
    Case(
        "the same, --quarantine",
        folder_instead(fine),
        {"file.no_file": fine},
        ("quarantine",),
        options=QUARANTINE,
        lost=(TARGET,),
        fits=is_single,
    ),
    Case(
        "folder instead of a coarser file, --method",
        folder_instead(coarse),
        {"file.no_file": coarse},
        ("rebuild",),
        options=METHOD,
    ),
    Case(
        "link to nowhere",
        link,
        {"file.dangling": fine},
        stays=("file.dangling",),
        lost=None,
        fits=is_foreign,
    ),
    # shards
    Case(
        "shard empty",
        cut(fine, 0),
        {"shard.short": fine},
        stays=("shard.short",),
        lost=None,
        fits=is_sharded,
    ),
    Case(
        "the same, --quarantine",
        cut(fine, 0),
        {"shard.short": fine},
        ("quarantine",),
        options=QUARANTINE,
        lost=ALL_OF_SHARD,
        fits=is_sharded,
    ),
    Case(
        "shard cut off before its index",
        cut(fine, MIDDLE),
        {"shard.checksum": fine},
        stays=("shard.checksum",),
        lost=None,
        fits=at_end,
    ),
    Case(
        "shard cut off in its index",
        cut(fine, -30),
        {"shard.checksum": fine},
        stays=("shard.checksum",),
        lost=None,
        fits=at_end,
    ),
    Case(
        "shard cut off in its index at the start",
        cut(fine, 100),
        {"shard.short": fine},
        stays=("shard.short",),
        lost=None,
        fits=at_start,
    ),
    Case(
        "shard cut off behind its index",
        cut(fine, -20),
        {"shard.place": fine},
        stays=("shard.place",),
        lost=None,
        fits=at_start,
    ),
    Case(
        "the same, --salvage",
        cut(fine, -20),
        {"shard.place": fine},
        ("salvage",),
        options=SALVAGE,
        lost=((1, 1, 1),),
        fits=at_start,
    ),
    Case(
        "shard cut off by a row of its index, --salvage",
        cut(fine, -16),
        {"shard.checksum": fine},
        stays=("shard.checksum",),
        options=SALVAGE,
        lost=None,
        fits=at_end,
    ),
    Case(
        "checksum of the index damaged",
        flip(fine, -1),
        {"shard.checksum": fine},
        ("correct index",),
        fits=at_end,
    ),
    Case(
        "checksum of the index at the start damaged",
        flip(fine, 128),
        {"shard.checksum": fine},
        ("correct index",),
        fits=at_start,
    ),
    Case(
        "offset in the index damaged",
        flip(fine, -4 - 16),
        {"shard.checksum": fine},
        ("correct index",),
        fits=at_end,
    ),
    Case(
        "size in the index damaged",
        flip(fine, -4 - 8),
        {"shard.checksum": fine},
        ("correct index",),
        fits=at_end,
    ),
    Case(
        "size in the index at the start damaged",
        flip(fine, 16 * 3 + 9),
        {"shard.checksum": fine},
        ("correct index",),
        fits=at_start,
    ),
    Case(
        "absent chunk in the index damaged",
        flip(fine_0, -4 - 16 * 8 + 3),
        {"shard.checksum": fine_0},
        ("correct index",),
        fits=at_end,
    ),
    Case(
        "two rows of the index damaged",
        both(flip(fine, -4 - 16), flip(fine, -4 - 48)),
        {"shard.checksum": fine},
        stays=("shard.checksum",),
        lost=None,
        fits=at_end,
    ),
    Case(
        "row beyond the file",
        row(lambda rows, nbytes: (nbytes - 5, 99)),
        {"shard.place": fine},
        stays=("shard.place",),
        lost=None,
        fits=is_sharded,
    ),
    Case(
        "the same, --salvage",
        row(lambda rows, nbytes: (nbytes - 5, 99)),
        {"shard.place": fine},
        ("salvage",),
        options=SALVAGE,
        lost=(TARGET,),
        fits=is_sharded,
    ),
    Case(
        "row half absent",
        row((ABSENT, 99)),
        {"shard.place": fine},
        stays=("shard.place",),
        lost=None,
        fits=is_sharded,
    ),
    Case(
        "row of another half absent",
        row((99, ABSENT)),
        {"shard.place": fine},
        stays=("shard.place",),
        lost=None,
        fits=is_sharded,
    ),
    Case(
        "row without bytes",
        row(lambda rows, nbytes: (rows[-1, 0], 0)),
        {"chunk.empty": fine},
        stays=("chunk.empty",),
        lost=None,
        fits=is_sharded,
    ),
    Case(
        "rows that overlap",
        row(lambda rows, nbytes: (rows[-1, 0] - 1, rows[-1, 1])),
        {"shard.overlap": fine, "chunk.undecodable": fine},
        stays=("shard.overlap", "chunk.undecodable"),
        lost=None,
        fits=is_sharded,
    ),
    Case(
        "the same, --salvage",
        row(lambda rows, nbytes: (rows[-1, 0] - 1, rows[-1, 1])),
        {"shard.overlap": fine, "chunk.undecodable": fine},
        ("salvage",),
        options=SALVAGE,
        lost=(TARGET,),
        fits=is_sharded,
    ),
    Case(
        "chunk of a shard overwritten",
        garbage(0, TARGET),
        {"chunk.undecodable": fine},
        stays=("chunk.undecodable",),
        lost=None,
        fits=is_sharded,
    ),
    Case(
        "the same, --salvage",
        garbage(0, TARGET),
        {"chunk.undecodable": fine},
        ("salvage",),
        options=SALVAGE,
        lost=(TARGET,),
        fits=is_sharded,
    ),
    # coarser levels
    Case(
        "coarser chunk overwritten, method unknown",
        garbage(1, COARSE),
        {"chunk.undecodable": coarse},
        stays=("chunk.undecodable",),
        lost=None,
        fits=is_foreign,
    ),
    Case(
        "the same, --method",
        garbage(1, COARSE),
        {"chunk.undecodable": coarse},
        ("rebuild",),
        options=METHOD,
        fits=is_foreign,
    ),
    Case(
        "coarser chunk overwritten, method recorded",
        garbage(1, COARSE),
        {"chunk.undecodable": coarse},
        ("rebuild",),
        fits=is_ours,
    ),
    Case(
        "coarser file empty, --method", cut(coarse, 0), {"*": coarse}, ("rebuild",), options=METHOD
    ),
    Case(
        "a chunk and the one made from it, --salvage",
        both(garbage(0, (2, 1, 1)), garbage(1, COARSE)),
        {"chunk.undecodable": (lambda writer: writer.file(0, (2, 1, 1)), coarse)},
        ("salvage", "salvage"),
        options=SALVAGE,
        lost=None,
    ),
    # names
    Case(
        "chunk outside of the array",
        add(outside),
        {"chunk.outside": outside},
        stays=("chunk.outside",),
    ),
    Case(
        "chunk with the other separator",
        add(other_name),
        {"name.unread": other_name},
        stays=("name.unread",),
    ),
    Case(
        "separator that no file has",
        edit(document(0), other_separator),
        {"level.names": document(0)},
        stays=("level.names",),
        lost=None,
        fits=is_v2,
    ),
    # leftovers
    Case(
        "temporary file of zarr-python",
        add(beside(f".{'0a' * 16}.partial")),
        {"leftover.temporary": beside(f".{'0a' * 16}.partial")},
        ("remove",),
    ),
    Case(
        "temporary document of zarr-python",
        add(lambda writer: f"zarr.{'0a' * 16}.partial"),
        {"leftover.temporary": lambda writer: f"zarr.{'0a' * 16}.partial"},
        ("remove",),
    ),
    Case(
        "temporary file of tensorstore",
        add(beside(".__lock")),
        {"leftover.temporary": beside(".__lock")},
        ("remove",),
    ),
    Case(
        "that of just now",
        add(beside(".__lock"), hours_ago=False),
        {"leftover.temporary": beside(".__lock")},
        stays=("leftover.temporary",),
    ),
    Case(
        "temporary file of zarrs",
        add(beside(".tmp")),
        {"leftover.temporary": beside(".tmp")},
        ("remove",),
    ),
    Case(
        "temporary file of wkwdask",
        add(lambda writer: f"{writer.paths[0]}/.1.0123456789abcdef.wkwdask-tmp"),
        {"leftover.temporary": lambda writer: f"{writer.paths[0]}/.1.0123456789abcdef.wkwdask-tmp"},
        ("remove",),
    ),
    # levels
    Case(
        "document of a level missing",
        remove(document(1)),
        {"level.missing": level_1},
        stays=("level.missing",),
        fits=is_zarr,
        lost=None,
    ),
    Case(
        "level missing",
        remove(level_1),
        {"level.missing": level_1},
        stays=("level.missing",),
        fits=is_zarr,
        lost=None,
    ),
    Case(
        "document of a level broken",
        rewrite(document(1), lambda raw: raw[:20]),
        {"level.broken": level_1},
        stays=("level.broken",),
        lost=None,
    ),
    Case(
        "level of another type",
        other_type,
        {"level.dtype": document(1)},
        stays=("level.dtype",),
        lost=None,
        fits=is_zarr,
    ),
    Case(
        "level that is not listed",
        image(lambda entry: entry["datasets"].pop()),
        {"level.unlisted": level_1},
        stays=("level.unlisted",),
        fits=is_zarr,
    ),
    Case(
        "scale that contradicts the shape",
        set_transform(1, 0, SCALE),
        {"image.scale": attributes},
        stays=("image.scale",),
        fits=is_zarr,
    ),
    Case(
        "translation of a voxel",
        set_transform(1, 1, {"translation": [10.0, 2.0, 2.0]}),
        {"image.translation": attributes},
        stays=("image.translation",),
        fits=is_zarr,
    ),
    Case(
        "translation of less than half a voxel",
        set_transform(1, 1, {"translation": [0.0, 5.0, 2.0]}),
        {},
        fits=is_zarr,
    ),
    Case(
        "factors that contradict the shape",
        edit(attributes, lambda value: value.update(downsamplingFactors=[[1, 1, 1], [4, 4, 4]])),
        {"image.scale": attributes},
        stays=("image.scale",),
        fits=lambda writer: is_n5(writer) and is_foreign(writer),
    ),
    Case(
        "place of a level off by a voxel",
        edit(document(1), lambda value: value["transform"]["translate"].__setitem__(0, 10.0)),
        {"image.translation": document(1)},
        stays=("image.translation",),
        fits=lambda writer: is_n5(writer) and is_ours(writer),
    ),
    Case(
        "levels in another order",
        image(lambda entry: entry["datasets"].reverse()),
        {"image.order": attributes},
        stays=("image.order",),
        fits=is_zarr,
    ),
    Case(
        "axes that the arrays do not have",
        image(lambda entry: entry["axes"].insert(0, {"name": "c", "type": "channel"})),
        {"level.axes": None, "level.unsupported": None},
        stays=("level.axes", "level.unsupported"),
        fits=is_zarr,
        lost=None,
    ),
    Case(
        "multiscales without paths",
        image(lambda entry: entry.pop("datasets")),
        {"image.broken": attributes},
        stays=("image.broken",),
        fits=is_zarr,
    ),
    # several documents
    Case(
        "documents of both versions, alike",
        other_version(),
        {"document.twice": None},
        stays=("document.twice",),
        fits=is_zarr,
        lost=None,
    ),
    Case(
        "documents of both versions, other multiscales",
        other_version(lambda entry: entry["datasets"][1]["coordinateTransformations"].pop()),
        {"document.differs": None},
        stays=("document.differs",),
        fits=is_zarr,
        lost=None,
    ),
    Case(
        "consolidated metadata lists an array that is gone",
        both(consolidate, image(lambda entry: entry["datasets"].pop()), remove(level_1)),
        {"document.consolidated": None},
        stays=("document.consolidated",),
        fits=is_zarr,
        lost=None,
    ),
]
