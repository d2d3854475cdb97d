"""Optional dependencies: imported when a file needs them, with an error that states how to install
them."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def import_extra(module: str, what: str, extra: str = "convert") -> Any:
    """Import a package of an extra; ``what`` is the file or function that needs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise ModuleNotFoundError(
            (
                f"{what}: needs the package {module}, which is not installed: pip install "
                f"'wkwdask[{extra}]'"
            ),
            name=module,
        ) from None
