"""Griffe extension for docstrings: it fills in the storage options of formats, and turns the roles
of Sphinx into links to the reference."""

from __future__ import annotations

import inspect
import re
from typing import Any

import griffe

import wkwdask

ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod|obj):`~?([\w.]+)`")


def link(match: re.Match[str]) -> str:
    """Return a link to a public name, and the name in code otherwise."""
    name = match[1].removeprefix("wkwdask.")
    return (
        f"[`{name}`][wkwdask.{name}]" if name.partition(".")[0] in wkwdask.__all__ else f"`{name}`"
    )


class Docstrings(griffe.Extension):
    """Docstrings as a reader of the site sees them."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of one object."""
        if obj.docstring is None:
            return
        if "{options}" in obj.docstring.value and obj.name in wkwdask.__all__:
            # filled in when the function is decorated
            obj.docstring.value = inspect.getdoc(getattr(wkwdask, obj.name)) or ""
        obj.docstring.value = ROLE.sub(link, obj.docstring.value)
