"""Files of other programs that are damaged or crafted: one error that names the file, for each
error of a library of it."""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib

import numpy as np
import pytest
from PIL import Image
from support.annotations import write_annotation, write_annotations

import wkwdask
from wkwdask.errors import FormatError, UnsupportedError
from wkwdask.formats.pictures import slices
from wkwdask.ids.id_source import open_mapping

VOXEL_SIZE = (4, 4, 35)


def npy(header):
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header


def saved(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def png(change):
    stream = io.BytesIO()
    Image.fromarray(np.ones((16, 16), np.uint8)).save(stream, "PNG")
    raw = bytearray(stream.getvalue())
    change(raw)
    raw[29:33] = struct.pack(">I", zlib.crc32(raw[12:29]))
    return bytes(raw)


SOURCES = {
    "nested.npy": npy(b"(" * 9000),
    "negative.npy": npy(b"{'descr': '|u1', 'fortran_order': False, 'shape': (-4, -4, 4)}")
    + bytes(64),
    "type.npy": npy(b"{'descr': [], 'fortran_order': False, 'shape': (4, 4, 4)}") + bytes(64),
    "bytes.npy": npy(b"\xff\xfe{'descr': '|u1', 'fortran_order': False, 'shape': (4, 4, 4)}")
    + bytes(64),
    "axes.npy": saved(np.ones((2,) * 6, np.uint8)),
    "huge.npy": npy(
        b"{'descr': '|u1', 'fortran_order': False, 'shape': (4, 4, 10000000000000000000000000)}"
    )
    + bytes(64),
    "cut.h5": b"\x89HDF\r\n\x1a\n" + bytes(100),
    "huge.png": png(lambda raw: struct.pack_into(">II", raw, 16, 2**31 - 1, 2**31 - 1)),
    "none.png": png(lambda raw: struct.pack_into(">II", raw, 16, 0, 16)),
    "zero.mrc": bytes(2048),
    "header.mrc": struct.pack("<4i", 4, 4, 4, 0)
    + bytes(76)
    + struct.pack("<i", -100)
    + bytes(112)
    + b"MAP DD\0\0"
    + bytes(2048),
}


@pytest.mark.parametrize("name", SOURCES)
def test_images_and_arrays(tmp_path, name):
    pytest.importorskip({".h5": "h5py", ".mrc": "mrcfile"}.get(os.path.splitext(name)[1], "numpy"))
    (tmp_path / name).write_bytes(SOURCES[name])
    with pytest.raises((FormatError, UnsupportedError), match=name.replace(".", r"\.")):
        wkwdask.convert(tmp_path / name, tmp_path / "ds", voxel_size=VOXEL_SIZE)
    assert not (tmp_path / "ds" / "color" / "1").exists()


MAPPINGS = {
    "digits.csv": b"1,2\n3," + b"9" * 5000 + b"\n",
    "zeros.csv": b"\0" * 100,
    "quote.csv": b'1,2\n3,"4\n',
    "columns.csv": b"1,2\n1,2,3\n",
    "twice.csv": b"1,2\n1,3\n",
    "cut.parquet": b"PAR1" + bytes(40) + b"PAR1",
    "nested.npy": npy(b"(" * 9000),
    "negative.npy": npy(b"{'descr': '<u8', 'fortran_order': False, 'shape': (-4, -2)}") + bytes(64),
    "below.npy": saved(np.arange(3) - 2),
    "pairs.npy": saved(np.array([[1, -2], [3, 4]])),
    "cut.hdf5": b"\x89HDF\r\n\x1a\n" + bytes(100),
    "encoding.nml": b'<?xml version="1.0" encoding="nobody"?><things/>',
    "place.nml": b'<things><thing><nodes><node x="1" y="2" z="'
    + b"9" * 5000
    + b'"/></nodes></thing></things>',
}


@pytest.mark.parametrize("name", MAPPINGS)
def test_mappings(tmp_path, name):
    pytest.importorskip(
        {".hdf5": "h5py", ".parquet": "pyarrow", ".csv": "pandas"}.get(
            os.path.splitext(name)[1], "numpy"
        )
    )
    wkwdask.create_dataset(tmp_path / "ds", voxel_size=VOXEL_SIZE)
    wkwdask.to_wkw(
        np.ones((1, 8, 8, 8), np.uint32), tmp_path / "ds" / "seg" / "1", category="segmentation"
    )
    (tmp_path / name).write_bytes(MAPPINGS[name])
    with pytest.raises(FormatError, match=name.replace(".", r"\.")):
        wkwdask.remap(tmp_path / "ds" / "seg", tmp_path / "ds" / "mapped" / "1", tmp_path / name)


@pytest.mark.needs("pyarrow")
def test_a_parquet_mapping_has_no_more_rows_than_its_file_can_hold(tmp_path, monkeypatch):
    """A run of equal ids takes a few bytes, however long it is."""
    import pyarrow as pa
    from pyarrow import parquet

    ids = pa.array(np.zeros(100_000, np.uint64))
    parquet.write_table(pa.table({"old": ids, "new": ids}), tmp_path / "ids.parquet")
    assert (tmp_path / "ids.parquet").stat().st_size < 10_000
    monkeypatch.setattr(slices, "_SMALL_NBYTES", 0)
    monkeypatch.setattr(slices, "_MAX_EXPANSION", 100)
    with pytest.raises(FormatError, match=r"ids\.parquet claims 1600000 bytes of values"):
        list(open_mapping(tmp_path / "ids.parquet").chunks())


# ----------------------------------------------------------------------------- annotations


@pytest.fixture
def dataset(tmp_path):
    wkwdask.create_dataset(tmp_path / "ds", voxel_size=VOXEL_SIZE)
    wkwdask.to_wkw(
        np.ones((1, 32, 32, 32), np.uint32),
        tmp_path / "ds" / "seg" / "1",
        category="segmentation",
        block_len=32,
    )
    return tmp_path / "ds"


def unpacked(tmp_path):
    """An annotation as a folder of single blocks."""
    path = write_annotation(tmp_path / "a.zip", {"1": {(0, 0, 0): np.full((32, 32, 32), 2)}})
    with (
        zipfile.ZipFile(path) as outer,
        zipfile.ZipFile(io.BytesIO(outer.read("data_0_Volume.zip"))) as inner,
    ):
        inner.extractall(tmp_path / "unpacked")
    return tmp_path / "unpacked"


def test_a_mag_that_is_none(tmp_path, dataset):
    path = write_annotation(tmp_path / "a.zip", {"3": {(0, 0, 0): np.full((32, 32, 32), 2)}})
    with pytest.raises(FormatError, match=r"a\.zip.*3/"):
        wkwdask.merge(dataset, path, tmp_path / "ds" / "merged", layer="seg")


def test_an_nml_in_a_code_that_nobody_knows(tmp_path, dataset):
    path = write_annotations(
        tmp_path / "a.zip",
        {key: {"1": {(0, 0, 0): np.full((32, 32, 32), 2)}} for key in ("seg", "other")},
    )
    with zipfile.ZipFile(path, "a") as outer:
        outer.writestr("other.nml", b'<?xml version="1.0" encoding="nobody"?><things/>')
    with pytest.raises(FormatError, match=r"a\.zip\|zip:/other\.nml"):
        wkwdask.merge(dataset, path, tmp_path / "ds" / "merged", layer="seg")


def test_links_in_an_archive_are_bytes(tmp_path, dataset):
    """An entry that is a link is not followed, and a name with dots leads nowhere."""
    secret = unpacked(tmp_path) / "1" / "z0" / "y0" / "x0.wkw"
    path = tmp_path / "link.zip"
    with zipfile.ZipFile(path, "w") as data:
        data.write(tmp_path / "unpacked" / "1" / "header.wkw", "1/header.wkw")
        info = zipfile.ZipInfo("1/z0/y0/x0.wkw")
        info.external_attr = 0o120777 << 16
        data.writestr(info, str(secret))
        data.writestr("../../escaped.wkw", b"x")
    before = sorted(tmp_path.rglob("escaped*"))
    with pytest.raises(FormatError, match=r"link\.zip\|zip:/1/z0/y0/x0\.wkw"):
        wkwdask.merge(dataset, path, tmp_path / "ds" / "merged", layer="seg")
    assert sorted(tmp_path.rglob("escaped*")) == before == []


def test_pipes_in_an_annotation_do_not_hang(tmp_path, dataset):
    block = unpacked(tmp_path) / "1" / "z0" / "y0" / "x0.wkw"
    block.unlink()
    os.mkfifo(block)
    with pytest.raises(FormatError, match=r"x0\.wkw: not a regular file"):
        wkwdask.merge(dataset, tmp_path / "unpacked", tmp_path / "ds" / "merged", layer="seg")
