"""Parse and edit ``datasource-properties.json``, the metadata of a WEBKNOSSOS dataset.

Parsing turns text into records. An edit (``with_...``, ``without_...``) returns a changed copy of a
document and keeps every field that it does not name. This module opens no file.
"""

from __future__ import annotations

import copy
import math
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from wkwdask.errors import BoundsError, CorruptError, ExistsError, MissingError
from wkwdask.formats.marks import DATASOURCE_NAME
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import Mag, mag_order, vec3
from wkwdask.model.image import InvalidLayer
from wkwdask.model.json_text import JsonObject, Problems, format_json, parse_object
from wkwdask.model.levels import length_nm, nm_per_unit, unit_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


FILE_NAME = DATASOURCE_NAME

_ATTRIBUTES = (
    "largestSegmentId",
    "defaultViewConfiguration",
    "adminViewConfiguration",
    "coordinateTransformations",
    "additionalAxes",
)
_JAVASCRIPT_INTEGER = (1 << 53) - 1
_MAX_COORDINATE = 1 << 53  # the browser holds coordinates as doubles, exact up to here
_CHANNELS = {"uint24": 3}  # the only class of several channels in files without numChannels
_LAYER_NAME = re.compile(r"[A-Za-z0-9_$@\-]+[A-Za-z0-9_$@\-.]*")  # the rule of WEBKNOSSOS
_NO_PATH = re.compile("[\0\ud800-\udfff]")  # not allowed in a path by any file system


def data_format_of(format_name: str) -> str:
    """Return the name that the JSON has for a format (``dataFormat``)."""
    return {"precomputed": "neuroglancerPrecomputed"}.get(format_name, format_name)


MagFields = int | JsonObject
"""Fields of a mag in the JSON beside mag and path; an integer is the edge length of a file
[voxels]."""


@dataclass(frozen=True, slots=True)
class MagRecord:
    """Record of one mag in the JSON."""

    mag: Mag
    path: str | None
    """Folder of the mag, relative to the dataset, absolute or a URL; None for the conventional
    folder."""
    cube_length: int | None = None
    """Edge length of a file [voxels]; None if not stated."""


@dataclass(frozen=True, slots=True)
class LayerRecord:
    """Record of one layer in the JSON."""

    name: str
    category: str
    """``"color"`` or ``"segmentation"``."""
    bounding_box: BoundingBox
    """Box of the layer [voxels of mag 1]."""
    element_class: str
    """Type with the bits of all channels together, such as ``"uint8"`` or ``"uint24"``."""
    num_channels: int
    data_format: str
    """Storage format, such as ``"wkw"`` or ``"zarr3"``."""
    mags: tuple[MagRecord, ...]
    """All mags, finest first."""
    attributes: JsonObject
    """Fields that a copy of the layer keeps, for example the largest id and view settings."""
    entry: JsonObject = field(default_factory=dict, repr=False)
    """The complete entry in the JSON."""


@dataclass(frozen=True, slots=True)
class DataSource:
    """Contents of a ``datasource-properties.json``."""

    name: str
    voxel_size_nm: tuple[float, float, float] | None
    """Edge lengths of a mag-1 voxel along x, y, z [nm]; None if not stated."""
    layers: tuple[LayerRecord, ...]
    """Valid layers, in the order of the file."""
    document: JsonObject
    """The parsed JSON, including unknown fields."""
    invalid_layers: tuple[InvalidLayer, ...] = ()
    """Layers that cannot be used because their entries are invalid."""
    voxel_size: tuple[float, float, float] | None = None
    """Voxel size as stated in the file [``unit``]."""
    unit: str = "nanometer"
    """Long name of the unit of the voxel size."""

    def layer(self, name: str) -> LayerRecord | None:
        """Return the layer with a name, None if there is none; raises CorruptError if it is
        invalid."""
        for layer in self.layers:
            if layer.name == name:
                return layer
        for invalid in self.invalid_layers:
            if invalid.name == name:
                invalid.raise_error()
        return None


def parse_datasource(content: str | bytes, source: str) -> DataSource:
    """Parse the text of a ``datasource-properties.json``, in its current or legacy form.

    An invalid layer is set aside in ``invalid_layers``, so that the others stay usable. Any other
    invalid field raises.
    """
    document = parse_object(content, source)
    problems = Problems()
    voxel_size = _parse_voxel_size(document.get("scale"), problems)
    entries = document.get("dataLayers", [])
    if not isinstance(entries, list):
        problems.add("dataLayers", "a list", entries)
        entries = []
    layers, invalid, counts = [], [], Counter(map(_name_of, entries))
    for index, entry in enumerate(entries):
        layer_problems, path = Problems(), f"dataLayers[{index}]"
        layer, count = _parse_layer(entry, path, layer_problems), counts[_name_of(entry)]
        if layer is not None and count > 1:
            layer_problems.messages.append(
                f"{path}.name: {count} layers have the name {layer.name!r}, expected one; rename "
                "the others in the file"
            )
            layer = None
        if layer is not None:
            layers.append(layer)
        else:
            invalid.append(
                InvalidLayer(
                    _name_of(entry) or path,
                    path,
                    f"{source}: " + "; ".join(layer_problems.messages),
                    entry,
                )
            )
    if problems.messages:
        raise CorruptError(
            "; ".join(
                [
                    f"{source}: " + "; ".join(problems.messages),
                    *(layer.problem.removeprefix(f"{source}: ") for layer in invalid),
                ]
            )
        )
    identity = document.get("id")
    name = identity.get("name", "") if isinstance(identity, dict) else ""
    if voxel_size is None:
        return DataSource(str(name), None, tuple(layers), document, tuple(invalid))
    size, unit = voxel_size
    return DataSource(
        str(name), _in_nm(size, unit), tuple(layers), document, tuple(invalid), size, unit
    )


def _name_of(entry: Any) -> str | None:
    name = entry.get("name") if isinstance(entry, dict) else None
    return name if isinstance(name, str) and name and not _NO_PATH.search(name) else None


def format_datasource(document: JsonObject) -> str:
    """Format a document like WEBKNOSSOS does; numbers keep the digits that were read."""
    return format_json(document)


def check_layer_name(name: str) -> None:
    """Raise ValueError for a layer name that WEBKNOSSOS does not accept; some of these would also
    lead out of the dataset.

    Examples
    --------
    >>> check_layer_name("em_2.aligned")
    """
    if not _LAYER_NAME.fullmatch(name):
        raise ValueError(
            "a layer name consists of letters a-z and A-Z, digits, _, $, @, - and, after the first "
            f"character, dots; got {name!r}"
        )


def new_document(name: str, voxel_size_nm: Sequence[float]) -> JsonObject:
    """Return the document of a new dataset without layers."""
    return {
        "id": {"name": name, "team": ""},
        "scale": {"factor": [float(length) for length in voxel_size_nm], "unit": "nanometer"},
        "dataLayers": [],
        "version": 1,
    }


def largest_segment_id(attributes: JsonObject) -> int | None:
    """Return the stated largest id of a layer, or None. An id beyond 2^53 - 1, which JavaScript
    cannot hold, is stored as a string."""
    value = attributes.get("largestSegmentId")
    if isinstance(value, dict):
        value = value.get("value")
    try:
        return None if value is None else int(value)
    except (TypeError, ValueError):
        return None


def format_segment_id(value: int) -> int | dict[str, str]:
    """Format an id for ``largestSegmentId``."""
    return (
        value
        if value <= _JAVASCRIPT_INTEGER
        else {"customJsonEncoding": "bigint", "value": str(value)}
    )


def _parse_voxel_size(
    value: Any, problems: Problems
) -> tuple[tuple[float, float, float], str] | None:
    """Parse voxel size and unit (long name)."""
    if value is None:
        return None
    unit, factor = (
        (value.get("unit", "nanometer"), value.get("factor"))
        if isinstance(value, dict)
        else ("nanometer", value)
    )
    if not isinstance(unit, str) or nm_per_unit(unit) is None:
        problems.add("scale.unit", "a unit of length", unit)
        return None
    if not (
        isinstance(factor, list)
        and len(factor) == 3
        and all(isinstance(n, (int, float)) and 0 < n < math.inf for n in factor)
    ):
        problems.add("scale.factor", "three positive numbers", factor)
        return None
    return (float(factor[0]), float(factor[1]), float(factor[2])), unit_name(unit)


def _in_nm(size: tuple[float, float, float], unit: str) -> tuple[float, float, float]:
    x, y, z = size if unit == "nanometer" else (length_nm(length, unit) for length in size)
    return x, y, z


def _parse_layer(entry: Any, path: str, problems: Problems) -> LayerRecord | None:
    before = len(problems.messages)
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
    box = _parse_box(entry.get("boundingBox"), f"{path}.boundingBox", problems)
    channels = entry.get("numChannels") or _CHANNELS.get(str(entry.get("elementClass")), 1)
    if not isinstance(channels, int) or channels < 1:
        problems.add(f"{path}.numChannels", "a positive number", channels)
    mags = tuple(_parse_mags(entry, path, problems))
    _check_attachments(entry.get("attachments"), f"{path}.attachments", problems)
    if len(problems.messages) > before or box is None:
        return None
    return LayerRecord(
        str(name),
        category,
        box,
        str(entry.get("elementClass", "")),
        channels,
        str(entry.get("dataFormat", "wkw")),
        tuple(sorted(mags, key=lambda record: mag_order(record.mag))),
        {key: entry[key] for key in _ATTRIBUTES if key in entry},
        entry,
    )


def is_folder_name(name: str) -> bool:
    """Return whether a layer name is also a valid folder name, because folders of layers are found
    by name."""
    return name not in ("", ".", "..") and "/" not in name and not _NO_PATH.search(name)


def _check_attachments(groups: Any, path: str, problems: Problems) -> None:
    for kind, group in groups.items() if isinstance(groups, dict) else ():
        for item in group if isinstance(group, list) else [group]:
            if (
                isinstance(item, dict)
                and isinstance(item.get("path"), str)
                and _NO_PATH.search(item["path"])
            ):
                problems.add(f"{path}.{kind}", "a path", item["path"])


def _parse_box(value: Any, path: str, problems: Problems) -> BoundingBox | None:
    try:
        box = BoundingBox(
            vec3(value["topLeft"]), vec3([value["width"], value["height"], value["depth"]])
        )
    except (KeyError, TypeError, ValueError):
        problems.add(path, "topLeft (three whole numbers), width, height and depth", value)
        return None
    if max(map(abs, (*box.topleft, *box.size))) > _MAX_COORDINATE:
        problems.add(path, "numbers of at most 2^53", value)
        return None
    return box


def _parse_mags(entry: JsonObject, path: str, problems: Problems) -> Iterator[MagRecord]:
    key, mag_key = _mag_keys(entry)
    items = entry.get(key, [])
    if not isinstance(items, list):
        problems.add(f"{path}.{key}", "a list", items)
        return
    for index, item in enumerate(items):
        try:
            if not isinstance(item.get("path"), (str, type(None))) or _NO_PATH.search(
                item.get("path") or ""
            ):
                problems.add(f"{path}.{key}[{index}].path", "a path", item["path"])
            edge = item.get("cubeLength")
            yield MagRecord(
                Mag.parse(item[mag_key]), item.get("path"), edge if isinstance(edge, int) else None
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            problems.add(f"{path}.{key}[{index}].{mag_key}", "a mag of powers of two", item)


def layer_entry(document: JsonObject, name: str) -> JsonObject:
    """Return the entry of a layer in a document."""
    entries = document.get("dataLayers")
    objects = (
        [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    )
    for entry in objects:
        if entry.get("name") == name:
            return entry
    raise MissingError(
        f"no layer {name!r} in {FILE_NAME}; there are "
        f"{', '.join(filter(None, map(_name_of, objects))) or 'none'}"
    )


def valid_parts(document: Any) -> tuple[JsonObject, list[JsonObject], list[Any]]:
    """Split a broken document into its valid fields, its valid layers, and all other entries."""
    if not isinstance(document, dict):
        return {}, [], []
    head = {key: value for key, value in document.items() if key != "dataLayers"}
    if _parse_voxel_size(head.get("scale"), Problems()) is None:
        head.pop("scale", None)
    entries = document.get("dataLayers")
    layers: list[JsonObject] = []
    others: list[Any] = []
    for entry in entries if isinstance(entries, list) else []:
        (others if _parse_layer(entry, "", Problems()) is None else layers).append(entry)
    return head, layers, others


def without_box_and_mags(entry: JsonObject) -> JsonObject:
    """Return a broken layer's entry without box and mags, which can be restored from its files."""
    rest = {
        key: value
        for key, value in entry.items()
        if key not in ("boundingBox", "mags", "wkwResolutions")
    }
    if rest.get("category") not in ("color", "segmentation"):
        rest.pop("category", None)
    return rest


def _mag_keys(entry: JsonObject) -> tuple[str, str]:
    """Return the keys of the list of mags and of a mag in it; files of old versions have
    ``wkwResolutions`` instead of ``mags``."""
    return (
        ("wkwResolutions", "resolution")
        if "mags" not in entry and "wkwResolutions" in entry
        else ("mags", "mag")
    )


def with_scale(document: JsonObject, factor: Sequence[float], unit: str) -> JsonObject:
    """Set the size of a mag-1 voxel."""
    lengths = [float(length) for length in factor]
    if nm_per_unit(unit) is None:
        raise ValueError(
            f"unit must be a unit of length, such as nanometer, micrometer or mm, got {unit!r}"
        )
    if len(lengths) != 3 or not all(0 < length < float("inf") for length in lengths):
        raise ValueError(f"the voxel size must be three positive numbers (x, y, z), got {factor!r}")
    before = document.get("scale")
    return {
        **document,
        "scale": {
            **(before if isinstance(before, dict) else {}),
            "factor": lengths,
            "unit": unit_name(unit),
        },
    }


def with_fields(document: JsonObject, layer: str, fields: JsonObject) -> JsonObject:
    """Set fields of a layer; remove those set to None."""
    changed = copy.deepcopy(document)
    entry = layer_entry(changed, layer)
    for name, value in fields.items():
        if value is None:
            entry.pop(name, None)
        else:
            entry[name] = value
    return changed


def with_box(document: JsonObject, layer: str, box: BoundingBox) -> JsonObject:
    """Set the box of a layer [voxels of mag 1]."""
    before = layer_entry(document, layer).get("boundingBox")
    return with_fields(
        document,
        layer,
        {"boundingBox": {**(before if isinstance(before, dict) else {}), **_box_entry(box)}},
    )


def _box_entry(box: BoundingBox) -> JsonObject:
    if max(map(abs, (*box.topleft, *box.size))) > _MAX_COORDINATE:
        raise BoundsError(f"{FILE_NAME} has boxes with numbers of at most 2^53, got {box}")
    width, height, depth = box.size
    return {"topLeft": list(box.topleft), "width": width, "height": height, "depth": depth}


def with_largest_id(document: JsonObject, layer: str, value: int | None) -> JsonObject:
    """Set the largest id of a segmentation; remove the field for None."""
    return with_fields(
        document, layer, {"largestSegmentId": None if value is None else format_segment_id(value)}
    )


def with_entry(document: JsonObject, entry: JsonObject) -> JsonObject:
    """Add the entry of a layer."""
    check_layer_name(entry["name"])
    layers = document.get("dataLayers") or []
    _check_free(layers, entry["name"])
    return {**document, "dataLayers": [*layers, entry]}


def without_layer(document: JsonObject, layer: str) -> JsonObject:
    """Remove a layer from the list."""
    removed = layer_entry(document, layer)
    return {
        **document,
        "dataLayers": [entry for entry in document["dataLayers"] if entry is not removed],
    }


def with_new_name(
    document: JsonObject, old: str, new: str, moved: Callable[[str], str]
) -> JsonObject:
    """Rename a layer, also in view settings and paths."""
    check_layer_name(new)
    _check_free(document.get("dataLayers") or [], new)
    changed = with_paths(document, moved)
    layer_entry(changed, old)["name"] = new
    view = changed.get("defaultViewConfiguration")
    if isinstance(view, dict):
        _rename_in_view(view, old, new)
    return changed


def _rename_in_view(view: JsonObject, old: str, new: str) -> None:
    if isinstance(view.get("layers"), dict):
        view["layers"] = {
            new if name == old else name: value for name, value in view["layers"].items()
        }
    if isinstance(view.get("colorLayerOrder"), list):
        view["colorLayerOrder"] = [new if name == old else name for name in view["colorLayerOrder"]]
    if view.get("nativelyRenderedLayerName") == old:
        view["nativelyRenderedLayerName"] = new


def with_paths(document: JsonObject, moved: Callable[[str], str]) -> JsonObject:
    """Map the paths of mags and attachments."""
    changed = copy.deepcopy(document)
    for entry in changed.get("dataLayers") or []:
        for holder in path_holders(entry):
            holder["path"] = moved(holder["path"])
    return changed


def path_holders(entry: Any) -> Iterator[JsonObject]:
    """Yield all parts of a layer's entry that contain a path."""
    if not isinstance(entry, dict):
        return
    attachments = entry.get("attachments")
    groups = [
        entry.get("mags"),
        entry.get("wkwResolutions"),
        *(attachments.values() if isinstance(attachments, dict) else ()),
    ]
    for group in groups:
        for item in group if isinstance(group, list) else [group]:
            if isinstance(item, dict) and isinstance(item.get("path"), str):
                yield item


def with_explicit_paths(document: JsonObject, layer: str, paths: Mapping[Mag, str]) -> JsonObject:
    """Set the paths of mags; a legacy list, which has no field for paths, is converted to the
    current form."""
    changed = copy.deepcopy(document)
    entry = layer_entry(changed, layer)
    if _mag_keys(entry)[0] == "wkwResolutions":
        legacy = entry.pop("wkwResolutions")
        others = [
            {name: value for name, value in item.items() if name != "resolution"} for item in legacy
        ]
        entry["mags"] = [
            {"mag": list(Mag.parse(item["resolution"]).factors), **other}
            for item, other in zip(legacy, others, strict=True)
        ]
    for item in entry.get("mags", []):
        mag = Mag.parse(item["mag"])
        if mag in paths:
            item["path"] = paths[mag]
    return changed


def empty_like(document: JsonObject, name: str) -> JsonObject:
    """Return a copy of a document with another name and without layers; all other fields stay."""
    changed = copy.deepcopy(document)
    identity = changed.get("id")
    changed["id"] = {**(identity if isinstance(identity, dict) else {"team": ""}), "name": name}
    changed["dataLayers"] = []
    return changed


def with_mags(
    document: JsonObject, layer: str, mags: Sequence[tuple[Mag, str, MagFields]]
) -> JsonObject:
    """Add or replace mags of a layer, each given as mag, path, and edge length of a file [voxels]
    or other fields."""
    changed = copy.deepcopy(document)
    entry = layer_entry(changed, layer)
    key, mag_key = _mag_keys(entry)
    known = {Mag.parse(item[mag_key]): item for item in entry.get(key, [])}
    axes: Any = {"c": 0, "x": 1, "y": 2, "z": 3}
    if entry.get("dataFormat") == "neuroglancerPrecomputed":
        # WEBKNOSSOS states x, y, z and reads so without it; its library asks for c or nothing
        axes = next((item["axisOrder"] for item in known.values() if "axisOrder" in item), None)
    for mag, path, fields in mags:
        item = dict(known.get(mag, {}))
        item[mag_key] = list(mag.factors)
        item |= {"cubeLength": fields} if isinstance(fields, int) else fields
        if key == "mags":  # the legacy form has no paths
            item["path"] = path
            if axes is not None:
                item.setdefault("axisOrder", axes)
        known[mag] = item
    entry[key] = [known[mag] for mag in sorted(known, key=mag_order)]
    return changed


def without_mags(
    document: JsonObject, layer: str, mags: Sequence[Mag], *, keep_layer: bool = True
) -> JsonObject:
    """Remove mags from a layer, and the layer with its last mag unless ``keep_layer``."""
    changed = copy.deepcopy(document)
    layers = changed.get("dataLayers", [])
    for entry in [
        entry for entry in layers if isinstance(entry, dict) and entry.get("name") == layer
    ]:
        key, mag_key = _mag_keys(entry)
        entry[key] = [item for item in entry.get(key, []) if Mag.parse(item[mag_key]) not in mags]
        if not entry[key] and not keep_layer:
            layers.remove(entry)
    return changed


class NewLayer(NamedTuple):
    """Category, box, type and channels of a layer."""

    category: str
    box: BoundingBox
    element_class: str
    num_channels: int


def with_layer(
    document: JsonObject,
    name: str,
    new: NewLayer,
    attributes: JsonObject | None = None,
    data_format: str = "wkw",
) -> JsonObject:
    """Add a layer without mags, or set box and type of an existing one.

    ``attributes`` apply to a new layer; an existing layer keeps its own, except that its largest id
    never decreases.
    """
    changed = copy.deepcopy(document)
    layers = changed.setdefault("dataLayers", [])
    entry = next(
        (entry for entry in layers if isinstance(entry, dict) and entry.get("name") == name), None
    )
    if entry is None:
        entry = {"name": name, "category": new.category, **(attributes or {})}
        layers.append(entry)
    largest = [
        known
        for known in (largest_segment_id(entry), largest_segment_id(attributes or {}))
        if known is not None
    ]
    if largest:
        entry["largestSegmentId"] = format_segment_id(max(largest))
    entry["boundingBox"] = _box_entry(new.box)
    entry["elementClass"] = new.element_class
    entry.setdefault("dataFormat", data_format)
    entry["numChannels"] = new.num_channels
    if "wkwResolutions" not in entry:
        entry.setdefault("mags", [])
    return changed


def with_view_configuration(
    document: JsonObject, layer: str | None, values: JsonObject
) -> JsonObject:
    """Set default view settings of a layer, or of the dataset for None; remove those set to
    None."""
    changed = copy.deepcopy(document)
    entry = changed if layer is None else layer_entry(changed, layer)
    before = entry.get("defaultViewConfiguration")
    view = {**(before if isinstance(before, dict) else {}), **values}
    entry["defaultViewConfiguration"] = {
        key: value for key, value in view.items() if key not in values or value is not None
    }
    if not entry["defaultViewConfiguration"]:
        del entry["defaultViewConfiguration"]
    return changed


def _check_free(layers: Sequence[Any], name: str) -> None:
    if any(isinstance(entry, dict) and entry.get("name") == name for entry in layers):
        raise ExistsError(f"{FILE_NAME}: layer {name!r} already exists")
