"""Buckets of S3, Google Cloud Storage and Azure on this machine: moto, a stand-in of our own and
Azurite."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import shutil
import urllib.request
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from unittest import mock
from urllib.parse import quote

import pytest
from support.daemons import daemon
from support.google_storage import google_storage

from wkwdask.store.objects import access, object_store

BUCKET = "bucket"
ACCESS_KEY, SECRET_KEY = "AKIDOFTHETESTS", "secret-of-the-tests"

_AZURE_ACCOUNT = "devstoreaccount1"
# Azurite's own, which its documentation states
_AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_AZURE_VERSION = "2021-12-02"
_TYPE = "application/octet-stream"


@dataclass
class Bucket:
    """A bucket whose objects everybody may read."""

    url: str
    """URL of the bucket, such as ``s3://bucket``."""
    server: str
    """URL of the server."""
    put: object = field(repr=False)
    """Stores an object: ``put(name, data)``."""
    environment: object = field(repr=False)
    """Returns the variables that lead to a server at a URL without credentials:
    ``environment(server)``."""
    keys: dict[str, str] = field(default_factory=dict, repr=False)
    """Variables with the keys of somebody who may write."""
    service: object = field(default=None, repr=False)
    """The stand-in behind the server."""

    @contextlib.contextmanager
    def reached(self, server=None):
        """Let this process write to the bucket, through its server or a proxy in front of it."""
        variables = {
            **dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), os.devnull),
            **self.environment(server or self.server),
            **self.keys,
        }
        with mock.patch.dict(os.environ, variables), mock.patch.object(access, "_given", {}):
            object_store._connections.clear()
            yield
        object_store._connections.clear()

    def publish(self):
        """Let everybody read all objects, also later ones, of S3; moto lets pages of all origins
        do so."""
        statement = {
            "Effect": "Allow",
            "Principal": "*",
            "Action": ["s3:GetObject", "s3:HeadObject"],  # the second one is of moto alone
            "Resource": f"arn:aws:s3:::{BUCKET}/*",
        }
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        _send("PUT", f"{self.server}/{BUCKET}?policy", policy.encode(), Content_Type=_TYPE)

    def upload(self, folder):
        """Store all files of a folder."""
        for path in filter(Path.is_file, sorted(folder.rglob("*"))):
            self.put(path.relative_to(folder).as_posix(), path.read_bytes())


def _send(method, url, data=None, **headers):
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    with urllib.request.urlopen(
        urllib.request.Request(url, data=data, method=method, headers=names)
    ) as answer:
        return answer.read()


@contextlib.contextmanager
def s3_bucket():
    """Run moto's S3, in a thread."""
    server_of = pytest.importorskip("moto.server", reason="moto serves S3")
    backends = pytest.importorskip("moto.backends")
    names = tuple(backends.list_of_moto_modules())
    server = server_of.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"

    def put(name, data, acl="public-read"):
        _send("PUT", f"{url}/{BUCKET}/{quote(name)}", data, Content_Type=_TYPE, x_amz_acl=acl)

    try:
        # moto lists the folders of its services in each request, a third of what it does
        with mock.patch.object(backends, "list_of_moto_modules", return_value=names):
            _send("PUT", f"{url}/{BUCKET}")
            keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
            yield Bucket(f"s3://{BUCKET}", url, put, _amazon_environment, keys)
    finally:
        server.stop()


def _amazon_environment(server):
    return {
        "AWS_ENDPOINT_URL": server,
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


CARELESS = {
    "s3rver": (
        "npm install -g s3rver",
        ("-d", "{folder}", "-a", "127.0.0.1", "-p", "{port}", "--configure-bucket", BUCKET),
    ),
    "nanio": (
        "pip install nanio",
        ("serve", "--data-dir", "{folder}", "--host", "127.0.0.1", "--port", "{port}"),
    ),
}
"""Small servers of S3 that ignore conditions: how they are installed, and their arguments."""


@contextlib.contextmanager
def careless_bucket(name, folder):
    """Run a server that ignores conditions; its objects and its log are in a folder."""
    program, (source, arguments) = shutil.which(name), CARELESS[name]
    if program is None:
        pytest.skip(f"{name} is absent: {source}")
    (folder / "data" / BUCKET).mkdir(parents=True)
    keys = {"AWS_ACCESS_KEY_ID": "S3RVER", "AWS_SECRET_ACCESS_KEY": "S3RVER"}  # those of s3rver
    with (
        mock.patch.dict(os.environ, NANIO_ACCESS_KEY="S3RVER", NANIO_SECRET_KEY="S3RVER"),
        daemon(
            lambda ports: [
                program,
                *(text.format(folder=folder / "data", port=ports[0]) for text in arguments),
            ],
            1,
            folder / "log",
        ) as ports,
    ):
        yield Bucket(
            f"s3://{BUCKET}", f"http://127.0.0.1:{ports[0]}", None, _amazon_environment, keys
        )


@contextlib.contextmanager
def gs_bucket():
    """Run the stand-in for Google Cloud Storage, in a thread."""
    with google_storage() as storage:
        names = ("client_email", "private_key", "private_key_id")
        key = dict.fromkeys(names, "") | {"gcs_base_url": storage.url, "disable_oauth": True}
        yield Bucket(
            f"gs://{BUCKET}",
            storage.url,
            lambda name, data: storage.put(f"/{BUCKET}/{name}", data),
            lambda server: {"STORAGE_EMULATOR_HOST": server},
            {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(key)},
            storage,
        )


def azurite_program():
    """Return the path of Azurite's server of blobs, None if it is not installed."""
    return shutil.which("azurite-blob")


@contextlib.contextmanager
def azure_container(folder):
    """Run Azurite; the folder is for its log."""
    program = azurite_program()
    if program is None:
        pytest.skip("Azurite is absent: npm install -g azurite")
    options = ("--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry")
    with daemon(
        lambda ports: [program, *options, "--blobPort", ports[0]], 1, folder / "azurite.log"
    ) as ports:
        url = f"http://127.0.0.1:{ports[0]}"

        def put(name, data):
            _send_signed(url, f"/{BUCKET}/{quote(name)}", {}, data, x_ms_blob_type="BlockBlob")

        _send_signed(
            url, f"/{BUCKET}", {"restype": "container"}, b"", x_ms_blob_public_access="container"
        )

        def environment(server):
            return {
                "AZURE_STORAGE_ACCOUNT_NAME": _AZURE_ACCOUNT,
                "AZURE_STORAGE_ENDPOINT": f"{server}/{_AZURE_ACCOUNT}",
                "AZURE_ALLOW_HTTP": "true",
            }

        keys = {"AZURE_STORAGE_ACCOUNT_KEY": _AZURE_KEY}
        yield Bucket(f"az://{BUCKET}", url, put, environment, keys)


def _send_signed(url, path, query, data, **headers):
    """Send a PUT with the signature of Azure, see "Authorize with Shared Key" of its REST
    reference."""
    named = {
        "x-ms-date": formatdate(usegmt=True),
        "x-ms-version": _AZURE_VERSION,
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    signed = "".join(f"{name}:{named[name]}\n" for name in sorted(named))
    resource = f"/{_AZURE_ACCOUNT}/{_AZURE_ACCOUNT}{path}" + "".join(
        f"\n{name}:{value}" for name, value in sorted(query.items())
    )
    text = f"PUT\n\n\n{len(data) or ''}\n\n{_TYPE}\n\n\n\n\n\n\n{signed}{resource}"
    signature = base64.b64encode(
        hmac.digest(base64.b64decode(_AZURE_KEY), text.encode(), hashlib.sha256)
    ).decode()
    parameters = "&".join(f"{name}={value}" for name, value in query.items())
    _send(
        "PUT",
        f"{url}/{_AZURE_ACCOUNT}{path}?{parameters}",
        data,
        Authorization=f"SharedKey {_AZURE_ACCOUNT}:{signature}",
        Content_Type=_TYPE,
        **named,
    )
