"""Images of two levels that wkwdask and other software write, in every way that arrays are stored,
and the plain way to read them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import numcodecs
import numpy as np
import tensorstore as ts
import zarr
from zarr.codecs import Crc32cCodec, GzipCodec, ZstdCodec

import wkwdask

CHUNK, SHARD = (8, 8, 16), (16, 16, 32)  # z, y, x
ABSENT = 2**64 - 1
KVSTORE = "file"


def fine_voxels():
    """Return voxels z, y, x; the first chunk has none."""
    array = np.random.default_rng(4).integers(1, 200, (32, 16, 32)).astype(np.uint16)
    array[:8, :8, :16] = 0
    return array


def mean(array):
    """Downsample by 2, as the mean rounds half to even."""
    z, y, x = array.shape
    return np.rint(array.reshape(z // 2, 2, y // 2, 2, x // 2, 2).mean(axis=(1, 3, 5))).astype(
        array.dtype
    )


LEVELS = (fine_voxels(), mean(fine_voxels()))


@dataclass(frozen=True)
class Writer:
    """One way to write an image, and what its files look like."""

    name: str
    write: object
    paths: tuple[str, str] = ("0", "1")
    """Folders of the levels."""
    prefix: str = ""
    separator: str = "/"
    is_n5: bool = False
    is_sharded: bool = False
    index_at_end: bool = True
    documents: tuple[str, str] = ("zarr.json", "zarr.json")
    """Document of an array, and that with the attributes of the image."""
    knows_method: bool = False
    has_checksums: bool = True
    """Whether every damaged byte of a chunk shows."""

    def file(self, level, cell):
        """Return the file of the chunk, or of the shard, with an index z, y, x; relative to the
        image."""
        if self.is_sharded:
            cell = [n * edge // outer for n, edge, outer in zip(cell, CHUNK, SHARD, strict=True)]
        numbers = cell[::-1] if self.is_n5 else cell
        return f"{self.paths[level]}/{self.prefix}{self.separator.join(map(str, numbers))}"


def multiscales(version="0.5", paths=("0", "1")):
    """Return the attributes of an image whose voxels have 4 nm."""
    levels = [
        {
            "path": path,
            "coordinateTransformations": [
                {"type": "scale", "scale": [4.0 * 2**n] * 3},
                {"type": "translation", "translation": [2.0 * (2**n - 1)] * 3},
            ],
        }
        for n, path in enumerate(paths)
    ]
    entry = {
        "axes": [{"name": axis, "type": "space", "unit": "nanometer"} for axis in "zyx"],
        "datasets": levels,
    }
    return (
        {"ome": {"version": version, "multiscales": [entry]}}
        if version == "0.5"
        else {"multiscales": [{"version": version, **entry}]}
    )


def _with_zarr_python(zarr_format, separator, **options):
    def write(folder):
        group = zarr.open_group(folder, mode="w", zarr_format=zarr_format)
        key = (
            {"chunk_key_encoding": {"name": "v2", "separator": separator}}
            if zarr_format == 2
            else {}
        )
        for level, voxels in enumerate(LEVELS):
            array = zarr.create_array(
                Path(folder, str(level)),
                shape=voxels.shape,
                chunks=CHUNK,
                dtype="uint16",
                zarr_format=zarr_format,
                **key,
                **options,
            )
            array[...] = voxels
        group.attrs.update(multiscales("0.5" if zarr_format == 3 else "0.4"))

    return write


def _with_tensorstore(driver, metadata, document, text):
    def write(folder):
        for level, voxels in enumerate(LEVELS):
            folder_of_level = Path(folder, f"s{level}" if driver == "n5" else str(level))
            spec = {
                "driver": driver,
                "kvstore": {"driver": KVSTORE, "path": f"{folder_of_level}/"},
                "metadata": metadata,
            }
            data = voxels.T if driver == "n5" else voxels
            ts.open(spec, create=True, dtype=ts.uint16, shape=data.shape).result().write(
                data
            ).result()
        for name, content in (
            (document, text),
            *(((".zgroup", {"zarr_format": 2}),) if driver == "zarr" else ()),
        ):
            Path(folder, name).write_text(json.dumps(content))

    return write


def _with_wkwdask(folder):
    wkwdask.to_zarr(
        LEVELS[0].T,
        f"zarr://{folder}",
        voxel_size=(4, 4, 4),
        chunk_shape=CHUNK[::-1],
        shard_shape=SHARD[::-1],
        category="color",
    )
    wkwdask.build_pyramid(f"zarr://{folder}", mags="2", method="mean")


def _n5_with_wkwdask(folder):
    wkwdask.to_n5(
        LEVELS[0].T,
        f"n5://{folder}/s0",
        voxel_size=(4, 4, 4),
        chunk_shape=CHUNK[::-1],
        compression="gzip",
    )
    wkwdask.build_pyramid(f"n5://{folder}", mags="2", method="mean")


_INNER = [
    {"name": "bytes", "configuration": {"endian": "little"}},
    {"name": "zstd", "configuration": {"level": 1}},
    {"name": "crc32c"},
]
_SHARDED = {
    "chunk_shape": CHUNK,
    "codecs": _INNER,
    "index_location": "start",
    "index_codecs": [_INNER[0], {"name": "crc32c"}],
}
_ZARR3 = {
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": SHARD}},
    "codecs": [{"name": "sharding_indexed", "configuration": _SHARDED}],
}
_GROUP3 = {"zarr_format": 3, "node_type": "group", "attributes": multiscales()}
_N5_DATASET = {"blockSize": CHUNK[::-1], "compression": {"type": "gzip"}}
_N5_GROUP = {"n5": "2.5.0", "downsamplingFactors": [[1, 1, 1], [2, 2, 2]]}
_V2 = {"documents": (".zarray", ".zattrs")}
_N5 = {"is_n5": True, "documents": ("attributes.json", "attributes.json")}

WRITERS = [
    Writer(
        "zarr-python v2",
        _with_zarr_python(2, ".", compressors=numcodecs.GZip()),
        separator=".",
        **_V2,
    ),
    Writer("zarr-python v3", _with_zarr_python(3, "/", compressors=GzipCodec()), prefix="c/"),
    Writer(
        "zarr-python v3 sharded",
        _with_zarr_python(3, "/", shards=SHARD, compressors=ZstdCodec(checksum=True)),
        prefix="c/",
        is_sharded=True,
    ),
    Writer(
        "zarr-python v3 sharded raw",
        _with_zarr_python(3, "/", shards=SHARD, compressors=Crc32cCodec()),
        prefix="c/",
        is_sharded=True,
    ),
    Writer(
        "tensorstore zarr2",
        _with_tensorstore(
            "zarr",
            {"chunks": CHUNK, "compressor": {"id": "zlib", "level": 1}, "dimension_separator": "/"},
            ".zattrs",
            multiscales("0.4"),
        ),
        **_V2,
    ),
    Writer(
        "tensorstore zarr3 sharded",
        _with_tensorstore("zarr3", _ZARR3, "zarr.json", _GROUP3),
        prefix="c/",
        is_sharded=True,
        index_at_end=False,
    ),
    Writer(
        "tensorstore n5",
        _with_tensorstore("n5", _N5_DATASET, "attributes.json", _N5_GROUP),
        ("s0", "s1"),
        **_N5,
    ),
    Writer(
        "wkwdask zarr3 sharded",
        _with_wkwdask,
        ("1", "2"),
        prefix="c/",
        is_sharded=True,
        knows_method=True,
        has_checksums=False,
    ),
    Writer("wkwdask n5", _n5_with_wkwdask, ("s0", "s1"), knows_method=True, **_N5),
]


def url(writer, folder):
    """Return the URL of an image."""
    return f"{'n5' if writer.is_n5 else 'zarr'}://{folder}"


def read(writer, folder, level):
    """Read a level with tensorstore, as z, y, x."""
    path = Path(folder, writer.paths[level])
    driver = "n5" if writer.is_n5 else "zarr3" if (path / "zarr.json").exists() else "zarr"
    voxels = (
        ts.open({"driver": driver, "kvstore": {"driver": KVSTORE, "path": f"{path}/"}}, open=True)
        .result()
        .read()
        .result()
    )
    return voxels.T if writer.is_n5 else voxels


# ----------------------------------------------------------------------------- shards


def chunks_per_shard(path):
    """Return the number of chunks z, y, x in a shard, as the document of its array states."""
    folder = next(folder for folder in Path(path).parents if (folder / "zarr.json").exists())
    document = json.loads((folder / "zarr.json").read_text())
    outer, inner = (
        document["chunk_grid"]["configuration"]["chunk_shape"],
        document["codecs"][0]["configuration"]["chunk_shape"],
    )
    return [a // b for a, b in zip(outer, inner, strict=True)]


def index_slice(writer, path):
    """Return where the rows of the index lie in a shard."""
    nbytes, size = 16 * math.prod(chunks_per_shard(path)), Path(path).stat().st_size
    return slice(size - nbytes - 4, size - 4) if writer.index_at_end else slice(0, nbytes)


def row_of(path, cell):
    """Return the row of a chunk z, y, x in the index of its shard."""
    counts = chunks_per_shard(path)
    return int(
        np.ravel_multi_index([n % count for n, count in zip(cell, counts, strict=True)], counts)
    )


def read_rows(writer, path):
    """Read the index of a shard: offset and size of each chunk."""
    return (
        np.frombuffer(Path(path).read_bytes()[index_slice(writer, path)], "<u8")
        .reshape(-1, 2)
        .copy()
    )


def write_rows(writer, path, rows):
    """Replace the index of a shard, with its checksum."""
    place, raw = index_slice(writer, path), bytearray(Path(path).read_bytes())
    raw[place] = rows.tobytes()
    raw[place.stop : place.stop + 4] = google_crc32c.value(rows.tobytes()).to_bytes(4, "little")
    Path(path).write_bytes(raw)
