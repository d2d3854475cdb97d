"""The formats that there are: those of this package, and those that other packages name in the entry point group ``wkwdask.formats``."""

from __future__ import annotations

import os
import warnings
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from wkwdask.errors import UnsupportedError
from wkwdask.store.paths import is_remote, local_path

if TYPE_CHECKING:
    from wkwdask.formats.format import ArrayFormat
    from wkwdask.model.options import StorageOptions

GROUP = "wkwdask.formats"
_OWN = tuple(EntryPoint(name, f"wkwdask.formats.{name}.format:FORMAT", GROUP) for name in ("webknossos", "precomputed", "n5", "zarr"))
"""Those of this package, in the order in which a folder is shown to them. The first one takes what none recognises, and says what is wrong."""
_OPTIONS = tuple(
    EntryPoint(name, f"wkwdask.formats.{name}.options:{record}", GROUP)
    for name, record in (
        ("wkw", "WkwOptions"),
        ("precomputed", "PrecomputedOptions"),
        ("zarr", "ZarrOptions"),
        ("n5", "N5Options"),
        ("pictures", "TiffOptions"),
    )
)
"""Storage options of those, and of files of images; no module that they are in loads an array library."""
_added: list[ArrayFormat] = []


def formats() -> tuple[ArrayFormat, ...]:
    """List all formats, in the order in which a folder is shown to them."""
    return (*_installed(), *_added)


@cache
def _installed() -> tuple[ArrayFormat, ...]:
    return (*(entry.load() for entry in _OWN), *_others())


def storage_records() -> tuple[type[StorageOptions], ...]:
    """List the records of storage options of all formats, without loading the formats of this package."""
    others = (one.options for one in (*_others(), *_added))
    return (*(entry.load() for entry in _OPTIONS), *(record for record in others if record.title))


@cache
def _others() -> tuple[ArrayFormat, ...]:
    """Load the formats of other packages."""
    found: list[ArrayFormat] = []
    for entry in entry_points(group=GROUP):
        try:
            found.append(entry.load())
        except Exception as error:  # of other people's code
            warnings.warn(f"the format {entry.name} of {entry.value} is left out: {type(error).__name__}: {error}", RuntimeWarning, stacklevel=2)
    return tuple(found)


def register(added: ArrayFormat) -> None:
    """Add a format for the rest of the process."""
    if added.name in {one.name for one in formats()}:
        raise ValueError(f"there is a format {added.name} already")
    _added.append(added)


def format_named(name: str) -> ArrayFormat:
    """Find a format by its name."""
    for one in formats():
        if one.name == name:
            return one
    raise UnsupportedError(f"no format {name!r}; there are {', '.join(one.name for one in formats())}")


def default_format() -> ArrayFormat:
    """Give the format that takes what none recognises."""
    return formats()[0]


def named_format(url: object) -> ArrayFormat | None:
    """Find the format that a URL names."""
    return next((one for one in formats() if one.url_name.is_in(url)), None)


def recognised_format(url: object) -> ArrayFormat | None:
    """Find the format of a path or URL: by its name, or of a local folder by what it holds; None where none says that it is of it."""
    named = named_format(url)
    if named is not None or not isinstance(url, (str, os.PathLike)) or not os.fspath(url) or is_remote(os.fspath(url)):
        return named
    path = local_path(url)
    return next((one for one in formats() if one.recognise(path)), None)


def format_of(url: object) -> ArrayFormat | None:
    """Find the format whose images a path or URL can mean, which of a level in a dataset is that of the dataset."""
    found = recognised_format(url)
    if found is None or found.url_name.is_in(url):
        return found
    path = local_path(url)  # type: ignore[arg-type]
    return next((one for one in formats() if one is not found and one.claims(path)), found)


def holds_plain_arrays(url: object) -> bool:
    """Tell whether a local path is that of arrays that may have no place, and is not named as of their format."""
    found = recognised_format(url)
    return found is not None and found.has_plain_arrays and not found.url_name.is_in(url)


def location_of(url: str | os.PathLike[str]) -> str:
    """Give the path or URL of the folder that a user names, without the name of its format."""
    named = named_format(url)
    return os.fspath(url) if named is None else named.url_name.location(url)
