"""From what a user names to a layer and a volume of it, stored as WKW, Neuroglancer precomputed, N5 or Zarr: readers need not know which."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from wkwdask.errors import FormatError, MissingError, UnsupportedError
from wkwdask.formats.leveled import ArrayVolume, LeveledLayer
from wkwdask.formats.n5.layer import choose, find_n5_layers, is_n5, is_named_n5
from wkwdask.formats.precomputed.layer import AbsoluteVolume, PrecomputedLayer, is_precomputed, open_precomputed_layer
from wkwdask.formats.precomputed.volume import PrecomputedVolume
from wkwdask.formats.webknossos import dataset
from wkwdask.formats.webknossos.dataset import Layer, Located, choose_layer, locate
from wkwdask.formats.webknossos.dataset_arrays import arrays_of, is_arrays_layer, listed_arrays
from wkwdask.formats.wkw.volume import WkwVolume
from wkwdask.formats.zarr.layer import find_zarr_layers, is_named_zarr, is_zarr
from wkwdask.geometry.mag import Mag
from wkwdask.model.levels import ratio_of
from wkwdask.model.translated import TranslatedVolume, moved
from wkwdask.store.local import is_remote, local_path
from wkwdask.store.lru import Lru
from wkwdask.store.store import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.formats.precomputed.info import Lengths
    from wkwdask.formats.webknossos.datasource import OddLayer
    from wkwdask.geometry.bounding_box import BoundingBox

AnyLayer: TypeAlias = Layer | PrecomputedLayer | LeveledLayer
"""A layer of any format. All have a name, a folder, a category, a voxel size and mags that can be opened."""
StoredVolume: TypeAlias = WkwVolume | AbsoluteVolume | ArrayVolume
"""One mag of such a layer, in absolute voxels."""

_RECORDS = {"precomputed": ("info",), "zarr": ("zarr.json", ".zgroup", ".zarray"), "n5": ("attributes.json",)}
_LARGEST_RECORD = 16 << 20
_REMOTE_SECONDS = 60.0  # for which the info of a remote volume is believed between two reads


@dataclass(frozen=True)
class Found:
    """What a path or URL turned out to be."""

    path: str
    """The path or URL."""
    layers: tuple[AnyLayer, ...]
    """The layers that it can mean."""
    mag: Mag | None = None
    """The mag, where the path is that of one."""
    odd: tuple[OddLayer, ...] = ()
    """Layers of a dataset of which its JSON says something impossible."""

    def choose(self, layer: str | None) -> AnyLayer:
        """Pick the one layer that is meant; errors as for :func:`wkwdask.formats.webknossos.dataset.choose_layer`."""
        arrays = [one for one in self.layers if isinstance(one, LeveledLayer)]
        if arrays:
            return arrays[0] if len(arrays) == 1 and layer == arrays[0].name else choose(arrays, layer, self.path)
        first = self.layers[0] if len(self.layers) == 1 else None
        if isinstance(first, PrecomputedLayer):
            if layer not in (None, first.name):
                raise MissingError(f"{self.path}: no layer {layer!r}; a precomputed volume is one layer, {first.name}")
            return first
        chosen = choose_layer(Located(self.path, tuple(one for one in self.layers if isinstance(one, Layer)), self.mag, self.odd), layer)
        return self.readable(chosen)

    def readable(self, layer: AnyLayer) -> AnyLayer:
        """Give what reads one of the layers: of a dataset's layer that its JSON says is N5 or Zarr, the arrays."""
        return arrays_of(layer, self.mag) if isinstance(layer, Layer) and is_arrays_layer(layer) else layer

    def open(self, layer: str | None, mag: Mag | str | None) -> tuple[AnyLayer, StoredVolume]:
        """Open the mag that is meant; errors as for :func:`open_stored`."""
        chosen = self.choose(layer)
        if not isinstance(chosen, Layer):
            return chosen, chosen.volume(mag)
        wanted = None if mag is None else Mag.parse(mag)
        if self.mag is not None and wanted not in (None, self.mag):
            raise ValueError(f"{self.path} is mag {self.mag}, not mag {wanted}; give the layer's folder to choose a mag")
        return chosen, chosen.volume(wanted or self.mag or chosen.finest_mag())


def find(url: str | os.PathLike[str], chunk_size: Sequence[int] | None = None) -> Found:
    """Find out what a path or URL is."""
    if is_precomputed(url):
        layer = open_precomputed_layer(url, chunk_size)
        return Found(layer.folder, (layer,), layer.mag)
    if chunk_size is not None:
        raise ValueError(f"{os.fspath(url)}: chunk_size= chooses among those of a precomputed volume, which this is not")
    if is_arrays(url):
        layers = find_arrays(url)
        return Found(layers[0].folder if len(layers) == 1 else os.fspath(url), layers, layers[0].mag if len(layers) == 1 else None)
    located = listed_arrays(url) or locate(url)
    return Found(located.path, located.layers, located.mag, located.odd)


def is_arrays(url: object) -> bool:
    """Tell whether something is N5 or Zarr: by its name, or a local folder by what it holds; one with WKW in it is not."""
    return is_named_n5(url) or is_named_zarr(url) or ((is_n5(url) or is_zarr(url)) and listed_arrays(url) is None)


def check_names_format(url: str | os.PathLike[str]) -> None:
    """Refuse a URL of a web server without the name of a format, and say which one it has, if the server does."""
    text = os.fspath(url)
    if not text.startswith(("http://", "https://")):
        return
    with contextlib.suppress(OSError, FormatError, ModuleNotFoundError):  # where nothing answers, or no driver can ask, all formats are named
        store = open_store(text)
        for prefix, names in _RECORDS.items():
            if any(data is not None for data in store.read_whole(names, _LARGEST_RECORD)):
                raise UnsupportedError(f"{text}: this is a volume of the format {prefix}; name it as {prefix}://{text}")
    local_path(text)  # names all of them


def find_arrays(url: str | os.PathLike[str]) -> tuple[LeveledLayer, ...]:
    """Find the layers of what is N5 or Zarr; errors as for :func:`find`."""
    return find_n5_layers(url) if is_n5(url) else find_zarr_layers(url)


def open_stored(
    url: str | os.PathLike[str], layer: str | None = None, mag: Mag | str | None = None, chunk_size: Sequence[int] | None = None
) -> tuple[AnyLayer, StoredVolume]:
    """Open the mag that a user names."""
    return find(url, chunk_size).open(layer, mag)


def has_files(volume: StoredVolume) -> bool:
    """Tell whether anything of a mag is stored; of a remote one that is taken to be so."""
    return volume.volume.has_shards() if isinstance(volume, TranslatedVolume) else volume.has_shards()


def is_readable(layer: AnyLayer, mag: Mag) -> bool:
    """Tell whether a mag can be opened and has files."""
    with contextlib.suppress(MissingError, ModuleNotFoundError, FormatError, UnsupportedError):
        return has_files(layer.volume(mag))
    return False


def voxel_size_of(layer: AnyLayer, volume: StoredVolume) -> Lengths | None:
    """Give the edge lengths of a voxel of mag 1 by which a volume is measured [nm]: a scale tells its own, which needs no mag."""
    if isinstance(volume, WkwVolume):
        return layer.voxel_size_nm
    stored = volume.volume
    lengths = stored.scale.resolution if isinstance(stored, PrecomputedVolume) else stored.lengths_nm
    return None if lengths is None else ratio_of(lengths, volume.box.mag.factors)


def key_without_mag(layer: AnyLayer, volume: StoredVolume) -> str | None:
    """Give the key of a scale or array that has no mag, by which alone it is named; None for all others."""
    if isinstance(layer, PrecomputedLayer) and isinstance(volume, TranslatedVolume) and isinstance(volume.volume, PrecomputedVolume):
        scale = volume.volume.scale
        return scale.key if layer.mag_of(scale) is None else None
    if isinstance(layer, LeveledLayer) and isinstance(volume, TranslatedVolume):
        return next((level.key for level in layer.levels if level.volume == volume.volume and level.mag is None), None)
    return None


def cropped(volume: StoredVolume, box: BoundingBox) -> StoredVolume:
    """Give a part of a mag."""
    if isinstance(volume, WkwVolume):
        return replace(volume, box=box)
    x, y, z = volume.shift
    return replace(volume, volume=volume.volume.cropped(moved(box, (-x, -y, -z))))  # type: ignore[arg-type]


_recent: Lru[tuple[AbsoluteVolume | ArrayVolume, float]] = Lru(64)
_known_wkw: Lru[bool] = Lru(1024)
"""What was found to be WKW, so that nobody looks for files of all other formats before each reading."""


def recent_stored(url: str | os.PathLike[str], layer: str | None = None, mag: Mag | str | None = None, *, anew: bool = False) -> StoredVolume:
    """Open the mag that a user names, or give it again without reading any record, as long as none of them has changed."""
    path = os.fspath(url)
    key = (path if path.startswith("/") or "://" in path else os.path.join(os.getcwd(), path), layer, mag)
    kept = _recent.get(key)
    if kept is None and (_known_wkw.get(key) or not (is_precomputed(url) or is_arrays(url))):
        try:
            found = dataset.recent_volume(url, layer, None if mag is None else Mag.parse(mag), anew=anew)
        except (MissingError, UnsupportedError):  # a layer of a dataset may be stored as Zarr or N5, and what was WKW may be something else now
            _known_wkw.discard(key)
            return open_stored(url, layer, mag)[1]
        _known_wkw.put(key, True)
        return found
    if kept is not None and not anew and _is_fresh(*kept):
        return kept[0]
    _recent.discard(key)
    chosen, volume = open_stored(url, layer, mag)
    if isinstance(volume, TranslatedVolume) and (mag is not None or not _is_local(volume) or getattr(chosen, "key", None) is not None):
        _recent.put(key, (volume, time.monotonic()))
    return volume


def _is_local(volume: AbsoluteVolume | ArrayVolume) -> bool:
    return not is_remote(volume.name)


def _is_fresh(volume: AbsoluteVolume | ArrayVolume, opened: float) -> bool:
    """Tell whether the record of a volume is still the one that it was opened by; that of a remote one is believed for a while."""
    if not _is_local(volume):
        return time.monotonic() - opened < _REMOTE_SECONDS
    return volume.volume.is_unchanged()
