"""The check of a cluster configuration: every problem of a file at once, each with its key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wkwdask.clusters.keys import ADAPTIVE, KINDS, Key, keys_of, walltime_seconds
from wkwdask.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def check_values(values: Any, where: str) -> dict[str, Any]:
    """Check what a configuration says, and add what holds where it does not say."""
    if not isinstance(values, dict):
        raise FormatError(f"{where}: not a cluster configuration: keys with values are expected, such as kind: local")
    kind = values.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise FormatError(f"{where}: kind: found {kind!r}, expected one of {', '.join(KINDS)}")
    problems: list[str] = []
    checked = _checked(values, keys_of(kind, values.get("class")), "", problems)
    if isinstance(checked.get("adaptive"), dict):
        checked["adaptive"] = _checked(checked["adaptive"], ADAPTIVE, "adaptive.", problems)
    problems += _unknown_dask_keys(checked["dask"])
    if not problems:
        problems += _CONTRADICTIONS[kind](checked)
    if problems:
        raise FormatError("\n".join(f"{where}: {problem}" for problem in problems))
    return checked


def _checked(values: Mapping[Any, Any], keys: Mapping[str, Key], before: str, problems: list[str]) -> dict[str, Any]:
    problems += [f"{before}{name}: unknown key; known are {', '.join(sorted(keys))}" for name in values if name not in keys]
    checked = {}
    for name, key in keys.items():
        value = values.get(name)
        if value is None:
            if key.required:
                problems.append(f"{before}{name}: missing")
            checked[name] = key.default
            continue
        try:
            checked[name] = key.read(value)
        except ValueError as expected:
            checked[name] = key.default
            problems.append(f"{before}{name}: found {value!r}, expected {expected}")
    return checked


def _unknown_dask_keys(settings: Mapping[str, Any]) -> Iterator[str]:
    """Find settings that dask does not know: a misspelt one would change nothing."""
    import dask.config
    import distributed.config  # noqa: F401 - adds its own to the known ones

    known = {name.replace("_", "-") for name, _ in flat(dask.config.merge(*dask.config.defaults))}
    for name, _ in flat(settings):
        if name.replace("_", "-") not in known:
            yield f"dask.{name}: dask has no such setting"


def flat(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Give the settings of nested sections, each with its full name.

    Examples
    --------
    >>> list(flat({"distributed": {"worker-ttl": "5m", "worker": {"memory": {"spill": False}}}}))
    [('distributed.worker-ttl', '5m'), ('distributed.worker.memory.spill', False)]
    """
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _of_local(_values: Mapping[str, Any]) -> list[str]:
    return []


def _of_scheduler(values: Mapping[str, Any]) -> list[str]:
    return _one_of_two(values, "address", "scheduler-file")


def _of_jobqueue(values: Mapping[str, Any]) -> list[str]:
    problems = _one_of_two(values, "jobs", "adaptive")
    if values["processes"] and values["cores"] % values["processes"]:
        problems.append(f"processes: {values['processes']} processes cannot share {values['cores']} cores evenly (cores)")
    adaptive = values["adaptive"]
    if adaptive and adaptive["minimum"] > adaptive["maximum"]:
        problems.append(f"adaptive.minimum: {adaptive['minimum']} is more than the maximum, {adaptive['maximum']}")
    return [*problems, *_of_lifetime(values)]


def _of_lifetime(values: Mapping[str, Any]) -> Iterator[str]:
    """A worker that is there when its job ends is killed with what it works on; it has to leave before."""
    lifetime, stagger = values["lifetime"], values["lifetime-stagger"] or 0
    if lifetime is None:
        if stagger:
            yield "lifetime-stagger: there is no lifetime"
        return
    if stagger >= lifetime:
        yield f"lifetime-stagger: {stagger:g} s is not less than the lifetime, {lifetime:g} s"
    if values["walltime"] is not None and lifetime + stagger >= (limit := walltime_seconds(values["walltime"], values["class"])):
        yield f"lifetime: {lifetime:g} s and a stagger of {stagger:g} s are not less than the walltime, {limit} s: make the lifetime shorter"


def _one_of_two(values: Mapping[str, Any], first: str, second: str) -> list[str]:
    if (values[first] is None) != (values[second] is None):
        return []
    return [f"{first}, {second}: give one of the two"]


_CONTRADICTIONS = {"local": _of_local, "scheduler": _of_scheduler, "jobqueue": _of_jobqueue}
