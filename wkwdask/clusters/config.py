"""Cluster configurations: where they are found by name, and what is read from them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wkwdask.clusters.keys import check_values, flat
from wkwdask.errors import FormatError, MissingError
from wkwdask.model.parsing import reading

if TYPE_CHECKING:
    from collections.abc import Mapping

CLUSTER_VARIABLE = "WKWDASK_CLUSTER"
FOLDERS_VARIABLE = "WKWDASK_CLUSTERS"
SCRIPT_KINDS = ("allocation", "array")
_SUFFIXES = (".yaml", ".yml", ".sbatch")
_PACKAGE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """A configuration that was checked."""

    name: str
    """What people call it."""
    kind: str
    """local, scheduler or jobqueue; allocation or array for batch scripts; kubernetes."""
    path: Path | None = None
    """Its file; none where Python gave it."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """A value for every key of the kind."""
    text: str = ""
    """The file as it is, of batch scripts and manifests."""

    @property
    def dask_settings(self) -> dict[str, Any]:
        """Settings of dask by their full names."""
        return dict(flat(self.values.get("dask", {})))


def config_folders() -> list[Path]:
    """List where configurations are looked for, the first first."""
    own = [Path(folder).expanduser() for folder in os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep) if folder]
    home = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    return [*own, home / "wkwdask" / "clusters", shipped_folder()]


def shipped_folder() -> Path:
    """Give the folder of the configurations that come with the package."""
    installed = _PACKAGE / "cluster_configs"
    return installed if installed.is_dir() else _PACKAGE.parent / "cluster-configs"


def known_configs() -> dict[str, Path]:
    """Give all configurations that have a name; the first of a name counts."""
    found: dict[str, Path] = {}
    for folder in config_folders():
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.suffix in _SUFFIXES:
                found.setdefault(path.stem, path)
    return dict(sorted(found.items()))


def find_config(name: str) -> Path:
    """Find a configuration by its path or its name."""
    path = Path(name).expanduser()
    if path.is_file():
        return path
    known = known_configs()
    if name in known:
        return known[name]
    by_file = {path.name: path for path in known.values()}
    if name in by_file:
        return by_file[name]
    searched = ", ".join(map(str, config_folders()))
    raise MissingError(f"{name}: neither a file nor a known cluster; known are {', '.join(known) or 'none'} (looked for in {searched})")


def load_config(config: str | os.PathLike[str] | Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> ClusterConfig:
    """Read a configuration and check all of it."""
    changes = {name.replace("_", "-"): value for name, value in (overrides or {}).items()}
    if not isinstance(config, str | os.PathLike):
        return _checked("cluster", None, {**config}, changes)
    name = os.fspath(config)
    if "://" in name:
        return _checked(name, None, {"kind": "scheduler", "address": name}, changes)
    if name.endswith(".json"):
        return _checked(name, None, {"kind": "scheduler", "scheduler-file": name}, changes)
    path = find_config(name)
    text = _text_of(path)
    if path.suffix == ".sbatch":
        loaded = ClusterConfig(path.stem, kind_of_script(text, str(path)), path, text=text)
    else:
        documents = _documents(text, path)
        if not any(isinstance(document, dict) and "apiVersion" in document for document in documents):
            if len(documents) != 1:
                raise FormatError(f"{path}: found {len(documents)} YAML documents, expected one with the keys of a cluster")
            return _checked(path.stem, path, documents[0], changes)
        loaded = ClusterConfig(path.stem, "kubernetes", path, text=text)
    if changes:
        raise FormatError(f"{path}: {', '.join(changes)}: cannot be set from outside: change a copy of the file")
    return loaded


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not text: {error}") from error


def _documents(text: str, path: Path) -> list[Any]:
    import yaml

    with reading(str(path), "YAML"):
        try:
            return list(yaml.load_all(text, _loader()))
        except yaml.YAMLError as error:
            raise FormatError(f"{path}: not YAML: {' '.join(str(error).split())}") from error


def _loader() -> Any:
    """Make a loader that refuses a key that is there twice, which YAML itself would let win, and aliases, of which a few lines can make gigabytes."""
    import yaml

    def mapping(reader: Any, node: Any) -> dict[Any, Any]:
        pairs = reader.construct_pairs(node, deep=True)
        names = [name for name, _ in pairs]
        for name in names:
            if names.count(name) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"the key {name!r} is there twice", node.start_mark)
        return dict(pairs)

    def compose(reader: Any, parent: Any, index: Any) -> Any:
        if reader.check_event(yaml.AliasEvent):
            event = reader.peek_event()
            raise yaml.composer.ComposerError(None, None, f"found the alias *{event.anchor}, expected values that are written out", event.start_mark)
        return yaml.SafeLoader.compose_node(reader, parent, index)

    loader = type("StrictLoader", (yaml.SafeLoader,), {"compose_node": compose})
    loader.add_constructor("tag:yaml.org,2002:map", mapping)  # type: ignore[attr-defined]
    return loader


def _checked(name: str, path: Path | None, values: Any, changes: Mapping[str, Any]) -> ClusterConfig:
    if isinstance(values, dict) and changes:
        merged = {**values, **changes}
        if isinstance(values.get("dask"), dict) and isinstance(changes.get("dask"), dict):
            merged["dask"] = _merged(values["dask"], changes["dask"])
        if changes.get("jobs") is not None and "adaptive" not in changes:
            merged.pop("adaptive", None)
        if changes.get("adaptive") is not None and "jobs" not in changes:
            merged.pop("jobs", None)
        values = merged
    checked = check_values(values, str(path or name))
    return ClusterConfig(name, checked["kind"], path, checked)


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(first)
    for name, value in second.items():
        before = merged.get(name)
        merged[name] = _merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return merged


_KIND = re.compile(r"^#\s*kind:\s*(\S+)\s*$", re.MULTILINE)


def kind_of_script(text: str, where: str) -> str:
    """Tell the kind of a batch script by its line ``# kind: ...``."""
    kinds = _KIND.findall(text)
    if not text.startswith("#!"):
        raise FormatError(f"{where}: not a batch script: it has to begin with #!/usr/bin/env bash")
    if len(kinds) != 1 or kinds[0] not in SCRIPT_KINDS:
        raise FormatError(
            f"{where}: found {' and '.join(kinds) or 'no'} '# kind: ...', expected one of {', '.join(f'# kind: {kind}' for kind in SCRIPT_KINDS)}"
        )
    return str(kinds[0])
