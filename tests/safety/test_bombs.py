"""Small files that decompress to hundreds of megabytes: readers take no more memory than the data
may have, and say what is wrong."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import struct
import zipfile
import zlib

import numpy as np
import pytest
from safety.memory_room import memory_room
from support.annotations import write_annotation

import wkwdask

ROOM = 256 << 20
PIECE = bytes(16 << 20)
PIECES = 32
BOX = ((0, 0, 0), (64, 64, 64))


def _zlib_bomb():
    stream = zlib.compressobj(1)
    return b"".join([*(stream.compress(PIECE) for _ in range(PIECES)), stream.flush()])


def _zstd_bomb():
    """Frames that state no size."""
    block = struct.pack("<I", (128 << 10) << 3 | 0 | 1 << 1)[:3] + b"\0"  # 128 KiB of one byte
    return b"\x28\xb5\x2f\xfd" + b"\x00\x58" + block * (8 * 16 * PIECES) + b"\1\0\0"


def _zstd_claim():
    """A frame that states 2^44 bytes."""
    return b"\x28\xb5\x2f\xfd" + b"\xe0" + struct.pack("<Q", 1 << 44) + b"\1\0\0"


def _blosc_claim():
    import numcodecs

    whole = bytearray(numcodecs.Blosc("lz4").encode(np.zeros(1 << 20, np.uint8)))
    whole[4:8] = struct.pack("<I", 0x7FFFFFE0)
    return bytes(whole)


BOMBS = {
    "gzip": lambda: gzip.compress(PIECE, 1) * PIECES,
    "zlib": _zlib_bomb,
    "bz2": lambda: bz2.compress(PIECE, 1) * PIECES,
    "lzma": lambda: lzma.compress(PIECE, preset=0) * PIECES,
    "zstd": _zstd_bomb,
    "zstd, 2^44 bytes": _zstd_claim,
    "blosc": _blosc_claim,
    "lz4": lambda: struct.pack("<I", 0x7FFFFFFF) + bytes(100),
}


def _options(name):
    import numcodecs

    kind = name.partition(",")[0]
    config = numcodecs.get_codec({"id": kind}).get_config()
    config.pop("id")
    return kind, config


@pytest.mark.needs("zarr")
@pytest.mark.filterwarnings("ignore:Numcodecs codecs")
@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("is_sharded", [False, True])
def test_a_zarr_chunk_gives_no_more_than_a_chunk_has(tmp_path, name, is_sharded):
    kind, config = _options(name)
    if kind == "blosc":
        config |= {"shuffle": "shuffle", "typesize": 1}
    codecs = [
        {"name": "bytes"},
        {
            "name": kind if kind in ("gzip", "zstd", "blosc") else f"numcodecs.{kind}",
            "configuration": config,
        },
    ]
    data = BOMBS[name]()
    if is_sharded:
        inner = {
            "chunk_shape": [64, 64, 64],
            "codecs": codecs,
            "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        }
        codecs = [{"name": "sharding_indexed", "configuration": {**inner, "index_location": "end"}}]
        data += struct.pack("<QQ", 0, len(data))
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [64, 64, 64],
        "data_type": "uint8",
        "fill_value": 0,
        "codecs": codecs,
        "attributes": {},
    }
    document["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": [64, 64, 64]}}
    document["chunk_key_encoding"] = {"name": "default", "configuration": {"separator": "/"}}
    (tmp_path / "a.zarr/c/0/0").mkdir(parents=True)
    (tmp_path / "a.zarr/zarr.json").write_text(json.dumps(document))
    (tmp_path / "a.zarr/c/0/0/0").write_bytes(data)
    _check_refused(tmp_path)


@pytest.mark.needs("zarr")
@pytest.mark.parametrize("name", BOMBS)
def test_a_zarr_2_chunk_gives_no_more_than_a_chunk_has(tmp_path, name):
    kind, config = _options(name)
    document = {
        "zarr_format": 2,
        "shape": [64, 64, 64],
        "chunks": [64, 64, 64],
        "dtype": "|u1",
        "compressor": {"id": kind, **config},
    }
    (tmp_path / "a.zarr").mkdir()
    (tmp_path / "a.zarr/.zarray").write_text(
        json.dumps({**document, "fill_value": 0, "order": "C", "filters": None})
    )
    (tmp_path / "a.zarr/0.0.0").write_bytes(BOMBS[name]())
    _check_refused(tmp_path)


def _check_refused(folder):
    """Read the array as a volume, and as an array in a file."""
    for read in (
        lambda: wkwdask.read(f"zarr://{folder}/a.zarr", BOX),
        lambda: wkwdask.plan_convert(folder / "a.zarr", folder / "ds/x/1", voxel_size=(4, 4, 4)),
    ):
        with (
            memory_room(ROOM),
            pytest.raises(
                wkwdask.FormatError,
                match=(
                    r"a\.zarr.*( cannot be read: chunk: .*|: has "
                    r"\d+ bytes, expected) at most \d+"
                ),
            ),
        ):
            read()


def test_sound_chunks_of_several_streams_are_read(tmp_path):
    zarr = pytest.importorskip("zarr")
    pytest.importorskip("numcodecs")
    values = np.arange(64 * 64 * 64, dtype=np.uint32).reshape(64, 64, 64)
    for pack, name in ((gzip.compress, "GZip"), (bz2.compress, "BZ2"), (lzma.compress, "LZMA")):
        import numcodecs

        array = zarr.create_array(
            tmp_path / name,
            shape=values.shape,
            chunks=values.shape,
            dtype="u4",
            zarr_format=2,
            compressors=getattr(numcodecs, name)(),
        )
        array[...] = values
        raw = values.tobytes()
        next(path for path in (tmp_path / name).rglob("0*") if path.is_file()).write_bytes(
            pack(raw[: len(raw) // 2]) + pack(raw[len(raw) // 2 :])
        )
        np.testing.assert_array_equal(wkwdask.read(f"zarr://{tmp_path}/{name}", BOX)[0], values.T)


@pytest.mark.long
@pytest.mark.parametrize("what", ["the zip inside", "the NML", "a block"])
def test_an_annotation_gives_no_more_than_its_size_allows(tmp_path, what):
    wkwdask.write(tmp_path / "base/1", (0, 0, 0), np.ones((64, 64, 64), np.uint32), file_len=1)
    path = write_annotation(tmp_path / "bomb.zip", {"1": {(1, 0, 0): np.full((32, 32, 32), 3)}})
    with zipfile.ZipFile(path) as sound:
        members = {name: sound.read(name) for name in sound.namelist()}
    bomb = {
        "the zip inside": "data_0_Volume.zip",
        "the NML": "annotation.nml",
        "a block": "1/z0/y0/x1.wkw",
    }[what]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as damaged:
        if what == "the NML":  # which is read where there are several layers
            members["data_1_Volume.zip"] = members["data_0_Volume.zip"]
        if what == "a block":
            with zipfile.ZipFile(zipfile.io.BytesIO(members["data_0_Volume.zip"])) as inner:
                members = {name: inner.read(name) for name in inner.namelist()}
        for name, data in members.items():
            with damaged.open(name, "w") as file:
                file.write(data)
                for _ in range(PIECES if name == bomb else 0):
                    file.write(PIECE)
    with (
        memory_room(ROOM),
        pytest.raises(wkwdask.FormatError, match=r"bomb\.zip.*(expected|more than)") as error,
    ):
        wkwdask.merge(tmp_path / "base/1", path, tmp_path / "merged/1")
    assert bomb in str(error.value)


@pytest.mark.needs("imagecodecs")
@pytest.mark.parametrize("suffix", [".gz", ".xz", ".bz2", ".br", ".zstd"])
def test_a_precomputed_chunk_gives_no_more_than_a_chunk_has(tmp_path, suffix):
    import imagecodecs

    wkwdask.to_precomputed(
        np.ones((64, 64, 64), np.uint8), tmp_path / "v", voxel_size=(4, 4, 4), encoding="raw"
    )
    chunk = next((tmp_path / "v").rglob("0-64*"))
    chunk.unlink()
    pack = {
        ".gz": BOMBS["gzip"],
        ".xz": BOMBS["lzma"],
        ".bz2": BOMBS["bz2"],
        ".zstd": _zstd_bomb,
        ".br": lambda: imagecodecs.brotli_encode(PIECE * 4),
    }
    chunk.with_name(chunk.name + suffix).write_bytes(pack[suffix]())
    with memory_room(ROOM), pytest.raises(wkwdask.FormatError, match=r"0-64_0-64_0-64.*expected"):
        wkwdask.read(f"precomputed://{tmp_path}/v", BOX)


@pytest.mark.parametrize("name", ["stack.png", "stack.jpg"])
def test_an_image_has_no_more_pixels_than_its_file_can_hold(tmp_path, name):
    from PIL import Image

    Image.fromarray(np.ones((8, 8), np.uint8)).save(tmp_path / name)
    raw = bytearray((tmp_path / name).read_bytes())
    if name.endswith(".png"):
        raw[16:24] = struct.pack(">II", 60000, 60000)
        raw[29:33] = struct.pack(">I", zlib.crc32(raw[12:29]))
    else:
        at = raw.index(b"\xff\xc0") + 5
        raw[at : at + 4] = struct.pack(">HH", 60000, 60000)
    (tmp_path / name).write_bytes(raw)
    with (
        memory_room(ROOM),
        pytest.raises(wkwdask.FormatError, match=f"{name}.*stored bytes cannot hold"),
    ):
        wkwdask.convert(tmp_path / name, tmp_path / "ds/color/1", voxel_size=(4, 4, 4))
