"""Options of the drivers of buckets: without credentials, public buckets are read anonymously."""

from __future__ import annotations

import functools
import logging
import os
from importlib import import_module
from pathlib import Path
from typing import Any

_GOOGLE_VARIABLES = ("GOOGLE_APPLICATION_CREDENTIALS", "GCE_METADATA_HOST", "K_SERVICE", "CLOUD_RUN_JOB")
_CHOICES = {"anon", "key", "secret", "token", "profile", "session"}  # in the user's configuration of fsspec
_MACHINE = Path("/sys/class/dmi/id/product_name")


def access_options(protocol: str) -> dict[str, Any]:
    """Return the options that let a driver read anonymously, none where there are credentials."""
    fsspec: Any = import_module("fsspec")
    if _CHOICES & set(fsspec.config.conf.get(protocol, ())):
        return {}
    if protocol in ("gs", "gcs"):
        logging.getLogger("gcsfs").addHandler(logging.NullHandler())  # it logs what it raises
        return {} if _has_google_credentials() else {"token": "anon"}
    if protocol in ("s3", "s3a"):
        return {} if _has_amazon_credentials(tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_")))) else {"anon": True}
    return {}


def _has_google_credentials() -> bool:
    """Check for a key, for the login of gcloud, and for a machine of Google, whose server for credentials other machines would wait for."""
    folder = Path(os.environ.get("CLOUDSDK_CONFIG") or Path("~/.config/gcloud").expanduser())
    return (
        any(os.environ.get(name) for name in _GOOGLE_VARIABLES)
        or (folder / "application_default_credentials.json").is_file()
        or (_MACHINE.is_file() and _MACHINE.read_text().startswith("Google"))
    )


@functools.cache
def _has_amazon_credentials(_: tuple[tuple[str, str], ...]) -> bool:
    session: Any = import_module("botocore.session")
    try:
        return session.get_session().get_credentials() is not None
    except Exception:  # a broken configuration is reported by the driver
        return True
