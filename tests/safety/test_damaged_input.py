"""Files of every kind, damaged in many ways: readers work, or raise one of our errors or an OSError
that names the file."""

from __future__ import annotations

import contextlib
import os
import signal
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safety.memory_room import memory_room
from safety.mutations import MUTATIONS, mutated
from support.annotations import write_annotation
from support.commands import run_here
from support.n5_volumes import java_lz4, write_attributes, write_dataset

import wkwdask

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_ROOM_NBYTES = 8 << 30
_SECONDS = 120  # a damaged type may need kernels that are not compiled yet
_TOLD = 5
_BOX = ((0, 0, 0), (16, 12, 10))
_CELLS = np.random.default_rng(1).integers(1, 200, (16, 12, 10)).astype(np.uint8)
_IDS = (_CELLS // 50).astype(np.uint32)


@dataclass(frozen=True)
class Kind:
    """A kind of file."""

    make: Callable[[Path], Path]
    """Makes a sample in a folder, and returns the file to damage."""
    use: Callable[[Path], list[Callable[[], Any]]]
    """Calls of public functions that use the sample in a folder."""
    slow: Callable[[Path], list[Callable[[], Any]]] = lambda folder: []
    """Calls that take long, for every tenth mutation."""
    needs: tuple[str, ...] = ()
    """Packages without which the sample cannot be made."""


# ------------------------------------------------------------------------------------------------
# WKW and datasets


def _dataset(folder: Path) -> Path:
    """Make a dataset of one layer with two mags."""
    wkwdask.create_dataset(folder / "ds", (4, 4, 35))
    wkwdask.write(folder / "ds/seg/1", (0, 0, 0), _IDS, block_len=8, file_len=2, compression="lz4")
    wkwdask.build_pyramid(folder / "ds", layer="seg", coarsest=2)
    return folder / "ds"


def _use_dataset(folder: Path) -> list[Callable[[], Any]]:
    return [
        lambda: wkwdask.open_dataset(folder / "ds"),
        lambda: str(wkwdask.info(folder / "ds")),
        lambda: wkwdask.read(folder / "ds/seg/1", _BOX),
        lambda: wkwdask.verify(folder / "ds"),
        lambda: wkwdask.diff(folder / "ds/seg/1", folder / "ds/seg/1"),
        lambda: wkwdask.repair(folder / "ds", dry_run=True),
    ]


def _rewrite_dataset(folder: Path) -> list[Callable[[], Any]]:
    return [
        lambda: wkwdask.plan_pyramid(folder / "ds", layer="seg", existing="overwrite"),
        lambda: wkwdask.open_dataset(folder / "ds").set_voxel_size((4, 4, 4)),
        lambda: wkwdask.open_dataset(folder / "ds").set_bounding_box("seg", (0, 0, 0, 4, 4, 4)),
        lambda: (
            wkwdask.open_dataset(folder / "ds").remove_mag("seg", "2-2-1").add_mags_from_disk("seg")
        ),
    ]


# ------------------------------------------------------------------------------------------------
# precomputed


def _volume(
    encoding: str = "raw", dtype: Any = np.uint8, channels: int = 1, *, sharded: bool = False
) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        sharding = wkwdask.Sharding(
            0, 3, 0, hash="identity", minishard_index_encoding="gzip", data_encoding="gzip"
        )
        array = np.stack([_CELLS.astype(dtype)] * channels)
        kind = "image" if dtype == np.uint8 else "segmentation"
        options = {
            "encoding": encoding,
            "chunk_shape": (8, 8, 8) if sharded else (16, 12, 10),
            "voxel_size": (4, 4, 40),
            "type": kind,
        }
        wkwdask.to_precomputed(
            array, folder / "volume", shard_shape=sharding if sharded else False, **options
        )
        return next(
            path
            for path in sorted((folder / "volume/4_4_40").iterdir())
            if not path.name.startswith(".")
        )

    return make


def _use_volume(folder: Path) -> list[Callable[[], Any]]:
    url = f"precomputed://{folder}/volume"
    return [
        lambda: str(wkwdask.info(url)),
        lambda: wkwdask.read(url, _BOX),
        lambda: wkwdask.verify(url),
    ]


def _info_file(folder: Path) -> Path:
    _volume(sharded=True)(folder)
    return folder / "volume/info"


def _packed(suffix: str) -> Callable[[Path], Path]:
    """Make a volume of one chunk whose file is compressed."""

    def make(folder: Path) -> Path:
        import imagecodecs

        path = _volume()(folder)
        pack = {
            ".gz": imagecodecs.gzip_encode,
            ".br": imagecodecs.brotli_encode,
            ".zstd": imagecodecs.zstd_encode,
            ".xz": _xz,
            ".bz2": imagecodecs.bz2_encode,
        }
        packed = path.with_name(path.name + suffix)
        packed.write_bytes(pack[suffix](path.read_bytes()))
        path.unlink()
        return packed

    return make


def _xz(data: bytes) -> bytes:
    import lzma

    return lzma.compress(data)


# ------------------------------------------------------------------------------------------------
# N5


def _n5(compression: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        write_attributes(folder / "data.n5", n5="4.0.0")
        write_dataset(
            folder / "data.n5/s0",
            _CELLS,
            (16, 12, 10),
            "raw" if compression == "lz4" else compression,
        )
        path = folder / "data.n5/s0/0/0/0"
        if compression == "lz4":
            write_attributes(
                folder / "data.n5/s0",
                dimensions=[16, 12, 10],
                blockSize=[16, 12, 10],
                dataType="uint8",
                compression={"type": "lz4"},
            )
            raw = path.read_bytes()
            path.write_bytes(raw[:16] + java_lz4(raw[16:]))
        return path

    return make


def _n5_group(folder: Path) -> Path:
    for number, step in enumerate((1, 2)):
        factors = [2**number] * 3
        transform = {
            "axes": ["z", "y", "x"],
            "scale": [40.0, 4.0, 4.0],
            "translate": [0.0, 0.0, 0.0],
            "units": ["nm", "nm", "nm"],
        }
        write_dataset(
            folder / f"data.n5/em/s{number}",
            _CELLS[::step, ::step, ::step],
            (8, 8, 8),
            "gzip",
            downsamplingFactors=factors,
            transform=transform,
        )
    path = {
        "path": "s0",
        "transform": {
            "axes": ["z", "y", "x"],
            "scale": [40.0, 4.0, 4.0],
            "translate": [0.0, 0.0, 0.0],
            "units": ["nm", "nm", "nm"],
        },
    }
    attributes = {
        "multiscales": [{"name": "em", "datasets": [path]}],
        "axes": ["x", "y", "z"],
        "units": ["nm"] * 3,
        "resolution": [4.0, 4.0, 40.0],
        "scales": [[1, 1, 1], [2, 2, 2]],
        "pixelResolution": {"unit": "nm", "dimensions": [4.0, 4.0, 40.0]},
    }
    write_attributes(folder / "data.n5/em", **attributes)
    write_attributes(folder / "data.n5", n5="4.0.0")
    return folder / "data.n5/em/attributes.json"


def _n5_level(folder: Path) -> Path:
    _n5_group(folder)
    return folder / "data.n5/em/s1/attributes.json"


def _use_n5(folder: Path) -> list[Callable[[], Any]]:
    found = next(path for path in (folder / "data.n5/em", folder / "data.n5/s0") if path.exists())
    return [
        lambda: str(wkwdask.info(f"n5://{folder}/data.n5")),
        lambda: wkwdask.read(f"n5://{found}", _BOX),
    ]


def _use_n5_group(folder: Path) -> list[Callable[[], Any]]:
    return [*_use_n5(folder), lambda: wkwdask.n5_as_zarr(f"n5://{folder}/data.n5")]


# ------------------------------------------------------------------------------------------------
# Zarr


def _zarr(name: str, version: int = 3, **options: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        import zarr

        options_ = {
            "chunks": (10, 12, 8),
            **{key: value() if callable(value) else value for key, value in options.items()},
        }
        array = zarr.create_array(
            folder / "data.zarr",
            shape=(10, 12, 16),
            dtype="u1",
            zarr_format=version,
            fill_value=0,
            **options_,
        )
        array[...] = _CELLS.transpose(2, 1, 0)
        array.attrs["voxel_size_nm"] = [4, 4, 40]
        array.attrs["mag"] = "2-2-1"
        array.attrs["offset_vx"] = [1, 2, 3]
        array.attrs["_ARRAY_DIMENSIONS"] = ["z", "y", "x"]
        return folder / "data.zarr" / name

    return make


def _use_zarr(folder: Path) -> list[Callable[[], Any]]:
    url = f"zarr://{folder}/data.zarr"
    return [
        lambda: str(wkwdask.info(url)),
        lambda: wkwdask.read(url, ((1, 2, 3), (17, 14, 13))),
        lambda: wkwdask.plan_convert(
            folder / "data.zarr", folder / "new/color/1", voxel_size=(4, 4, 40)
        ),
    ]


def _ngff(version: str, name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        _dataset(folder)
        for mag in (1, "2-2-1"):
            wkwdask.to_zarr(
                wkwdask.open(folder / f"ds/seg/{mag}"),
                folder / "image.zarr",
                ngff=version,
                chunk_shape=(8, 8, 8),
                voxel_size=(4, 4, 35),
                mag=mag,
            )
        return folder / "image.zarr" / name

    return make


def _use_ngff(folder: Path) -> list[Callable[[], Any]]:
    return [
        lambda: str(wkwdask.info(folder / "image.zarr")),
        lambda: wkwdask.read(folder / "image.zarr", _BOX, layer="image.zarr"),
        lambda: wkwdask.read(folder / "image.zarr/2-2-1", ((0, 0, 0), (8, 6, 10))),
    ]


def _rewrite_ngff(folder: Path) -> list[Callable[[], Any]]:
    return [
        lambda: wkwdask.to_zarr(
            _CELLS[:4, :4, :4],
            folder / "image.zarr",
            mag="4-4-2",
            voxel_size=(4, 4, 35),
            existing="overwrite",
        )
    ]


# ------------------------------------------------------------------------------------------------
# foreign images and arrays


def _saved(name: str, save: Callable[[Path], Any]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        save(folder / name)
        return folder / name

    return make


def _tiff(**options: Any) -> Callable[[Path], Path]:
    def save(path: Path) -> None:
        import tifffile

        tifffile.imwrite(path, _CELLS.transpose(2, 1, 0)[:4], **options)

    return _saved("stack.tif", save)


def _image(suffix: str, mode: str = "L") -> Callable[[Path], Path]:
    def save(path: Path) -> None:
        from PIL import Image

        Image.fromarray(_CELLS[:, :, 0].T).convert(mode).save(path)

    return _saved(f"section_1{suffix}", save)


def _hdf5(path: Path) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        file.create_dataset(
            "em", data=_CELLS.transpose(2, 1, 0), chunks=(5, 6, 8), compression="gzip"
        ).attrs["element_size_um"] = [0.04, 0.004, 0.004]


def _mrc(path: Path) -> None:
    import mrcfile

    with mrcfile.new(path) as file:
        file.set_data(_CELLS.transpose(2, 1, 0).astype(np.int16))
        file.voxel_size = 40.0


def _converted(name: str, source: str = "") -> Callable[[Path], list[Callable[[], Any]]]:
    return lambda folder: [
        lambda: wkwdask.convert(
            f"{folder}/{name}{source}",
            folder / "mag/1",
            voxel_size=(4, 4, 40),
            existing="overwrite",
            file_len=1,
        )
    ]


def _planned(name: str, source: str = "") -> Callable[[Path], list[Callable[[], Any]]]:
    return lambda folder: [
        lambda: wkwdask.plan_convert(
            f"{folder}/{name}{source}", folder / "new/color/1", voxel_size=(4, 4, 40)
        )
    ]


# ------------------------------------------------------------------------------------------------
# mappings and annotations


def _mapping(name: str, save: Callable[[Path], Any]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        _dataset(folder)
        save(folder / name)
        return folder / name

    return make


_PAIRS = np.array([[n, n + 10] for n in range(1, 6)], np.uint64)


def _csv(path: Path) -> None:
    path.write_text("old,new\n" + "".join(f"{old},{new}\n" for old, new in _PAIRS))


def _parquet(path: Path) -> None:
    import pandas

    pandas.DataFrame(_PAIRS, columns=["old", "new"]).to_parquet(path, engine="pyarrow")


def _agglomerate(path: Path) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        file["segment_to_agglomerate"] = np.array([0, 2, 1, 3, 4, 5], np.uint64)


_NML = """<things><parameters><experiment name="ds"/><scale x="4" y="4" z="35"/></parameters>
<thing id="1"><nodes><node id="1" x="1" y="2" z="3"/><node id="2" x="9" y="2" z="3"/></nodes><edges><edge source="1" target="2"/></edges></thing></things>"""  # noqa: E501


def _remapped(name: str) -> Callable[[Path], list[Callable[[], Any]]]:
    return lambda folder: [
        lambda: wkwdask.remap(
            folder / "ds/seg/1",
            folder / "neurons/1",
            folder / name,
            dtype=np.uint64,
            existing="overwrite",
        )
    ]


def _annotated(folder: Path) -> Path:
    _dataset(folder)
    return write_annotation(
        folder / "annotation.zip", {"1": {(1, 0, 0): np.full((8, 8, 8), 3)}}, block_len=8
    )


def _merge(folder: Path) -> list[Callable[[], Any]]:
    return [
        lambda: wkwdask.merge(
            folder / "ds/seg/1",
            folder / "annotation.zip",
            folder / "merged/1",
            existing="overwrite",
        )
    ]


# ------------------------------------------------------------------------------------------------
# settings


_JOBQUEUE = """kind: jobqueue
class: SLURMCluster
cores: 4
memory: 16GB
jobs: 2
walltime: "02:00:00"
queue: normal
job-extra-directives: ["--exclusive", "--nice"]
scheduler-options: {port: 8786}
dask: {distributed: {worker: {memory: {target: 0.8}}}}
"""
_KUBERNETES = """apiVersion: apps/v1
kind: Deployment
metadata: {name: worker}
spec:
  template:
    metadata: {labels: {app: worker}}
    spec:
      containers: [{name: worker, image: image}]
      volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
---
apiVersion: v1
kind: Service
metadata: {name: scheduler}
spec: {selector: {app: worker}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
"""


def _use_cluster(folder: Path) -> list[Callable[[], Any]]:
    # errors are raised, nothing is started
    return [lambda: run_here("--debug", "cluster", "render", folder / "site.yaml")]


def _manifest(folder: Path) -> Path:
    _dataset(folder)
    wkwdask.write_manifest(folder / "ds")
    return folder / "ds/wkwdask-manifest.txt"


KINDS = {
    "header.wkw": Kind(lambda folder: _dataset(folder) / "seg/1/header.wkw", _use_dataset),
    "WKW file": Kind(lambda folder: _dataset(folder) / "seg/1/z0/y0/x0.wkw", _use_dataset),
    "datasource-properties.json": Kind(
        lambda folder: _dataset(folder) / "datasource-properties.json", _use_dataset
    ),
    "datasource-properties.json, edited": Kind(
        lambda folder: _dataset(folder) / "datasource-properties.json", _rewrite_dataset
    ),
    "manifest": Kind(_manifest, lambda folder: [lambda: wkwdask.check_manifest(folder / "ds")]),
    "precomputed info": Kind(_info_file, _use_volume),
    "precomputed shard": Kind(_volume(sharded=True), _use_volume),
    "precomputed raw": Kind(_volume(), _use_volume),
    "precomputed jpeg": Kind(_volume("jpeg", channels=3), _use_volume, needs=("imagecodecs",)),
    "precomputed png": Kind(_volume("png"), _use_volume, needs=("imagecodecs",)),
    "precomputed jxl": Kind(_volume("jxl"), _use_volume, needs=("imagecodecs",)),
    "precomputed compresso": Kind(
        _volume("compresso", np.uint64), _use_volume, needs=("compresso",)
    ),
    "precomputed compressed_segmentation": Kind(
        _volume("compressed_segmentation", np.uint32), _use_volume
    ),
    **{
        f"precomputed {suffix}": Kind(_packed(suffix), _use_volume, needs=("imagecodecs",))
        for suffix in (".gz", ".br", ".zstd", ".xz", ".bz2")
    },
    "N5 group attributes.json": Kind(_n5_group, _use_n5_group),
    "N5 dataset attributes.json": Kind(_n5_level, _use_n5_group),
    **{
        f"N5 block {name}": Kind(_n5(name), _use_n5, needs=("imagecodecs",))
        for name in ("raw", "gzip", "zlib", "bzip2", "xz", "lz4", "zstd", "blosc")
    },
    ".zarray": Kind(_zarr(".zarray", 2), _use_zarr, needs=("zarr",)),
    ".zattrs": Kind(_zarr(".zattrs", 2), _use_zarr, needs=("zarr",)),
    "zarr.json": Kind(_zarr("zarr.json"), _use_zarr, needs=("zarr",)),
    "zarr.json, shards": Kind(_zarr("zarr.json", shards=(10, 12, 16)), _use_zarr, needs=("zarr",)),
    "Zarr chunk": Kind(_zarr("c/0/0/0", compressors=None), _use_zarr, needs=("zarr",)),
    "Zarr chunk zstd": Kind(_zarr("c/0/0/0"), _use_zarr, needs=("zarr",)),
    "Zarr chunk gzip": Kind(
        _zarr("c/0/0/0", compressors=lambda: _codec("GzipCodec")), _use_zarr, needs=("zarr",)
    ),
    "Zarr chunk blosc": Kind(
        _zarr("c/0/0/0", compressors=lambda: _codec("BloscCodec")), _use_zarr, needs=("zarr",)
    ),
    "Zarr shard": Kind(_zarr("c/0/0/0", shards=(10, 12, 16)), _use_zarr, needs=("zarr",)),
    **{
        f"Zarr 2 chunk {name}": Kind(
            _zarr("0.0.0", 2, compressors=lambda name=name: _numcodec(name)),
            _use_zarr,
            needs=("zarr",),
        )
        for name in ("GZip", "Zlib", "BZ2", "LZMA", "Zstd", "Blosc", "LZ4")
    },
    "NGFF 0.4 .zattrs": Kind(_ngff("0.4", ".zattrs"), _use_ngff, _rewrite_ngff, needs=("zarr",)),
    "NGFF 0.4 .zgroup": Kind(_ngff("0.4", ".zgroup"), _use_ngff, _rewrite_ngff, needs=("zarr",)),
    "NGFF 0.4 .zarray": Kind(
        _ngff("0.4", "2-2-1/.zarray"), _use_ngff, _rewrite_ngff, needs=("zarr",)
    ),
    "NGFF 0.5 zarr.json": Kind(
        _ngff("0.5", "zarr.json"), _use_ngff, _rewrite_ngff, needs=("zarr",)
    ),
    "NGFF 0.5 array zarr.json": Kind(
        _ngff("0.5", "2-2-1/zarr.json"), _use_ngff, _rewrite_ngff, needs=("zarr",)
    ),
    ".npy": Kind(
        _saved("stack.npy", lambda path: np.save(path, _CELLS)),
        _planned("stack.npy"),
        _converted("stack.npy"),
    ),
    "HDF5": Kind(
        _saved("stack.h5", _hdf5),
        _planned("stack.h5", ":/em"),
        _converted("stack.h5", ":/em"),
        needs=("h5py",),
    ),
    "TIFF": Kind(_tiff(), _planned("stack.tif"), _converted("stack.tif"), needs=("tifffile",)),
    "TIFF pages": Kind(
        _tiff(metadata=None, compression="zlib", tile=(16, 16)),
        _planned("stack.tif"),
        _converted("stack.tif"),
        needs=("imagecodecs",),
    ),
    "TIFF of OME": Kind(
        _tiff(ome=True, metadata={"axes": "ZYX", "PhysicalSizeX": 0.004}),
        _planned("stack.tif"),
        _converted("stack.tif"),
        needs=("tifffile",),
    ),
    "PNG": Kind(_image(".png"), _planned("section_1.png"), _converted("section_1.png")),
    "JPEG": Kind(_image(".jpg", "RGB"), _planned("section_1.jpg"), _converted("section_1.jpg")),
    "MRC": Kind(
        _saved("stack.mrc", _mrc),
        _planned("stack.mrc"),
        _converted("stack.mrc"),
        needs=("mrcfile",),
    ),
    "mapping .npy": Kind(
        _mapping("ids.npy", lambda path: np.save(path, _PAIRS)), _remapped("ids.npy")
    ),
    "mapping .csv": Kind(_mapping("ids.csv", _csv), _remapped("ids.csv")),
    "mapping .parquet": Kind(
        _mapping("ids.parquet", _parquet), _remapped("ids.parquet"), needs=("pyarrow", "pandas")
    ),
    "mapping .hdf5": Kind(
        _mapping("ids.hdf5", _agglomerate), _remapped("ids.hdf5"), needs=("h5py",)
    ),
    "NML": Kind(
        _mapping("merger.nml", lambda path: path.write_text(_NML)), _remapped("merger.nml")
    ),
    "annotation": Kind(_annotated, _merge),
    "cluster YAML": Kind(
        _saved("site.yaml", lambda path: path.write_text(_JOBQUEUE)),
        _use_cluster,
        needs=("dask_jobqueue",),
    ),
    "Kubernetes YAML": Kind(
        _saved("site.yaml", lambda path: path.write_text(_KUBERNETES)), _use_cluster
    ),
}


def _codec(name: str) -> Any:
    import zarr.codecs

    return getattr(zarr.codecs, name)()


def _numcodec(name: str) -> Any:
    import numcodecs

    return getattr(numcodecs, name)()


# ------------------------------------------------------------------------------------------------
# the test


@contextlib.contextmanager
def _bounded():
    """Limit memory to a little more than now, and the time of calls."""
    former = signal.signal(signal.SIGALRM, _hangs)
    try:
        with memory_room(_ROOM_NBYTES):
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)


class HangError(BaseException):
    """A call took too long."""


def _hangs(number: int, frame: Any) -> None:
    del number, frame
    raise HangError(f"takes longer than {_SECONDS} s")


def damage_of(
    kind: Kind, folder: Path, seed: int, sample: bytes, path: Path
) -> list[BaseException]:
    """Damage a sample, use it, and give what is raised and should not be."""
    wrong: list[BaseException] = []
    path.write_bytes(mutated(sample, seed))
    # so that nothing that was kept of the last one is believed
    os.utime(path, ns=(seed * 10**9, seed * 10**9))
    for call in [*kind.use(folder), *(kind.slow(folder) if seed % 10 == 0 else ())]:
        signal.alarm(_SECONDS)
        try:
            call()
        except (wkwdask.WkwDaskError, OSError) as error:
            if str(folder) not in str(error):
                wrong.append(error)
        except (Exception, HangError) as error:
            wrong.append(error)
        signal.alarm(0)
    return wrong


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.needs(*kind.needs)) for name, kind in KINDS.items()],
)
def test_damage_is_an_error_of_ours_that_names_the_file(tmp_path, name):
    kind = KINDS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = kind.make(tmp_path)
        sample = path.read_bytes()
        assert not [
            error
            for call in (*kind.use(tmp_path), *kind.slow(tmp_path))
            if (error := _raised(call))
        ], "the sample itself is sound"
        wrong = []
        with _bounded():
            for seed in range(MUTATIONS):
                wrong += [
                    f"seed {seed}: {type(error).__name__}: {error}"
                    for error in damage_of(kind, tmp_path, seed, sample, path)
                ]
                if len(wrong) >= _TOLD:
                    break
    assert not wrong, "\n".join(wrong)


def _raised(call: Callable[[], Any]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None
