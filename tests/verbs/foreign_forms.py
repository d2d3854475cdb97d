"""Forms of the matrix that other software writes: each test saves its image with zarr-python,
tensorstore, cloud-volume, webknossos or h5py.

A form is one record: the shape, type and position of its image, its levels, and the function that
writes the arrays and documents into a folder.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.n5_dialects import write_xml
from verbs.cases import Case, draw_of_size, largest_of_windows, rounded_down, step_of
from verbs.forms import VOXEL_SIZE, Form

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

LARGEST_ID = 2**64 - 1


@dataclass(frozen=True)
class ForeignForm(Form):
    """A form whose images other software writes."""

    dtype: str = "uint16"
    shape: tuple[int, int, int, int] = (1, 21, 17, 13)
    offset: tuple[int, int, int] = (0, 0, 0)
    label_dtype: str = "uint32"
    rounds_down: bool = False
    """Whether levels leave out the windows that are not complete."""

    def draw(
        self, seed: int, types: Sequence[str], lowest: int, *, is_segmentation: bool = False
    ) -> Case:
        channels = 1 if is_segmentation else self.shape[0]
        case = draw_of_size(
            seed,
            self.label_dtype if is_segmentation else self.dtype,
            (channels, *self.shape[1:]),
            self.offset,
            is_segmentation=is_segmentation,
        )
        if self.label_dtype == "uint64" and is_segmentation:
            case.array[case.array == case.array.max()] = LARGEST_ID
        return case

    def level_of(self, case: Case, mag: str) -> Case:
        return (rounded_down if self.rounds_down else largest_of_windows)(case, step_of(mag))


@dataclass(frozen=True)
class Stored:
    """A level to be written."""

    case: Case
    step: tuple[int, int, int]

    @property
    def lengths(self) -> list[float]:
        """Voxel size x, y, z [nm]."""
        return [edge * n for edge, n in zip(VOXEL_SIZE, self.step, strict=True)]


def _form(
    name: str, url: str, write: Callable[[Path, list[Stored]], None], engine: str, **options: Any
) -> ForeignForm:
    """Make a form of a function that writes levels, finest first, into a folder."""

    def save(array, url, offset, **_):
        case = Case(array, offset)
        levels = [
            Stored(case, (1, 1, 1)),
            *(Stored(form.level_of(case, mag), step_of(mag)) for mag in form.levels),
        ]
        with warnings.catch_warnings(action="ignore"):  # the other software's
            write(Path(url.rpartition("://")[2]), levels)

    move = (8, 16, 4) if "levels" in options else (3, 1, 2)
    form = ForeignForm(
        name,
        lambda folder, image: url.format(folder=folder, name=image),
        save,
        engine,
        move=move,
        **options,
    )
    return form


# ---------------------------------------------------------------------------- OME-NGFF and Zarr


def _ngff(version: str, axes: str = "czyx", **options: Any) -> Callable[[Path, list[Stored]], None]:
    """Return the function that writes an image with zarr-python, where the values of ``options``
    are functions of the number of axes, or constants."""

    def write(folder: Path, levels: list[Stored]) -> None:
        import zarr

        group = zarr.open_group(folder, mode="w", zarr_format=2 if version == "0.4" else 3)
        datasets = []
        for number, level in enumerate(levels):
            voxels = _with_axes(level.case.array, axes)
            names = {} if version == "0.4" else {"dimension_names": list(axes)}
            chosen = {
                key: value(voxels) if callable(value) else value for key, value in options.items()
            }
            array = group.create_array(
                str(number), shape=voxels.shape, **{"dtype": voxels.dtype, **names, **chosen}
            )
            array[...] = voxels
            before = [1.0] * (len(axes) - 3)
            place = [
                (low + 0.5) * edge - 0.5 * fine
                for low, edge, fine in zip(
                    level.case.offset, level.lengths, VOXEL_SIZE, strict=True
                )
            ]
            moves = [
                {"type": "scale", "scale": before + level.lengths[::-1]},
                {"type": "translation", "translation": [0.0] * len(before) + place[::-1]},
            ]
            datasets.append({"path": str(number), "coordinateTransformations": moves})
        kinds = {"t": {"type": "time"}, "c": {"type": "channel"}}
        entry = {
            "axes": [
                {"name": axis, **kinds.get(axis, {"type": "space", "unit": "nanometer"})}
                for axis in axes
            ],
            "datasets": datasets,
        }
        group.attrs.update(
            {"multiscales": [{"version": "0.4", **entry}]}
            if version == "0.4"
            else {"ome": {"version": version, "multiscales": [entry]}}
        )

    return write


def _with_axes(array: np.ndarray, axes: str) -> np.ndarray:
    """Return the voxels (c, x, y, z) as an array with some of the axes t, c, z, y, x."""
    voxels = array.transpose(0, 3, 2, 1)
    return voxels.reshape((1,) * (len(axes) - 4) + voxels.shape) if len(axes) >= 4 else voxels[0]


def _last(*lengths: int) -> Callable[[np.ndarray], tuple[int, ...]]:
    """Return the function that gives a chunk shape, with ones for the first axes."""
    return lambda voxels: (1,) * (voxels.ndim - len(lengths)) + lengths


def _bioformats2raw(folder: Path, levels: list[Stored]) -> None:
    """Series 0 of a container: axes t, c, z, y, x in big-endian order, one channel per chunk."""
    import numcodecs
    import zarr

    zarr.open_group(folder.parent, mode="w", zarr_format=2).attrs["bioformats2raw.layout"] = 3
    (folder.parent / "OME").mkdir()
    (folder.parent / "OME" / "METADATA.ome.xml").write_text("<OME/>")
    compressor = numcodecs.Blosc(cname="lz4", clevel=5, shuffle=1)
    dtype = lambda voxels: voxels.dtype.newbyteorder(">")  # noqa: E731
    write = _ngff(
        "0.4",
        "tczyx",
        dtype=dtype,
        chunks=_last(8, 8, 8),
        compressors=compressor,
        chunk_key_encoding={"name": "v2", "separator": "/"},
    )
    write(folder, levels)


def _delta(version: str) -> Any:
    """Return the filter that stores differences."""
    import numcodecs
    from zarr.codecs.numcodecs import Delta

    return lambda voxels: [
        numcodecs.Delta(dtype=voxels.dtype.str)
        if version == "0.4"
        else Delta(dtype=voxels.dtype.str)
    ]


def _filtered(version: str, **options: Any) -> Callable[[Path, list[Stored]], None]:
    return lambda folder, levels: _ngff(
        version, chunks=_last(8, 8, 8), filters=_delta(version), **options
    )(folder, levels)


def _nested_shards(folder: Path, levels: list[Stored]) -> None:
    from zarr.codecs import BytesCodec, GzipCodec, ShardingCodec

    inner = ShardingCodec(chunk_shape=(1, 8, 8, 8), codecs=[BytesCodec(), GzipCodec()])
    _ngff(
        "0.5",
        chunks=(1, 16, 16, 16),
        serializer=ShardingCodec(chunk_shape=(1, 16, 16, 8), codecs=[inner]),
        compressors=None,
    )(folder, levels)


def _transposed_shards(folder: Path, levels: list[Stored]) -> None:
    from zarr.codecs import BytesCodec, GzipCodec, ShardingCodec, TransposeCodec

    shards = ShardingCodec(chunk_shape=(1, 8, 8, 8), codecs=[BytesCodec(), GzipCodec()])
    _ngff(
        "0.5",
        chunks=(1, 16, 16, 16),
        filters=[TransposeCodec(order=(0, 3, 2, 1))],
        serializer=shards,
        compressors=None,
    )(folder, levels)


def _big_endian_index(folder: Path, levels: list[Stored]) -> None:
    from zarr.codecs import BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec

    shards = ShardingCodec(
        chunk_shape=(1, 8, 8, 8),
        codecs=[BytesCodec(), GzipCodec()],
        index_codecs=[BytesCodec(endian="big"), Crc32cCodec()],
    )
    _ngff("0.5", chunks=(1, 16, 16, 16), serializer=shards, compressors=None)(folder, levels)


def _fletcher(folder: Path, levels: list[Stored]) -> None:
    from zarr.codecs.numcodecs import Fletcher32

    _ngff("0.5", chunks=_last(8, 8, 8), compressors=[Fletcher32()])(folder, levels)


def _hexadecimal_fill_value(folder: Path, levels: list[Stored]) -> None:
    """Zero as the bytes of a float, as Zarr v3 allows."""
    _ngff("0.5", "zyx", chunks=(8, 8, 8))(folder, levels)
    for path in folder.glob("*/zarr.json"):
        document = json.loads(path.read_text())
        if document["data_type"] == "float32":
            path.write_text(json.dumps({**document, "fill_value": "0x00000000"}))


def _too_few_axes(folder: Path, levels: list[Stored]) -> None:
    """Five dimensions and a list of four axes."""
    _ngff("0.5", "tczyx", chunks=_last(8, 8, 8))(folder, levels)
    for path in (folder / "zarr.json", *folder.glob("*/zarr.json")):
        document = json.loads(path.read_text())
        if "ome" in document["attributes"]:
            (image,) = document["attributes"]["ome"]["multiscales"]
            image["axes"] = image["axes"][1:]
            for dataset in image["datasets"]:
                for move in dataset["coordinateTransformations"]:
                    move[move["type"]] = move[move["type"]][1:]
        document.pop("dimension_names", None)
        path.write_text(json.dumps(document))


def _ratios_of_shapes(folder: Path, levels: list[Stored]) -> None:
    """Scales as ome-zarr-py derives them: lengths of mag 1 divided by those of the level."""
    _ngff("0.5", "zyx", chunks=(8, 8, 8))(folder, levels)
    document = json.loads((folder / "zarr.json").read_text())
    for dataset, level in zip(
        document["attributes"]["ome"]["multiscales"][0]["datasets"], levels, strict=True
    ):
        scale = [
            edge * whole / n
            for edge, whole, n in zip(VOXEL_SIZE, levels[0].case.size, level.case.size, strict=True)
        ]
        center = [(length - fine) / 2 for length, fine in zip(scale, VOXEL_SIZE, strict=True)]
        dataset["coordinateTransformations"] = [
            {"type": "scale", "scale": scale[::-1]},
            {"type": "translation", "translation": center[::-1]},
        ]
    (folder / "zarr.json").write_text(json.dumps(document))


# ---------------------------------------------------------------------------- tensorstore


def _create(driver: str, folder: Path, voxels: np.ndarray, **spec: Any) -> None:
    """Write an array with tensorstore; its shape is in the metadata of the scale where the driver
    has them."""
    import tensorstore

    domain = {} if "scale_metadata" in spec else {"dtype": voxels.dtype.name, "shape": voxels.shape}
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{folder}/"}, **spec}
    tensorstore.open(spec, create=True, **domain).result().write(voxels).result()


def _scales(
    *, coarse_first: bool, chunk: Sequence[int] = (8, 8, 8)
) -> Callable[[Path, list[Stored]], None]:
    """Return the function that writes a precomputed volume, whose scales are listed in the order in
    which they are made."""

    def write(folder: Path, levels: list[Stored]) -> None:
        for level in levels[::-1] if coarse_first else levels:
            voxels = level.case.array.transpose(1, 2, 3, 0)
            scale = {
                "size": voxels.shape[:3],
                "voxel_offset": level.case.offset,
                "resolution": level.lengths,
                "chunk_size": chunk,
                "encoding": "raw",
            }
            volume = {
                "type": "image",
                "data_type": voxels.dtype.name,
                "num_channels": voxels.shape[3],
            }
            _create(
                "neuroglancer_precomputed",
                folder,
                voxels,
                multiscale_metadata=volume,
                scale_metadata=scale,
            )

    return write


def _n5(
    name: str,
    attributes: Callable[[list[Stored]], dict[str, dict[str, Any]]],
    block: Sequence[int] = (8, 8, 8),
) -> Callable[[Path, list[Stored]], None]:
    """Return the function that writes N5 datasets and adds attributes to the documents of their
    folders."""

    def write(folder: Path, levels: list[Stored]) -> None:
        for number, level in enumerate(levels):
            voxels = level.case.array.transpose(1, 2, 3, 0)
            voxels = voxels if len(block) == 4 else voxels[..., 0]
            metadata = {"blockSize": block, "compression": {"type": "gzip"}}
            _create("n5", folder / name.format(number), voxels, metadata=metadata)
        for place, values in attributes(levels).items():
            path = folder / place / "attributes.json"
            document = json.loads(path.read_text()) if path.exists() else {}
            path.write_text(json.dumps({**document, **values}))

    return write


def _attributes_of_viewer(levels: list[Stored]) -> dict[str, dict[str, Any]]:
    """n5-viewer: all in the group."""
    return {
        "": {
            "scales": [level.step for level in levels],
            "pixelResolution": {"unit": "nm", "dimensions": VOXEL_SIZE},
        }
    }


def _attributes_of_big_data_viewer(levels: list[Stored]) -> dict[str, dict[str, Any]]:
    """BigDataViewer: a setup, a timepoint, and levels with factors."""
    factors = [level.step for level in levels]
    return {
        "../..": {"n5": "2.5.1"},
        "..": {"downsamplingFactors": factors, "dataType": levels[0].case.array.dtype.name},
        "": {"multiScale": True, "resolution": VOXEL_SIZE},
        **{f"s{number}": {"downsamplingFactors": step} for number, step in enumerate(factors)},
    }


def _big_data_viewer(folder: Path, levels: list[Stored]) -> None:
    _n5("s{}", _attributes_of_big_data_viewer)(folder, levels)
    write_xml(folder.parents[1], "nm", VOXEL_SIZE)


def _attributes_of_datasets(levels: list[Stored]) -> dict[str, dict[str, Any]]:
    """tensorstore and Neuroglancer: the voxel size of each dataset."""
    return {
        f"s{number}": {"axes": ["x", "y", "z"], "resolution": level.lengths, "units": ["nm"] * 3}
        for number, level in enumerate(levels)
    }


def _attributes_of_paintera(levels: list[Stored]) -> dict[str, dict[str, Any]]:
    """Paintera: a source with the place of its first voxel [nm]."""
    offset = [low * edge for low, edge in zip(levels[0].case.offset, VOXEL_SIZE, strict=True)]
    return {
        "..": {"painteraData": {"type": "raw"}, "maxNumEntries": -1},
        "": {"multiScale": True, "resolution": VOXEL_SIZE, "offset": offset},
        "s0": {"resolution": VOXEL_SIZE, "offset": offset},
    }


# ---------------------------------------------------------------------------- cloud-volume,
# webknossos, h5py


def _cloud_volume(folder: Path, levels: list[Stored]) -> None:
    from cloudvolume import CloudVolume

    (level,) = levels
    voxels = level.case.array.transpose(1, 2, 3, 0)
    info = CloudVolume.create_new_info(
        num_channels=voxels.shape[3],
        layer_type="image",
        data_type=voxels.dtype.name,
        encoding="raw",
        resolution=level.lengths,
        voxel_offset=level.case.offset,
        chunk_size=(8, 8, 8),
        volume_size=voxels.shape[:3],
    )
    volume = CloudVolume(
        f"file://{folder}", info=info, compress="gzip", progress=False, non_aligned_writes=True
    )
    volume.commit_info()
    volume[:, :, :] = voxels


def _webknossos(folder: Path, levels: list[Stored]) -> None:
    import webknossos

    array = levels[0].case.array
    dataset = webknossos.Dataset(folder.parent, voxel_size=VOXEL_SIZE, exist_ok=True)
    layer = dataset.add_layer(folder.name, "color", dtype=array.dtype.name, num_channels=len(array))
    for level in levels:
        mag = layer.add_mag(webknossos.Mag(level.step), chunk_shape=8, shard_shape=16)
        corner = [low * n for low, n in zip(level.case.offset, level.step, strict=True)]
        mag.write(level.case.array, absolute_offset=corner, allow_resize=True)


def _hdf5(
    axes: str, attributes: Callable[[Case], dict[str, Any]]
) -> Callable[[Path, list[Stored]], None]:
    """Return the function that writes a dataset of an HDF5 file."""

    def write(place: Path, levels: list[Stored]) -> None:
        import h5py

        path, _, name = str(place).partition(":/")
        (level,) = levels
        stored = [axis for axis in axes if axis != "t"]
        voxels = level.case.array if "c" in axes else level.case.array[0]
        voxels = voxels.transpose(
            [("cxyz" if "c" in axes else "xyz").index(axis) for axis in stored]
        )
        voxels = voxels.reshape(
            [1 if axis == "t" else voxels.shape[stored.index(axis)] for axis in axes]
        )
        with h5py.File(path, "w") as file:
            file.create_dataset(name, data=voxels, chunks=True, compression="gzip").attrs.update(
                attributes(level.case)
            )

    return write


def _axistags(axes: str) -> Callable[[Case], dict[str, Any]]:
    """Return the attribute with which ilastik and vigra name axes."""
    flags = {"c": 1, "t": 8}
    tags = [
        {"key": axis, "typeFlags": flags.get(axis, 2), "resolution": 0, "description": ""}
        for axis in axes
    ]
    return lambda _: {"axistags": json.dumps({"axes": tags})}


def _attributes_of_cremi(case: Case) -> dict[str, Any]:
    return {
        "resolution": VOXEL_SIZE[::-1],
        "offset": [low * edge for low, edge in zip(case.offset, VOXEL_SIZE, strict=True)][::-1],
    }


_ZARR = {"engine": "ngff", "needs": "zarr"}
_NGFF = "zarr://{folder}/{name}.ome.zarr"
_VOLUME = {"engine": "precomputed", "needs": "tensorstore"}
_N5 = {"engine": "n5", "needs": "tensorstore", "finest": "/s0"}
_GROUP = "n5://{folder}/volume.n5/{name}"
_SHARDS = {"other_files": {"shard_shape": (8, 16, 32)}}
_ONLY_ZARR = {"unread_by": ("tensorstore",)}
_HDF5 = {"engine": "wkw", "needs": "h5py", "is_source": True}
_CHANNELS = (3, 21, 17, 13)

FOREIGN = (
    # several chunks along the channels
    _form(
        "bioformats2raw", "zarr://{folder}/{name}.zarr/0", _bioformats2raw, **_ZARR, shape=_CHANNELS
    ),
    _form(
        "channel-shards",
        _NGFF,
        _ngff("0.5", chunks=(1, 8, 8, 8), shards=lambda voxels: (min(2, len(voxels)), 16, 16, 16)),
        **_ZARR,
        **_SHARDS,
        shape=_CHANNELS,
        offset=(8, 3, 16),
    ),
    _form(
        "n5-channels",
        _GROUP,
        _n5("s{}", _attributes_of_viewer, (8, 8, 8, 2)),
        **_N5,
        shape=_CHANNELS,
    ),
    # codecs that zarr-python alone reads
    _form("delta-2", _NGFF, _filtered("0.4", compressors=None), **_ZARR, **_ONLY_ZARR),
    _form("delta-3", _NGFF, _filtered("0.5", compressors=None), **_ZARR, **_ONLY_ZARR),
    _form("delta-3-zstd", _NGFF, _filtered("0.5"), **_ZARR, **_ONLY_ZARR),
    _form("nested-shards", _NGFF, _nested_shards, **_ZARR, chunk_shape=(8, 16, 16)),
    _form("transposed-shards", _NGFF, _transposed_shards, **_ZARR, chunk_shape=(16, 16, 16)),
    _form("big-endian-index", _NGFF, _big_endian_index, **_ZARR),
    _form("fletcher32", _NGFF, _fletcher, **_ZARR, **_ONLY_ZARR),
    _form("hexadecimal-fill-value", _NGFF, _hexadecimal_fill_value, **_ZARR, dtype="float32"),
    # N5 without `multiscales`
    _form("n5-bare", _GROUP, _n5("s{}", lambda _: {}), **_N5, states_voxel_size=False),
    _form("n5-viewer", _GROUP, _n5("s{}", _attributes_of_viewer), **_N5, levels=("8-8-4",)),
    _form(
        "big-data-viewer",
        "n5://{folder}/{name}.n5/setup0/timepoint0",
        _big_data_viewer,
        **_N5,
        levels=("8-8-4",),
    ),
    _form("n5-tensorstore", _GROUP, _n5("s{}", _attributes_of_datasets), **_N5, levels=("8-8-4",)),
    _form(
        "n5-bare-levels",
        _GROUP,
        _n5("s{}", lambda _: {}),
        **_N5,
        states_voxel_size=False,
        levels=("4-4-4",),
    ),
    _form(
        "paintera",
        "n5://{folder}/{name}.n5/volume/data",
        _n5("s{}", _attributes_of_paintera),
        **_N5,
        offset=(5, 3, 2),
    ),
    _form("n5-viewer-single", _GROUP, _n5("s{}", _attributes_of_viewer), **_N5),
    _form(
        "big-data-viewer-single",
        "n5://{folder}/{name}.n5/setup0/timepoint0",
        _big_data_viewer,
        **_N5,
    ),
    _form("n5-tensorstore-single", _GROUP, _n5("s{}", _attributes_of_datasets), **_N5),
    # precomputed
    _form(
        "cloud-volume-gz",
        "precomputed://{folder}/{name}",
        _cloud_volume,
        "precomputed",
        needs="cloudvolume",
        shape=(2, 21, 17, 13),
        offset=(5, 3, 2),
    ),
    _form(
        "coarse-scale-first",
        "precomputed://{folder}/{name}",
        _scales(coarse_first=True),
        **_VOLUME,
        offset=(8, 3, 16),
        levels=("8-8-4",),
    ),
    _form(
        "largest-id",
        "precomputed://{folder}/{name}",
        _scales(coarse_first=False),
        **_VOLUME,
        label_dtype="uint64",
        offset=(5, 3, 2),
    ),
    # levels and chunks
    _form(
        "rounded-down",
        _NGFF,
        _ngff("0.5", "zyx", chunks=(8, 8, 8)),
        **_ZARR,
        levels=("8-8-4",),
        rounds_down=True,
    ),
    _form(
        "rounded-down-scales",
        "precomputed://{folder}/{name}",
        _scales(coarse_first=False),
        **_VOLUME,
        levels=("8-8-4",),
        rounds_down=True,
    ),
    _form(
        "rounded-down-n5",
        _GROUP,
        _n5("s{}", _attributes_of_viewer),
        **_N5,
        levels=("8-8-4",),
        rounds_down=True,
    ),
    _form(
        "ratios-of-shapes",
        _NGFF,
        _ratios_of_shapes,
        **_ZARR,
        levels=("4-4-4",),
        rounds_down=True,
        shape=(1, 45, 37, 29),
    ),
    _form(
        "shards-of-three",
        _NGFF,
        _ngff("0.5", "zyx", chunks=(8, 8, 8), shards=(24, 24, 24)),
        **_ZARR,
        other_files={"shard_shape": (8, 16, 32)},
        shape=(1, 37, 30, 26),
    ),
    # types
    _form(
        "float16",
        _NGFF,
        _ngff("0.5", "zyx", chunks=(8, 8, 8)),
        **_ZARR,
        dtype="float16",
        cast="float32",
    ),
    _form(
        "bool", _NGFF, _ngff("0.5", "zyx", chunks=(8, 8, 8)), **_ZARR, dtype="bool", cast="uint8"
    ),
    # axes
    _form("too-few-axes", _NGFF, _too_few_axes, **_ZARR),
    _form(
        "ilastik",
        "{folder}/{name}.h5:/exported_data",
        _hdf5("zyxc", _axistags("zyxc")),
        **_HDF5,
        shape=_CHANNELS,
        states_voxel_size=False,
    ),
    _form(
        "ilastik-time",
        "{folder}/{name}.h5:/exported_data",
        _hdf5("txyzc", _axistags("txyzc")),
        **_HDF5,
        shape=_CHANNELS,
        states_voxel_size=False,
    ),
    _form(
        "cremi",
        "{folder}/{name}.h5:/volumes/raw",
        _hdf5("zyx", _attributes_of_cremi),
        **_HDF5,
        offset=(5, 3, 2),
    ),
    # datasets
    _form(
        "webknossos",
        "{folder}/dataset/{name}",
        _webknossos,
        "wkw",
        needs="webknossos",
        finest="/1",
        shape=(3, 21, 17, 13),
        dtype="uint8",
        offset=(5, 3, 2),
        levels=("8-8-4",),
        other_chunks={"chunk_shape": (16, 16, 16)},
        lowest=0,
    ),
)


def image_with_chunks(
    name: str,
    chunk: Sequence[int],
    counts: Sequence[int] | None,
    size: Sequence[int],
    offset: tuple[int, int, int],
    other_chunk: Sequence[int],
) -> ForeignForm:
    """Return the form of images with given chunks, perhaps in shards of ``counts`` chunks;
    ``other_chunk`` is for images that are stored again."""
    options = {
        "shape": (1, *size),
        "offset": offset,
        "chunk_shape": tuple(chunk),
        "other_chunks": {"chunk_shape": tuple(other_chunk)},
    }
    if name == "precomputed":
        return _form(
            name,
            "precomputed://{folder}/{name}",
            _scales(coarse_first=False, chunk=chunk),
            **_VOLUME,
            **options,
        )
    if name == "n5":
        return _form(name, _GROUP, _n5("s{}", _attributes_of_datasets, chunk), **_N5, **options)
    shards = (
        {}
        if counts is None
        else {"shards": tuple(n * count for n, count in zip(chunk, counts, strict=True))[::-1]}
    )
    options |= (
        {} if counts is None else {"other_files": {"shard_shape": tuple(2 * n for n in chunk)}}
    )
    return _form(
        name,
        _NGFF,
        _ngff("0.4" if name == "zarr-2" else "0.5", "zyx", chunks=tuple(chunk)[::-1], **shards),
        **_ZARR,
        **options,
    )
