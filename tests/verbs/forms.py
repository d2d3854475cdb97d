"""Formats of the matrix, with small chunks so that each case has several."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from verbs.cases import LOWEST, TYPES, draw, largest_of_windows, step_of

import wkwdask
from wkwdask.store import files
from wkwdask.store.new_files import publish_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from verbs.cases import Case

VOXEL_SIZE = (4.0, 4.0, 8.0)


@dataclass(frozen=True)
class Form:
    """A format with its storage options."""

    name: str
    url: Callable[[Path, str], str]
    """Return the URL of an image for a folder and a name."""
    save: Callable[..., Any]
    """Save an array (c, x, y, z) as mag 1: ``save(array, url, offset, **options)``."""
    engine: str
    """Name of the engine in xarray."""
    needs: str | None = None
    """Optional package that the format needs."""
    types: tuple[str, ...] = TYPES
    """Data types that the format stores."""
    lowest: int = LOWEST
    """Lowest position of an image: 0 if it cannot be negative."""
    finest: str = ""
    """Path of mag 1 below an image, where a URL names it."""
    chunk_shape: tuple[int, int, int] = (8, 8, 8)
    """Shape of the chunks of mag 1."""
    other_chunks: Mapping[str, Any] = field(default_factory=lambda: {"chunk_shape": (16, 8, 32)})
    """Options of ``rechunk`` for other chunks."""
    other_files: Mapping[str, Any] | None = None
    """Options of ``rechunk`` for other files of the same chunks; None where each chunk is a
    file."""
    compression: str = "gzip"
    """Compression for ``compress``."""
    levels: tuple[str, ...] = ()
    """Mags that an image has besides mag 1."""
    move: tuple[int, int, int] = (3, 1, 2)
    """Translation for a copy: a multiple of every mag."""
    states_voxel_size: bool = True
    """Whether the documents state the voxel size."""
    is_source: bool = False
    """Whether only jobs with a target read it."""
    cast: str | None = None
    """Type of the voxels in formats that do not store their own; None where all formats do."""
    unread_by: tuple[str, ...] = ()
    """Other readers that do not read the form."""

    def draw(
        self, seed: int, types: Sequence[str], lowest: int, *, is_segmentation: bool = False
    ) -> Case:
        """Draw an image or a segmentation from a seed."""
        return draw(
            seed,
            [name for name in self.types if name in types],
            is_segmentation=is_segmentation,
            lowest=max(lowest, self.lowest),
        )

    def level_of(self, case: Case, mag: str) -> Case:
        """Return a level that ``save`` makes of mag 1."""
        return largest_of_windows(case, step_of(mag))

    def __str__(self) -> str:
        return self.name


def needs(form: Form, verb: str = "") -> list[pytest.MarkDecorator]:
    """Return the marks of tests that need the package of a form, or of a verb."""
    packages = {"serve": ["obstore"], "meshes": ["zmesh", "DracoPy", "pyfqmr"]}.get(verb, [])
    packages = packages or (["zarr"] if "ngff" in verb else [])
    names = [name for name in (form.needs, *packages) if name is not None]
    return [pytest.mark.needs(*names)] if names else []


def _save_wkw(array, url, offset, **others):
    dataset = url.rsplit("/", 1)[0]
    wkwdask.create_dataset(dataset, VOXEL_SIZE, existing="keep")
    return wkwdask.to_wkw(
        array, f"{url}/1", offset=offset, **{"block_len": 8, "file_len": 2} | others
    )


def _save_layer(data_format, **options):
    """Save a mag of a layer that a dataset stores in another format than WKW."""

    def save(array, url, offset, *, category="color", **others):
        dataset, _, name = url.rpartition("/")
        made = wkwdask.create_dataset(dataset, VOXEL_SIZE, existing="keep")
        if name not in made.layers:
            box = (*offset, *array.shape[1:])
            made.add_layer(
                name, category, array.dtype, box, num_channels=len(array), data_format=data_format
            )
        return wkwdask.save(array, f"{url}/1", offset=offset, **options | others)

    return save


def _save_precomputed(sharded):
    def save(array, url, offset, **others):
        return wkwdask.to_precomputed(
            array,
            url,
            offset=offset,
            voxel_size=VOXEL_SIZE,
            chunk_shape=(8, 8, 8),
            shard_shape=sharded,
            **others,
        )

    return save


def _switched(save):
    """Save, and then store in other files: the documents name a level that contains its job."""

    def save_and_switch(array, url, offset, **others):
        report = save(array, url, offset, **others)
        wkwdask.rechunk(url, shard_shape=False)
        wkwdask.clean(url, grace_seconds=0)
        return report

    return save_and_switch


def _save_n5(array, url, offset, **others):
    others.pop("category", None)  # N5 does not store it
    return wkwdask.to_n5(
        array, f"{url}/s0", offset=offset, voxel_size=VOXEL_SIZE, chunk_shape=(8, 8, 8), **others
    )


def _save_zarr(version, **options):
    def save(array, url, offset, **others):
        return wkwdask.to_zarr(
            array,
            url,
            offset=offset,
            voxel_size=VOXEL_SIZE,
            chunk_shape=(8, 8, 8),
            ngff=version,
            **options,
            **others,
        )

    return save


def _save_array(version, **options):
    """Save an array that belongs to no image: the level of an image without its group."""

    def save(array, url, offset, **others):
        image, folder = f"{url}.image", url.removeprefix("zarr://")
        report = wkwdask.to_zarr(
            array,
            image,
            offset=offset,
            voxel_size=VOXEL_SIZE,
            chunk_shape=(8, 8, 8),
            ngff=version,
            **options,
            **others,
        )
        files.rename(f"{folder}.image/1", folder)
        files.remove_tree(f"{folder}.image")
        name = ".zattrs" if version == "0.4" else "zarr.json"
        document = json.loads(files.read_bytes(f"{folder}/{name}"))
        (document if version == "0.4" else document["attributes"]).update(
            voxel_size_nm=VOXEL_SIZE, note="kept"
        )
        publish_bytes(f"{folder}/{name}", json.dumps(document).encode())
        return report

    return save


def _save_toy(array, url, offset, **others):
    return wkwdask.write(url, offset, array, voxel_size=VOXEL_SIZE, chunk_shape=(8, 8, 8), **others)


_PRECOMPUTED = tuple(name for name in TYPES if name not in ("int64", "float64"))

_WKW = {
    "finest": "/1",
    "other_chunks": {"block_len": 16, "file_len": 1},
    "other_files": {"file_len": 4},
    "compression": "lz4",
    "lowest": 0,
}
_LAYER = {"finest": "/1", "lowest": 0}
_OTHER_SHARDS = {"shard_shape": (8, 16, 32)}
_THIRDS = {"shard_shape": (24, 40, 24)}  # three and five chunks of 8


def _place(pattern):
    """Return the function that fills the folder and the name of an image into its URL."""
    return lambda folder, name: pattern.format(folder=folder, name=name)


_NGFF = _place("zarr://{folder}/{name}.ome.zarr")
_ARRAY = _place("zarr://{folder}/{name}")
_VOLUME = _place("precomputed://{folder}/{name}")

FORMS = (
    Form("wkw", _place("{folder}/dataset/{name}"), _save_wkw, "wkw", **_WKW),
    Form(
        "precomputed",
        _VOLUME,
        _save_precomputed(sharded=False),
        "precomputed",
        types=_PRECOMPUTED,
        other_files={"shard_shape": True},
    ),
    Form(
        "precomputed-sharded",
        _VOLUME,
        _save_precomputed(sharded=True),
        "precomputed",
        types=_PRECOMPUTED,
        other_files={"shard_shape": False},
    ),
    Form("n5", _place("n5://{folder}/volume.n5/{name}"), _save_n5, "n5", finest="/s0"),
    Form("ngff-0.4", _NGFF, _save_zarr("0.4"), "ngff", "zarr"),
    Form(
        "ngff-0.5",
        _NGFF,
        _save_zarr("0.5", shard_shape=(16, 16, 16)),
        "ngff",
        "zarr",
        other_files=_OTHER_SHARDS,
    ),
    Form(
        "ngff-thirds",
        _NGFF,
        _save_zarr("0.5", **_THIRDS),
        "ngff",
        "zarr",
        other_chunks={"chunk_shape": (10, 7, 4), "shard_shape": (30, 7, 28)},
        other_files={"shard_shape": (40, 8, 48)},
    ),
    Form("ngff-0.6", _NGFF, _save_zarr("0.6", shard_shape=False), "ngff", "zarr"),
    Form("zarr-2", _ARRAY, _save_array("0.4"), "ngff", "zarr"),
    Form(
        "zarr-3",
        _ARRAY,
        _save_array("0.5", shard_shape=(16, 16, 16)),
        "ngff",
        "zarr",
        other_files=_OTHER_SHARDS,
    ),
    Form("toy", _place("toy://{folder}/{name}"), _save_toy, "toy", lowest=0),
    Form(
        "layer-zarr3",
        _place("{folder}/dataset/{name}"),
        _save_layer("zarr3", chunk_shape=(8, 8, 8), shard_shape=(16, 16, 16)),
        "wkw",
        "zarr",
        other_files=_THIRDS,
        **_LAYER,
    ),
    Form(
        "layer-zarr",
        _place("{folder}/dataset/{name}"),
        _save_layer("zarr", chunk_shape=(8, 8, 8)),
        "wkw",
        "zarr",
        **_LAYER,
    ),
    Form(
        "layer-n5",
        _place("{folder}/dataset/{name}"),
        _save_layer("n5", chunk_shape=(8, 8, 8)),
        "wkw",
        **_LAYER,
    ),
    Form(
        "layer-precomputed",
        _place("{folder}/dataset/{name}"),
        _save_layer("neuroglancerPrecomputed", chunk_shape=(8, 8, 8), shard_shape=True),
        "wkw",
        types=_PRECOMPUTED,
        other_files={"shard_shape": False},
        **_LAYER,
    ),
    Form(
        "layer-precomputed-switched",
        _place("{folder}/dataset/{name}"),
        _switched(_save_layer("neuroglancerPrecomputed", chunk_shape=(8, 8, 8), shard_shape=True)),
        "wkw",
        types=_PRECOMPUTED,
        other_files={"shard_shape": True},
        **_LAYER,
    ),
)
IMAGES = tuple(form for form in FORMS if form.name not in ("ngff-0.6", "zarr-2", "zarr-3"))
"""Forms with levels. Single arrays have none, and OME-NGFF 0.6 has the arrays of 0.5."""
