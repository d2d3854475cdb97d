"""``verify`` of sound volumes of zarr-python 3, tensorstore 0.1, ngff-zarr and ome-zarr reports
nothing: all codecs, edges and fill values."""

from __future__ import annotations

import warnings

import dask
import numpy as np
import pytest

pytest.importorskip("tensorstore", reason="the oracle tensorstore is not installed")
pytest.importorskip("zarr", reason="the oracle zarr-python is not installed")

import numcodecs
import tensorstore as ts
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

import wkwdask

# no multiple of a chunk
VOXELS = np.random.default_rng(0).integers(1, 200, (21, 30, 41)).astype(np.uint16)
CHUNKS = (8, 8, 16)
STORED = slice(0, 16)  # the other chunks are missing
COMPRESSORS_V3 = {
    "raw": None,
    "gzip": GzipCodec(),
    "zstd": ZstdCodec(),
    "zstd with checksum": ZstdCodec(checksum=True),
    "blosc lz4": BloscCodec(cname="lz4"),
    "blosc zstd": BloscCodec(cname="zstd", shuffle="bitshuffle"),
    "crc32c": Crc32cCodec(),
}
NUMCODECS_V3 = ("Zlib", "BZ2", "LZMA", "LZ4", "Zstd")
COMPRESSORS_V2 = {
    "raw": None,
    "zlib": numcodecs.Zlib(),
    "gzip": numcodecs.GZip(),
    "bz2": numcodecs.BZ2(),
    "lzma": numcodecs.LZMA(),
    "zstd": numcodecs.Zstd(),
    "blosc": numcodecs.Blosc(),
    "lz4": numcodecs.LZ4(),
}


@pytest.fixture(autouse=True)
def _in_this_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


def check_sound(url):
    report = wkwdask.verify(url)
    assert report.faults == (), str(report)
    assert report.is_sound
    assert report.files
    assert all(mag.blocks for mag in report.mags)


def check_array(folder, voxels=VOXELS, **options):
    zarr.create_array(folder, shape=voxels.shape, chunks=CHUNKS, dtype=voxels.dtype, **options)[
        STORED
    ] = voxels[STORED]
    check_sound(f"zarr://{folder}")


@pytest.mark.parametrize("name", COMPRESSORS_V3)
def test_zarr_3(tmp_path, name):
    compressors = COMPRESSORS_V3[name] and [COMPRESSORS_V3[name]]
    check_array(tmp_path / "single", compressors=compressors, fill_value=7)
    check_array(tmp_path / "sharded", compressors=compressors, shards=(16, 16, 32), fill_value=7)


def test_codecs_of_numcodecs_in_zarr_3(tmp_path):
    codecs = pytest.importorskip("zarr.codecs.numcodecs", reason="an older zarr-python")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not part of the specification
        for name in NUMCODECS_V3:
            check_array(tmp_path / name, compressors=[getattr(codecs, name)()])
        # read by zarr-python
        check_array(tmp_path / "delta", filters=[codecs.Delta(dtype="uint16")])


@pytest.mark.parametrize("name", COMPRESSORS_V2)
def test_zarr_2(tmp_path, name):
    for order, separator, fill in (("C", ".", 0), ("F", "/", 5), ("C", "/", None)):
        key = {"name": "v2", "separator": separator}
        options = {
            "compressors": COMPRESSORS_V2[name],
            "fill_value": fill,
            "order": order,
            "chunk_key_encoding": key,
        }
        check_array(tmp_path / f"{order}{fill}", zarr_format=2, **options)


def test_filters_of_zarr_2(tmp_path):
    for name, codec in (
        ("delta", numcodecs.Delta(dtype="u2")),
        ("shuffle", numcodecs.Shuffle(2)),
        ("fletcher32", numcodecs.Fletcher32()),
    ):
        check_array(tmp_path / name, filters=[codec], zarr_format=2)


@pytest.mark.parametrize(
    ("dtype", "fill"), [("float32", np.nan), ("float64", np.inf), ("bool", False), ("int8", -1)]
)
def test_types_and_fill_values(tmp_path, dtype, fill):
    for zarr_format in (2, 3):
        check_array(
            tmp_path / str(zarr_format),
            VOXELS.astype(dtype),
            fill_value=fill,
            zarr_format=zarr_format,
        )


def check_tensorstore(folder, driver, metadata, prefix="zarr"):
    spec = {
        "driver": driver,
        "kvstore": {"driver": "file", "path": f"{folder}/"},
        "metadata": metadata,
    }
    ts.open(spec, create=True, dtype=ts.uint16, shape=VOXELS.shape).result()[STORED].write(
        VOXELS[STORED]
    ).result()
    check_sound(f"{prefix}://{folder}")


def test_zarr_of_tensorstore(tmp_path):
    check_tensorstore(tmp_path / "2", "zarr", {"chunks": CHUNKS, "dimension_separator": "/"})
    check_tensorstore(
        tmp_path / "2 with fill",
        "zarr",
        {"chunks": CHUNKS, "compressor": None, "fill_value": 9, "dtype": "<u2"},
    )
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    for location in ("start", "end"):
        for index_codecs in ([little], [little, {"name": "crc32c"}]):
            inner = {
                "chunk_shape": CHUNKS,
                "index_location": location,
                "index_codecs": index_codecs,
                "codecs": [little, {"name": "zstd"}],
            }
            grid = {"name": "regular", "configuration": {"chunk_shape": (16, 16, 32)}}
            metadata = {
                "chunk_grid": grid,
                "codecs": [{"name": "sharding_indexed", "configuration": inner}],
            }
            check_tensorstore(tmp_path / f"3 {location} {len(index_codecs)}", "zarr3", metadata)


@pytest.mark.parametrize("name", ["raw", "gzip", "bzip2", "xz", "blosc", "zstd"])
def test_n5_of_tensorstore(tmp_path, name):
    options = {"cname": "lz4", "clevel": 5, "shuffle": 1} if name == "blosc" else {}
    check_tensorstore(
        tmp_path / name, "n5", {"blockSize": CHUNKS, "compression": {"type": name, **options}}, "n5"
    )


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_images_of_ngff_zarr(tmp_path, version):
    ngff_zarr = pytest.importorskip("ngff_zarr", reason="the oracle ngff-zarr is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = ngff_zarr.to_ngff_image(
            VOXELS,
            dims="zyx",
            scale={"z": 40.0, "y": 4.0, "x": 4.0},
            axes_units=dict.fromkeys("zyx", "nanometer"),
        )
        levels = ngff_zarr.to_multiscales(
            image, scale_factors=[2, 4], method=ngff_zarr.Methods.DASK_BIN_SHRINK, chunks=CHUNKS
        )
        ngff_zarr.to_ngff_zarr(str(tmp_path / "image.ome.zarr"), levels, version=version)
    check_sound(tmp_path / "image.ome.zarr")


@pytest.mark.parametrize(("version", "zarr_format"), [("V04", 2), ("V05", 3)])
def test_images_of_ome_zarr(tmp_path, version, zarr_format):
    formats = pytest.importorskip("ome_zarr.format", reason="the oracle ome-zarr is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ome_zarr.writer import write_image, write_labels

        group = zarr.open_group(tmp_path / "image.zarr", mode="w", zarr_format=zarr_format)
        fmt = getattr(formats, f"Format{version}")()
        write_image(VOXELS[None], group, axes="czyx", fmt=fmt)
        write_labels(VOXELS, group, "cells", axes="zyx", fmt=fmt)
    check_sound(tmp_path / "image.zarr")
    check_sound(tmp_path / "image.zarr" / "labels" / "cells")
