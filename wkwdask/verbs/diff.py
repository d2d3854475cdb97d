"""Comparison of two volumes, layers or datasets: pairs of mags, and their differences."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING

from wkwdask.errors import BoundsError, MissingError, UnsupportedError
from wkwdask.formats.opening import find, open_stored
from wkwdask.formats.pictures.sources import PlainOptions, open_plain
from wkwdask.formats.plain_arrays import contains_plain_arrays, has_axes
from wkwdask.geometry.bounding_box import MAG_1, BoundingBox
from wkwdask.geometry.mag import Mag, vec3
from wkwdask.model.summary import Card, counted, html_table
from wkwdask.plans.regions import RegionGrid
from wkwdask.runs.drive import Phase, Work
from wkwdask.verbs.compare import CompareJob, Difference

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from wkwdask.formats.format import Url
    from wkwdask.formats.pictures.array_file import ArrayVolume
    from wkwdask.formats.pictures.image_stack import ImageStack
    from wkwdask.model.image import Image, Level, ResolvedUrl
    from wkwdask.model.json_text import JsonObject
    from wkwdask.model.stored_array import StoredArray

    AnyVolume = StoredArray | ArrayVolume | ImageStack

_LARGEST_REGION_VX = 512


@dataclass(frozen=True, slots=True)
class VolumeDiff:
    """Differences of two mags."""

    name: str
    """Layer and mag."""
    first: str
    """Folder of the first mag."""
    second: str
    """Folder of the second mag."""
    mismatches: tuple[str, ...]
    """Mismatches of types, channels and boxes."""
    box: BoundingBox | None
    """Compared box [voxels of the mag], None if types or channels differ."""
    voxels_different: int = 0
    """Number of voxels with a differing channel."""
    listed: tuple[Difference, ...] = ()
    """First differences, ordered by z, y, x and channel."""
    box_of_differences: BoundingBox | None = None
    """Smallest box around all differences [voxels of the mag]."""

    @property
    def equal(self) -> bool:
        return not self.mismatches and not self.voxels_different

    @property
    def voxels_compared(self) -> int:
        """Number of compared voxels, including those that neither volume stores."""
        return 0 if self.box is None else self.box.volume

    def __str__(self) -> str:
        lines = [f"{self.name}: {mismatch}" for mismatch in self.mismatches]
        lines += [f"{self.name}: {difference}" for difference in self.listed]
        if self.voxels_different > len(self.listed):
            lines.append(f"{self.name}: ...")
        where = f", all in {self.box_of_differences}" if self.box_of_differences is not None else ""
        verdict = "equal" if self.equal else "DIFFERENT"
        if self.mismatches and not self.voxels_different:
            verdict += ", though not in the voxels compared"
        count = f"{self.voxels_different:,} of {self.voxels_compared:,} voxels differ{where}"
        return "\n".join([*lines, f"{self.name}: {verdict}: {count}"])


@dataclass(frozen=True, slots=True)
class Diff(Card):
    """Differences of two volumes, layers or datasets."""

    volumes: tuple[VolumeDiff, ...]
    """One entry per common mag."""
    only_first: tuple[str, ...] = ()
    """Layers and mags of the first alone."""
    only_second: tuple[str, ...] = ()
    """Layers and mags of the second alone."""

    @property
    def equal(self) -> bool:
        """Whether both have the same mags with the same boxes, types and voxels."""
        return (
            all(volume.equal for volume in self.volumes)
            and not self.only_first
            and not self.only_second
        )

    @property
    def voxels_compared(self) -> int:
        """Number of compared voxels."""
        return sum(volume.voxels_compared for volume in self.volumes)

    @property
    def voxels_different(self) -> int:
        """Number of voxels with a differing channel."""
        return sum(volume.voxels_different for volume in self.volumes)

    def _tables(self) -> str:
        rows = [
            (
                volume.name,
                "equal" if volume.equal else "different",
                f"{volume.voxels_compared:,}",
                f"{volume.voxels_different:,}",
                "; ".join(volume.mismatches),
            )
            for volume in self.volumes
        ]
        return html_table(("mag", "", "voxels compared", "different", ""), rows) + "<br>".join(
            map(escape, self._rest())
        )

    def _drawn(self) -> Iterable[str]:
        return ()

    def __str__(self) -> str:
        return "\n".join([*map(str, self.volumes), *self._rest()])

    def _rest(self) -> list[str]:
        """Return the lines about all volumes."""
        lines = [f"only the first has {name}" for name in self.only_first] + [
            f"only the second has {name}" for name in self.only_second
        ]
        return [*lines, "equal" if self.equal else "different"]

    def to_json(self) -> JsonObject:
        """Return plain values for ``json.dumps``."""
        return {
            "equal": self.equal,
            "voxels_compared": self.voxels_compared,
            "voxels_different": self.voxels_different,
            "only_first": self.only_first,
            "only_second": self.only_second,
            "volumes": [_volume_json(volume) for volume in self.volumes],
        }


def _volume_json(volume: VolumeDiff) -> JsonObject:
    return {
        "name": volume.name,
        "first": volume.first,
        "second": volume.second,
        "equal": volume.equal,
        "mismatches": volume.mismatches,
        "box": _box_json(volume.box),
        "voxels_compared": volume.voxels_compared,
        "voxels_different": volume.voxels_different,
        "box_of_differences": _box_json(volume.box_of_differences),
        "listed": list(map(_difference_json, volume.listed)),
    }


def _difference_json(difference: Difference) -> JsonObject:
    values = {name: getattr(difference, name) for name in ("voxel", "channel", "first", "second")}
    return {**values, "bits": difference.bits} if difference.bits[0] else values


def _box_json(box: BoundingBox | None) -> list[int] | None:
    return None if box is None else [*box.topleft, *box.size]


@dataclass(frozen=True, slots=True)
class MagPair:
    """Two mags to compare."""

    name: str
    """Layer and mag."""
    first: AnyVolume
    second: AnyVolume
    mismatches: tuple[str, ...]
    """Mismatches of types, channels and boxes."""
    box: BoundingBox | None
    """Box to compare, None if types or channels differ."""

    def job(self) -> CompareJob | None:
        """Return the job that compares them; None if types or channels differ."""
        if self.box is None:
            return None
        edge = min(_LARGEST_REGION_VX, max(*self.first.shard_shape, *self.second.shard_shape))
        return CompareJob(
            self.first.cropped(self.box),
            self.second.cropped(self.box),
            RegionGrid(self.box, (edge,) * 3, (edge,) * 3),
        )

    def report(self, job: CompareJob | None) -> VolumeDiff:
        volume = VolumeDiff(self.name, self.first.name, self.second.name, self.mismatches, self.box)
        if job is None:
            return volume
        return replace(
            volume,
            voxels_different=job.found.different,
            listed=job.found.listed,
            box_of_differences=job.found.box,
        )


class Comparison(Work[Diff]):
    """Comparison of all common mags."""

    def __init__(self, pairs: Sequence[MagPair], unpaired: Diff) -> None:
        self._pairs, self._unpaired = pairs, unpaired

    def phases(self) -> Generator[Phase, str, Diff]:
        volumes = []
        for pair in self._pairs:
            job = pair.job()
            if job is not None:
                yield Phase(job, f"comparing {pair.name}")
            volumes.append(pair.report(job))
        return replace(self._unpaired, volumes=tuple(volumes))


def lay_out_diff(
    first: Url, second: Url, layer: str | None, mag: Mag | None, box: BoundingBox | None
) -> Comparison:
    """Pair the mags of two paths."""
    plain = [_is_plain(url) for url in (first, second)]
    if any(plain):
        return Comparison([_pair_plain(first, second, plain, layer, mag, box)], Diff(()))
    layer_pairs, unpaired_layers = _pair_layers(find(first), find(second), layer)
    pairs: list[MagPair] = []
    unpaired = (list(unpaired_layers[0]), list(unpaired_layers[1]))
    for name, (a, mag_a), (b, mag_b) in layer_pairs:
        if mag_a is not None and mag_b is not None and mag_a != mag_b:
            raise ValueError(
                f"{a.mags[mag_a]} is mag {mag_a}, {b.mags[mag_b]} is mag {mag_b}: only equal mags "
                "can be compared"
            )
        # Levels pair by their mags. Scales of precomputed volumes that have no mag pair by their
        # ratios to mag 1.
        selected = mag or mag_a or mag_b
        all_scales = [_scales_by_ratio(image) if selected is None else {} for image in (a, b)]
        named = [
            ratio
            for image, its_scales in zip((a, b), all_scales, strict=True)
            if _names_scale(image)
            for ratio in its_scales
        ]
        mags = [
            [
                m
                for m in image.mags
                if not named and (selected is None or m == selected) and _is_openable(image, m)
            ]
            for image in (a, b)
        ]
        declared = (_is_box_declared(a), _is_box_declared(b))
        pairs += [
            _pair(f"{name}/{m.name}", a.volume(m), b.volume(m), declared, box)
            for m in mags[0]
            if m in mags[1]
        ]
        scales = [
            {ratio: scale for ratio, scale in its_scales.items() if not named or ratio in named}
            for its_scales in all_scales
        ]
        pairs += [
            _pair_scales(name, scale, scales[1][ratio], ratio, box)
            for ratio, scale in scales[0].items()
            if ratio in scales[1]
        ]
        for n in (0, 1):
            unpaired[n].extend(f"{name}/{m.name}" for m in mags[n] if m not in mags[1 - n])
            unpaired[n].extend(
                f"{name}/{scale.key}"
                for ratio, scale in scales[n].items()
                if ratio not in scales[1 - n]
            )
    if not layer_pairs:
        names = " and ".join(", ".join(each) or "none" for each in unpaired_layers)
        raise MissingError(f"{first} and {second} have no layer in common; there are {names}")
    if not pairs:
        raise MissingError(
            f"{first} and {second} have no mag {mag or ''} in common".replace("  ", " ")
        )
    return Comparison(pairs, Diff((), tuple(unpaired[0]), tuple(unpaired[1])))


def _is_plain(url: Url) -> bool:
    """Return whether a path contains image or array files without a position. A Zarr array has a
    position if it belongs to an image or its URL names Zarr."""
    if contains_plain_arrays(url):
        return not has_axes(url)
    try:
        find(url)
    except MissingError as missing:
        try:
            open_plain(url, PlainOptions((0, 0, 0), MAG_1))
        except (MissingError, UnsupportedError):
            raise missing from None
        return True
    return False


def _pair_plain(
    first: Url,
    second: Url,
    plain: Sequence[bool],
    layer: str | None,
    mag: Mag | None,
    box: BoundingBox | None,
) -> MagPair:
    """Pair a volume with image or array files, whose first voxel is placed at the corner of the
    volume's box."""
    urls = (first, second)
    placed: list[AnyVolume | None] = [
        None if is_plain else open_stored(url, layer, mag)[1]
        for url, is_plain in zip(urls, plain, strict=True)
    ]
    reference = next((volume for volume in placed if volume is not None), None)
    options = (
        PlainOptions((0, 0, 0), mag or MAG_1)
        if reference is None
        else PlainOptions(reference.box.topleft, reference.box.mag)
    )
    a, b = (
        volume if volume is not None else open_plain(url, options).volume
        for volume, url in zip(placed, urls, strict=True)
    )
    return _pair("voxels", a, b, (True, True), box)


def _is_openable(layer: Image, mag: Mag) -> bool:
    """Return whether a mag can be opened, with or without files."""
    try:
        layer.volume(mag)
    except MissingError:
        return False
    return True


_Ratio = tuple[float, ...]


def _names_scale(layer: Image) -> bool:
    """Return whether the path named a scale that has no mag."""
    return layer.key is not None and layer.mag is None


def _scales_by_ratio(layer: Image) -> dict[_Ratio, Level]:
    """Return the levels without a mag, by the ratio of their voxel lengths to those of mag 1."""
    if layer.is_layer:
        return {}
    base = layer.voxel_size_nm or (1, 1, 1)
    scales = {}
    for level in layer.selected:
        if level.problem and not issubclass(level.error, MissingError):
            level.open()  # raises the reason why it cannot be compared
        if level.mag is None and level.lengths_nm is not None:
            scales[
                tuple(
                    round(length / unit, 3)
                    for length, unit in zip(level.lengths_nm, base, strict=True)
                )
            ] = level
    return scales


def _pair_scales(
    name: str, first: Level, second: Level, ratio: _Ratio, box: BoundingBox | None
) -> MagPair:
    """Pair two levels that have no mag."""
    a, b = first.open(), second.open()
    part = None
    if box is not None:
        low = vec3([math.floor(n / step) for n, step in zip(box.topleft, ratio, strict=True)])
        part = BoundingBox(
            low,
            vec3(
                [
                    math.ceil(n / step) - start
                    for n, step, start in zip(box.bottomright, ratio, low, strict=True)
                ]
            ),
        )
    return _pair(f"{name}/{first.key}", a, b, (True, True), part)


_Named = tuple[str, tuple["Image", Mag | None], tuple["Image", Mag | None]]


def _pair_layers(
    first: ResolvedUrl, second: ResolvedUrl, layer: str | None
) -> tuple[list[_Named], tuple[list[str], list[str]]]:
    """Pair layers by name; return the pairs, and the names of unpaired layers. Two single layers
    are a pair under any names."""
    if layer is not None:
        has_layer = [
            any(image.name == layer for image in resolved.layers) for resolved in (first, second)
        ]
        # A single layer of another name pairs with the named one. Datasets need the name at least
        # once.
        a, b = (
            resolved.readable(resolved.layers[0])
            if len(resolved.layers) == 1
            and not has
            and (other_has or not resolved.layers[0].is_layer)
            else resolved.choose(layer)
            for resolved, has, other_has in zip(
                (first, second), has_layer, has_layer[::-1], strict=True
            )
        )
        return [(layer, (a, first.mag), (b, second.mag))], ([], [])
    if len(first.layers) == len(second.layers) == 1:
        a, b = first.readable(first.layers[0]), second.readable(second.layers[0])
        return [(a.name, (a, first.mag), (b, second.mag))], ([], [])
    by_name = (
        {image.name: image for image in first.layers},
        {image.name: image for image in second.layers},
    )
    names = [name for name in by_name[0] if name in by_name[1]]
    if not names and 1 in (len(first.layers), len(second.layers)):
        # raises an error that asks for a name
        (first if len(second.layers) == 1 else second).choose(None)
    pairs: list[_Named] = [
        (
            name,
            (first.readable(by_name[0][name]), first.mag),
            (second.readable(by_name[1][name]), second.mag),
        )
        for name in names
    ]
    return pairs, (
        [name for name in by_name[0] if name not in by_name[1]],
        [name for name in by_name[1] if name not in by_name[0]],
    )


def _is_box_declared(layer: Image) -> bool:
    """Return whether a document declares a layer's box; otherwise the box is the extent of its
    files."""
    return not layer.is_layer or layer.stated_box is not None


def _pair(
    name: str,
    first: AnyVolume,
    second: AnyVolume,
    declared: tuple[bool, bool],
    box: BoundingBox | None,
) -> MagPair:
    """Pair two volumes; ``declared`` states for each whether a document declares its box."""
    mismatches = []
    if first.dtype != second.dtype:
        mismatches.append(f"{first.dtype.name} and {second.dtype.name}: voxels are not compared")
    if first.num_channels != second.num_channels:
        mismatches.append(
            f"{counted(first.num_channels, 'channel')} and {second.num_channels}: voxels are not "
            "compared"
        )
    if mismatches:
        return MagPair(name, first, second, tuple(mismatches), None)
    compared, problem = _compared_box(
        first, second, declared, None if box is None else box.in_mag(first.box.mag)
    )
    return MagPair(name, first, second, (problem,) if problem else (), compared)


def _compared_box(
    first: AnyVolume, second: AnyVolume, declared: tuple[bool, bool], box: BoundingBox | None
) -> tuple[BoundingBox, str]:
    """Return the intersection of both boxes, and the mismatch if they differ. Where both boxes are
    extents of files, missing files count as zeros."""
    if all(declared):
        a, b = first.box, second.box
    elif any(declared):
        a = b = first.box if declared[0] else second.box
    else:
        a = b = first.box.union(second.box)
    if box is not None:
        a, b = a.intersection(box), b.intersection(box)
        if a.is_empty and b.is_empty:
            raise BoundsError(f"{first.name}: box {box} lies outside {first.box}")
    if a == b or (a.is_empty and b.is_empty):
        return a.intersection(b), ""
    return a.intersection(b), f"boxes {a} and {b}: only voxels in both are compared"
