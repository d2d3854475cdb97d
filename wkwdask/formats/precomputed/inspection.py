"""What is to be checked of a precomputed volume: its ``info``, and the files of its scales."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wkwdask.errors import FormatError, MissingError, UnsupportedError
from wkwdask.formats.inspection import LayerScope, LevelScope, Scope
from wkwdask.formats.precomputed.file_check import PrecomputedCheck, ScaleListing, list_scale
from wkwdask.formats.precomputed.info import FILE_NAME, VolumeInfo
from wkwdask.formats.precomputed.layer import location_of, open_precomputed_layer
from wkwdask.model.faults import Fault
from wkwdask.store import files
from wkwdask.store.paths import basename

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from wkwdask.formats.precomputed.info import Scale
    from wkwdask.formats.precomputed.layer import VolumeSource
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.stored_array import StoredArray

_GROUP_NBYTES = 256 << 20  # voxels of the chunks of one task
_LARGEST_GROUP = 4096


@dataclass(frozen=True)
class ScaleScope(LevelScope):
    """One scale in one chunk size."""

    layer: str
    title: str
    mag: Mag | None
    read: StoredArray
    listing: ScaleListing
    box: None = None

    @property
    def folder(self) -> str:  # type: ignore[override]
        """Its folder."""
        return self.read.folder

    @property
    def name(self) -> str:
        """Its mag or key, and its chunk size where there are several."""
        return self.title

    def files(self) -> Sequence[tuple[Vec3, int] | int]:
        """List chunks that are files, or shards."""
        return self.listing.chunks or self.listing.shards

    def check(self, *, decode: bool) -> PrecomputedCheck:
        """Decode all chunks."""
        return PrecomputedCheck(self.read, decode, decode and self.read.dtype.kind in "iu" and self.read.dtype.itemsize >= 4)

    def files_per_task(self) -> int:
        """Choose how many files make a task."""
        x, y, z = self.read.chunk_shape
        nbytes = x * y * z * self.read.num_channels * self.read.dtype.itemsize
        return max(1, min(_LARGEST_GROUP, _GROUP_NBYTES // (nbytes * self.read.grid.chunks_per_file)))


def inspect_volume(url: str | os.PathLike[str], mags: Sequence[Mag] | None) -> Scope:
    """Find out what is to be checked of a volume or a scale."""
    path = location_of(url)
    faults: list[Fault] = []
    try:
        image = open_precomputed_layer(url)
    except FormatError as error:
        faults.append(Fault("info.broken", f"{path}/{FILE_NAME}", str(error).removeprefix(f"{path}/{FILE_NAME}: ")))
        return Scope(path, (), faults)
    path = image.folder
    if not image.details.store.is_local:
        raise UnsupportedError(f"{path}: files of a remote volume cannot be listed, so that it cannot be verified; verify a local copy")
    if image.key is None and mags is None:
        faults += _info_faults(image.details.info, f"{path}/{FILE_NAME}")
    unknown = [mag for mag in mags or () if mag not in image.mags]
    if unknown:
        raise MissingError(f"{path}: no mag {unknown[0]}; there are {', '.join(map(str, image.mags)) or 'none'}")
    chosen = [level for level in image.meant if not level.problem and (mags is None or level.mag in mags)]
    scopes = [scope for level in chosen for scope in _look_at(image.details, level.details, level.mag, basename(path), faults)]
    return Scope(path, (LayerScope(basename(path), path, tuple(scopes)),), faults, ((path, True),) if image.key is None and mags is None else ())


def _look_at(source: VolumeSource, scale: Scale, mag: Mag | None, name: str, faults: list[Fault]) -> list[ScaleScope]:
    """List the files of a scale, in each of its chunk sizes."""
    sizes = scale.chunk_sizes or (scale.chunk_size,)
    volumes = [replace(source, chunk_size=size).open_scale(scale, mag) for size in sizes]
    scopes = []
    for number, volume in enumerate(volumes):
        listing = list_scale(volume, [other for other in volumes if other is not volume])
        if not number:
            faults += listing.faults
        size = f" in chunks of {'x'.join(map(str, volume.chunk_shape))}" if len(volumes) > 1 else ""
        scopes.append(ScaleScope(name, (scale.key if mag is None else mag.name) + size, mag, volume, listing))
    folder = volumes[0].folder
    if not any(len(scope.listing) for scope in scopes) and (files.isdir(folder) or not files.lexists(folder)):
        faults.append(Fault("mag.empty", folder, "0 files" if files.isdir(folder) else "no folder"))
    return scopes


def _info_faults(info: VolumeInfo, path: str) -> Iterator[Fault]:
    """Say what of an ``info`` cannot be used, or only here."""
    for odd in info.odd:
        kind = "info.unsupported" if odd.is_unsupported else "info.scale"
        yield Fault(kind, path, odd.problem.removeprefix(f"{path}: "))
    document = info.document
    for name in ("@type", "type", "num_channels"):
        if name not in document:
            yield Fault("info.absent", path, f"no {name}")
    keys = [scale.key for scale in info.scales]
    for key in sorted({key for key in keys if keys.count(key) > 1}):
        yield Fault("info.twice", path, f"{keys.count(key)} scales in the folder {key!r}", "one")
    for scale in info.scales:
        if "sharding" in scale.entry and scale.entry["sharding"] is None:
            yield Fault("info.null", path, f"scales[{scale.index}].sharding: null", "an object, or nothing")
