"""Where precomputed volumes are written: their folder, what it holds already, and the folders of scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wkwdask.errors import ExistsError, UnsupportedError
from wkwdask.formats.precomputed.info import FILE_NAME, default_key, mags_of
from wkwdask.formats.precomputed.layer import holds_wkw, stripped, volume_above
from wkwdask.formats.precomputed.metadata_edit import find_info
from wkwdask.store import files
from wkwdask.store.paths import is_below, is_remote, local_path, normpath

if TYPE_CHECKING:
    import os

    from wkwdask.formats.precomputed.info import OddScale, Scale, VolumeInfo
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.levels import Lengths

SAME = 1e-3  # of a resolution: these are the same


@dataclass(frozen=True, slots=True)
class VolumePlace:
    """A local folder in which scales are or will be."""

    folder: str
    """The volume."""
    info: VolumeInfo | None
    """What its ``info`` says, None where there is none yet."""

    def folder_of(self, key: str) -> str:
        """Say where a scale is or will be."""
        source = f"{self.folder}/{FILE_NAME}"
        folder = self._path(key)
        if not is_below(folder, self.folder) or folder == self.folder:
            raise UnsupportedError(f"{source}: scale {key!r} lies outside of the volume, at {folder}, and is not written there")
        alike = [scale for scale in self._listed if self._path(scale.key) == folder]
        if len(alike) > 1 or any(scale.key != key for scale in alike):
            places = " and ".join(f"scales[{scale.index}] ({scale.key!r})" for scale in alike)
            raise UnsupportedError(f"{source}: {places} {'have' if len(alike) > 1 else 'has'} the folder of scale {key!r}, in whose place nothing is written")
        if any(isinstance(scale.entry, dict) and scale.entry.get("locked") is True for scale in alike):
            raise ExistsError(f'{source}: scale {key!r} is locked ("locked": true), and is not replaced; whoever may do so takes that out')
        return folder

    def _path(self, key: str) -> str:
        return normpath(f"{self.folder}/{key}")

    @property
    def _listed(self) -> tuple[Scale | OddScale, ...]:
        """All scales that ``info`` lists, those that cannot be used too."""
        return () if self.info is None else (*self.info.scales, *self.info.odd)

    @property
    def listed_keys(self) -> set[str]:
        """Keys of all scales that ``info`` lists, those that cannot be used too."""
        return {scale.key for scale in self._listed}

    def scale_like(self, resolution: Lengths) -> Scale | None:
        """Find the scale of a resolution, None where there is none that can be used."""
        scales = () if self.info is None else self.info.scales
        return next((scale for scale in scales if same_resolution(scale.resolution, resolution)), None)

    def key_for(self, resolution: Lengths) -> str:
        """Choose the key of a scale: that of the one with its resolution, else the usual one."""
        known = self.scale_like(resolution)
        if known is not None:
            return known.key
        key = default_key(resolution)
        if key in self.listed_keys:
            raise ExistsError(f"{self.folder}/{FILE_NAME}: scale {key!r} has another resolution than {resolution} nm")
        return key

    def resolution_of(self, mag: Mag) -> Lengths:
        """Give the edge lengths of a voxel of a mag [nm]: those that its scale states, else multiples of those of mag 1."""
        scales = () if self.info is None else self.info.scales
        mags = () if self.info is None else mags_of(self.info)
        known = [(its_mag, scale) for its_mag, scale in zip(mags, scales, strict=True) if its_mag is not None]
        for its_mag, scale in known:
            if its_mag == mag:
                return scale.resolution
        if not known:
            raise ValueError(f"{self.folder}: no scale has a known mag; write mag 1 first")
        base, scale = known[0]
        x, y, z = (length * n / m for length, n, m in zip(scale.resolution, mag.factors, base.factors, strict=True))
        return x, y, z


def same_resolution(lengths: Lengths, others: Lengths) -> bool:
    """Tell whether two resolutions are the same, up to rounding."""
    return all(abs(a / b - 1) <= SAME for a, b in zip(lengths, others, strict=True))


def volume_folder(url: str | os.PathLike[str]) -> str:
    """Turn what a user names into the local folder of a volume that is written.

    Examples
    --------
    >>> volume_folder("precomputed:///data/em")
    '/data/em'
    """
    text = stripped(url)
    if is_remote(text):
        raise UnsupportedError(f"{text}: precomputed volumes are written to local folders only; write to one and copy it there, such as with gsutil or aws s3")
    return local_path(text)


def volume_place(url: str | os.PathLike[str]) -> VolumePlace:
    """Find out what is in the folder of a volume that is written."""
    folder = files.realpath(volume_folder(url))
    info = find_info(folder)
    if info is not None and info.redirect is not None:
        raise UnsupportedError(f"{folder}/{FILE_NAME}: says that the volume is at {info.redirect}; write there")
    if info is None and holds_wkw(folder):
        raise ExistsError(f"{folder}: holds WKW data; write a precomputed volume to a folder of its own")
    above = volume_above(folder) if info is None else None
    if above is not None:
        raise ExistsError(f"{folder}: is a scale of the volume {above[0]}; name the volume, and the scale with mag=")
    return VolumePlace(folder, info)
