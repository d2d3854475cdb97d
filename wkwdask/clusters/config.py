"""Cluster configurations: search by name, keys with types and defaults, and a check that lists all
problems of a file at once."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dask.utils import parse_bytes, parse_timedelta

from wkwdask.errors import FormatError, MissingError
from wkwdask.model.parsing import reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


LOOPBACK = "127.0.0.1:0"
"""Default address of dashboards, which have no password and show everything."""
CLASSES = (
    "SLURMCluster",
    "PBSCluster",
    "LSFCluster",
    "SGECluster",
    "OARCluster",
    "MoabCluster",
    "HTCondorCluster",
)
_WALLTIME = re.compile(r"(?:(\d{1,9})-)?(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,9}))?")
_MOST_DIGITS = 20  # of a number


@dataclass(frozen=True, slots=True)
class Key:
    """Type and default of one key of a configuration."""

    read: Callable[[Any], Any]
    """Converts the value; raises ValueError with the expected kind of value."""
    default: Any = None
    """Value if the file has none."""
    required: bool = False


def _reader(
    expected: str,
    is_right: Callable[[Any], bool],
    convert: Callable[[Any], Any] = lambda value: value,
) -> Callable[[Any], Any]:
    """Return the reader of one kind of value."""

    def read(value: Any) -> Any:
        try:
            if is_right(value):
                return convert(value)
        except (ArithmeticError, LookupError, TypeError, ValueError):
            pass
        raise ValueError(expected)

    return read


def _is_number(value: Any, *kinds: type) -> bool:
    return isinstance(value, (int, *kinds)) and not isinstance(value, bool)


_text = _reader("text", lambda value: isinstance(value, str) and value != "")
_flag = _reader("true or false", lambda value: isinstance(value, bool))
_count = _reader("a number from 1", lambda value: _is_number(value) and value >= 1)
_count_or_none = _reader("a number from 0", lambda value: _is_number(value) and value >= 0)
_texts = _reader(
    "a list of lines of text",
    lambda value: isinstance(value, list) and all(isinstance(line, str) for line in value),
)
_mapping = _reader(
    "keys with values",
    lambda value: isinstance(value, dict) and all(isinstance(name, str) for name in value),
)
_nbytes = _reader(
    "a number of bytes such as 4GiB",
    lambda value: _is_number(value, str) and parse_bytes(value) > 0,
)
_seconds = _reader(
    "a time such as 30s, 50m or 2h",
    lambda value: _is_number(value, str, float) and parse_timedelta(value) > 0,
    lambda value: float(parse_timedelta(value)),
)
_class = _reader(f"one of {', '.join(CLASSES)}", lambda value: value in CLASSES)
# YAML 1.1 reads an unquoted walltime such as 8:00:00 as a base-60 number.
_walltime = _reader(
    "a time in quotes such as '08:00:00'",
    lambda value: isinstance(value, str) and _WALLTIME.fullmatch(value) is not None,
)


def walltime_seconds(walltime: str, class_name: str) -> int:
    """Parse a walltime in the notation of a queueing system [seconds].

    Examples
    --------
    >>> (
    ...     walltime_seconds("1-02:00:00", "SLURMCluster"),
    ...     walltime_seconds("90", "SLURMCluster"),
    ...     walltime_seconds("02:30", "SLURMCluster"),
    ... )
    (93600, 5400, 150)
    >>> walltime_seconds("02:30", "LSFCluster"), walltime_seconds("02:30:00", "PBSCluster")
    (9000, 9000)
    """
    match = _WALLTIME.fullmatch(walltime)
    if match is None:
        raise ValueError(f"not a walltime: {walltime!r}")
    days, *rest = match.groups()
    numbers = [int(number) for number in rest if number is not None]
    if days is not None:  # days-hours:minutes:seconds
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
        return ((int(days) * 24 + hours) * 60 + minutes) * 60 + seconds
    if class_name == "LSFCluster" and len(numbers) < 3:  # [hours:]minutes
        return 60 * (numbers[-1] + (60 * numbers[0] if len(numbers) == 2 else 0))
    if class_name == "SLURMCluster" and len(numbers) == 1:  # minutes
        return 60 * numbers[0]
    return sum(number * 60**n for n, number in enumerate(reversed(numbers)))


def _keys(read: Callable[[Any], Any], names: str, default: Any = None) -> dict[str, Key]:
    return dict.fromkeys(names.split(), Key(read, default))


_COMMON = {"kind": Key(_text, required=True), "dask": Key(_mapping, {})}
_STARTED = {
    **_COMMON,
    "dashboard-address": Key(_text, LOOPBACK),
    **_keys(_text, "interface local-directory"),
}
_LOCAL = {
    **_STARTED,
    "workers": Key(_count),
    "threads-per-worker": Key(_count, 1),
    "memory-limit": Key(_nbytes),
}
_SCHEDULER = {**_COMMON, **_keys(_text, "address scheduler-file"), "timeout": Key(_seconds)}
_JOBQUEUE = {
    **_STARTED,
    "class": Key(_class, required=True),
    "cores": Key(_count, required=True),
    "memory": Key(_nbytes, required=True),
    "adaptive": Key(_mapping),
    "walltime": Key(_walltime),
    **_keys(_count, "jobs processes"),
    **_keys(_seconds, "lifetime lifetime-stagger"),
    **_keys(_text, "protocol log-directory shared-temp-directory python shebang"),
    "death-timeout": Key(_seconds, 60.0),
    **_keys(_seconds, "lost-after queue-check", 15.0),
    "job-name": Key(_text, "wkwdask"),
    **_keys(
        _texts, "job-script-prologue job-extra-directives job-directives-skip worker-extra-args", []
    ),
    "scheduler-options": Key(_mapping, {}),
}
_CLASS_KEYS: Mapping[str, Mapping[str, Key]] = {
    "SLURMCluster": {**_keys(_text, "queue account job-mem"), "job-cpu": Key(_count)},
    "PBSCluster": _keys(_text, "queue account resource-spec"),
    "MoabCluster": _keys(_text, "queue account resource-spec"),
    "LSFCluster": {
        **_keys(_text, "queue project lsf-units"),
        **_keys(_count, "ncpus mem"),
        "use-stdin": Key(_flag),
    },
    "SGECluster": _keys(_text, "queue project resource-spec"),
    "OARCluster": _keys(_text, "queue project resource-spec memory-per-core-property-name"),
    "HTCondorCluster": _keys(_text, "disk"),
}
ADAPTIVE = {
    "minimum": Key(_count_or_none, 0),
    "maximum": Key(_count, required=True),
    "interval": Key(_seconds, 10.0),
    "wait-count": Key(_count, 30),
    "target-duration": Key(_seconds, 60.0),
}
KINDS: Mapping[str, Mapping[str, Key]] = {
    "local": _LOCAL,
    "scheduler": _SCHEDULER,
    "jobqueue": _JOBQUEUE,
}


def keys_of(kind: str, class_name: Any = None) -> Mapping[str, Key]:
    """Return the keys of a kind; those of a job queue depend on its class."""
    has_class = kind == "jobqueue" and isinstance(class_name, str)
    return {**KINDS[kind], **(_CLASS_KEYS.get(class_name, {}) if has_class else {})}


def job_keys(class_name: str) -> tuple[str, ...]:
    """List the keys passed unchanged to the class of the queueing system."""
    shared = (
        "interface",
        "protocol",
        "log-directory",
        "shared-temp-directory",
        "python",
        "shebang",
        "job-name",
        "job-extra-directives",
        "job-directives-skip",
    )
    return (*shared, "walltime", "local-directory", *_CLASS_KEYS[class_name])


def check_values(values: Any, where: str) -> dict[str, Any]:
    """Check the values of a configuration and add defaults."""
    if not isinstance(values, dict):
        raise FormatError(
            f"{where}: not a cluster configuration: expected keys with values, such as kind: local"
        )
    kind = values.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise FormatError(f"{where}: kind: found {kind!r}, expected one of {', '.join(KINDS)}")
    problems: list[str] = []
    checked = _checked(values, keys_of(kind, values.get("class")), "", problems)
    if isinstance(checked.get("adaptive"), dict):
        checked["adaptive"] = _checked(checked["adaptive"], ADAPTIVE, "adaptive.", problems)
    problems += _unknown_dask_keys(checked["dask"])
    if not problems:
        problems += _CROSS_CHECKS[kind](checked)
    if problems:
        raise FormatError("\n".join(f"{where}: {problem}" for problem in problems))
    return checked


def _checked(
    values: Mapping[Any, Any], keys: Mapping[str, Key], prefix: str, problems: list[str]
) -> dict[str, Any]:
    problems += [
        f"{prefix}{name}: unknown key; known are {', '.join(sorted(keys))}"
        for name in values
        if name not in keys
    ]
    checked = {}
    for name, key in keys.items():
        value = values.get(name)
        if value is None:
            if key.required:
                problems.append(f"{prefix}{name}: missing")
            checked[name] = key.default
            continue
        try:
            checked[name] = key.read(value)
        except ValueError as expected:
            checked[name] = key.default
            problems.append(f"{prefix}{name}: found {value!r}, expected {expected}")
    return checked


def _unknown_dask_keys(settings: Mapping[str, Any]) -> Iterator[str]:
    """Find settings that dask does not know. It would silently ignore a misspelt one."""
    import dask.config
    import distributed.config  # noqa: F401 - adds its own to the known ones

    known = {
        name.replace("_", "-") for name, _ in flatten(dask.config.merge(*dask.config.defaults))
    }
    for name, _ in flatten(settings):
        if name.replace("_", "-") not in known:
            yield f"dask.{name}: unknown setting of dask"


def flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of nested sections with their full names.

    Examples
    --------
    >>> list(flatten({"distributed": {"worker-ttl": "5m", "worker": {"memory": {"spill": False}}}}))
    [('distributed.worker-ttl', '5m'), ('distributed.worker.memory.spill', False)]
    """
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _check_jobqueue(values: Mapping[str, Any]) -> list[str]:
    problems = _check_one_of_two(values, "jobs", "adaptive")
    if values["processes"] and values["cores"] % values["processes"]:
        problems.append(
            f"processes: {values['processes']} processes cannot share {values['cores']} cores "
            "evenly (cores)"
        )
    adaptive = values["adaptive"]
    if adaptive and adaptive["minimum"] > adaptive["maximum"]:
        problems.append(
            f"adaptive.minimum: {adaptive['minimum']} is more than the maximum, "
            f"{adaptive['maximum']}"
        )
    return [*problems, *_check_lifetime(values)]


def _check_lifetime(values: Mapping[str, Any]) -> Iterator[str]:
    """Check that workers stop before the end of their job, which would kill them together with
    their tasks."""
    lifetime, stagger = values["lifetime"], values["lifetime-stagger"] or 0
    if lifetime is None:
        if stagger:
            yield "lifetime-stagger: set without a lifetime"
        return
    if stagger >= lifetime:
        yield f"lifetime-stagger: {stagger:g} s is not less than the lifetime, {lifetime:g} s"
    if values["walltime"] is not None and lifetime + stagger >= (
        limit := walltime_seconds(values["walltime"], values["class"])
    ):
        yield (
            f"lifetime: {lifetime:g} s and a stagger of {stagger:g} s are not less than the "
            f"walltime, {limit} s: make the lifetime shorter"
        )


def _check_one_of_two(values: Mapping[str, Any], first: str, second: str) -> list[str]:
    if (values[first] is None) != (values[second] is None):
        return []
    return [f"{first}, {second}: set exactly one of the two"]


_CROSS_CHECKS: Mapping[str, Callable[[Mapping[str, Any]], list[str]]] = {
    "local": lambda _: [],
    "scheduler": lambda values: _check_one_of_two(values, "address", "scheduler-file"),
    "jobqueue": _check_jobqueue,
}


CLUSTER_VARIABLE = "WKWDASK_CLUSTER"
FOLDERS_VARIABLE = "WKWDASK_CLUSTERS"
SCRIPT_KINDS = ("allocation", "array")
_SUFFIXES = (".yaml", ".yml", ".sbatch")
_PACKAGE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Checked configuration."""

    name: str
    """Name for messages."""
    kind: str
    """local, scheduler or jobqueue; allocation or array for batch scripts; kubernetes."""
    path: Path | None = None
    """File of the configuration; None if it came from Python."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Value of every key of the kind."""
    text: str = ""
    """Text of a batch script or manifest."""

    @property
    def dask_settings(self) -> dict[str, Any]:
        return dict(flatten(self.values.get("dask", {})))


def config_folders() -> list[Path]:
    """List the folders searched for configurations, in order."""
    own = [
        Path(folder).expanduser()
        for folder in os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep)
        if folder
    ]
    home = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    return [*own, home / "wkwdask" / "clusters", shipped_folder()]


def shipped_folder() -> Path:
    """Return the folder of the configurations shipped with the package."""
    installed = _PACKAGE / "cluster_configs"
    return installed if installed.is_dir() else _PACKAGE.parent / "cluster-configs"


def known_configs() -> dict[str, Path]:
    """Return all named configurations; the first folder with a name wins."""
    found: dict[str, Path] = {}
    for folder in config_folders():
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.suffix in _SUFFIXES:
                found.setdefault(path.stem, path)
    return dict(sorted(found.items()))


def find_config(name: str) -> Path:
    """Find a configuration by path or name."""
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
    raise MissingError(
        f"{name}: neither a file nor a known cluster; known clusters: {', '.join(known) or 'none'} "
        f"(searched {searched})"
    )


def load_config(
    config: str | os.PathLike[str] | Mapping[str, Any], overrides: Mapping[str, Any] | None = None
) -> ClusterConfig:
    changes = {name.replace("_", "-"): value for name, value in (overrides or {}).items()}
    if not isinstance(config, str | os.PathLike):
        return _config_of("cluster", None, {**config}, changes)
    name = os.fspath(config)
    if "://" in name:
        return _config_of(name, None, {"kind": "scheduler", "address": name}, changes)
    if name.endswith(".json"):
        return _config_of(name, None, {"kind": "scheduler", "scheduler-file": name}, changes)
    path = find_config(name)
    text = _read_text(path)
    if path.suffix == ".sbatch":
        loaded = ClusterConfig(path.stem, kind_of_script(text, str(path)), path, text=text)
    else:
        documents = _documents(text, path)
        if not any(
            isinstance(document, dict) and "apiVersion" in document for document in documents
        ):
            if len(documents) != 1:
                raise FormatError(
                    f"{path}: found {len(documents)} YAML documents, expected one with the keys of "
                    "a cluster"
                )
            return _config_of(path.stem, path, documents[0], changes)
        loaded = ClusterConfig(path.stem, "kubernetes", path, text=text)
    if changes:
        raise FormatError(
            f"{path}: {', '.join(changes)}: cannot be overridden in a file of this kind: change a "
            "copy of the file"
        )
    return loaded


def _read_text(path: Path) -> str:
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
    """Return a YAML loader that rejects duplicate keys, aliases, and numbers of many digits."""
    # The default loader silently keeps the last of duplicate keys, and a few lines of nested
    # aliases can expand to gigabytes. Python does not print integers of thousands of digits.
    import yaml

    def mapping(reader: Any, node: Any) -> dict[Any, Any]:
        pairs = reader.construct_pairs(node, deep=True)
        names = [name for name, _ in pairs]
        for name in names:
            if names.count(name) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"duplicate key {name!r}", node.start_mark
                )
        return dict(pairs)

    def integer(reader: Any, node: Any) -> Any:
        if len(node.value) > _MOST_DIGITS:
            raise yaml.constructor.ConstructorError(
                None, None, f"found a number of {len(node.value)} digits", node.start_mark
            )
        return reader.construct_yaml_int(node)

    def compose(reader: Any, parent: Any, index: Any) -> Any:
        if reader.check_event(yaml.AliasEvent):
            event = reader.peek_event()
            raise yaml.composer.ComposerError(
                None,
                None,
                f"found the alias *{event.anchor}, expected plain values",
                event.start_mark,
            )
        return yaml.SafeLoader.compose_node(reader, parent, index)

    loader = type("StrictLoader", (yaml.SafeLoader,), {"compose_node": compose})
    loader.add_constructor("tag:yaml.org,2002:map", mapping)  # type: ignore[attr-defined]
    loader.add_constructor("tag:yaml.org,2002:int", integer)  # type: ignore[attr-defined]
    return loader


def _config_of(
    name: str, path: Path | None, values: Any, changes: Mapping[str, Any]
) -> ClusterConfig:
    if isinstance(values, dict) and changes:
        merged = {**values, **changes}
        if isinstance(values.get("dask"), dict) and isinstance(changes.get("dask"), dict):
            merged["dask"] = _merged(values["dask"], changes["dask"])
        # jobs and adaptive exclude each other, so overriding one drops the other.
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
        old = merged.get(name)
        merged[name] = (
            _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
        )
    return merged


_KIND = re.compile(r"^#\s*kind:\s*(\S+)\s*$", re.MULTILINE)


def kind_of_script(text: str, where: str) -> str:
    """Return the kind of a batch script from its line ``# kind: ...``."""
    kinds = _KIND.findall(text)
    if not text.startswith("#!"):
        raise FormatError(
            f"{where}: not a batch script: expected #!/usr/bin/env bash as first line"
        )
    if len(kinds) != 1 or kinds[0] not in SCRIPT_KINDS:
        raise FormatError(
            f"{where}: found {' and '.join(kinds) or 'no'} '# kind: ...', expected one of "
            f"{', '.join(f'# kind: {kind}' for kind in SCRIPT_KINDS)}"
        )
    return str(kinds[0])
