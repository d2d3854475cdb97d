"""What is to be checked of a precomputed volume: its ``info``, and the files of its scales."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wkwdask.errors import FormatError, MissingError, UnsupportedError
from wkwdask.formats.inspection import ArrayScope, LayerScope, Scope, by_written_units
from wkwdask.formats.precomputed.file_check import PrecomputedCheck, ScaleListing, list_scale
from wkwdask.formats.precomputed.info import FILE_NAME, VolumeInfo
from wkwdask.formats.precomputed.layer import location_of, open_precomputed_layer
from wkwdask.formats.precomputed.naming import SpanNaming
from wkwdask.model.faults import Fault
from wkwdask.store import files
from wkwdask.store.paths import basename

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from wkwdask.formats.precomputed.info import Scale
    from wkwdask.formats.precomputed.layer import VolumeSource
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.image import Level


@dataclass(frozen=True)
class ScaleScope(ArrayScope):
    """One scale in one chunk size."""

    title: str
    listing: ScaleListing

    @property
    def name(self) -> str:
        """Its mag or key, and its chunk size where there are several."""
        return self.title

    def files(self) -> Sequence[tuple[Vec3, int] | int]:
        """List chunks that are files, or shards."""
        return self.listing.chunks or self.listing.shards

    def files_of(self, shard: Vec3) -> list[tuple[Vec3, int] | int]:
        """List the chunks of a group, or the shard."""
        there = [found for found in self._listed() if found.entry.path in set(self.paths_of(shard))]
        naming = self.array.naming
        if isinstance(naming, SpanNaming):
            return [((found.file[1], found.file[2], found.file[3]), found.variant) for found in there]
        numbers = {int(basename(found.entry.path).partition(".")[0], 16) for found in there}
        return [number for number in self.listing.shards if number in numbers]

    def check(self, *, decode: bool) -> PrecomputedCheck:
        """Decode all chunks."""
        return PrecomputedCheck(self.array, decode, decode and self.array.dtype.kind in "iu" and self.array.dtype.itemsize >= 4)


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
    scopes = [scope for level in chosen for scope in _look_at(image.details, level, basename(path), faults)]
    return Scope(path, (LayerScope(basename(path), path, tuple(scopes)),), faults, ((path, True),) if image.key is None and mags is None else ())


def _look_at(source: VolumeSource, level: Level, name: str, faults: list[Fault]) -> list[ScaleScope]:
    """List the files of a scale, in each of its chunk sizes."""
    scale: Scale = level.details
    mag = level.mag
    sizes = scale.chunk_sizes or (scale.chunk_size,)
    volumes = [replace(source, chunk_size=size).open_scale(scale, mag) for size in sizes]
    scopes = []
    for number, volume in enumerate(volumes):
        listing = list_scale(volume, [other for other in volumes if other is not volume])
        if not number:
            faults += listing.faults
        size = f" in chunks of {'x'.join(map(str, volume.chunk_shape))}" if len(volumes) > 1 else ""
        scopes.append(
            ScaleScope(name, level, by_written_units(volume), None, f"{source.store.url}/{FILE_NAME}", (scale.key if mag is None else mag.name) + size, listing)
        )
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
