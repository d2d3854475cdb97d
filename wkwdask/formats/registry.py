"""List of formats: those of this package, and those that other packages declare in the entry point
group ``wkwdask.formats``."""

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
# In the order in which a folder is offered to them. The first one takes paths that no format
# recognises, and its error says what is missing.
_OWN = tuple(
    EntryPoint(name, f"wkwdask.formats.{name}.format:FORMAT", GROUP)
    for name in ("webknossos", "precomputed", "n5", "zarr")
)
# Storage options of these formats, and of exported pictures. These modules import no array library,
# so that the command line starts quickly.
_OPTIONS = tuple(
    EntryPoint(name, f"wkwdask.formats.{name}.options:{record}", GROUP)
    for name, record in (
        ("wkw", "WkwOptions"),
        ("precomputed", "PrecomputedOptions"),
        ("zarr", "ZarrOptions"),
        ("n5", "N5Options"),
    )
)
_EXPORT_OPTIONS = EntryPoint("pictures", "wkwdask.formats.pictures.options:TiffOptions", GROUP)
_added: list[ArrayFormat] = []


def formats() -> tuple[ArrayFormat, ...]:
    """Return all formats, in the order in which a folder is offered to them."""
    return (*_installed(), *_added)


@cache
def _installed() -> tuple[ArrayFormat, ...]:
    return (*(entry.load() for entry in _OWN), *_others())


def storage_records(*, exports: bool = False) -> tuple[type[StorageOptions], ...]:
    """Return the storage options of all formats, without loading the formats of this package; with
    ``exports``, also those of exported pictures."""
    others = (fmt.options for fmt in (*_others(), *_added))
    own = (*_OPTIONS, *([_EXPORT_OPTIONS] if exports else []))
    return (*(entry.load() for entry in own), *(record for record in others if record.title))


@cache
def _others() -> tuple[ArrayFormat, ...]:
    """Load the formats of other packages, and skip broken ones with a warning."""
    loaded: list[ArrayFormat] = []
    for entry in entry_points(group=GROUP):
        try:
            loaded.append(entry.load())
        except Exception as error:  # code of another package can raise anything
            warnings.warn(
                f"format {entry.name} of {entry.value} is skipped: {type(error).__name__}: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
    return tuple(loaded)


def register(added: ArrayFormat) -> None:
    """Add a format for the rest of the process."""
    if added.name in {fmt.name for fmt in formats()}:
        raise ValueError(f"a format {added.name} is already registered")
    _added.append(added)


def format_named(name: str) -> ArrayFormat:
    """Return the format with a name; raises UnsupportedError if there is none."""
    for fmt in formats():
        if fmt.name == name:
            return fmt
    raise UnsupportedError(
        f"no format {name!r}; there are {', '.join(fmt.name for fmt in formats())}"
    )


def default_format() -> ArrayFormat:
    """Return the format that takes paths which no format recognises."""
    return formats()[0]


def named_format(url: object) -> ArrayFormat | None:
    """Return the format that a URL names, else None."""
    return next((fmt for fmt in formats() if fmt.url_name.is_in(url)), None)


def absolute_url(url: str | os.PathLike[str]) -> str:
    """Return a path or URL that means the same in any working folder."""
    text = os.fspath(url)
    location = text.rpartition("://")[2]
    if location.startswith("/") or is_remote(location_of(text)):
        return text
    named, path = named_format(text), local_path(location_of(text))
    return path if named is None else f"{named.url_name.prefixes[0]}{path}"


def recognised_format(url: object) -> ArrayFormat | None:
    """Return the format that a URL names or that recognises a local folder, else None."""
    named = named_format(url)
    if (
        named is not None
        or not isinstance(url, (str, os.PathLike))
        or not os.fspath(url)
        or is_remote(os.fspath(url))
    ):
        return named
    path = local_path(url)
    return next((fmt for fmt in formats() if fmt.recognise(path)), None)


def format_of(url: object) -> ArrayFormat | None:
    """Return the format that opens a path or URL, else None; a level inside a dataset is opened by
    the format of the dataset."""
    recognised = recognised_format(url)
    if recognised is None or recognised.url_name.is_in(url):
        return recognised
    path = local_path(url)  # type: ignore[arg-type]
    return next(
        (fmt for fmt in formats() if fmt is not recognised and fmt.container.lists(path)),
        recognised,
    )


def opening_format(url: object) -> ArrayFormat:
    """Return the format that opens a path or URL, and says what is missing if none recognises
    it."""
    return format_of(url) or default_format()


def location_of(url: str | os.PathLike[str]) -> str:
    """Return a path or URL without the prefix that names its format."""
    named = named_format(url)
    return os.fspath(url) if named is None else named.url_name.location(url)


def format_of_suffix(path: str) -> ArrayFormat | None:
    """Return the format for which the suffix of a folder in a path is reserved."""
    parts = path.lower().split("/")
    return next(
        (
            fmt
            for fmt in formats()
            if (suffix := fmt.url_name.folder_suffix)
            and any(part.endswith(suffix) for part in parts)
        ),
        None,
    )


def check_folder_name(path: str) -> None:
    """Raise ValueError if a folder in a path of WKW has the suffix of another format."""
    fmt = format_of_suffix(path)
    if fmt is not None:
        raise ValueError(
            f"{path}: is named like {fmt.options.title}; write {fmt.name}://{path}, or choose "
            "another name for WKW or images"
        )
