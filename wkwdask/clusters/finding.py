"""Results of checks of a machine and of a cluster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    name: str
    """Name of the property that was checked."""
    value: str
    """Value of the property."""
    is_fine: bool
    """Whether the value is as required."""
    remedy: str = ""
    """Remedy, or further information about a value that is fine."""


def finding(name: str, value: str, is_fine: bool = True, remedy: str = "") -> Finding:
    """Return a finding; the remedy of one that is fine is left out."""
    return Finding(name, value, is_fine, "" if is_fine else remedy)
