"""N5 data as Zarr v3: the ``zarr.json`` of each group and dataset, written beside the
``attributes.json`` or removed."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import TYPE_CHECKING, Any

from wkwdask.errors import ExistsError, FormatError, UnsupportedError
from wkwdask.formats.marks import is_view
from wkwdask.formats.n5.array import dataset_of, n5_array, read_attributes
from wkwdask.formats.n5.attributes import DATASET_KEYS, FILE_NAME, is_dataset, parse_dataset
from wkwdask.formats.n5.block import VARLENGTH, Compression, format_header, header_nbytes
from wkwdask.formats.n5.layer import find_n5_layers, location_of, outermost_group
from wkwdask.formats.roots import Root
from wkwdask.formats.zarr.documents import FILE_NAME as ZARR_NAME
from wkwdask.formats.zarr.documents import generic_array_document, group_document
from wkwdask.formats.zarr.ngff import ImageAxes, PyramidLevel, multiscale
from wkwdask.model.json_text import JsonObject
from wkwdask.model.levels import lengths_in
from wkwdask.model.naming import GridNaming
from wkwdask.store import by_path
from wkwdask.store.locks import locked_file
from wkwdask.store.paths import split
from wkwdask.store.store import check_folder, open_store, store_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from wkwdask.formats.format import Url
    from wkwdask.formats.n5.attributes import N5Dataset
    from wkwdask.model.image import Image
    from wkwdask.model.stored_array import StoredArray


_BLOSC_NAMES = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
_BLOSC_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")


def to_zarr_codec(compression: Compression, itemsize: int, source: str) -> JsonObject | None:
    """Return the Zarr v3 codec of the same bytes, None for raw."""
    kind = compression.stream
    if kind == "raw":
        return None
    if kind == "lz4":
        raise UnsupportedError(
            f"{source}: Zarr has no codec for the lz4 of N5, the block stream of lz4-java; open "
            "the dataset with wkwdask instead"
        )
    level = _whole(compression.option("level"), -1)
    if kind == "gzip":
        return _codec("gzip", level=level if 0 <= level <= 9 else 6)
    if kind == "zlib":
        return _codec("numcodecs.zlib", level=level if 0 <= level <= 9 else 6)
    if kind == "bzip2":
        return _codec("numcodecs.bz2", level=_whole(compression.option("blockSize"), 9))
    if kind == "xz":
        return _codec(
            "numcodecs.lzma",
            format=1,
            check=-1,
            preset=_whole(compression.option("preset"), 6),
            filters=None,
        )
    if kind == "zstd":
        return _codec("zstd", level=max(level, 0), checksum=False)
    shuffle = _whole(compression.option("shuffle"), 1)
    shuffle = shuffle if 0 <= shuffle <= 2 else 2 if itemsize == 1 else 1
    name = compression.option("cname")
    return _codec(
        "blosc",
        typesize=itemsize,
        cname=name if name in _BLOSC_NAMES else "blosclz",
        clevel=_whole(compression.option("clevel"), 5),
        shuffle=_BLOSC_SHUFFLES[shuffle],
        blocksize=_whole(compression.option("blocksize"), 0),
    )


def _codec(name: str, **configuration: Any) -> JsonObject:
    return {"name": name, "configuration": configuration}


def _whole(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def from_zarr_codec(codec: JsonObject) -> Compression | None:
    """Return the N5 compression of the same bytes as a Zarr v3 codec; None if N5 has none.

    Examples
    --------
    >>> from_zarr_codec({"name": "gzip", "configuration": {"level": 5}}).to_json()
    {'type': 'gzip', 'level': 5, 'useZlib': False}
    """
    name = str(codec.get("name")).removeprefix("numcodecs.")
    settings = codec.get("configuration") or {}
    if name in ("gzip", "zlib"):
        return Compression(
            "gzip", (("level", settings.get("level", 6)), ("useZlib", name == "zlib"))
        )
    if name == "bz2":
        return Compression("bzip2", (("blockSize", settings.get("level", 9)),))
    if name == "lzma":
        is_xz = settings.get("format", 1) == 1 and not settings.get("filters")
        return (
            Compression("xz", (("preset", _whole(settings.get("preset"), 6)),)) if is_xz else None
        )
    if name == "zstd":
        return Compression("zstd", (("level", settings.get("level", 0)),))
    if name == "blosc":
        shuffle = settings.get("shuffle", "shuffle")
        number = (
            _BLOSC_SHUFFLES.index(shuffle) if shuffle in _BLOSC_SHUFFLES else _whole(shuffle, 1)
        )
        options = {
            "cname": settings.get("cname", "blosclz"),
            "clevel": settings.get("clevel", 5),
            "shuffle": number,
            "blocksize": settings.get("blocksize", 0),
        }
        return Compression("blosc", tuple(options.items()))
    return None


FORMS = ("n5_default", "offset")
CODEC_NAME = "n5_default"
N5_MARK = "_n5"
"""Attribute with the N5 storage of a dataset; it marks a ``zarr.json`` that was derived from an
``attributes.json``."""


def n5_array_document(
    dataset: N5Dataset,
    source: str,
    form: str = CODEC_NAME,
    axes: Sequence[str] | None = None,
    mode: int = 0,
) -> JsonObject:
    compressor = to_zarr_codec(dataset.compression, dataset.dtype.itemsize, source)
    inner = inner_codecs(len(dataset.dimensions), compressor)
    if form == CODEC_NAME:
        codecs = [{"name": CODEC_NAME, "configuration": {"codecs": inner}}]
    else:
        header = format_header(dataset.block_size, mode)
        codecs = [
            *inner,
            {
                "name": "offset",
                "configuration": {
                    "offset": len(header),
                    "prefix": base64.b64encode(header).decode(),
                },
            },
        ]
    document = generic_array_document(
        dataset.dimensions,
        dataset.dtype,
        dataset.block_size,
        codecs,
        _attributes(dataset.document),
        "v2",
    )
    return document if axes is None else {**document, "dimension_names": list(axes)}


def n5_group_document(attributes: Mapping[str, Any] | None) -> JsonObject:
    """Return the ``zarr.json`` of a group; a group needs no ``attributes.json``."""
    return group_document(_attributes(attributes or {}))


def _attributes(document: Mapping[str, Any]) -> JsonObject:
    """Return the user attributes, and those of N5 under :data:`N5_MARK`."""
    user_attributes = {
        name: value
        for name, value in document.items()
        if name not in DATASET_KEYS and name != N5_MARK
    }
    return {
        **user_attributes,
        N5_MARK: {name: document[name] for name in DATASET_KEYS if name in document},
    }


def inner_codecs(num_axes: int, compressor: Mapping[str, Any] | None = None) -> list[JsonObject]:
    """Return the Zarr codecs of the values of a block: reversed axes (N5 stores the first axis
    fastest), big-endian, at most one compressor."""
    transpose = {"name": "transpose", "configuration": {"order": list(range(num_axes))[::-1]}}
    return [
        transpose,
        {"name": "bytes", "configuration": {"endian": "big"}},
        *([] if compressor is None else [dict(compressor)]),
    ]


Documents = dict[str, JsonObject]


def zarr_documents(url: Url, form: str = CODEC_NAME) -> Documents:
    """Return each ``zarr.json`` of N5 data by its key; see
    :func:`wkwdask.api.zarr_views.n5_as_zarr`."""
    if form not in FORMS:
        raise ValueError(f"form must be {' or '.join(map(repr, FORMS))}, got {form!r}")
    root = location_of(url)
    store = open_store(root)
    documents: Documents = {}
    broken: dict[str, Exception] = {}

    def add(key: str, volume: StoredArray, names: list[str] | None) -> None:
        mode = _common_block_mode(volume) if form != CODEC_NAME else 0
        documents[_document_key(key)] = n5_array_document(
            dataset_of(volume), f"{volume.name}/{FILE_NAME}", form, names, mode
        )

    for layer in _layers(url, root if store.can.states else None):
        # None if the URL names one level: its group lies above the root, and gets no document.
        group_key = layer.folder[len(root) :].strip("/") if layer.folder.startswith(root) else None
        for level in layer.selected:
            key = "" if group_key is None else "/".join(filter(None, (group_key, level.key)))
            if level.problem:
                broken[_document_key(key)] = level.error(level.problem)
            else:
                volume = level.open()
                letters = [
                    letter if letter != "-" else f"dim_{n}"
                    for n, letter in enumerate(_axes(volume))
                ]
                add(key, volume, declared_axis_names(dataset_of(volume)) or letters)
        if group_key is not None and any(level.key for level in layer.levels):
            group = n5_group_document(read_attributes(store, group_key))
            image = _image(layer)
            if image is not None:
                group["attributes"]["ome"] = {"version": "0.5", "multiscales": [image]}
            documents[_document_key(group_key)] = group
    for key, volume in _other_datasets(root) if store.can.states else ():
        if _document_key(key) not in documents:
            add(key, volume, declared_axis_names(dataset_of(volume)))
    # A level that images do not support, for example because of its axes, may still be a plain Zarr
    # array.
    for name, error in broken.items():
        if name not in documents:
            raise error
    # Zarr v3 needs a document of every group between the root and an array; N5 needs none.
    for name in list(documents):
        parts = name.split("/")[:-1]
        while parts:
            parts.pop()
            above = "/".join(parts)
            if _document_key(above) not in documents:
                documents[_document_key(above)] = n5_group_document(read_attributes(store, above))
    return dict(sorted(documents.items()))


def _layers(url: Url, root: str | None) -> tuple[Image, ...]:
    """Return the images of N5 data. A local folder without images may contain datasets with other
    axes, which Zarr supports as plain arrays."""
    try:
        return find_n5_layers(url)
    except UnsupportedError:
        if root is None or next(_other_datasets(root), None) is None:
            raise
        return ()


def _other_datasets(root: str) -> Iterator[tuple[str, StoredArray]]:
    """Yield all readable datasets below a local folder, with any axes."""
    for folder, below, names in store_at(root).walk():
        below[:] = sorted(name for name in below if not name.startswith("."))
        if FILE_NAME not in names:
            continue
        store = open_store(folder)
        with contextlib.suppress(FormatError, UnsupportedError):
            document = read_attributes(store) or {}
            if is_dataset(document):
                below.clear()
                dataset = parse_dataset(document, f"{folder}/{FILE_NAME}")
                yield (
                    folder[len(root) :].strip("/"),
                    n5_array(store, dataset, "-" * len(dataset.dimensions)),
                )


def _document_key(key: str) -> str:
    return f"{key}/{ZARR_NAME}" if key else ZARR_NAME


def declared_axis_names(dataset: N5Dataset) -> list[str] | None:
    """Return the distinct axis names in ``axes`` of a dataset, or None."""
    named = dataset.document.get("axes")
    if (
        not isinstance(named, list)
        or len(named) != len(dataset.dimensions)
        or not all(isinstance(name, str) for name in named)
    ):
        return None
    return named if len(set(named)) == len(named) else None


def _axes(volume: StoredArray) -> str:
    assert isinstance(volume.naming, GridNaming)
    return volume.naming.axes


def _image(layer: Image) -> JsonObject | None:
    """Return a group as an OME-NGFF image, None if it has other than spatial axes: OME-NGFF lists
    channels before space, N5 after."""
    arrays = [(level, level.open()) for level in layer.levels if not level.problem]
    axes = {_axes(volume) for _, volume in arrays}
    if len(axes) != 1 or any(
        not set(letters) <= set("xyz") or len(letters) < 2 for letters in axes
    ):
        return None
    is_measured = all(volume.lengths_nm is not None for _, volume in arrays)
    lengths = [
        volume.lengths_nm
        if is_measured and volume.lengths_nm
        else lengths_in(volume.mag, (1.0, 1.0, 1.0))
        for _, volume in arrays
    ]
    levels = []
    for (level, volume), (a, b, c) in zip(arrays, lengths, strict=True):
        x, y, z = (
            n * length + (length - first) / 2
            for n, length, first in zip(volume.origin, (a, b, c), lengths[0], strict=True)
        )
        levels.append(PyramidLevel(level.key, (a, b, c), (x, y, z)))
    return multiscale(
        layer.name.rpartition("/")[2],
        levels,
        ImageAxes.of_letters(axes.pop(), "nanometer" if is_measured else None),
    )


def _common_block_mode(volume: StoredArray) -> int:
    """Return the mode of all blocks; raises UnsupportedError if a block is truncated or of another
    mode, because ``offset`` has one header for all blocks."""
    dataset, naming = dataset_of(volume), volume.naming
    if not volume.files.can_list or not isinstance(naming, GridNaming):
        raise UnsupportedError(
            f'{volume.name}: the form "offset" needs blocks with equal headers, and the blocks of '
            "a remote dataset cannot be listed"
        )
    expected = {format_header(dataset.block_size, mode): mode for mode in (0, VARLENGTH)}
    first_paths: dict[bytes, str] = {}
    for numbers, _ in naming.numbered(volume.store, [range(n) for n in dataset.grid]):
        name = "/".join(map(str, numbers))
        file = volume.store.open(name)
        if file is None:  # removed since the listing
            continue
        with file:
            (raw,) = file.read(
                [(0, min(file.nbytes or 0, header_nbytes(len(dataset.dimensions), VARLENGTH)))]
            ) or [b""]
        header = raw if raw[:2] == b"\0\1" else raw[: header_nbytes(len(dataset.dimensions))]
        if header not in expected:
            what = (
                "does not begin with the header of a whole block: it is truncated or of another "
                "mode"
            )
            raise UnsupportedError(
                f'{volume.store.path_of(name)}: {what}; the form "offset" does not support that, '
                '"n5_default" does'
            )
        first_paths.setdefault(header, volume.store.path_of(name))
    if len(first_paths) > 1:
        raise UnsupportedError(
            f"{volume.name}: blocks of two modes ({' and '.join(first_paths.values())}); the form "
            '"offset" does not support that'
        )
    return expected[next(iter(first_paths))] if first_paths else 0


# ------------------------------------------------------------------------------------------------
# files


def write_documents(url: Url, documents: Documents, *, allow_external: bool) -> None:
    """Write each ``zarr.json`` beside its ``attributes.json``; arrays first, so that a group never
    lists a missing one."""
    root = _checked_root(url, documents, allow_external=allow_external)
    store = store_at(root)
    with locked_file(f"{root}/{ZARR_NAME}", f"writing of {root}/{ZARR_NAME}"):
        for name in sorted(documents, key=lambda name: -name.count("/")):
            by_path.remove_temporaries(*split(f"{root}/{name}"))  # left by a call that was killed
            store.put(name, (json.dumps(documents[name], indent=2) + "\n").encode())


def remove_documents(url: Url, documents: Documents, *, allow_external: bool) -> None:
    """Remove each ``zarr.json`` that :func:`write_documents` wrote."""
    root = _checked_root(url, documents, allow_external=allow_external)
    for name in documents:
        store_at(root).delete(name)


def _checked_root(url: Url, documents: Documents, *, allow_external: bool) -> str:
    """Return the local folder of the documents; raises ExistsError if other software wrote one of
    them, UnsupportedError if links lead outside."""
    root = location_of(url)
    if open_store(root).is_remote:
        raise UnsupportedError(
            f"{root}: {ZARR_NAME} is written beside local {FILE_NAME} only; n5_store() opens a "
            "remote container"
        )
    check_folder(root)
    for name in documents:
        Root(outermost_group(root), allow_external=allow_external).check(f"{root}/{name}")
        if store_at(root).is_taken(name) and not is_view(f"{root}/{name}", N5_MARK):
            raise ExistsError(
                f"{root}/{name}: already exists, and was not derived from {FILE_NAME}; it is left "
                "unchanged"
            )
    return root
