"""Kinds of damage to a dataset: what is done to it, what ``verify`` must say, and what ``repair``
must do.

``PYTHONPATH=tests python -m support.damage_matrix`` prints the table with what really happens.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import struct
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lz4.block
import numpy as np
from support.datasets import FILE_NAME
from support.locks import dead_process, put_lock
from support.wkw_files import RAW as RAW_BLOCKS
from support.wkw_files import decode_file, encode_file, stored_voxels

import wkwdask

if TYPE_CHECKING:
    from collections.abc import Callable

OFFSET = (3, 0, 5)
SHAPE = (40, 36, 30)
BLOCKS = 8  # of a file
HOURS_AGO = time.time() - 86400
MAGS = ("2", "4")


# ----------------------------------------------------------------------------- the sound dataset


def labels():
    """Labels in lumps, with a hole that leaves a file away."""
    coarse = np.random.default_rng(5).integers(1, 60, [-(-n // 4) for n in SHAPE]).astype(np.uint32)
    array = np.kron(coarse, np.ones((4, 4, 4), np.uint32))[tuple(slice(n) for n in SHAPE)]
    array[29:, 16:, 11:27] = 0  # the files (2, 1, 1) and (2, 2, 1)
    return array


def make_dataset(folder):
    """A segmentation of three compressed mags, and a raw image."""
    folder = Path(folder)
    wkwdask.create_dataset(folder, (11.24, 11.24, 11.24), name="ds")
    wkwdask.to_wkw(
        labels(), folder / "cells" / "1", offset=OFFSET, block_len=8, file_len=2, compression="lz4"
    )
    wkwdask.build_pyramid(folder, "cells", mags=MAGS)
    image = (labels() * 4 + 1).astype(np.uint8)
    wkwdask.to_wkw(
        image,
        folder / "color" / "1",
        offset=OFFSET,
        block_len=8,
        file_len=2,
        compression="raw",
        category="color",
    )
    edit(folder, lambda layers: layers["cells"].update(largestSegmentId=int(labels().max())))
    return folder


def edit(folder, change):
    """Change the layers of the JSON, by name."""
    document = json.loads((folder / FILE_NAME).read_text())
    change({layer["name"]: layer for layer in document["dataLayers"]})
    (folder / FILE_NAME).write_text(json.dumps(document))


def hashes(folder):
    """Content of every file of a folder, hidden ones too; links and empty folders by name."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"link to {os.readlink(path)}"
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[name] = "folder"
    return found


def voxels(folder, layer="cells", mag="1"):
    """All voxels of a mag, outside the box too."""
    return stored_voxels(f"{folder}/{layer}/{mag}", (64, 64, 64))[0]


# ----------------------------------------------------------------------------- damage

FINE = "cells/1/z1/y0/x1.wkw"
COARSE = "cells/2/z0/y0/x1.wkw"
ABOVE = "cells/2/z0/y0/x0.wkw"  # made from FINE among others
RECHUNK = "cells/.rechunk-12345678-1234-1234-1234-123456789abc"
RAW = "color/1/z0/y1/x0.wkw"
HEADER = "cells/1/header.wkw"
TABLE = slice(16, 16 + 8 * BLOCKS)


def overwrite(path, offset, data):
    """Write bytes into a file."""

    def damage(folder):
        with (folder / path).open("r+b") as file:
            file.seek(offset)
            file.write(data)

    return damage


def cut(path, nbytes):
    """Cut a file off; a negative number counts from its end."""

    def damage(folder):
        size = (folder / path).stat().st_size
        os.truncate(folder / path, nbytes if nbytes >= 0 else size + nbytes)

    return damage


def add(path, data=b"something else"):
    """Append bytes to a file, or make it."""

    def damage(folder):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        with (folder / path).open("ab") as file:
            file.write(data)

    return damage


def remove(path):
    """Remove a file or folder."""

    def damage(folder):
        if (folder / path).is_dir():
            shutil.rmtree(folder / path)
        else:
            (folder / path).unlink()

    return damage


def move(path, new):
    """Rename a file or folder."""

    def damage(folder):
        (folder / new).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).rename(folder / new)

    return damage


def old(path, data=b"half a file"):
    """Make a file that was written yesterday."""

    def damage(folder):
        add(path, data)(folder)
        os.utime(folder / path, (HOURS_AGO, HOURS_AGO))

    return damage


def old_folder(path):
    """Make a folder with a file that was written yesterday."""

    def damage(folder):
        old(f"{path}/z0/y0/x0.wkw")(folder)
        os.utime(folder / path, (HOURS_AGO, HOURS_AGO))

    return damage


def table(change, path=FINE):
    """Change the jump table of a file."""

    def damage(folder):
        raw = bytearray((folder / path).read_bytes())
        entries = np.frombuffer(raw[TABLE], "<u8").copy()
        change(entries)
        raw[TABLE] = entries.tobytes()
        (folder / path).write_bytes(raw)

    return damage


def set_entry(number, value):
    """Set one entry of a jump table."""

    def change(entries):
        entries[number] = value(entries) if callable(value) else value

    return change


def blocks(change, path=FINE):
    """Change the stored blocks of a compressed file; its table follows."""

    def damage(folder):
        raw = (folder / path).read_bytes()
        ends = [TABLE.stop, *np.frombuffer(raw[TABLE], "<u8").tolist()]
        stored = [raw[a:b] for a, b in itertools.pairwise(ends)]
        change(stored)
        new_ends = TABLE.stop + np.cumsum([len(block) for block in stored])
        (folder / path).write_bytes(raw[:16] + new_ends.astype("<u8").tobytes() + b"".join(stored))

    return damage


def set_block(number, value):
    """Set one stored block."""

    def change(stored):
        stored[number] = value

    return change


def encoded(nbytes):
    """A sound LZ4 block of another length."""
    return lz4.block.compress(np.random.default_rng(1).bytes(nbytes), store_size=False)


def layer(name, **values):
    """Change what the JSON says of a layer."""
    return lambda folder: edit(folder, lambda layers: layers[name].update(values))


def mags_of(name, change):
    """Change the list of mags of a layer."""

    def damage(folder):
        edit(folder, lambda layers: change(layers[name]["mags"]))

    return damage


def link(path):
    """Replace a file or folder by a dangling link."""

    def damage(folder):
        remove(path)(folder)
        (folder / path).symlink_to("/nowhere/at/all")

    return damage


def make_folder(path):
    """Replace a file by a folder."""

    def damage(folder):
        remove(path)(folder)
        (folder / path).mkdir()
        (folder / path / "inside").write_text("a file")

    return damage


def as_raw(path):
    """Store a compressed file raw, as other software may."""

    def damage(folder):
        (folder / path).write_bytes(
            encode_file(decode_file((folder / path).read_bytes()), 8, RAW_BLOCKS)
        )

    return damage


def with_padding(path):
    """Leave a gap between the table and the first block, which the format allows."""

    def damage(folder):
        raw = (folder / path).read_bytes()
        ends = np.frombuffer(raw[TABLE], "<u8") + 8
        (folder / path).write_bytes(
            raw[:8]
            + struct.pack("<Q", TABLE.stop + 8)
            + ends.tobytes()
            + bytes(8)
            + raw[TABLE.stop :]
        )

    return damage


def file_of(dtype, path):
    """Write a sound file of another type."""

    def damage(folder):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(encode_file(np.ones((1, 16, 16, 16), dtype), 8))

    return damage


def zero_file(path):
    """Store a file without any voxel."""

    def damage(folder):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(encode_file(np.zeros((1, 16, 16, 16), np.uint32), 8))

    return damage


def copied_mag(change=lambda copy: None):
    """Leave a finest mag that webknossos was rechunking into a separate folder yesterday, with
    files of another length."""

    def damage(folder):
        copy = folder / RECHUNK / "cells" / "1"
        copy.parent.mkdir(parents=True)
        shutil.copytree(folder / "cells" / "1", copy)
        wkwdask.rechunk(copy, file_len=1)
        for path in copy.glob(".*"):
            path.unlink()
        change(copy)
        for path in (folder / RECHUNK, *(folder / RECHUNK).rglob("*")):
            os.utime(path, (HOURS_AGO, HOURS_AGO))

    return damage


def foreign(folder):
    """Take away what wkwdask knows of the finest mag."""
    for path in (folder / "cells" / "1").glob(".wkwdask*"):
        path.unlink()


def dead_job(journal=False):
    """Leave the folder of a job that has ended."""

    def damage(folder):
        root = folder / "cells" / ".wkwdask-job-dead"
        root.mkdir()
        (root / "owner.json").write_text(json.dumps(dead_process("a test", "dead")))
        (root / "plan.json").write_text(
            json.dumps(
                {"layout": 1, "targets": ["8"], "existing": "error", "settings": {}, "plan": None}
            )
        )
        if journal:
            (root / "journal-0.jsonl").write_text('{"task": "region 0 0,0,0"}\n')

    return damage


def stale_lock(folder):
    """Leave the lock of a job that has ended."""
    put_lock(folder / "cells" / "1", dead_process("a test", "gone"))


def other_method(folder):
    """Make a coarser mag otherwise than it says."""
    wkwdask.build_pyramid(folder, "cells", mags=MAGS, method="nearest", existing="overwrite")
    for mag in MAGS:
        path = folder / "cells" / mag / ".wkwdask.json"
        path.write_text(path.read_text().replace('"nearest"', '"mode"'))


def strangers_mag(*damages):
    """Take away what says how the coarser mags were made, then do more."""

    def damage(folder):
        for mag in MAGS:
            for name in (".wkwdask.json", ".wkwdask-files.npy"):
                (folder / "cells" / mag / name).unlink()
        for one in damages:
            one(folder)

    return damage


def both(*damages):
    """Do several things."""

    def damage(folder):
        for one in damages:
            one(folder)

    return damage


# ----------------------------------------------------------------------------- the matrix


@dataclass(frozen=True)
class Case:
    """One kind of damage."""

    name: str
    """What is done."""
    damage: Callable[[Path], None]
    """Does it."""
    says: dict[str, Any]
    """Kinds of faults, and at which path of the dataset."""
    does: tuple[str, ...] = ()
    """Verbs of the repair without options."""
    stays: tuple[str, ...] = ()
    """Kinds of faults that stay, notes left out."""
    options: dict[str, Any] = field(default_factory=dict)
    """Allowed repairs."""
    verify: dict[str, Any] = field(default_factory=dict)
    """Way of checking."""
    restored: bool = True
    """Whether all voxels are as before, where nothing stays."""
    zeros: bool = False
    """Whether the repair leaves zeros where voxels were."""
    needs_user: bool = False
    """Whether it is no damage for a superuser."""


BROKEN_BLOCK = set_block(5, b"\xff" * 90)
OUTSIDE = "cells/1/z9/y9/x9.wkw"
FINE_BLOCK_0 = TABLE.stop
CASES = [
    # header.wkw
    Case("header.wkw missing", remove(HEADER), {"header.missing": HEADER}, ("write header.wkw",)),
    Case("header.wkw empty", cut(HEADER, 0), {"header.short": HEADER}, ("write header.wkw",)),
    Case("header.wkw cut off", cut(HEADER, 10), {"header.short": HEADER}, ("write header.wkw",)),
    Case(
        "header.wkw: other magic",
        overwrite(HEADER, 0, b"XKW"),
        {"header.magic": HEADER},
        ("write header.wkw",),
    ),
    Case(
        "header.wkw: version 2",
        overwrite(HEADER, 3, b"\2"),
        {"header.version": HEADER},
        ("write header.wkw",),
    ),
    Case(
        "header.wkw: block type 9",
        overwrite(HEADER, 5, b"\x09"),
        {"header.block_type": HEADER},
        ("write header.wkw",),
    ),
    Case(
        "header.wkw: voxel type 99",
        overwrite(HEADER, 6, b"\x63"),
        {"header.voxel_type": HEADER},
        ("write header.wkw",),
    ),
    Case(
        "header.wkw: voxel size 3 of uint32",
        overwrite(HEADER, 7, b"\3"),
        {"header.voxel_size": HEADER},
        ("write header.wkw",),
    ),
    Case(
        "header.wkw: blocks beyond LZ4",
        overwrite(HEADER, 4, b"\x1f"),
        {"header.block_nbytes": HEADER},
        ("write header.wkw",),
    ),
    Case(
        "header.wkw: data offset",
        overwrite(HEADER, 8, b"\x10"),
        {"header.data_offset": HEADER},
        ("write header.wkw",),
    ),
    Case(
        "header.wkw of another mag",
        overwrite(HEADER, 4, b"\x14"),
        {"header.differs": HEADER},
        ("write header.wkw",),
    ),
    Case(
        "header.wkw: raw, but the files are compressed",
        overwrite(HEADER, 5, b"\1"),
        {"header.other_block_type": HEADER},
        ("write header.wkw",),
    ),
    Case("header.wkw longer than 16 bytes", add(HEADER), {"header.long": HEADER}),
    # headers of data files
    Case("data file empty", cut(FINE, 0), {"file.empty": FINE}, stays=("file.empty",)),
    Case("data file of 7 bytes", cut(FINE, 7), {"file.short": FINE}, stays=("file.short",)),
    Case(
        "data file: other magic",
        overwrite(FINE, 0, b"\0\0\0"),
        {"file.magic": FINE},
        ("correct header",),
    ),
    Case(
        "data file: version 3",
        overwrite(FINE, 3, b"\3"),
        {"file.version": FINE},
        ("correct header",),
    ),
    Case(
        "data file: block type 0",
        overwrite(FINE, 5, b"\0"),
        {"file.bad_block_type": FINE},
        ("correct header",),
    ),
    Case(
        "data file: voxel type 77",
        overwrite(FINE, 6, b"\x4d"),
        {"file.bad_voxel_type": FINE},
        ("correct header",),
    ),
    Case(
        "data file: voxel size 5 of uint32",
        overwrite(FINE, 7, b"\5"),
        {"file.bad_voxel_size": FINE},
        ("correct header",),
    ),
    Case(
        "data file: two channels for one",
        overwrite(FINE, 7, b"\x08"),
        {"file.channels": FINE},
        ("correct header",),
    ),
    Case(
        "data file: data offset 0",
        overwrite(FINE, 8, bytes(8)),
        {"file.data_offset": FINE},
        ("correct header",),
    ),
    Case(
        "data file: other block_len",
        overwrite(FINE, 4, b"\x14"),
        {"file.block_len": FINE},
        ("correct header",),
    ),
    Case(
        "data file: other file_len",
        overwrite(FINE, 4, b"\x23"),
        {"file.file_len": FINE, "file.data_offset": FINE},
        ("correct header",),
    ),
    Case(
        "data file: int32 for uint32",
        overwrite(FINE, 6, b"\x09"),
        {"file.voxel_type": FINE},
        stays=("file.voxel_type",),
    ),
    Case(
        "raw data file: other magic",
        overwrite(RAW, 0, b"\0\0\0"),
        {"file.magic": RAW},
        ("correct header",),
    ),
    Case(
        "raw data file: other block_len",
        overwrite(RAW, 4, b"\x14"),
        {"file.block_len": RAW, "file.*": RAW},
        ("correct header",),
    ),
    Case(
        "raw data file: other file_len",
        overwrite(RAW, 4, b"\x23"),
        {"file.file_len": RAW, "file.*": RAW},
        ("correct header",),
    ),
    Case(
        "raw data file of other lengths, as long",
        overwrite(RAW, 4, b"\x22"),
        {"file.block_len": RAW, "file.file_len": RAW},
        stays=("file.block_len", "file.file_len"),
    ),
    Case(
        "data file of another layer",
        file_of(np.uint8, FINE),
        {"file.voxel_type": FINE},
        stays=("file.voxel_type",),
    ),
    Case(
        "raw data file in a compressed mag",
        as_raw(FINE),
        {"file.block_type": FINE},
        stays=("file.block_type",),
    ),
    Case(
        "data file: gap behind the table",
        with_padding(FINE),
        {"file.padding": FINE, "file.size_changed": FINE},
        stays=("file.size_changed",),
    ),
    # tables and blocks
    Case(
        "jump table cut off", cut(FINE, 40), {"table.truncated": FINE}, stays=("table.truncated",)
    ),
    Case(
        "jump table decreases",
        table(set_entry(3, lambda entries: entries[2] - 5)),
        {"table.falls": FINE, "block.*": FINE},
        stays=("table.falls", "block.*"),
    ),
    Case(
        "jump table beyond the file",
        table(set_entry(3, 1 << 40)),
        {"table.beyond": FINE, "table.falls": FINE},
        stays=("table.beyond", "table.falls"),
    ),
    Case(
        "jump table zeroed",
        table(set_entry(slice(None), 0)),
        {"table.inside": FINE},
        stays=("table.inside",),
    ),
    Case(
        "block without bytes",
        table(set_entry(3, lambda entries: entries[2])),
        {"table.empty_block": FINE, "block.*": FINE},
        stays=("table.empty_block", "block.*"),
    ),
    Case(
        "file cut off in a block",
        cut(FINE, -30),
        {"file.truncated": FINE},
        stays=("file.truncated",),
    ),
    Case("raw file cut off", cut(RAW, -700), {"file.truncated": RAW}, stays=("file.truncated",)),
    Case(
        "a block is no LZ4",
        blocks(BROKEN_BLOCK),
        {"block.undecodable": FINE},
        stays=("block.undecodable",),
    ),
    Case(
        "a block decodes to too few bytes",
        blocks(set_block(5, encoded(1000))),
        {"block.too_few": FINE},
        stays=("block.too_few",),
    ),
    Case(
        "a block decodes to too many bytes",
        blocks(set_block(5, encoded(3000))),
        {"block.too_many": FINE},
        stays=("block.too_many",),
    ),
    Case("bytes behind the last block", add(FINE), {"file.trailing": FINE}, ("cut off",)),
    Case("bytes behind the last raw block", add(RAW), {"file.trailing": RAW}, ("cut off",)),
    Case(
        "a file of zeros stored",
        zero_file("cells/1/z1/y1/x2.wkw"),
        {"file.zeros": "cells/1/z1/y1/x2.wkw"},
    ),
    # what a user may allow
    Case(
        "one broken block, --salvage",
        blocks(BROKEN_BLOCK),
        {"block.undecodable": FINE},
        ("salvage",),
        options={"salvage": True},
        zeros=True,
    ),
    Case(
        "file cut off, --salvage",
        cut(FINE, -30),
        {"file.truncated": FINE},
        ("salvage",),
        options={"salvage": True},
        zeros=True,
    ),
    Case(
        "raw file cut off, --salvage",
        cut(RAW, -700),
        {"file.truncated": RAW},
        ("salvage",),
        options={"salvage": True},
        zeros=True,
    ),
    Case(
        "jump table cut off, --quarantine",
        cut(FINE, 40),
        {"table.truncated": FINE},
        ("quarantine",),
        options={"quarantine": True},
        zeros=True,
    ),
    Case(
        "link to nowhere, --quarantine",
        link(FINE),
        {"file.dangling": FINE},
        ("quarantine",),
        options={"quarantine": True},
        zeros=True,
    ),
    # files and folders
    Case(
        "data file unreadable",
        lambda folder: (folder / FINE).chmod(0),
        {"file.unreadable": FINE},
        stays=("file.unreadable",),
        needs_user=True,
    ),
    Case(
        "data file a link to nowhere", link(FINE), {"file.dangling": FINE}, stays=("file.dangling",)
    ),
    Case(
        "folder instead of a file",
        make_folder(FINE),
        {"file.no_file": FINE},
        stays=("file.no_file",),
    ),
    Case(
        "data file gone, the record knows", remove(FINE), {"file.lost": FINE}, stays=("file.lost",)
    ),
    Case(
        "file instead of a folder",
        both(remove("cells/1/z1/y0"), add("cells/1/z1/y0")),
        {"folder.no_folder": "cells/1/z1/y0", "file.lost": None},
        stays=("folder.no_folder", "file.lost"),
    ),
    Case(
        "folder a link to nowhere",
        link("cells/1/z1/y0"),
        {"folder.dangling": "cells/1/z1/y0", "file.lost": None},
        stays=("folder.dangling", "file.lost"),
    ),
    Case(
        "data file outside the box",
        file_of(np.uint32, OUTSIDE),
        {"file.outside": OUTSIDE, "json.box_smaller": FILE_NAME},
        stays=("file.outside", "json.box_smaller"),
    ),
    Case(
        "data file x01.wkw",
        move(FINE, "cells/1/z1/y0/x01.wkw"),
        {"name.unread": "cells/1/z1/y0/x01.wkw", "file.lost": FINE},
        stays=("name.unread", "file.lost"),
    ),
    Case(
        "data file X1.wkw",
        move(FINE, "cells/1/z1/y0/X1.wkw"),
        {"name.unread": "cells/1/z1/y0/X1.wkw", "file.lost": FINE},
        stays=("name.unread", "file.lost"),
    ),
    Case(
        "folder y-1",
        add("cells/1/z1/y-1/x0.wkw"),
        {"name.unread": "cells/1/z1/y-1"},
        stays=("name.unread",),
    ),
    Case("stray file", add("cells/1/z1/notes.txt"), {"name.stray": "cells/1/z1/notes.txt"}),
    Case(
        "record of files damaged",
        cut("cells/1/.wkwdask-files.npy", 50),
        {"record.broken": "cells/1/.wkwdask-files.npy"},
        ("remove",),
    ),
    # coarser mags
    Case("coarser file cut off", cut(COARSE, -20), {"file.truncated": COARSE}, ("rebuild",)),
    Case("coarser file empty", cut(COARSE, 0), {"file.empty": COARSE}, ("rebuild",)),
    Case(
        "coarser file with a broken block",
        blocks(set_block(2, b"\xff" * 50), COARSE),
        {"block.undecodable": COARSE},
        ("rebuild",),
    ),
    Case(
        "coarser file gone, the record knows", remove(COARSE), {"file.lost": COARSE}, ("rebuild",)
    ),
    Case(
        "folder instead of a coarser file",
        make_folder(COARSE),
        {"file.no_file": COARSE},
        ("rebuild",),
    ),
    Case(
        "two mags of one file broken",
        both(cut(COARSE, 9), cut("cells/4/z0/y0/x0.wkw", 9)),
        {"file.short": (COARSE, "cells/4/z0/y0/x0.wkw")},
        ("rebuild", "rebuild"),
    ),
    Case(
        "file broken in the finest mag and the next",
        both(cut(FINE, 40), cut(ABOVE, -20)),
        {"table.truncated": FINE, "file.truncated": ABOVE},
        stays=("table.truncated", "file.truncated"),
    ),
    Case(
        "the same, --salvage",
        both(blocks(BROKEN_BLOCK), cut(ABOVE, -20)),
        {"block.undecodable": FINE, "file.truncated": ABOVE},
        ("salvage", "salvage"),
        options={"salvage": True},
        zeros=True,
    ),
    Case(
        "the same, the coarser file without any sound block",
        both(blocks(BROKEN_BLOCK), cut(ABOVE, 0)),
        {"block.undecodable": FINE, "file.empty": ABOVE},
        ("salvage", "rebuild"),
        options={"salvage": True},
        zeros=True,
    ),
    Case(
        "coarser file of unknown origin broken",
        strangers_mag(cut(COARSE, -20)),
        {"file.truncated": COARSE},
        stays=("file.truncated",),
    ),
    Case(
        "the same, --method",
        strangers_mag(cut(COARSE, -20)),
        {"file.truncated": COARSE},
        ("rebuild",),
        options={"method": "mode"},
    ),
    Case(
        "coarser mag made otherwise, --pyramid",
        other_method,
        {"pyramid.differs": None},
        ("rebuild",) * 9,
        verify={"pyramid": True},
        options={"rebuild_differing": True},
    ),
    # left-overs
    Case(
        "our temporary file",
        add("cells/1/z1/y0/.x1.wkw.0123456789abcdef.wkwdask-tmp"),
        {"leftover.temporary": "cells/1/z1/y0/.x1.wkw.0123456789abcdef.wkwdask-tmp"},
        ("remove",),
    ),
    Case(
        "the reference library's, of yesterday",
        old("cells/1/z1/y0/x1.wkw_tmp"),
        {"leftover.temporary": "cells/1/z1/y0/x1.wkw_tmp"},
        ("remove",),
    ),
    Case(
        "the reference library's, of just now",
        add("cells/1/z1/y0/x1.wkw_tmp"),
        {"leftover.temporary": "cells/1/z1/y0/x1.wkw_tmp"},
        stays=("leftover.temporary",),
    ),
    Case(
        "a folder of such a name, of yesterday",
        old_folder("cells/1.wkw.tmp"),
        {"leftover.temporary": "cells/1.wkw.tmp"},
        stays=("leftover.temporary",),
    ),
    Case(
        "header.wkw a pipe",
        both(remove(HEADER), lambda folder: os.mkfifo(folder / HEADER)),
        {"header.unreadable": HEADER},
        stays=("header.unreadable",),
    ),
    Case(
        "the Scala library's, of yesterday",
        old("cells/1/z1/y0/x1.wkw.tmp"),
        {"leftover.temporary": "cells/1/z1/y0/x1.wkw.tmp"},
        ("remove",),
    ),
    Case(
        "a mag that webknossos was building, yesterday",
        old_folder(RECHUNK),
        {"leftover.folder": RECHUNK},
        stays=("leftover.folder",),
    ),
    Case(
        "the same, --remove-copies",
        old_folder(RECHUNK),
        {"leftover.folder": RECHUNK},
        stays=("leftover.folder",),
        options={"remove_copies": True},
    ),
    Case(
        "a part of a mag that webknossos was building, --remove-copies",
        copied_mag(lambda copy: shutil.rmtree(copy / "z1")),
        {"leftover.folder": RECHUNK},
        ("remove",),
        options={"remove_copies": True},
    ),
    Case(
        "webknossos was killed while it replaced a mag",
        both(copied_mag(), foreign, remove("cells/1/z1")),
        {"leftover.folder": RECHUNK},
        stays=("leftover.folder",),
        restored=False,
    ),
    Case(
        "the same, --remove-copies",
        both(copied_mag(), foreign, remove("cells/1/z1")),
        {"leftover.folder": RECHUNK},
        stays=("leftover.folder",),
        options={"remove_copies": True},
        restored=False,
    ),
    Case(
        "the same, its header removed too, --remove-copies",
        both(copied_mag(), foreign, remove(HEADER), remove("cells/1/z1")),
        {"leftover.folder": RECHUNK, "header.missing": HEADER},
        ("write header.wkw",),
        stays=("leftover.folder",),
        options={"remove_copies": True},
        restored=False,
    ),
    Case(
        "a mag that webknossos is building",
        add(f"{RECHUNK}/z0/y0/x0.wkw"),
        {"leftover.folder": RECHUNK},
        stays=("leftover.folder",),
    ),
    Case(
        "that of yesterday, while a mag is missing",
        both(old_folder(RECHUNK), remove("cells/4")),
        {"leftover.folder": RECHUNK, "mag.missing": "cells/4"},
        stays=("leftover.folder", "mag.missing"),
    ),
    Case("folder of a dead job", dead_job(), {"job.dead": "cells/.wkwdask-job-dead"}, ("remove",)),
    Case(
        "folder of an interrupted job",
        dead_job(journal=True),
        {"job.interrupted": "cells/.wkwdask-job-dead"},
        stays=("job.interrupted",),
    ),
    Case("lock of a dead job", stale_lock, {"leftover.lock": "cells/.1.wkwdask-lock"}, ("remove",)),
    # the JSON
    Case("JSON missing", remove(FILE_NAME), {"json.missing": FILE_NAME}, stays=("json.missing",)),
    Case(
        "JSON missing, --voxel-size",
        remove(FILE_NAME),
        {"json.missing": FILE_NAME},
        ("edit JSON",),
        options={"voxel_size": (11.24, 11.24, 11.24)},
    ),
    Case(
        "JSON no JSON, --voxel-size",
        cut(FILE_NAME, 300),
        {"json.broken": FILE_NAME},
        ("edit JSON",),
        options={"voxel_size": (11.24, 11.24, 11.24)},
    ),
    Case(
        "JSON: a layer without a box",
        lambda folder: edit(folder, lambda layers: layers["cells"].pop("boundingBox")),
        {"json.broken": FILE_NAME},
        ("edit JSON",),
    ),
    Case(
        "JSON lists a mag that is gone",
        remove("cells/4"),
        {"mag.missing": "cells/4"},
        stays=("mag.missing",),
    ),
    Case(
        "the same, --drop-missing",
        remove("cells/4"),
        {"mag.missing": "cells/4"},
        ("edit JSON",),
        options={"drop_missing": True},
        restored=False,
    ),
    Case(
        "JSON lacks a mag",
        mags_of("cells", lambda mags: mags.pop()),
        {"mag.unlisted": "cells/4"},
        ("edit JSON",),
    ),
    Case(
        "JSON lacks a layer",
        lambda folder: (folder / FILE_NAME).write_text(
            json.dumps(
                {
                    **(document := json.loads((folder / FILE_NAME).read_text())),
                    "dataLayers": document["dataLayers"][1:],
                }
            )
        ),
        {"layer.unlisted": "cells"},
        ("edit JSON",),
    ),
    Case(
        "JSON: wrong elementClass",
        layer("cells", elementClass="uint16"),
        {"json.element_class": FILE_NAME},
        ("edit JSON",),
    ),
    Case(
        "JSON: wrong numChannels",
        layer("cells", numChannels=3),
        {"json.num_channels": FILE_NAME},
        ("edit JSON",),
    ),
    Case(
        "JSON: wrong cubeLength",
        mags_of("cells", lambda mags: mags[0].update(cubeLength=1024)),
        {"json.cube_length": FILE_NAME},
        ("edit JSON",),
    ),
    Case(
        "JSON: box too small",
        layer("cells", boundingBox={"topLeft": [3, 0, 5], "width": 20, "height": 36, "depth": 30}),
        {"json.box_smaller": FILE_NAME, "file.outside": None},
        stays=("json.box_smaller", "file.outside"),
    ),
    Case(
        "the same, --grow-box",
        layer("cells", boundingBox={"topLeft": [3, 0, 5], "width": 20, "height": 36, "depth": 30}),
        {"json.box_smaller": FILE_NAME, "file.outside": None},
        ("edit JSON",),
        options={"grow_box": True},
    ),
    Case(
        "JSON: box too large",
        layer("cells", boundingBox={"topLeft": [3, 0, 5], "width": 90, "height": 36, "depth": 30}),
        {"json.box_larger": FILE_NAME},
    ),
    Case(
        "JSON: largestSegmentId too small",
        layer("cells", largestSegmentId=7),
        {"json.largest_id": FILE_NAME},
        ("edit JSON",),
    ),
    Case(
        "mag 2 twice, as 2 and 2-2-2",
        lambda folder: shutil.copytree(folder / "cells/2", folder / "cells/2-2-2"),
        {"mag.twice": "cells/2-2-2"},
        stays=("mag.twice",),
    ),
    Case(
        "a step of the pyramid left out",
        both(remove("cells/2"), mags_of("cells", lambda mags: mags.pop(1))),
        {"mag.gap": "cells"},
    ),
]


def matches(kind, pattern):
    """Compare kinds of faults."""
    return kind == pattern or (pattern.endswith("*") and kind.startswith(pattern[:-1]))


def prepare(sound, folder, case):
    """Copy the sound dataset and damage it; returns the folder."""
    shutil.copytree(sound, folder, symlinks=True)
    case.damage(folder)
    return folder


def described(found, report, folder):
    """Describe the faults and the repair of a case as cells of a table."""
    says = dict.fromkeys(
        f"{fault.severity} `{fault.kind}`" + (f" ({fault.place})" if fault.place else "")
        for fault in found.faults
    )
    does = list(
        dict.fromkeys(
            f"{action.verb}" + (f" ({action.how})" if action.how else "")
            for action in report.actions
        )
    )
    does += [
        f"leaves `{each.fault.kind}`: {each.reason}"
        for each in {each.fault.kind: each for each in report.remaining}.values()
    ]
    return f"{'; '.join(list(says)[:3])} | {'; '.join(does) or 'nothing'} |".replace(
        f"{folder}/", ""
    )


def main():
    """Print the matrix as tables of markdown."""
    os.environ["WKWDASK_PROGRESS"] = "off"
    print("| damage to a dataset | `verify` says | `repair` does |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        sound = make_dataset(Path(scratch) / "sound")
        for number, case in enumerate(CASES):
            if case.needs_user and os.geteuid() == 0:
                continue
            folder = prepare(sound, Path(scratch) / str(number), case)
            print(
                f"| {case.name} |",
                described(
                    wkwdask.verify(folder, **case.verify),
                    wkwdask.repair(folder, **case.options),
                    folder,
                ),
            )
            with contextlib.suppress(OSError):
                (folder / FINE).chmod(0o644)
    print_arrays()


def print_arrays():
    """Print the table of Zarr and N5 images, whose writers must be installed."""
    from support import damaged_arrays
    from support.foreign_arrays import WRITERS, url

    print(
        "\n| damage to an image | written by | `verify` says | `repair` does |\n|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as scratch:
        for writer in WRITERS:
            writer.write(str(Path(scratch) / writer.name))
        for case in damaged_arrays.CASES:
            for writer in filter(case.fits, WRITERS):
                folder = Path(
                    shutil.copytree(Path(scratch) / writer.name, Path(scratch) / "damaged")
                )
                case.damage(folder, writer)
                found = wkwdask.verify(url(writer, folder))
                print(
                    f"| {case.name} | {writer.name} |",
                    described(found, wkwdask.repair(url(writer, folder), **case.options), folder),
                )
                shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
