"""One small volume of each format, written by other software, in one folder for all servers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support import wkw_files

if TYPE_CHECKING:
    from collections.abc import Callable

SERVERS = ("http", "s3", "gs", "az")
"""Kinds of servers that have all volumes."""
SHAPE = (40, 33, 26)
VOXEL_SIZE = (4.0, 4.0, 40.0)
OFFSET = (7, 12, 300)
"""Of volumes whose format has one."""
CHUNK = (16, 16, 8)
FILE_VX = 32
"""Edge of a WKW file: 4 blocks of 8 voxels."""
PARTS = tuple((low, high) for low in ((0, 0, 0), (9, 20, 7)) for high in ((16, 25, 8), SHAPE))
"""Boxes inside one chunk and across several; corners relative to the volume."""


@dataclass(frozen=True)
class Form:
    """A format, and how others write it."""

    name: str
    path: str
    """Path of the array below the folder."""
    prefix: str
    """Of the URL."""
    write: Callable[..., None]
    """Writes an array (c, x, y, z) to a folder."""
    dtype: str = "uint16"
    num_channels: int = 1
    offset: tuple[int, int, int] = (0, 0, 0)
    engine: str = "wkw"
    """Name of the engine in xarray."""
    needs: str | None = "tensorstore"

    def __str__(self) -> str:
        return self.name

    def array(self):
        """Return what is stored, shape (c, x, y, z); some chunks are all zero, and absent."""
        rng = np.random.default_rng(len(self.name))
        array = np.repeat(rng.integers(1, 200, (self.num_channels, 20, 33, 26)), 2, axis=1).astype(
            self.dtype
        )
        array[:, :16, :16] = 0
        array[:, 32:, 32:] = 0  # all of the last files of WKW
        return array

    def url(self, base):
        """Return the URL below that of the folder."""
        return f"{self.prefix}{base}/{self.path}"

    def box(self, part=((0, 0, 0), SHAPE)):
        """Return a part as a box of absolute voxels."""
        return tuple(
            tuple(n + low for n, low in zip(corner, self.offset, strict=True)) for corner in part
        )

    def crop(self, part):
        """Return the voxels of a part."""
        return self.array()[(slice(None), *(slice(a, b) for a, b in zip(*part, strict=True)))]


def _write_wkw(folder, array, block_type):
    layer = folder.parent
    folder.mkdir(parents=True)
    num_channels, *shape = array.shape
    header = wkw_files.Header(array.dtype, num_channels, 8, FILE_VX // 8, block_type)
    (folder / "header.wkw").write_bytes(header.to_bytes())
    for cell in np.ndindex(*(-(-n // FILE_VX) for n in shape)):
        cube = np.zeros((num_channels, *(FILE_VX,) * 3), array.dtype)
        part = array[(slice(None), *(slice(n * FILE_VX, (n + 1) * FILE_VX) for n in cell))]
        cube[(slice(None), *map(slice, part.shape[1:]))] = part
        if cube.any():
            x, y, z = cell
            (folder / f"z{z}" / f"y{y}").mkdir(parents=True, exist_ok=True)
            (folder / f"z{z}" / f"y{y}" / f"x{x}.wkw").write_bytes(
                wkw_files.encode_file(cube, 8, block_type)
            )
    record = {
        "name": layer.name,
        "category": "color",
        "boundingBox": {
            "topLeft": [0, 0, 0],
            "width": shape[0],
            "height": shape[1],
            "depth": shape[2],
        },
        "elementClass": array.dtype.name if num_channels == 1 else "uint24",
        "dataFormat": "wkw",
        "numChannels": num_channels,
        "mags": [{"mag": [1, 1, 1], "cubeLength": FILE_VX}],
    }
    document = {
        "id": {"name": layer.parent.name, "team": ""},
        "scale": {"factor": list(VOXEL_SIZE), "unit": "nanometer"},
        "dataLayers": [record],
    }
    (layer.parent / "datasource-properties.json").write_text(json.dumps(document))


def _tensorstore(spec, folder):
    return (
        pytest.importorskip("tensorstore")
        .open(spec | {"kvstore": {"driver": "file", "path": f"{folder}/"}, "create": True})
        .result()
    )


def _write_precomputed(folder, array, sharding):
    scale = {
        "size": array.shape[1:],
        "voxel_offset": OFFSET,
        "chunk_size": CHUNK,
        "encoding": "raw",
        "resolution": VOXEL_SIZE,
    }
    if sharding is not None:
        scale["sharding"] = {"@type": "neuroglancer_uint64_sharded_v1", **sharding}
    volume = {"type": "image", "data_type": array.dtype.name, "num_channels": len(array)}
    spec = {
        "driver": "neuroglancer_precomputed",
        "multiscale_metadata": volume,
        "scale_metadata": scale,
    }
    _tensorstore(spec, folder).write(array.transpose(1, 2, 3, 0)).result()


def _write_n5(folder, array, _):
    metadata = {
        "dimensions": array.shape[1:],
        "blockSize": CHUNK,
        "dataType": array.dtype.name,
        "compression": {"type": "gzip"},
    }
    _tensorstore({"driver": "n5", "metadata": metadata}, folder).write(array[0]).result()


def _write_ngff(folder, array, version):
    """Write an image with axes z, y, x; of version 0.4 as Zarr v2, else as v3 with or without
    shards."""
    voxels, chunk = array[0].T, CHUNK[::-1]
    scale = [{"type": "scale", "scale": VOXEL_SIZE[::-1]}]
    axes = [{"name": name, "type": "space", "unit": "nanometer"} for name in "zyx"]
    image = {"axes": axes, "datasets": [{"path": "s0", "coordinateTransformations": scale}]}
    if version == "0.4":
        metadata = {
            "shape": voxels.shape,
            "chunks": chunk,
            "dtype": voxels.dtype.str,
            "compressor": {"id": "zlib", "level": 1},
            "dimension_separator": "/",
        }
        _tensorstore({"driver": "zarr", "metadata": metadata}, folder / "s0").write(voxels).result()
        (folder / ".zgroup").write_text('{"zarr_format": 2}')
        (folder / ".zattrs").write_text(json.dumps({"multiscales": [image | {"version": version}]}))
        return
    codecs = [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "gzip", "configuration": {"level": 1}},
    ]
    if version == "0.5-sharded":
        codecs = [
            {"name": "sharding_indexed", "configuration": {"chunk_shape": chunk, "codecs": codecs}}
        ]
        chunk = tuple(2 * n for n in chunk)
    grid = {"name": "regular", "configuration": {"chunk_shape": chunk}}
    metadata = {
        "shape": voxels.shape,
        "data_type": voxels.dtype.name,
        "chunk_grid": grid,
        "codecs": codecs,
        "dimension_names": ["z", "y", "x"],
    }
    _tensorstore({"driver": "zarr3", "metadata": metadata}, folder / "s0").write(voxels).result()
    attributes = {"ome": {"version": "0.5", "multiscales": [image]}}
    (folder / "zarr.json").write_text(
        json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes})
    )


def _writer(write, option):
    return lambda folder, array: write(folder, array, option)


_SHARDING = {
    "preshift_bits": 1,
    "minishard_bits": 2,
    "shard_bits": 2,
    "hash": "identity",
    "minishard_index_encoding": "gzip",
    "data_encoding": "gzip",
}

FORMS = (
    Form("wkw", "wkw/color/1", "", _writer(_write_wkw, wkw_files.LZ4), "uint8", 3, needs=None),
    Form("wkw-raw", "raw/color/1", "", _writer(_write_wkw, wkw_files.RAW), needs=None),
    Form(
        "precomputed",
        "files",
        "precomputed://",
        _writer(_write_precomputed, None),
        offset=OFFSET,
        engine="precomputed",
    ),
    Form(
        "precomputed-sharded",
        "shards",
        "precomputed://",
        _writer(_write_precomputed, _SHARDING),
        "uint8",
        2,
        OFFSET,
        "precomputed",
    ),
    Form("n5", "volume.n5/s0", "n5://", _writer(_write_n5, None), engine="n5"),
    Form("ngff-0.4", "v2.ome.zarr", "zarr://", _writer(_write_ngff, "0.4"), engine="ngff"),
    Form("ngff-0.5", "v3.ome.zarr", "zarr://", _writer(_write_ngff, "0.5"), "uint8", engine="ngff"),
    Form(
        "ngff-0.5-sharded",
        "v3-sharded.ome.zarr",
        "zarr://",
        _writer(_write_ngff, "0.5-sharded"),
        engine="ngff",
    ),
)


def write_all(folder):
    """Write every form whose writer is installed."""
    for form in FORMS:
        if form.needs is not None:
            try:
                __import__(form.needs)
            except ImportError:
                continue
        form.write(folder / form.path, form.array())
