"""Types and parsers of arguments that several public functions share, and their storage options."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

from wkwdask.formats.registry import default_format
from wkwdask.geometry.mag import Mag, vec3, whole_number
from wkwdask.model.image import mag_or_key
from wkwdask.model.options import StorageOptions, options_of, parameter_docs
from wkwdask.model.writing.target_image import Destination
from wkwdask.verbs.function_calls import FunctionCalls

if TYPE_CHECKING:
    import dask.array as da
    import numpy.typing as npt
    from xarray import DataArray

    from wkwdask.formats.format import ArrayFormat
    from wkwdask.formats.precomputed.sharding import Sharding
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.model.levels import Lengths

    Url = str | os.PathLike[str]
    Voxels = da.Array | npt.NDArray[Any] | DataArray

Function = TypeVar("Function", bound=Callable[..., Any])
Existing = Literal["error", "resume", "overwrite", "restart"]
MagLike = Mag | str | int | Sequence[int]


class StorageKeywords(TypedDict, total=False):
    """Storage options of all formats, for type checkers. A test compares them with the options of
    each format."""

    chunk_shape: int | Sequence[int] | None
    shard_shape: int | Sequence[int] | bool | Literal["auto", "none"] | Sharding | None
    encoding: str | None
    compression: str | None
    level: int | Literal["auto"] | None
    quality: int | None
    force: bool
    ngff: str | None
    block_len: int | None
    file_len: int | None
    any_length: bool


class WriteOptions(TypedDict, total=False):
    """Options of all functions that write an array, for type checkers."""

    offset: Sequence[int] | None
    region: BoundingBox | Sequence[Sequence[int]] | None
    existing: Existing
    token: str | None
    force_space: bool


class PlacedOptions(WriteOptions, total=False):
    """Options of functions that write to a format with voxel sizes, for type checkers."""

    voxel_size: Sequence[float] | None
    mag: MagLike | None


def level_destination(
    its_format: ArrayFormat,
    url: str | os.PathLike[str],
    mag: MagLike | None = None,
    category: str | None = None,
    *,
    allow_external: bool = False,
) -> Destination:
    """Return the destination of one level in a format, whose prefix the URL gets unless it names
    the format itself."""
    text, is_dataset = os.fspath(url), its_format is default_format()
    if is_dataset and mag is not None:
        raise ValueError(
            f"{text}: mag= does not apply to {its_format.options.title}; name the mag by its "
            "folder, such as DATASET/LAYER/2-2-1"
        )
    if category is not None and "category" in its_format.options.unsupported:
        raise ValueError(
            f"{text}: {its_format.options.title} does not store a category; omit category="
        )
    place = (
        text
        if is_dataset or its_format.url_name.names_target(text)
        else f"{its_format.name}://{text}"
    )
    parsed_mag = None if mag is None else Mag.parse(mag)
    return Destination(
        place,
        mag=parsed_mag,
        category=category,
        needs_container=not is_dataset,
        allow_external=allow_external,
    )


def parse_levels(mags: Sequence[MagLike] | str | None) -> list[Mag | str] | None:
    """Parse a sequence of mags or keys, or a text with commas between them."""
    return (
        None
        if mags is None
        else [parsed for mag in _items_of(mags) if (parsed := mag_or_key(mag)) is not None]
    )


def parse_mags(mags: Sequence[MagLike] | str | None) -> tuple[Mag, ...] | None:
    """Parse a sequence of mags, or a text with commas between them."""
    return None if mags is None else tuple(map(Mag.parse, _items_of(mags)))


def _items_of(mags: Sequence[MagLike] | str) -> Sequence[MagLike]:
    if isinstance(mags, (Mag, int)):
        raise TypeError(f"mags must be a sequence of mags, got {mags!r}")
    return mags.split(",") if isinstance(mags, str) else mags


def parse_voxel_size(voxel_size: Sequence[float]) -> Lengths:
    """Check the edge lengths of a voxel along x, y, z [nm]."""
    try:
        sizes = tuple(voxel_size)
        is_valid = len(sizes) == 3 and all(0 < length < float("inf") for length in sizes)
    except TypeError:
        is_valid = False
    if not is_valid:
        raise ValueError(
            f"voxel_size must be three positive numbers (x, y, z) in nanometers, got {voxel_size!r}"
        )
    # documents and records hold no numbers of numpy
    x, y, z = (size if type(size) in (int, float) else float(size) for size in sizes)
    return x, y, z


def storage_options(*records: type[StorageOptions]) -> Callable[[Function], Function]:
    """Replace ``{options}`` in a function's docstring by its storage options: described one by one
    for one format, else listed by format."""

    def documented(function: Function) -> Function:
        names = "\n".join(
            f"        {record.title}: {', '.join(f'``{name}``' for name, _ in options_of(record))}."
            for record in records
        )
        is_listed = "        {options}\n" in (function.__doc__ or "")
        mark, text = (
            ("        {options}\n", names)
            if is_listed
            else ("    {options}\n", parameter_docs(records[0]))
        )
        function.__doc__ = (function.__doc__ or "").replace(mark, f"{text}\n")
        return function

    return documented


def refuse_options(what: str, values: dict[str, Any]) -> None:
    """Raise if an option has a value that ``what`` does not support."""
    given = [name for name, value in values.items() if value is not None and value is not False]
    if given:
        raise ValueError(
            f"{what}: {', '.join(f'{name}=' for name in given)} "
            f"{'is' if len(given) == 1 else 'are'} not for it"
        )


def edges(value: Any, name: str, least: int) -> tuple[int, int, int]:
    """Return lengths along x, y, z, none below the least one; one number stands for all."""
    lengths = vec3((value,) * 3 if isinstance(value, Real) else value, name)
    if min(lengths) < least:
        raise ValueError(f"{name} must be at least {least}, got {value!r}")
    return lengths


def arguments_token(function: Callable[..., Any]) -> str | None:
    """Return a token of the arguments that ``functools.partial`` binds to a function; None without
    any."""
    from dask.base import tokenize

    if not isinstance(function, partial):
        return None
    token: str = tokenize(function.args, function.keywords)
    return token


def function_calls(setup: Callable[[], Any] | None, concurrency: int | None) -> FunctionCalls:
    """Check the options of calls of a function; with a set-up, there is one call at a time by
    default."""
    if concurrency is None:
        return FunctionCalls(setup, None if setup is None else 1)
    return FunctionCalls(setup, whole_number(concurrency, "concurrency", 1))
