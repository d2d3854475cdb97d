"""Doors of the package: each parser and decoder, as a function of the bytes of a stranger.

The doors of compiled loops run twice: as Python, where a wrong index is an error and coverage is
seen, and as machine code, in front of a page that may not be touched.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
from collections import deque
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import WkwDaskError
from wkwdask.formats import opening
from wkwdask.formats.n5 import block as n5_block
from wkwdask.formats.precomputed import compressed_segmentation, compresso, mesh_reader
from wkwdask.formats.precomputed.chunk import PrecomputedCodec
from wkwdask.formats.precomputed.compressed_segmentation import BlockShapes
from wkwdask.formats.precomputed.info import parse_info
from wkwdask.formats.precomputed.sharding import parse_minishard_index
from wkwdask.formats.webknossos.annotation import read_nodes
from wkwdask.formats.webknossos.datasource import parse_datasource
from wkwdask.formats.wkw import file as wkw_file
from wkwdask.formats.wkw.header import HEADER_NBYTES, parse_header
from wkwdask.formats.zarr.codec import ZarrCodec
from wkwdask.formats.zarr.shards import ZarrShards
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import Mag
from wkwdask.ids.id_source import open_mapping
from wkwdask.kernels.blocks import batch, batch_python, boxes, checks, read
from wkwdask.kernels.blocks.layout import LZ4, SIZE, START, Z
from wkwdask.kernels.codecs import blosc_frames, blosc_layout
from wkwdask.model.states import parse_file_record
from wkwdask.store import zip_directory
from wkwdask.store.slurm import SlurmJob
from wkwdask.verbs.manifest import parse_manifest
from wkwdask.viewer.server import parse_range

from .door import BY_MACHINE, Door, door_of_file, in_file
from .library_doors import LIBRARIES
from .record_doors import RECORDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_FILE = "stranger"
"""Name of the bytes in errors."""
_CUBE = (8, 8, 8)


# ------------------------------------------------------------------------------------------------
# documents and headers


def _header(data: bytes) -> None:
    for is_data_file in (False, True):
        with contextlib.suppress(WkwDaskError):
            parse_header(data, _FILE, is_data_file=is_data_file)


def _jump_table(data: bytes) -> None:
    header = parse_header(data[:HEADER_NBYTES], _FILE, is_data_file=True)
    wkw_file.block_bounds(data, header, _FILE)


def _info(data: bytes) -> None:
    info = parse_info(data, _FILE)
    for scale in info.scales:
        PrecomputedCodec.of(info, scale)


def _minishard_index(data: bytes) -> None:
    parse_minishard_index(data, _FILE, 0, 1 << 20)


class _Bytes:
    """Bytes as an open file."""

    name = _FILE
    descriptor = None

    def __init__(self, data: bytes) -> None:
        self._data = self.state = data

    @property
    def nbytes(self) -> int:
        return len(self._data)

    def read(self, ranges):
        return [self._data[start:stop] for start, stop in ranges]

    def read_end(self, nbytes):
        return self._data[max(0, len(self._data) - nbytes) :]


def _shard_index(data: bytes) -> None:
    cells = np.array([[0, 0, 0, 0], [0, 1, 1, 0]], np.int64)
    for at_end, has_checksum in itertools.product((False, True), repeat=2):
        shards, file = ZarrShards((1, 2, 2, 1), "czyx", at_end, has_checksum), _Bytes(data)
        shards.inspect(file, cells)
        with contextlib.suppress(WkwDaskError):
            shards.locate(file, cells)


def _zip(data: bytes) -> None:
    zip_directory.read_directory(_Bytes(data)).infer_data_offsets()


def _text(parse: Callable[[str], Any]) -> Callable[[bytes], Any]:
    return lambda data: parse(data.decode(errors="surrogateescape"))


def _open_all(url: str) -> None:
    """Open all levels that a URL leads to."""
    for image in opening.find(url).layers:
        for level in image.levels:
            with contextlib.suppress(WkwDaskError):
                level.open()


_ARRAY = (
    b'{"zarr_format": 3, "node_type": "array", "shape": [8, 8, 8], "data_type": "uint8", '
    b'"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8, 8, 8]}}, '
    b'"chunk_key_encoding": {"name": "default"}, "fill_value": 0, "codecs": [{"name": "bytes"}]}'
)
_N5_LEVEL = (
    b'{"dimensions": [8, 8, 8], "blockSize": [8, 8, 8], "dataType": "uint8", '
    b'"compression": {"type": "raw"}}'
)


def _levels_of(prefix: str, name: str = "") -> Callable[[Path], None]:
    return lambda folder: _open_all(f"{prefix}{folder}{name}")


def _mapping(folder: Path) -> None:
    deque(open_mapping(str(folder / "ids.csv")).chunks(), maxlen=0)


_GRAMMARS = (WkwDaskError, ValueError)
_DOCUMENTS = (
    Door("WKW header", _header),
    Door("WKW jump table", _jump_table),
    Door("datasource-properties.json", lambda data: parse_datasource(data, _FILE)),
    Door("precomputed info", _info),
    Door("minishard index", _minishard_index),
    Door("mesh info", lambda data: mesh_reader.parse_mesh_info(data, _FILE)),
    Door("mesh manifest", lambda data: mesh_reader.parse_manifest(data, _FILE)),
    Door("N5 block header", lambda data: n5_block.parse_header(data, 3, _FILE)),
    Door("zip directory", _zip),
    Door("manifest", _text(lambda text: parse_manifest(text, _FILE))),
    Door("file record", lambda data: parse_file_record(data, _FILE)),
    Door("bounding box", _text(BoundingBox.parse), errors=_GRAMMARS),
    Door("mag", _text(Mag.parse), errors=_GRAMMARS),
    Door("URL", _text(opening.format_of_target), errors=_GRAMMARS),
    Door("range of HTTP", _text(lambda text: parse_range(text, 1000))),
    Door("SLURM job", _text(SlurmJob.parse)),
)


_FILES = (
    Door("Zarr shard index", _shard_index, "file", needs=("zarr",)),
    door_of_file("Zarr array", "zarr.json", _levels_of("zarr://"), "zarr"),
    door_of_file("Zarr 2 array", ".zarray", _levels_of("zarr://")),
    door_of_file("OME-NGFF", "zarr.json", _levels_of("zarr://"), **{"1/zarr.json": _ARRAY}),
    door_of_file("N5 dataset", "attributes.json", _levels_of("n5://")),
    door_of_file(
        "N5 group", "attributes.json", _levels_of("n5://"), **{"s0/attributes.json": _N5_LEVEL}
    ),
    door_of_file("ozx", "image.ozx", _levels_of("", "/image.ozx")),
    door_of_file("NML", "merger.nml", lambda folder: read_nodes(str(folder / "merger.nml"))),
    door_of_file("mapping", "ids.csv", _mapping),
)

# ------------------------------------------------------------------------------------------------
# decoders


def _guarded(data: bytes) -> np.ndarray:
    """Return bytes that end at a page which may not be touched."""
    area = -(-max(len(data), 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = _guarded_area(area)
    found = memory[area - len(data) :]
    found[:] = np.frombuffer(data, np.uint8)
    return found


@cache
def _guarded_area(nbytes: int) -> np.ndarray:
    memory = mmap.mmap(-1, nbytes + mmap.PAGESIZE)
    array = np.frombuffer(memory, np.uint8)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if protect(array.ctypes.data + nbytes, mmap.PAGESIZE, 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    return array[:nbytes]


def _segmentation(data: bytes) -> None:
    for dtype, block in ((np.uint32, (8, 8, 8)), (np.uint64, (3, 2, 4))):
        with contextlib.suppress(WkwDaskError):
            compressed_segmentation.decode(
                memoryview(_guarded(data)), BlockShapes(_CUBE, block), np.dtype(dtype), 1, _FILE, 0
            )


def _compresso(data: bytes) -> None:
    compresso.decode(data, (16, 12, 10), np.dtype(np.uint64), _FILE, 0)


def _lz4_lengths(data: bytes) -> None:
    memory = _guarded(data)
    places = np.array([[0, memory.size], [memory.size // 2, memory.size // 4]], np.int64)
    checks.first_invalid_lz4(memory, places, 512)


def _blosc_frames(data: bytes) -> None:
    memory = _guarded(data)
    places = np.array([[0, memory.size]], np.int64)
    out = np.empty(memory.size + blosc_layout.FRAME_NBYTES, np.uint8)
    for conversion in (
        blosc_layout.ADD_FRAMES,
        blosc_layout.REMOVE_FRAMES,
        blosc_layout.KEEP_BLOCKS,
        blosc_layout.KEEP_FRAMES,
        blosc_layout.COPY,
    ):
        blosc_frames.convert_chunks(memory, places, conversion, 512, 1, out)


def _n5_block_of(kind: str, **options: Any) -> Callable[[bytes], Any]:
    compression = n5_block.Compression(kind, tuple(options.items()))

    def decode(data: bytes) -> None:
        n5_block.decode_block(
            data, np.dtype(np.uint16), compression, _FILE, num_axes=3, largest=_CUBE
        )
        n5_block.decode_block_part(data, np.dtype(np.uint16), compression, _CUBE, (2, 4))

    return decode


def _zarr_chunk(*stages: tuple[str, str]) -> Callable[[bytes], Any]:
    codec = ZarrCodec("<u2", _CUBE, "zyx", (0, 1, 2), stages)
    part = (slice(0, 1), slice(0, 8), slice(0, 8), slice(2, 3))

    def decode(data: bytes) -> None:
        with contextlib.suppress(WkwDaskError):
            codec.decode(data, (1, *_CUBE), _FILE)
        with contextlib.suppress(WkwDaskError):
            codec.decode_part(data, (1, *_CUBE), part, _FILE)

    return decode


def _precomputed_chunk(
    encoding: str, channels: int = 1, packing: str = ""
) -> Callable[[bytes], Any]:
    codec = PrecomputedCodec(encoding, np.dtype(np.uint8), channels, (8, 8, 8), None, None, packing)
    return lambda data: codec.decode(data, (channels, *_CUBE), _FILE)


def _draco(data: bytes) -> None:
    mesh_reader.decode_fragment(data, mesh_reader.MeshInfo(10, np.eye(3, 4), None), _FILE)


def _decoder(name: str, use: Callable[[bytes], Any], *needs: str) -> Door:
    return Door(name, use, "decoder", needs=needs)


_DECODERS = (
    _decoder("compressed_segmentation", _segmentation),
    _decoder("compresso", _compresso),
    _decoder("LZ4 lengths", _lz4_lengths),
    _decoder("Blosc frames", _blosc_frames),
    _decoder("WKW file", lambda data: wkw_file.decode_file(data, _FILE)),
    *(
        _decoder(f"N5 block {kind}", _n5_block_of(kind), *needs)
        for kind, *needs in (
            ("gzip",),
            ("lz4",),
            ("bzip2",),
            ("xz",),
            ("blosc", "imagecodecs"),
            ("zstd", "imagecodecs"),
        )
    ),
    _decoder("Zarr chunk gzip", _zarr_chunk(("gzip", "{}")), "numcodecs"),
    _decoder("Zarr chunk lz4", _zarr_chunk(("lz4", "{}")), "numcodecs"),
    _decoder("Zarr chunk blosc", _zarr_chunk(("blosc", "{}")), "numcodecs"),
    _decoder("Zarr chunk zstd", _zarr_chunk(("zstd", "{}"), ("crc32c", "{}")), "imagecodecs"),
    _decoder("precomputed raw gzip", _precomputed_chunk("raw", packing="chunk")),
    _decoder("precomputed png", _precomputed_chunk("png"), "imagecodecs"),
    _decoder("precomputed jpeg", _precomputed_chunk("jpeg", 3), "imagecodecs"),
    _decoder("precomputed jxl", _precomputed_chunk("jxl"), "imagecodecs"),
    _decoder("Draco", _draco, "DracoPy"),
)  # fmt: skip

# ------------------------------------------------------------------------------------------------
# machine code


def _lz4_blocks(data: bytes) -> None:
    """Two blocks of LZ4 in memory: machine code and python-lz4 decode to the same voxels."""
    memory, half = _guarded(data), len(data) // 2
    table = np.zeros((2, Z + 1), np.int64)
    table[:, SIZE:] = [[half, 0, 0, 0, 0], [len(data) - half, half, 4, -3, 1]]
    found = []
    for decode in (batch.decode_into, _decode_by_python):
        out = np.zeros((1, 8, 8, 8), np.uint8, order="F")
        result = decode(
            memory, table, out, block_len=8, num_channels=1, block_type=LZ4, fill_zeros=True
        )
        found.append((result.broken, result.nonzero, out.tobytes() if result.broken < 0 else b""))
    # Of invalid blocks, LZ4 decodes some: a match at distance 0 repeats what was in the memory.
    is_valid = checks.first_invalid_lz4(memory, table[:, [START, SIZE]], 512) < 0
    if is_valid and (found[0] != found[1] or found[0][0] >= 0):
        raise AssertionError(f"machine code decodes {found[0][:2]}, python-lz4 {found[1][:2]}")


def _decode_by_python(source, table, out, *, block_len, num_channels, block_type, fill_zeros):
    decoded = batch_python.decode_into(
        source, table, block_len, num_channels, 0, block_type == LZ4, fill_zeros, out
    )
    return batch.DecodeResult(*decoded)


def _lz4_boxes(data: bytes) -> None:
    memory, box = _guarded(data), np.zeros((1, 6, 5, 7), np.uint8, order="F")
    targets = boxes.BlockTargets(
        8, 1, True, np.array([[0, 0, 0]], np.int64), np.array([0, 1], np.int64),
        np.array([0], np.int64), np.array([box.ctypes.data], np.int64),
        np.array([[1, 2, 3]], np.int64), np.array([box.shape[1:]], np.int64),
    )  # fmt: skip
    targets.decode_memory(memory, np.array([[0, memory.size]], np.int64))


def _lz4_file(folder: Path) -> None:
    """Eight blocks in a file of any bytes, whose table is the start of the file."""
    with open(folder / "x0.wkw", "rb") as file:
        head = file.read(72)
        if len(head) < 72:
            return
        bounds = np.frombuffer(head, "<u8").astype(np.int64)
        out = read.array_memory(np.zeros((1, 16, 16, 16), np.uint8, order="F"), 0)
        read.read_blocks(
            read.BlockFile(file.fileno(), 8, 1, True), bounds, 2, (0, 0, 0), out, fill_zeros=True
        )


_MACHINE_CODE = (
    *(
        Door(f"{door.name}{BY_MACHINE}", door.use, "machine code", door.errors)
        for door in _DECODERS[:4]
    ),
    Door("LZ4 blocks", _lz4_blocks, "machine code"),
    Door("LZ4 boxes", _lz4_boxes, "machine code"),
    Door("LZ4 file", in_file("x0.wkw", _lz4_file), "machine code"),
)

DOORS = {
    door.name: door
    for door in (*_DOCUMENTS, *_FILES, *RECORDS, *LIBRARIES, *_DECODERS, *_MACHINE_CODE)
}
