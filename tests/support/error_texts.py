"""Errors of verbs as text, one line for each verb, format and situation.

A line is ``verb | format | situation | class: text``. The last column is ``no error`` where the
call succeeds; faults follow where the verb reports them. ``python -m support.error_texts`` from
``tests`` writes the lines again.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
import shutil
import socket
import tempfile
import traceback
import warnings
import zipfile
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import dask
import numpy as np
from support.locks import far_process, put_lock, this_process
from support.range_server import range_server
from verbs.forms import FORMS, VOXEL_SIZE, Form
from verbs.stored_path import stored_path

import wkwdask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GOLDEN = Path(__file__).parent.parent / "golden" / "error_texts.txt"

SIZE = (12, 8, 8)
NOWHERE = "https://127.0.0.1:9/volume"
"""URL of a port without a server."""
NOBODY = 65534
OTHER_PROCESS = "20260101T000000-00000000"

# layers of other formats than WKW have the errors of these formats
_FORMS = {
    form.name: form
    for form in FORMS
    if form.name not in ("toy", "ngff-thirds") and not form.name.startswith("layer-")
}
_LEVELS = frozenset(
    {"wkw", "precomputed", "precomputed-sharded", "n5", "ngff-0.4", "ngff-0.5", "ngff-0.6"}
)
"""Formats of images, which have levels."""
_WHOLE = ("wkw", "precomputed", "n5", "ngff-0.5")
"""Formats that differ in more than their files."""
_VERBS_OF_FILES = (
    "read", "info", "verify", "repair", "write_region", "build_pyramid", "rechunk_in_place",
    "rechunk", "convert", "save",
)  # fmt: skip
"""Verbs for all formats."""
_VERBS_OF_FORMATS = (*_VERBS_OF_FILES, "update_pyramid", "upsample", "rm", "apply", "copy")
"""Verbs with all situations of each whole format."""
_SITUATIONS_OF_FORMATS = (
    "missing source", "first chunk file is of other bytes", "mag is missing",
    "bounding_box is outside", "target exists", "locked by another machine",
)  # fmt: skip
"""Situations of the other verbs, where WKW has all."""
_VERBS_OF_OPTIONS = ("save", "build_pyramid", "rechunk")
_VERBS_OF_PICTURES = ("convert", "apply", "rechunk", "copy", "save")


# ---------------------------------------------------------------------------- images


@dataclass(frozen=True)
class Place:
    """Folder with an image of two mags, and the URLs of a call."""

    form: Form
    folder: Path
    source_name: str = "image"
    target_name: str = "target"
    source_url: str | None = None
    target_url: str | None = None
    server: str = ""
    """URL of the folder."""

    @property
    def image(self) -> str:
        """URL of the source image."""
        return self.source_url or self.form.url(self.folder, self.source_name)

    @property
    def source(self) -> str:
        """URL of mag 1 of the source."""
        return self.image + self.form.finest

    @property
    def target_image(self) -> str:
        """URL of the new image."""
        return self.target_url or self.form.url(self.folder, self.target_name)

    @property
    def target(self) -> str:
        """URL of mag 1 of the new image."""
        return self.target_image + self.form.finest

    @property
    def documents(self) -> list[Path]:
        """Metadata of the image and of its mag 1."""
        names = (
            "datasource-properties.json",
            "header.wkw",
            "info",
            "attributes.json",
            "zarr.json",
            ".zarray",
            ".zattrs",
            ".zgroup",
        )
        image = stored_path(self.image)
        folders = [image.parent, image, *(image / name for name in ("1", "s0"))]
        return [folder / name for folder in folders for name in names if (folder / name).is_file()]

    @property
    def chunks(self) -> list[Path]:
        """Files with the voxels of mag 1."""
        documents = {*self.documents}
        return sorted(
            path
            for path in self.levels[0].rglob("*")
            if path.is_file() and path not in documents and not path.name.startswith(".")
        )

    @property
    def levels(self) -> list[Path]:
        """Folders of the mags, finest first."""
        image = stored_path(self.image)
        names = ("1", "s0", "4_4_8", "2", "s1", "8_8_16") if self.form.name in _LEVELS else ()
        return [image / name for name in names if (image / name).is_dir()] or [image]


def _save(form: Form, folder: Path, *, labels: bool) -> None:
    rng = np.random.default_rng(0)
    array = rng.integers(1, 5 if labels else 200, (1, *SIZE)).astype(
        "uint32" if labels else "uint8"
    )
    options: dict[str, Any] = {}
    if labels:
        options = (
            {"type": "segmentation"}
            if form.name.startswith("precomputed")
            else {"category": "segmentation"}
        )
    # sizes of files do not depend on a library
    if form.name in ("wkw", "n5", "precomputed-sharded"):
        options["compression"] = "lz4" if form.name == "wkw" else "raw"
    url = form.url(folder, "image")
    form.save(array, url, (0, 0, 0), **options)
    if form.name in _LEVELS:
        wkwdask.build_pyramid(url, mags=["2"], method="mode" if labels else "max")


# ---------------------------------------------------------------------------- verbs


@dataclass(frozen=True)
class Verb:
    """A call on an image."""

    name: str
    call: Callable[..., Any]
    """``call(place, **options)``."""
    function: Callable[..., Any]
    """The public function, whose parameters are options."""
    labels: bool = False
    """Whether the source is a segmentation."""
    reads: bool = True
    """Whether the image is a source."""
    changes: bool = False
    """Whether the image changes in place."""
    writes: bool = False
    """Whether the verb makes a new image."""
    forms: frozenset[str] = frozenset(_FORMS)
    """Formats with which the verb runs."""
    others: tuple[tuple[str, Any], ...] = ()
    """Options of another job, for resumption."""


def _read_many(at: Place, **options: Any) -> Any:
    return wkwdask.read_many(at.source, options.pop("boxes", [((0, 0, 0), (4, 4, 4))]), **options)


def _sample(at: Place, **options: Any) -> Any:
    return wkwdask.sample(at.source, options.pop("points", [(0, 0, 0)]), **options)


def _preview(at: Place, **options: Any) -> Any:
    return wkwdask.preview(at.image, options.pop("output", at.folder / "picture.png"), **options)


def _array(at: Place, dtype: str = "uint8", size: tuple[int, int, int] = (4, 4, 4)) -> np.ndarray:
    return np.ones((1, *size), dtype)


def _write(at: Place, **options: Any) -> Any:
    return wkwdask.write(
        at.target, options.pop("offset", (0, 0, 0)), options.pop("array", _array(at)), **options
    )


def _write_region(at: Place, **options: Any) -> Any:
    region = options.pop("region", ((0, 0, 0), (4, 4, 4)))
    return wkwdask.write(
        at.source,
        options.pop("offset", None),
        options.pop("array", _array(at)),
        region=region,
        **options,
    )


def _create(at: Place, **options: Any) -> Any:
    box = options.pop("box", ((0, 0, 0), (8, 8, 8)))
    return wkwdask.create(
        at.target, box, options.pop("dtype", "uint8"), **{"voxel_size": VOXEL_SIZE, **options}
    )


def _inverse(voxels: np.ndarray) -> np.ndarray:
    return voxels.dtype.type(200) - voxels


def _positive(voxels: np.ndarray) -> np.ndarray:
    labels: np.ndarray = voxels > 0
    return labels


def _convert(at: Place, function: Callable[..., Any] = wkwdask.convert, **options: Any) -> Any:
    folder = options.pop(
        "target", f"{at.folder}/converted" if at.target_url is None else at.target_url
    )
    return function(at.image, folder, **{"layer": "image", "voxel_size": VOXEL_SIZE, **options})


def _open(at: Place, **options: Any) -> Any:
    return wkwdask.open(at.source, **options).compute()


def _make_verb(
    name: str, call: Callable[..., Any], function: str = "", others: Any = None, **kind: Any
) -> Verb:
    """Make a verb; options of another job are given as a dict."""
    of = getattr(wkwdask, function or name)
    return Verb(name, call, of, others=tuple((others or {}).items()), **kind)


def _on_image(function: str, **options: Any) -> Callable[..., Any]:
    """Return a call on the URL of an image."""
    return lambda at, **others: getattr(wkwdask, function)(at.image, **{**options, **others})


def _on_source(function: str) -> Callable[..., Any]:
    """Return a call on the URL of mag 1."""
    return lambda at, **others: getattr(wkwdask, function)(at.source, **others)


def _to_target(function: str, **options: Any) -> Callable[..., Any]:
    """Return a call on mag 1 of the image and of its target."""
    return lambda at, **others: getattr(wkwdask, function)(
        at.source, at.target, **{**options, **others}
    )


def _diff(at: Place, **options: Any) -> Any:
    return wkwdask.diff(at.image, options.pop("second", at.image), **options)


def _open_dataset(at: Place, **options: Any) -> Any:
    return wkwdask.open_dataset(at.image.rpartition("/")[0], **options)


def _save_new(at: Place, **options: Any) -> Any:
    return wkwdask.save(_array(at), at.target, **{"voxel_size": VOXEL_SIZE, **options})


def _apply(at: Place, **options: Any) -> Any:
    return wkwdask.apply(_inverse, at.source, options.pop("target", at.target), **options)


def _segment(at: Place, **options: Any) -> Any:
    target, blocks = options.pop("target", at.target), {"halo": 0, "chunks": 64}
    return wkwdask.segment(_positive, at.source, target, **{**blocks, **options})


def _rechunk_in_place(at: Place, **options: Any) -> Any:
    return wkwdask.rechunk(at.image, **{**at.form.other_chunks, **options})


def _rechunk(at: Place, **options: Any) -> Any:
    return wkwdask.rechunk(at.source, at.target, **{**at.form.other_chunks, **options})


def _compress_in_place(at: Place, **options: Any) -> Any:
    return wkwdask.compress(at.image, **{"compression": at.form.compression, **options})


def _compress(at: Place, **options: Any) -> Any:
    return wkwdask.compress(at.source, at.target, **{"compression": at.form.compression, **options})


def _copy(at: Place, **options: Any) -> Any:
    return wkwdask.copy(at.image, at.target_image, **options)


def _verbs() -> Iterator[Verb]:
    labels, levels = {"labels": True}, {"forms": _LEVELS}
    new: dict[str, Any] = {"writes": True, "reads": False}
    make = _make_verb
    for name in ("read", "histogram", "contrast"):
        yield make(name, _on_source(name))
    yield make("read_many", _read_many)
    yield make("open", _open)
    yield make("sample", _sample)
    for name in ("info", "verify", "check_manifest", "zarr_view"):
        yield make(name, _on_image(name))
    yield make("preview", _preview)
    yield make("verify_pyramid", _on_image("verify", pyramid=True), "verify", **levels)
    yield make("diff", _diff)
    yield make("label_statistics", _on_source("label_statistics"), **labels)
    yield make("plan_pyramid", _on_image("plan_pyramid", mags=["4"]))
    yield make("plan_convert", partial(_convert, function=wkwdask.plan_convert))
    yield make("open_dataset", _open_dataset, forms=frozenset({"wkw"}))
    for name in ("write_manifest", "rm", "repair", "write_zarr_view", "remove_zarr_view"):
        yield make(name, _on_image(name), changes=True)
    yield make("n5_as_zarr", _on_image("n5_as_zarr", write=True), changes=True)
    yield make("write_region", _write_region, "write", changes=True)
    build = _on_image("build_pyramid", mags=["4"], method="max")
    yield make("build_pyramid", build, others={"method": "min"}, changes=True)
    update = _on_image("build_pyramid", mags=["2"], update=True)
    yield make("update_pyramid", update, "build_pyramid", changes=True, **levels)
    yield make("upsample", _on_image("upsample", source="2", mags=["1"]), changes=True, **levels)
    yield make("rechunk_in_place", _rechunk_in_place, "rechunk", changes=True)
    yield make("compress_in_place", _compress_in_place, "compress", changes=True)
    yield make("write", _write, **new)
    yield make("save", _save_new, **new)
    yield make("create", _create, **new)
    yield make("apply", _apply, others={"channels": 2}, writes=True)
    yield make("segment", _segment, others={"min_voxels": 3}, writes=True)
    components = _to_target("connected_components")
    six = {"connectivity": 6}
    yield make("connected_components", components, others=six, writes=True, **labels)
    remap = _to_target("remap", mapping={1: 2})
    yield make("remap", remap, others={"mapping": {1: 3}}, writes=True, **labels)
    dust = _to_target("remove_dust", min_voxels=2)
    yield make("remove_dust", dust, others={"min_voxels": 3}, writes=True, **labels)
    renumber = _to_target("renumber")
    yield make("renumber", renumber, others={"dtype": "uint16"}, writes=True, **labels)
    yield make("rechunk", _rechunk, others={"compression": "raw"}, writes=True)
    yield make("compress", _compress, others={"compression": "raw"}, writes=True)
    yield make("copy", _copy, others={"bounding_box": [0, 0, 0, 8, 8, 8]}, writes=True)
    yield make("convert", _convert, others={"dtype": "uint16"}, writes=True)
    meshes = _on_image("meshes", cell=8)
    yield make("meshes", meshes, others={"reduction": 2}, forms=_LEVELS, **labels)


VERBS = tuple(_verbs())


# ---------------------------------------------------------------------------- situations


@dataclass(frozen=True)
class Row:
    """A call whose error is recorded."""

    verb: Verb
    form: Form
    situation: str
    prepare: Callable[[Place], Place | None] = lambda at: None
    """Changes files, and returns other URLs where the call takes others."""
    options: tuple[tuple[str, Any], ...] = ()
    before: Callable[[Verb, Place], None] | None = None
    """Runs the verb before."""
    as_nobody: bool = False

    @property
    def head(self) -> str:
        """First three columns."""
        return f"{self.verb.name} | {self.form.name} | {self.situation}"


def _rows() -> Iterator[Row]:
    for form in _FORMS.values():
        for verb in VERBS:
            if form.name in verb.forms and (form.name in _WHOLE or verb.name in _VERBS_OF_FILES):
                yield from (row for row in _rows_of(verb, form) if _is_run(row))


def _is_run(row: Row) -> bool:
    """Leave out what other formats would repeat."""
    in_wkw = row.form.name == "wkw"
    return in_wkw or row.verb.name in _VERBS_OF_FORMATS or row.situation in _SITUATIONS_OF_FORMATS


def _rows_of(verb: Verb, form: Form) -> Iterator[Row]:
    parameters = inspect.signature(verb.function).parameters
    if verb.reads:
        yield from _rows_of_files(verb, form)
    if verb.name == "read":
        yield from _nonsense(verb, form)
    if verb.name in _VERBS_OF_OPTIONS:
        for name, value in _OPTIONS.items():
            yield Row(verb, form, f"{name}={value!r}", options=((name, value),))
    if verb.changes or verb.writes:
        yield Row(verb, form, "locked by another machine", partial(_lock, verb, far_process))
    if form.name == "wkw":
        yield from _wrong_arguments(verb, form, parameters)
        yield Row(verb, form, "locked by this machine", partial(_lock, verb, this_process))
    if form.name in _WHOLE:
        yield from _rows_of_places(verb, form, parameters)
        yield from _rows_of_targets(verb, form)
        yield from _rows_of_resumption(verb, form, parameters)


def _rows_of_places(verb: Verb, form: Form, parameters: Any) -> Iterator[Row]:
    of_region = {"region"} if verb.name == "write_region" else set()
    for name, value in _MISSING_MAGS.items():
        if name in parameters and parameters[name].kind is inspect.Parameter.KEYWORD_ONLY:
            yield Row(verb, form, f"{name} is missing", options=((name, value),))
    for name, value in _OUTSIDE.items():
        if name in {*parameters, *of_region}:
            yield Row(verb, form, f"{name} is outside", options=((name, value),))


def _rows_of_targets(verb: Verb, form: Form) -> Iterator[Row]:
    if not verb.writes:
        return
    pictures = _PICTURES if verb.name in _VERBS_OF_PICTURES else {}
    for name, prepare in {**_TARGETS, **pictures}.items():
        yield Row(verb, form, f"target {name}", prepare)
    yield Row(verb, form, "target not writable", as_nobody=True)


def _rows_of_resumption(verb: Verb, form: Form, parameters: Any) -> Iterator[Row]:
    if "existing" not in parameters or not verb.reads:
        return
    row = Row(verb, form, "resume without a job", options=(("existing", "resume"),))
    others = (*row.options, *verb.others)
    changed = replace(row, situation="resume after the source changed", prepare=_keep_copy)
    yield row
    yield replace(changed, before=_fail_and_change)
    yield replace(row, situation="resume with other options", options=others, before=_complete)
    yield Row(verb, form, "again after a failure", _keep_copy, before=_fail)


def _rows_of_files(verb: Verb, form: Form) -> Iterator[Row]:
    yield Row(verb, form, "missing source", lambda at: replace(at, source_name="absent"))
    if verb.name in _VERBS_OF_FILES:
        yield Row(verb, form, "source is a text file", _text_as_source)
    for number, name in product(range(_documents_of(form)), _DAMAGED_DOCUMENTS):
        if name != "is a list" or verb.name in ("read", "info"):
            yield Row(
                verb,
                form,
                f"document {number} {name}",
                partial(_damage_document, number, _DAMAGED_DOCUMENTS[name]),
            )
    for name, damage in _DAMAGED_CHUNKS.items():
        if name in ("is cut off", "is of other bytes") or verb.name in ("read", "verify", "repair"):
            yield Row(verb, form, f"first chunk file {name}", partial(_damage_chunk, damage))
    if verb.changes:
        for name, prepare in _READ_ONLY_SOURCES.items():
            yield Row(verb, form, name, prepare)
        yield Row(verb, form, "mag 1 is a link out of the image", partial(_link_level, 0))
        yield Row(verb, form, "mag 1 is a dangling link", _dangling_level)
        yield Row(verb, form, "not writable", as_nobody=True)


def _documents_of(form: Form) -> int:
    return {"wkw": 2, "n5": 2, "ngff-0.4": 3, "ngff-0.5": 2, "ngff-0.6": 2}.get(form.name, 1)


def _cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


_DAMAGED_DOCUMENTS: dict[str, Callable[[Path], Any]] = {
    "is missing": Path.unlink,
    "is cut off": _cut_off,
    "is a list": lambda path: path.write_bytes(b"[]"),
}
_DAMAGED_CHUNKS: dict[str, Callable[[Path], Any]] = {
    "is empty": lambda path: path.write_bytes(b""),
    "is cut off": _cut_off,
    "is a folder": lambda path: (path.unlink(), path.mkdir()),
    "is of other bytes": lambda path: path.write_bytes(b"\xff" * path.stat().st_size),
}
_MISSING_MAGS = {"mag": "64", "mags": ["64"], "finest": "64", "source": "64", "color_mag": "64"}
_FAR = (1000, 1000, 1000)
_FAR_BOX = (_FAR, (1010, 1010, 1010))
_OUTSIDE = {
    "box": _FAR_BOX, "region": _FAR_BOX, "where": _FAR_BOX, "boxes": [_FAR_BOX],
    "points": [_FAR], "bounding_box": [*_FAR, 10, 10, 10], "channel": 7, "channels": 7,
}  # fmt: skip


def _damage_document(number: int, damage: Callable[[Path], Any], at: Place) -> None:
    damage(at.documents[number])


def _damage_chunk(damage: Callable[[Path], Any], at: Place) -> None:
    damage(at.chunks[0])


def _text_as_source(at: Place) -> Place:
    (at.folder / "text").write_text("text")
    return replace(at, source_url=f"{_prefix(at)}{at.folder}/text")


# Wrong arguments


_WRONG = {"no": "value"}
_ANY_VALUE = frozenset(
    {
        "url",
        "source",
        "target",
        "array",
        "function",
        "sources",
        "options",
        "first",
        "storage_options",
        "compute",
        "output",
        "token",
    }
)
"""Parameters of the call itself, and those that take anything."""


def _wrong_arguments(verb: Verb, form: Form, parameters: Any) -> Iterator[Row]:
    for name, parameter in parameters.items():
        if name not in _ANY_VALUE and not isinstance(parameter.default, bool):
            yield Row(verb, form, f"{name} is a dict", options=((name, _WRONG),))
            yield Row(verb, form, f"{name} is a text", options=((name, "nonsense"),))
    if verb.writes and "options" in parameters:
        yield Row(verb, form, "unknown option", options=(("no_such_option", 1),))


_OPTIONS = {
    "chunk_shape": (0, 1, 2), "shard_shape": "wide", "compression": "none at all", "level": 99,
    "block_len": 3, "file_len": 0, "encoding": "morse", "quality": 1000, "ngff": "0.1",
}  # fmt: skip


# Values of documents


def _nonsense(verb: Verb, form: Form) -> Iterator[Row]:
    for number in range(_documents_of(form)):
        for place in _PLACES_OF_VALUES.get((form.name, number), ()):
            for value in ("nonsense", -1):
                name = ".".join(map(str, place))
                yield Row(
                    verb,
                    form,
                    f"document {number}: {name} is {value!r}",
                    partial(_set_value, number, place, value),
                )


_PLACES_OF_VALUES: dict[tuple[str, int], list[tuple[str | int, ...]]] = {}


def _find_values(template: Place) -> None:
    for number, path in enumerate(template.documents):
        with contextlib.suppress(ValueError):
            _PLACES_OF_VALUES[template.form.name, number] = list(
                _places(json.loads(path.read_bytes()))
            )


def _places(value: Any) -> Iterator[tuple[str | int, ...]]:
    """Yield the places of all values, and of the first of each list."""
    items = (
        value.items()
        if isinstance(value, dict)
        else [*enumerate(value)][:1]
        if isinstance(value, list)
        else []
    )
    for key, inner in items:
        yield (key,)
        for rest in _places(inner):
            yield (key, *rest)


def _set_value(number: int, place: tuple[str | int, ...], value: Any, at: Place) -> None:
    path = at.documents[number]
    document = json.loads(path.read_bytes())
    inner = document
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    path.write_text(json.dumps(document))


# Read-only sources and links


def _in_zip(at: Place) -> Place:
    inside = stored_path(at.image)
    with zipfile.ZipFile(at.folder / "a.zip", "w") as archive:
        for path in sorted(inside.parent.rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(at.folder).as_posix())
    return replace(
        at, source_url=f"{_prefix(at)}{at.folder}/a.zip|zip:{inside.relative_to(at.folder)}"
    )


def _prefix(at: Place) -> str:
    """Return the prefix of the format in URLs."""
    return f"{at.image.partition('://')[0]}://" if "://" in at.image else ""


def _on_server(at: Place) -> Place:
    inside = stored_path(at.image).relative_to(at.folder)
    return replace(at, source_url=f"{_prefix(at)}{at.server}/{inside}")


_READ_ONLY_SOURCES = {"source in a zip": _in_zip, "source on a web server": _on_server}


def _link_level(number: int, at: Place) -> None:
    path = at.levels[number]
    path.rename(at.folder / "elsewhere")
    path.symlink_to(at.folder / "elsewhere")


def _dangling_level(at: Place) -> None:
    _link_level(0, at)
    (at.folder / "elsewhere").rename(at.folder / "moved")


# Targets


def _other_target(
    name: str, prepare: Callable[[Place], Any] = lambda at: None, *, prefixed: bool = True
) -> Callable[[Place], Place]:
    def change(at: Place) -> Place:
        prepare(at)
        return replace(
            at, target_url=f"{_prefix(at) if prefixed else ''}{name.format(folder=at.folder)}"
        )

    return change


def _existing_target(at: Place) -> None:
    at.form.save(_array(at, size=(8, 8, 8)), at.target_image, (0, 0, 0))
    shutil.copytree(
        stored_path(at.image).parent, at.folder / "converted"
    ) if at.form.name == "wkw" else None


def _text_at(name: str) -> Callable[[Place], Any]:
    return lambda at: (at.folder / name).write_text("text")


def _link_to_nowhere(at: Place) -> None:
    (at.folder / "link").symlink_to(at.folder / "nowhere")


def _filled_folder(at: Place) -> None:
    (at.folder / "filled").mkdir()
    (at.folder / "filled" / "notes.txt").write_text("text")


_TARGETS: dict[str, Callable[[Place], Place | None]] = {
    "exists": _existing_target,
    "is the source": lambda at: replace(at, target_url=at.image),
    "is below the source": lambda at: replace(at, target_url=f"{at.image}/below"),
    "is a text file": _other_target("{folder}/text", _text_at("text")),
    "is below a text file": _other_target("{folder}/text/target", _text_at("text")),
    "is below a dangling link": _other_target("{folder}/link/target", _link_to_nowhere),
    "is a folder of other files": _other_target("{folder}/filled", _filled_folder),
    "is in a missing zip": _other_target("{folder}/b.zip|zip:target"),
    "is on a web server": _other_target(NOWHERE),
    "has an unknown prefix": _other_target("tape://{folder}/a", prefixed=False),
}
_PICTURES = {
    "is a .tif": _other_target("{folder}/a.tif", prefixed=False),
    "is a .h5": _other_target("{folder}/a.h5", prefixed=False),
    "is a .png": _other_target("{folder}/a.png", prefixed=False),
}


def _lock(verb: Verb, owner: Callable[..., dict[str, Any]], at: Place) -> None:
    if verb.changes:
        targets = [
            stored_path(at.image),
            *at.levels,
            *(stored_path(at.image) / name for name in ("4", "4-4-4", "16_16_32", "s2")),
        ]
    else:
        targets = [
            stored_path(at.target_image),
            stored_path(at.target),
            stored_path(at.target_image) / "1",
            at.folder / "converted",
            at.folder / "converted/image/1",
        ]
    for target in dict.fromkeys(targets):
        put_lock(target, owner(job=OTHER_PROCESS))


# Resumption


def _complete(verb: Verb, at: Place) -> None:
    verb.call(at)


def _keep_copy(at: Place) -> None:
    """Keep the last chunk, and damage it."""
    path = at.chunks[-1]
    (at.folder / "kept").write_bytes(path.read_bytes())
    path.write_bytes(b"\xff" * path.stat().st_size)


def _fail(verb: Verb, at: Place) -> None:
    """Let a damaged chunk end the job, then put the sound one back."""
    with contextlib.suppress(Exception):
        verb.call(at)
    with contextlib.suppress(OSError, IndexError):
        at.chunks[-1].write_bytes((at.folder / "kept").read_bytes())


def _fail_and_change(verb: Verb, at: Place) -> None:
    _fail(verb, at)
    dtype = "uint32" if verb.labels else "uint8"
    with contextlib.suppress(Exception):
        wkwdask.write(at.source, None, _array(at, dtype, SIZE), region=((0, 0, 0), SIZE))


# ---------------------------------------------------------------------------- errors as text


def error_texts(folder: Path) -> dict[str, str | None]:
    """Run all calls below an empty folder that every user may enter.

    Parameters
    ----------
    folder : Path
        The folder.

    Returns
    -------
    dict
        The last column by the first three, None where a package is missing.
    """
    found: dict[str, str | None] = {}
    environment = {"WKWDASK_PROGRESS": "off", "XDG_STATE_HOME": str(folder / "state")}
    with (
        dask.config.set(scheduler="synchronous"),
        warnings.catch_warnings(),
        mock.patch.dict(os.environ, environment),
        range_server(folder) as server,
    ):
        warnings.simplefilter("ignore")
        templates = _templates(folder)
        for number, row in enumerate(_rows()):
            assert row.head not in found, row.head
            template = templates.get((row.form.name, row.verb.labels))
            if template is None:
                found[row.head] = None
                continue
            name = f"{number:05}"
            place = Place(row.form, folder / name, server=f"{server.url}/{name}")
            shutil.copytree(template, place.folder, symlinks=True)
            found[row.head] = _outcome(row, place)
            shutil.rmtree(place.folder)
    return found


def comparable(found: dict[str, str | None], recorded: list[str]) -> tuple[list[str], list[str]]:
    """Return the lines of two sets of rows without those that need a missing package."""
    missing = {head for head, text in found.items() if text is None}
    formats = {head.split(" | ")[1] for head, text in found.items() if text is not None}
    kept = []
    for line in recorded:
        verb, form, situation, _ = line.split(" | ", 3)
        if form in formats and f"{verb} | {form} | {situation}" not in missing:
            kept.append(line)
    return lines(found), kept


def lines(found: dict[str, str | None]) -> list[str]:
    """Return the recorded form of rows."""
    return [f"{head} | {text}" for head, text in found.items() if text is not None]


def _templates(folder: Path) -> dict[tuple[str, bool], Path]:
    found = {}
    for form in _FORMS.values():
        for labels in (False, True):
            place = Place(form, folder / f"{form.name}-{'labels' if labels else 'image'}")
            place.folder.mkdir()
            try:
                _save(form, place.folder, labels=labels)
            except ImportError:
                continue
            found[form.name, labels] = place.folder
            if not labels:
                _find_values(place)
    return found


def _outcome(row: Row, place: Place) -> str | None:
    """Make the call and write its outcome; None where a package is missing."""
    at = row.prepare(place) or place
    nobody = _nobody(place.folder) if row.as_nobody else contextlib.nullcontext()
    try:
        with contextlib.chdir(place.folder), nobody:
            if row.before is not None:
                row.before(row.verb, at)
            text = _text_of_result(row.verb.call(at, **dict(row.options)))
    except ImportError:
        return None
    except Exception as error:
        text = _text_of(error)
    return _normalised(text.replace(place.server, "<server>"), place.folder)


@contextlib.contextmanager
def _nobody(folder: Path) -> Iterator[None]:
    """Let nothing below a folder be writable."""
    if os.geteuid() == 0:
        os.seteuid(NOBODY)
        try:
            yield
        finally:
            os.seteuid(0)
        return
    paths = [path for path in (folder, *folder.rglob("*")) if not path.is_symlink()]
    modes = {path: path.stat().st_mode for path in paths}
    for path, mode in modes.items():
        path.chmod(mode & 0o555)
    try:
        yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


_PACKAGE = Path(wkwdask.__file__).parent


def _text_of(error: Exception) -> str:
    """Write the class and the text; that of Python or of a library differs between versions."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    is_raised = Path(last.filename).is_relative_to(_PACKAGE) and (last.line or "")[:5] == "raise"
    is_ours = isinstance(error, (wkwdask.WkwDaskError, OSError)) or is_raised
    text = str(error) if is_ours else "(text of Python or a library)"
    notes = (f" [note: {note}]" for note in getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {text}{''.join(notes)}"


def _text_of_result(result: Any) -> str:
    """Write that the call succeeded, and the faults of a report."""
    lists = {name: getattr(result, name, ()) for name in ("actions", "faults", "remaining")}
    return "; ".join(
        ["no error", *(f"{name}: {each}" for name, some in lists.items() for each in some)]
    )


_NORMALISED = (
    (r"\n", r"\\n"),
    (r"0x[0-9a-f]{6,}", "<address>"),
    (r"\.[0-9a-f]{16}\.wkwdask-tmp", ".<random>.wkwdask-tmp"),
    (r"(computed by )[\w.]+:", r"\1<module>:"),
    (r"[\w.]+:(_inverse|_positive)", r"<module>:\1"),
    (r"ZSTD_\w+ returned '[^']*'", "<text of the codec>"),
    (rf"\b{os.getpid()}\b", "<pid>"),
)
"""Patterns of what differs between runs, machines and versions of other software."""


def _normalised(text: str, folder: Path) -> str:
    """Replace what differs between runs."""
    text = text.replace(str(folder), "<root>").replace(str(folder.parent), "<other>")
    text = text.replace(socket.gethostname(), "<host>")
    for pattern, value in _NORMALISED:
        text = re.sub(pattern, value, text)
    return text


@contextlib.contextmanager
def public_folder() -> Iterator[Path]:
    """Make a temporary folder that every user may enter."""
    memory = Path("/dev/shm")  # calls sync many small files
    with tempfile.TemporaryDirectory(
        dir=memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    ) as folder:
        os.chmod(folder, 0o755)
        yield Path(folder).resolve()


if __name__ == "__main__":
    with public_folder() as root:
        GOLDEN.write_text("\n".join(lines(error_texts(root))) + "\n")
