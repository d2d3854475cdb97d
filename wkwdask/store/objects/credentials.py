"""Credentials for buckets: where they are found, and anonymous access where there are none. They
stay in this process."""

from __future__ import annotations

import configparser
import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from wkwdask.errors import MissingError

if TYPE_CHECKING:
    from wkwdask.store.objects.access import Access

_AMAZON_KEYS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_GOOGLE_KEYS = (
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GCE_METADATA_HOST",
    "K_SERVICE",
    "CLOUD_RUN_JOB",
)
_AZURE_KEYS = tuple(
    f"AZURE_{name}"
    for name in (
        "STORAGE_ACCOUNT_KEY",
        "STORAGE_ACCESS_KEY",
        "STORAGE_SAS_KEY",
        "STORAGE_SAS_TOKEN",
        "STORAGE_TOKEN",
        "STORAGE_CLIENT_ID",
        "CLIENT_ID",
        "FEDERATED_TOKEN_FILE",
        "MSI_ENDPOINT",
        "IDENTITY_ENDPOINT",
        "USE_AZURE_CLI",
    )
)
_VARIABLES = (b"AWS_", b"GOOGLE_", b"AZURE_", b"CLOUDSDK_", b"STORAGE_EMULATOR_HOST")
_MACHINE = Path("/sys/class/dmi/id")


def environment() -> tuple[tuple[bytes, bytes], ...]:
    """Return the environment variables that name servers and credentials, as part of the keys of
    caches. Bytes, because each request asks for them."""
    return tuple((name, os.environb[name]) for name in os.environb if name.startswith(_VARIABLES))


class Credentials(NamedTuple):
    """Arguments of an obstore store, and a text for errors that says who reads."""

    options: dict[str, Any]
    who: str


_ANONYMOUS = Credentials(
    {"skip_signature": True}, "anonymous access, because no credentials were found"
)


_AMAZON_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


def amazon_credentials(access: Access) -> Credentials:
    """Return the options of a bucket of S3: region, endpoint, and keys of a profile where the
    environment has none."""
    name = access.profile or os.environ.get("AWS_PROFILE")
    profile = _amazon_profile(name or "default")
    region = access.region or _variable("AWS_REGION", "AWS_DEFAULT_REGION") or profile.get("region")
    endpoint = access.endpoint or _variable(*_AMAZON_ENDPOINTS) or profile.get("endpoint_url")
    # obstore reads these variables too, and panics at any other text, also an empty one
    variables = (os.environ[each] for each in _AMAZON_ENDPOINTS if each in os.environ)
    stated = endpoint or next(variables, None)
    if stated is not None and not stated.startswith(("http://", "https://")):
        raise ValueError(
            f"the endpoint is {stated!r}, expected a URL that begins with http:// or https:// "
            f"({', '.join(_AMAZON_ENDPOINTS)}, or endpoint in stores.yaml)"
        )
    options: dict[str, Any] = {
        key: value for key, value in (("region", region), ("endpoint", endpoint)) if value
    }
    if access.requester_pays:
        options["request_payer"] = True
    keys = _amazon_keys(access, name, profile)
    return Credentials({**options, **keys.options}, keys.who)


def _amazon_keys(access: Access, name: str | None, profile: dict[str, str]) -> Credentials:
    if access.anonymous:
        return Credentials({"skip_signature": True}, "anonymous access")
    if access.profile is None and _variable(*_AMAZON_KEYS):
        return Credentials({}, "credentials of the environment")
    if "aws_access_key_id" in profile and "aws_secret_access_key" in profile:
        keys = {
            "access_key_id": profile["aws_access_key_id"],
            "secret_access_key": profile["aws_secret_access_key"],
        }
        token = (
            {"session_token": profile["aws_session_token"]}
            if "aws_session_token" in profile
            else {}
        )
        return Credentials({**keys, **token}, f"profile {name or 'default'}")
    if profile.keys() & {
        "sso_session",
        "sso_start_url",
        "role_arn",
        "credential_process",
        "web_identity_token_file",
        "login_session",
    }:
        if find_spec("boto3") is None:
            raise ModuleNotFoundError(
                (
                    f"profile {name or 'default'} of ~/.aws has no keys (SSO, a role or a "
                    "process): it needs the package boto3"
                ),
                name="boto3",
            )
        boto3: Any = import_module("boto3")
        provider = import_module("obstore.auth.boto3").Boto3CredentialProvider(
            boto3.Session(profile_name=name)
        )
        return Credentials({"credential_provider": provider}, f"profile {name or 'default'}")
    if name is not None and not profile:
        raise MissingError(f"~/.aws/credentials and ~/.aws/config: no profile {name!r}")
    return (
        Credentials({}, "the role of this machine")
        if _is_machine("sys_vendor", "Amazon EC2")
        else _ANONYMOUS
    )


def _amazon_profile(name: str) -> dict[str, str]:
    """Return the settings of a profile in ``~/.aws/config`` and ``~/.aws/credentials``, empty if
    there is none."""
    found: dict[str, str] = {}
    places = (
        ("AWS_CONFIG_FILE", "~/.aws/config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials", name),
    )
    for variable, path, section in places:
        parser = configparser.RawConfigParser()
        try:
            parser.read(Path(os.environ.get(variable) or path).expanduser(), encoding="utf-8")
        except (configparser.Error, OSError, UnicodeDecodeError):
            # as if it had no such profile; the error of access names who reads
            continue
        found.update(parser[section] if parser.has_section(section) else {})
    return found


def google_credentials(access: Access) -> Credentials:
    """Return the options of a bucket of Google. Without a key, a login or a Google machine, access
    is anonymous."""
    host = access.endpoint or os.environ.get("STORAGE_EMULATOR_HOST")
    endpoint = {} if not host else {"base_url": host if "://" in host else f"http://{host}"}
    if access.anonymous:
        return Credentials({**endpoint, "skip_signature": True}, "anonymous access")
    folder = Path(os.environ.get("CLOUDSDK_CONFIG") or Path("~/.config/gcloud").expanduser())
    # Any other machine would wait for the metadata server of Google.
    if (
        _variable(*_GOOGLE_KEYS)
        or (folder / "application_default_credentials.json").is_file()
        or _is_machine("product_name", "Google")
    ):
        return Credentials(endpoint, "application default credentials")
    return Credentials({**endpoint, **_ANONYMOUS.options}, _ANONYMOUS.who)


def azure_credentials(access: Access, account: str | None) -> Credentials:
    """Return the options of a container of Azure, whose account the URL may name."""
    account = account or access.account
    endpoint = access.endpoint or _variable("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
    options: dict[str, Any] = {
        key: value for key, value in (("account_name", account), ("endpoint", endpoint)) if value
    }
    if access.anonymous:
        return Credentials({**options, "skip_signature": True}, "anonymous access")
    if _variable(*_AZURE_KEYS):
        return Credentials(options, "credentials of the environment")
    return Credentials({**options, **_ANONYMOUS.options}, _ANONYMOUS.who)


def _variable(*names: str) -> str | None:
    return next((value for name in names if (value := os.environ.get(name))), None)


def _is_machine(name: str, start: str) -> bool:
    try:
        return (_MACHINE / name).read_text(encoding="ascii", errors="replace").startswith(start)
    except OSError:
        return False
