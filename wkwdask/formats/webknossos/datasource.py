"""``datasource-properties.json``: the record of a WEBKNOSSOS dataset.

Text in, records out; ``wkwdask.formats.webknossos.datasource_edits`` changes it. Opens nothing.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from wkwdask.errors import CorruptError, MissingError
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import Mag, vec3
from wkwdask.model.json_text import Problems, format_json, parse_object
from wkwdask.model.levels import length_nm, nm_per_unit, unit_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FILE_NAME = "datasource-properties.json"

_ATTRIBUTES = ("largestSegmentId", "defaultViewConfiguration", "adminViewConfiguration", "coordinateTransformations", "additionalAxes")
_JAVASCRIPT_INTEGER = (1 << 53) - 1
_LARGEST = 1 << 53  # a box of more has no place that JavaScript can name
_CHANNELS = {"uint24": 3}  # the one class of several channels that files without numChannels have
_LAYER_NAME = re.compile(r"[A-Za-z0-9_$@\-]+[A-Za-z0-9_$@\-.]*")  # WEBKNOSSOS's rule
_NO_PATH = re.compile("[\0\ud800-\udfff]")  # what no file system takes


@dataclass(frozen=True, slots=True)
class MagRecord:
    """One mag of a layer as the JSON lists it."""

    mag: Mag
    """The mag."""
    path: str | None
    """Its folder, relative to the dataset, absolute or a URL; None where the JSON leaves it to the convention."""
    cube_length: int | None = None
    """Edge of a file [voxels], None where it is not said."""


@dataclass(frozen=True, slots=True)
class LayerRecord:
    """One layer as the JSON lists it."""

    name: str
    """Name of the layer."""
    category: str
    """``"color"`` or ``"segmentation"``."""
    bounding_box: BoundingBox
    """Where the layer has data [voxels of mag 1]."""
    element_class: str
    """Bits of all channels together, such as ``"uint8"`` or ``"uint24"``."""
    num_channels: int
    """Values per voxel."""
    data_format: str
    """``"wkw"``, ``"zarr3"`` and so on."""
    mags: tuple[MagRecord, ...]
    """All mags, finest first."""
    attributes: dict[str, Any]
    """What it says about itself that stays true where the layer is copied: the largest id, how it is shown."""
    entry: dict[str, Any] = field(default_factory=dict, repr=False)
    """All that the JSON says about it."""


@dataclass(frozen=True, slots=True)
class OddLayer:
    """A layer of which the JSON says something impossible; the others can be used."""

    name: str
    """Its name, or its place in the JSON where it has none."""
    path: str
    """Its place in the JSON, such as ``dataLayers[2]``."""
    problem: str
    """The file, and all that is wrong, each with its place."""
    entry: Any = field(repr=False)
    """What the JSON says."""

    def refuse(self) -> NoReturn:
        """Say that it cannot be used."""
        raise CorruptError(self.problem)


@dataclass(frozen=True, slots=True)
class DataSource:
    """A whole ``datasource-properties.json``."""

    name: str
    """Name of the dataset."""
    voxel_size_nm: tuple[float, float, float] | None
    """Edge lengths of a mag-1 voxel along x, y, z [nm], None where the file does not say."""
    layers: tuple[LayerRecord, ...]
    """All layers, in the order of the file."""
    document: dict[str, Any]
    """The parsed JSON, with everything that is not understood here."""
    odd: tuple[OddLayer, ...] = ()
    """Layers that cannot be used."""
    voxel_size: tuple[float, float, float] | None = None
    """The voxel size as the file states it [``unit``]."""
    unit: str = "nanometer"
    """Unit of the voxel size, by its long name."""

    def layer(self, name: str) -> LayerRecord | None:
        """Find a layer by its name, None where there is none."""
        for layer in self.layers:
            if layer.name == name:
                return layer
        for odd in self.odd:
            if odd.name == name:
                odd.refuse()
        return None


def parse_datasource(content: str | bytes, source: str) -> DataSource:
    """Read the text of a ``datasource-properties.json``, in its current or a legacy form."""
    document = parse_object(content, source)
    problems = Problems()
    voxel_size = _voxel_size(document.get("scale"), problems)
    entries = document.get("dataLayers", [])
    if not isinstance(entries, list):
        problems.add("dataLayers", "a list", entries)
        entries = []
    layers, odd = [], []
    for index, entry in enumerate(entries):
        wrong, path = Problems(), f"dataLayers[{index}]"
        layer = _layer(entry, path, wrong)
        if layer is not None:
            layers.append(layer)
        else:
            odd.append(OddLayer(_name_of(entry) or path, path, f"{source}: " + "; ".join(wrong.found), entry))
    if problems.found:
        raise CorruptError("; ".join([f"{source}: " + "; ".join(problems.found), *(layer.problem.removeprefix(f"{source}: ") for layer in odd)]))
    identity = document.get("id")
    name = identity.get("name", "") if isinstance(identity, dict) else ""
    if voxel_size is None:
        return DataSource(str(name), None, tuple(layers), document, tuple(odd))
    size, unit = voxel_size
    return DataSource(str(name), _in_nm(size, unit), tuple(layers), document, tuple(odd), size, unit)


def _name_of(entry: Any) -> str | None:
    name = entry.get("name") if isinstance(entry, dict) else None
    return name if isinstance(name, str) and name and not _NO_PATH.search(name) else None


def format_datasource(document: dict[str, Any]) -> str:
    """Write a document the way WEBKNOSSOS does; numbers that were read keep their digits."""
    return format_json(document)


def check_layer_name(name: str) -> None:
    """Make sure that a new layer can have a name: WEBKNOSSOS knows no other ones, and some lead out of the dataset.

    Examples
    --------
    >>> check_layer_name("em_2.aligned")
    """
    if not _LAYER_NAME.fullmatch(name):
        raise ValueError(f"a layer's name is made of letters a-z and A-Z, digits, _, $, @, - and, after the first of them, dots; got {name!r}")


def new_document(name: str, voxel_size_nm: Sequence[float]) -> dict[str, Any]:
    """Make the document of a dataset without layers."""
    return {
        "id": {"name": name, "team": ""},
        "scale": {"factor": [float(length) for length in voxel_size_nm], "unit": "nanometer"},
        "dataLayers": [],
        "version": 1,
    }


def largest_segment_id(attributes: dict[str, Any]) -> int | None:
    """Read the largest id that a layer says it has, None where it does not; ids that JavaScript cannot hold stand in a string."""
    value = attributes.get("largestSegmentId")
    if isinstance(value, dict):
        value = value.get("value")
    try:
        return None if value is None else int(value)
    except (TypeError, ValueError):
        return None


def format_segment_id(value: int) -> int | dict[str, str]:
    """Write an id as a layer states it."""
    return value if value <= _JAVASCRIPT_INTEGER else {"customJsonEncoding": "bigint", "value": str(value)}


def _voxel_size(value: Any, problems: Problems) -> tuple[tuple[float, float, float], str] | None:
    """Read the size of a voxel and its unit, by its long name."""
    if value is None:
        return None
    unit, factor = (value.get("unit", "nanometer"), value.get("factor")) if isinstance(value, dict) else ("nanometer", value)
    if not isinstance(unit, str) or nm_per_unit(unit) is None:
        problems.add("scale.unit", "a unit of length", unit)
        return None
    if not (isinstance(factor, list) and len(factor) == 3 and all(isinstance(n, (int, float)) and 0 < n < math.inf for n in factor)):
        problems.add("scale.factor", "three positive numbers", factor)
        return None
    return (float(factor[0]), float(factor[1]), float(factor[2])), unit_name(unit)


def _in_nm(size: tuple[float, float, float], unit: str) -> tuple[float, float, float]:
    x, y, z = size if unit == "nanometer" else (length_nm(length, unit) for length in size)
    return x, y, z


def _layer(entry: Any, path: str, problems: Problems) -> LayerRecord | None:
    before = len(problems.found)
    if not isinstance(entry, dict):
        problems.add(path, "an object", entry)
        return None
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        problems.add(f"{path}.name", "a name", name)
    elif not is_folder_name(name):
        problems.add(f"{path}.name", "a name that a folder in the dataset can have", name)
    category = entry.get("category", "color")
    if category not in ("color", "segmentation"):
        problems.add(f"{path}.category", '"color" or "segmentation"', category)
    box = _box(entry.get("boundingBox"), f"{path}.boundingBox", problems)
    channels = entry.get("numChannels") or _CHANNELS.get(str(entry.get("elementClass")), 1)
    if not isinstance(channels, int) or channels < 1:
        problems.add(f"{path}.numChannels", "a positive number", channels)
    mags = tuple(_mags(entry, path, problems))
    _check_attachments(entry.get("attachments"), f"{path}.attachments", problems)
    if len(problems.found) > before or box is None:
        return None
    return LayerRecord(
        str(name), category, box, str(entry.get("elementClass", "")), channels, str(entry.get("dataFormat", "wkw")),
        tuple(sorted(mags, key=lambda record: (record.mag.maximum, record.mag.factors))),
        {key: entry[key] for key in _ATTRIBUTES if key in entry}, entry,
    )  # fmt: skip


def is_folder_name(name: str) -> bool:
    """Check whether a name is that of one folder in another: the folders of layers are found by their names."""
    return name not in ("", ".", "..") and "/" not in name and not _NO_PATH.search(name)


def _check_attachments(groups: Any, path: str, problems: Problems) -> None:
    for kind, group in groups.items() if isinstance(groups, dict) else ():
        for item in group if isinstance(group, list) else [group]:
            if isinstance(item, dict) and isinstance(item.get("path"), str) and _NO_PATH.search(item["path"]):
                problems.add(f"{path}.{kind}", "a path", item["path"])


def _box(value: Any, path: str, problems: Problems) -> BoundingBox | None:
    try:
        box = BoundingBox(vec3(value["topLeft"]), vec3([value["width"], value["height"], value["depth"]]))
    except (KeyError, TypeError, ValueError):
        problems.add(path, "topLeft (three whole numbers), width, height and depth", value)
        return None
    if max(map(abs, (*box.topleft, *box.size))) > _LARGEST:
        problems.add(path, "numbers of at most 2^53", value)
        return None
    return box


def _mags(entry: dict[str, Any], path: str, problems: Problems) -> Iterator[MagRecord]:
    key, mag_key = ("mags", "mag") if "mags" in entry else ("wkwResolutions", "resolution")
    items = entry.get(key, [])
    if not isinstance(items, list):
        problems.add(f"{path}.{key}", "a list", items)
        return
    for index, item in enumerate(items):
        try:
            if not isinstance(item.get("path"), (str, type(None))) or _NO_PATH.search(item.get("path") or ""):
                problems.add(f"{path}.{key}[{index}].path", "a path", item["path"])
            edge = item.get("cubeLength")
            yield MagRecord(Mag.parse(item[mag_key]), item.get("path"), edge if isinstance(edge, int) else None)
        except (KeyError, TypeError, ValueError, AttributeError):
            problems.add(f"{path}.{key}[{index}].{mag_key}", "a mag of powers of two", item)


def cube_lengths(document: dict[str, Any], layer: str) -> dict[Mag, int]:
    """List the edges of files that a layer's mags say they have [voxels]."""
    key, mag_key, entry = mag_entries(document, layer)
    return {Mag.parse(item[mag_key]): item["cubeLength"] for item in entry.get(key, []) if isinstance(item.get("cubeLength"), int)}


def layer_entry(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Find the entry of a layer."""
    entries = document.get("dataLayers")
    named = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    for entry in named:
        if entry.get("name") == name:
            return entry
    raise MissingError(f"no layer {name!r} in {FILE_NAME}; there are {', '.join(filter(None, map(_name_of, named))) or 'none'}")


def sound_parts(document: Any) -> tuple[dict[str, Any], list[dict[str, Any]], list[Any]]:
    """Save what can be saved of a document that is broken."""
    if not isinstance(document, dict):
        return {}, [], []
    head = {key: value for key, value in document.items() if key != "dataLayers"}
    if _voxel_size(head.get("scale"), Problems()) is None:
        head.pop("scale", None)
    entries = document.get("dataLayers")
    layers: list[dict[str, Any]] = []
    others: list[Any] = []
    for entry in entries if isinstance(entries, list) else []:
        (others if _layer(entry, "", Problems()) is None else layers).append(entry)
    return head, layers, others


def without_place(entry: dict[str, Any]) -> dict[str, Any]:
    """Keep of a broken layer what its files do not say: all but its box and mags."""
    kept = {key: value for key, value in entry.items() if key not in ("boundingBox", "mags", "wkwResolutions")}
    if kept.get("category") not in ("color", "segmentation"):
        kept.pop("category", None)
    return kept


def mag_entries(document: dict[str, Any], layer: str) -> tuple[str, str, dict[str, Any]]:
    """Find a layer's entry, and how its list of mags and their mag are called there."""
    entry = layer_entry(document, layer)
    return ("wkwResolutions", "resolution", entry) if "mags" not in entry and "wkwResolutions" in entry else ("mags", "mag", entry)
