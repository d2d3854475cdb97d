"""Buckets of S3, Google Cloud Storage and Azure on this machine: moto, gcp-storage-emulator and
Azurite."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import re
import shutil
import urllib.request
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import HTTPServer
from pathlib import Path
from unittest import mock
from urllib.parse import quote, unquote

import pytest
from support.daemons import daemon, free_ports
from support.proxy import Answer, proxy

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
    server = server_of.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"

    def put(name, data, acl="public-read"):
        _send("PUT", f"{url}/{BUCKET}/{quote(name)}", data, Content_Type=_TYPE, x_amz_acl=acl)

    def environment(server):
        return {
            "AWS_ENDPOINT_URL": server,
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    try:
        _send("PUT", f"{url}/{BUCKET}")
        yield Bucket(f"s3://{BUCKET}", url, put, environment)
    finally:
        server.stop()


@contextlib.contextmanager
def gs_bucket():
    """Run the emulator of Google Cloud Storage, in a thread."""
    server_of = pytest.importorskip(
        "gcp_storage_emulator.server", reason="gcp-storage-emulator serves Google Cloud Storage"
    )
    (port,) = free_ports(1)
    server = server_of.create_server("127.0.0.1", port, in_memory=True, default_bucket=BUCKET)
    with mock.patch.object(HTTPServer, "request_queue_size", 128):
        # of 5, further clients would wait for a second
        server.start()
    url = f"http://127.0.0.1:{port}"
    objects = {}

    def put(name, data):
        objects[f"/{BUCKET}/{name}"] = data
        _send(
            "POST",
            f"{url}/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={quote(name, safe='')}",
            data,
            Content_Type=_TYPE,
        )

    try:
        with proxy(url) as whole:
            # which Google sends, and clients rely on
            whole.added = {"Last-Modified": formatdate(0, usegmt=True), "ETag": '"1"'}
            whole.fault = lambda request: _size_or_end(request, objects, whole.added)
            yield Bucket(
                f"gs://{BUCKET}", whole.url, put, lambda server: {"STORAGE_EMULATOR_HOST": server}
            )
    finally:
        server.stop()


def _size_or_end(request, objects, headers):
    """Answer the requests that the emulator does not know: for the size of an object, and for its
    last bytes."""
    last = re.fullmatch(r"bytes=-(\d+)", request.range or "")
    if last is None and request.method != "HEAD":
        return None
    data = objects.get(unquote(request.path))
    if data is None:
        return Answer(404)
    if last is None:
        return Answer(200, b"", {**headers, "Content-Length": str(len(data))})
    end = data[-int(last[1]) :]
    return Answer(
        206,
        end,
        {**headers, "Content-Range": f"bytes {len(data) - len(end)}-{len(data) - 1}/{len(data)}"},
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

        yield Bucket(f"az://{BUCKET}", url, put, environment)


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
