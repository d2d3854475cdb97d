"""From what a user names to a layer and a volume of it, stored as WKW, Neuroglancer precomputed, N5 or Zarr: readers need not know which."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wkwdask.errors import FormatError, MissingError, UnsupportedError
from wkwdask.formats.n5.layer import find_n5_layers, is_n5, is_named_n5
from wkwdask.formats.precomputed.layer import is_precomputed, open_precomputed_layer
from wkwdask.formats.webknossos import dataset
from wkwdask.formats.webknossos.dataset import Located, choose_layer, locate
from wkwdask.formats.webknossos.dataset_arrays import arrays_of, is_arrays_layer, listed_arrays
from wkwdask.formats.zarr.layer import find_zarr_layers, is_named_zarr, is_zarr
from wkwdask.geometry.mag import Mag
from wkwdask.store.lru import Lru
from wkwdask.store.paths import is_remote, local_path
from wkwdask.store.store import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.formats.webknossos.datasource import OddLayer
    from wkwdask.model.image import Image
    from wkwdask.model.volume import StoredVolume

_RECORDS = {"precomputed": ("info",), "zarr": ("zarr.json", ".zgroup", ".zarray"), "n5": ("attributes.json",)}
_LARGEST_RECORD = 16 << 20
_REMOTE_SECONDS = 60.0  # for which the info of a remote volume is believed between two reads


@dataclass(frozen=True)
class Found:
    """What a path or URL turned out to be."""

    path: str
    """The path or URL."""
    layers: tuple[Image, ...]
    """The layers that it can mean."""
    mag: Mag | None = None
    """The mag, where the path is that of one."""
    odd: tuple[OddLayer, ...] = ()
    """Layers of a dataset of which its JSON says something impossible."""

    def choose(self, layer: str | None) -> Image:
        """Pick the one layer that is meant; errors as for :func:`wkwdask.formats.webknossos.dataset.choose_layer`."""
        return self.readable(choose_layer(Located(self.path, self.layers, self.mag, self.odd), layer))

    def readable(self, layer: Image) -> Image:
        """Give what reads one of the layers: of a dataset's layer that its JSON says is N5 or Zarr, the arrays."""
        return arrays_of(layer, self.mag) if is_arrays_layer(layer) else layer

    def open(self, layer: str | None, mag: Mag | str | None) -> tuple[Image, StoredVolume]:
        """Open the mag that is meant; errors as for :func:`open_stored`."""
        chosen = self.choose(layer)
        if chosen.container is None:
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


def find_arrays(url: str | os.PathLike[str]) -> tuple[Image, ...]:
    """Find the layers of what is N5 or Zarr; errors as for :func:`find`."""
    return find_n5_layers(url) if is_n5(url) else find_zarr_layers(url)


def open_stored(
    url: str | os.PathLike[str], layer: str | None = None, mag: Mag | str | None = None, chunk_size: Sequence[int] | None = None
) -> tuple[Image, StoredVolume]:
    """Open the mag that a user names."""
    return find(url, chunk_size).open(layer, mag)


def is_readable(layer: Image, mag: Mag) -> bool:
    """Tell whether a mag can be opened and has files."""
    with contextlib.suppress(MissingError, ModuleNotFoundError, FormatError, UnsupportedError):
        return layer.volume(mag).has_shards()
    return False


_recent: Lru[tuple[StoredVolume, float]] = Lru(64)
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
    if chosen.container is None and (mag is not None or not _is_local(volume) or chosen.key is not None):
        _recent.put(key, (volume, time.monotonic()))
    return volume


def _is_local(volume: StoredVolume) -> bool:
    return not is_remote(volume.name)


def _is_fresh(volume: StoredVolume, opened: float) -> bool:
    """Tell whether the record of a volume is still the one that it was opened by; that of a remote one is believed for a while."""
    if not _is_local(volume):
        return time.monotonic() - opened < _REMOTE_SECONDS
    return volume.is_unchanged()
