"""Arguments of the public functions that have several forms, and the storage options that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

from wkwdask.geometry.mag import Mag
from wkwdask.model.options import StorageOptions, options_of, parameter_docs

if TYPE_CHECKING:
    from wkwdask.formats.precomputed.sharding import Sharding
    from wkwdask.geometry.bounding_box import BoundingBox

Function = TypeVar("Function", bound=Callable[..., Any])
Existing = Literal["error", "resume", "overwrite"]
MagLike = Mag | str | int | Sequence[int]


class StorageKeywords(TypedDict, total=False):
    """Storage options of all formats. Type checkers read here what the records of the formats say."""

    chunk_shape: Sequence[int] | None
    shard_shape: Sequence[int] | bool | Sharding | None
    encoding: str | None
    compression: str | None
    level: int | None
    quality: int | None
    force: bool
    ngff: str | None
    block_len: int | None
    file_len: int | None
    any_length: bool


class WriteOptions(TypedDict, total=False):
    """What all functions take that write an array; type checkers read here what such a function says of itself at run time."""

    offset: Sequence[int] | None
    region: BoundingBox | Sequence[Sequence[int]] | None
    existing: Existing
    token: str | None


class PlacedOptions(WriteOptions, total=False):
    """What those take, too, whose format says how large voxels are."""

    voxel_size: Sequence[float] | None
    mag: MagLike | None


def items_of(mags: Sequence[MagLike] | str) -> Sequence[MagLike]:
    """Take a list of mags or keys apart, which may be a text with commas."""
    if isinstance(mags, (Mag, int)):
        raise TypeError(f"mags must be a sequence of mags, got {mags!r}")
    return mags.split(",") if isinstance(mags, str) else mags


def parse_mags(mags: Sequence[MagLike] | str | None) -> tuple[Mag, ...] | None:
    """Parse a list of mags, None where there is none."""
    return None if mags is None else tuple(map(Mag.parse, items_of(mags)))


def parsed_mags(values: dict[str, Any]) -> dict[str, Any]:
    """Parse the mags among options; they may come in any form."""
    single = {name: Mag.parse(values[name]) for name in ("source", "finest", "coarsest") if values.get(name) is not None}
    return {**values, **single, "mags": parse_mags(values.get("mags"))}


def storage_options(*records: type[StorageOptions]) -> Callable[[Function], Function]:
    """Document the storage options of a function, in place of ``{options}`` in its docstring: one by one for one record, else their names."""

    def documented(function: Function) -> Function:
        names = "\n".join(f"        {record.title}: {', '.join(f'``{name}``' for name, _ in options_of(record))}." for record in records)
        is_listed = "        {options}\n" in (function.__doc__ or "")
        mark, text = ("        {options}\n", names) if is_listed else ("    {options}\n", parameter_docs(records[0]))
        function.__doc__ = (function.__doc__ or "").replace(mark, f"{text}\n")
        return function

    return documented


def refuse_options(what: str, values: dict[str, Any]) -> None:
    """Refuse options of the other format."""
    given = [name for name, value in values.items() if value is not None and value is not False]
    if given:
        raise ValueError(f"{what}: {', '.join(f'{name}=' for name in given)} {'is' if len(given) == 1 else 'are'} not for it")
