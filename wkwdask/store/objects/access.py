"""Access to remote servers: names of profiles, regions and endpoints for URL prefixes, from calls
and from ``stores.yaml``. Holds no credentials."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wkwdask.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE_NAME = "stores.yaml"


@dataclass(frozen=True, slots=True)
class Access:
    """Options of one server or bucket. They are names, so a store that contains them can be
    pickled."""

    profile: str | None = None
    """Profile of ``~/.aws`` whose credentials are used."""
    region: str | None = None
    """Region of the bucket."""
    endpoint: str | None = None
    """URL of a server that is not the cloud provider's own."""
    account: str | None = None
    """Storage account of Azure."""
    anonymous: bool = False
    """Whether requests are sent without credentials."""
    requester_pays: bool = False
    """Whether the account of the reader pays for the requests."""
    single_writer: bool = False
    """Whether the user makes sure that one process writes at a time, so that the server need not
    honour conditional writes."""

    @classmethod
    def parse(cls, options: Mapping[str, Any], source: str) -> Access:
        """Check options; raises ValueError for unknown names, which credentials are too."""
        kinds = {each.name: (bool if each.default is False else str) for each in fields(cls)}
        for name, value in options.items():
            if name not in kinds:
                remedy = "credentials come from the environment, from a profile or from the machine"
                raise ValueError(
                    f"{source}: unknown option {name!r}, expected {', '.join(kinds)}; {remedy}"
                )
            if not isinstance(value, kinds[name]):
                raise ValueError(  # noqa: TRY004
                    f"{source}: {name}: expected "
                    f"{'true or false' if kinds[name] is bool else 'a text'}, found {value!r}"
                )
        return cls(**options)


_given: dict[str, Access] = {}
"""Options of calls in this process, by server or bucket."""


def remember_access(url: str, options: Mapping[str, Any] | None) -> None:
    """Use options for the server or bucket of a URL in the rest of this process."""
    if options is not None:
        _given["/".join(url.split("/")[:3])] = Access.parse(options, f"storage_options of {url}")


def access_of(url: str) -> Access:
    """Return the options of a URL: of a call, else of ``stores.yaml``; the longest prefix
    counts."""
    for table in (_given, _read_table()):
        matching = [prefix for prefix in table if url == prefix or url.startswith(f"{prefix}/")]
        if matching:
            return table[max(matching, key=len)]
    return Access()


def table_path() -> Path:
    """Return the path of the user's ``stores.yaml``."""
    return (
        Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "wkwdask" / FILE_NAME
    )


def _read_table() -> Mapping[str, Access]:
    path = table_path()
    try:
        return _parse_table(path, path.stat().st_mtime_ns)
    except (FileNotFoundError, NotADirectoryError):
        return {}


@functools.lru_cache(maxsize=4)
def _parse_table(path: Path, mtime_ns: int) -> Mapping[str, Access]:
    import yaml

    del mtime_ns  # part of the key: a changed file is read again
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: not readable as YAML: {error}") from None
    if not isinstance(document, dict | None):
        raise FormatError(
            f"{path}: expected URL prefixes with options, such as s3://bucket with region: "
            f"eu-central-1, found {type(document).__name__}"
        )
    table = {}
    for prefix, options in (document or {}).items():
        if not isinstance(prefix, str) or "://" not in prefix or not isinstance(options, dict):
            raise FormatError(
                f"{path}: {prefix}: expected a URL prefix such as s3://bucket with options, found "
                f"{options!r}"
            )
        try:
            table[prefix.rstrip("/")] = Access.parse(options, f"{path}: {prefix}")
        except ValueError as error:
            raise FormatError(str(error)) from None
    return table
