"""Servers and URLs that mean harm: one clear error, bounded memory, and no secret where it does not
belong."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import dask
import numpy as np
import pytest
from remote.fresh_process import KEYS, FreshProcess, report_with_memory
from remote.volumes import FORMS
from support.commands import run_here
from support.nginx import PASSWORD, USER
from support.proxy import Answer, Drip, Endless, proxy

import wkwdask
from wkwdask.store.objects import object_store, remote
from wkwdask.store.store import store_at
from wkwdask.verbs.manifest import hash_file

pytestmark = pytest.mark.needs("obstore")

MOST_NBYTES = 300 << 20
"""Largest growth of memory by a read, libraries included [bytes]."""
BY_NAME = {form.name: form for form in FORMS}
WKW = BY_NAME["wkw"]
OURS = (wkwdask.WkwDaskError, OSError)


@pytest.fixture(autouse=True)
def _synchronous():
    with dask.config.set(scheduler="synchronous"):
        yield


ENDLESS = {"in chunks": Endless(), "of a huge length": Endless(1 << 50)}
PLACES = [
    ("wkw", "datasource-properties.json"),
    ("wkw", "header.wkw"),
    ("wkw", "x0.wkw"),
    ("precomputed", "info"),
    ("precomputed", "-"),
    ("precomputed-sharded", ".shard"),
    ("ngff-0.5", "c/"),
    ("ngff-0.5-sharded", "c/"),
    ("n5", "s0/1"),
]


@pytest.mark.one_in(3)
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="no /proc here")
@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize(("name", "where"), PLACES)
def test_a_body_without_end(far, tmp_path, name, where, kind):
    if BY_NAME[name].needs is not None:
        pytest.importorskip(BY_NAME[name].needs, reason="writes the volume")
    far.fault = lambda request: ENDLESS[kind] if where in request.path else None
    output = FreshProcess(report_with_memory, BY_NAME[name].url(far.url), folder=tmp_path).output()
    growth, text = output.split(" ", 1)
    assert "Error: " in text, text
    assert int(growth) < MOST_NBYTES, text


@pytest.mark.parametrize("where", ["datasource-properties.json", "header.wkw", "x0.wkw"])
def test_a_server_that_sends_byte_after_byte_is_left(far, monkeypatch, where):
    monkeypatch.setattr(object_store, "_NO_ANSWER_SECONDS", 0.5)
    far.fault = lambda request: Drip(0.05) if where in request.path else None
    with pytest.raises(
        TimeoutError, match=f"the server sent .* bytes in .* expected at least .*{where}"
    ):
        wkwdask.read(WKW.url(far.url), ((0, 0, 0), (24, 24, 24)))


_PATIENT = """
import signal, sys
from wkwdask import cli
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell starts with &
from wkwdask.store.objects import object_store
object_store._NO_ANSWER_SECONDS = 3600
sys.argv = ["wkwdask", "info", sys.argv[1]]
cli.main()
"""


@pytest.mark.long
def test_an_interruption_ends_the_command_while_a_server_answers(far, tmp_path):
    # the header has few bytes: the signal comes before the last of them on a slow machine too
    far.fault = lambda request: Drip(5) if "header.wkw" in request.path else None
    with subprocess.Popen(
        [sys.executable, "-c", _PATIENT, WKW.url(far.url)], stderr=subprocess.PIPE, text=True
    ) as process:
        while "header.wkw" not in far.names() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, errors
    assert "interrupted" in errors


def _packed_zeros(nbytes):
    packer, piece = zlib.compressobj(wbits=31), bytes(1 << 20)
    return b"".join([packer.compress(piece) for _ in range(nbytes >> 20)] + [packer.flush()])


@pytest.mark.one_in(3)
@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="no /proc here")
@pytest.mark.parametrize(("name", "where"), PLACES)
def test_a_short_answer_that_unpacks_to_a_gigabyte(far, tmp_path, name, where):
    if BY_NAME[name].needs is not None:
        pytest.importorskip(BY_NAME[name].needs, reason="writes the volume")
    bomb = Answer(200, _packed_zeros(1 << 30), {"Content-Encoding": "gzip"})
    far.fault = lambda request: bomb if where in request.path else None
    output = FreshProcess(report_with_memory, BY_NAME[name].url(far.url), folder=tmp_path).output()
    growth, text = output.split(" ", 1)
    assert "Error: " in text, text
    assert "MemoryError" not in text, text
    assert int(growth) < MOST_NBYTES, text


def test_a_file_that_is_read_as_a_stream_is_no_larger_than_a_document(far):
    bomb = Answer(200, _packed_zeros(65 << 20), {"Content-Encoding": "gzip"})
    far.fault = lambda request: bomb
    with pytest.raises(wkwdask.CorruptError, match="expected at most 67108864"):
        store_at(f"{far.url}/wkw/notes").open_stream()


def test_the_hash_of_a_file_on_a_server_that_is_larger_than_a_document(far, stored, monkeypatch):
    monkeypatch.setattr(remote, "LARGEST_DOCUMENT_NBYTES", 16)
    data = next(iter(sorted((stored / "wkw/color/1").rglob("*.wkw"))))
    assert hash_file(far.url, str(data.relative_to(stored))) == (
        hashlib.sha256(data.read_bytes()).hexdigest(),
        data.stat().st_size,
    )


# ------------------------------------------------------------------------------------------------
# places


def test_a_redirect_from_https_to_http_is_not_followed(far, tmp_path, monkeypatch):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is absent: apt-get install openssl")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    call = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
        "-keyout",
        key,
        "-out",
        certificate,
    ]
    subprocess.run(call, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    target = far.url

    class Redirecting(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(302)
            self.send_header("Location", f"{target}{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_HEAD(self):
            self.do_GET()

        def log_message(self, *_):
            """Print nothing."""

    monkeypatch.setattr(
        object_store, "_CLIENT", {**object_store._CLIENT, "allow_invalid_certificates": True}
    )
    with ThreadingHTTPServer(("127.0.0.1", 0), Redirecting) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"https://127.0.0.1:{server.server_port}"
        try:
            with pytest.raises(OSError, match="redirects to an address without encryption"):
                wkwdask.read(WKW.url(url), ((0, 0, 0), (8, 8, 8)))
        finally:
            server.shutdown()
    assert not far.requests


@pytest.mark.parametrize(
    "path", ["/etc", "file:///etc", "../../../../../../../../etc", "..%2f..%2f..%2fetc"]
)
@pytest.mark.parametrize("key", ["path", "layer"])
def test_a_dataset_does_not_lead_to_files_of_this_machine(far, stored, path, key):
    document = json.loads((stored / "wkw/datasource-properties.json").read_text())
    (layer,) = document["dataLayers"]
    if key == "path":
        layer["mags"][0]["path"] = path
    else:
        layer["name"] = path
    body = json.dumps(document).encode()
    far.fault = lambda request: (
        Answer(200, body) if request.path.endswith("datasource-properties.json") else None
    )
    with pytest.raises((*OURS, ValueError)):
        wkwdask.read(f"{far.url}/wkw", ((0, 0, 0), (8, 8, 8)), layer=layer["name"])


@pytest.mark.parametrize("name", ["wkw", "precomputed", "n5", "ngff-0.5"])
def test_a_redirect_to_a_local_file_is_an_error(web, name):
    if BY_NAME[name].needs is not None:
        pytest.importorskip(BY_NAME[name].needs, reason="writes the volume")
    with pytest.raises(OURS, match=web.redirecting):
        wkwdask.read(BY_NAME[name].url(f"{web.redirecting}/file"), ((0, 0, 0), (8, 8, 8)))


def test_dots_in_a_url_stay_on_the_server(far):
    np.testing.assert_array_equal(
        wkwdask.read(f"{far.url}/none/../wkw/color/1", WKW.box()), WKW.array()
    )
    with pytest.raises(OURS):
        wkwdask.read(f"{far.url}/../../../../../etc/color/1")
    assert not [request.path for request in far.requests if ".." in request.path]


# ------------------------------------------------------------------------------------------------
# secrets


@pytest.mark.parametrize("prefix", ["", "precomputed://", "n5://", "zarr://"])
def test_a_password_in_a_url_is_refused_and_not_repeated(web, prefix):
    url = f"{prefix}{web.url.replace('://', f'://{USER}:{PASSWORD}@')}/wkw/color/1"
    with pytest.raises(wkwdask.UnsupportedError, match="contains a password") as caught:
        wkwdask.open(url)
    done = run_here("info", url)
    assert done.returncode != 0
    assert "contains a password" in done.stderr
    assert PASSWORD not in str(caught.value) + done.output


@pytest.mark.usefixtures("no_credentials")
def test_a_signature_is_not_sent_to_another_server(s3, web, monkeypatch):
    with proxy(web.url) as other, proxy(s3.server) as first:
        first.fault = lambda request: Answer(307, b"", {"Location": f"{other.url}{request.path}"})
        for name, value in (s3.environment(first.url) | KEYS).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(OURS):
            wkwdask.read(f"{s3.url}/none/color/1")
        assert first.requests
        assert not [request for request in other.requests if "authorization" in request.headers]


AZURE_KEYS = {
    "AZURE_STORAGE_ACCOUNT_NAME": "account",
    "AZURE_STORAGE_SAS_KEY": "sv=2024-01-01&sig=signature-of-the-tests",
}


@pytest.mark.usefixtures("no_credentials")
@pytest.mark.parametrize(("url", "variables"), [("s3://bucket", KEYS), ("az://bucket", AZURE_KEYS)])
def test_a_token_is_not_sent_to_another_host(far, monkeypatch, url, variables):
    with proxy(far.url) as other, proxy(far.url) as first:
        elsewhere = other.url.replace("127.0.0.1", "localhost")
        first.fault = lambda request: Answer(307, b"", {"Location": f"{elsewhere}{request.path}"})
        places = {
            "AWS_ENDPOINT_URL": first.url,
            "AWS_REGION": "us-east-1",
            "AZURE_STORAGE_ENDPOINT": f"{first.url}/account",
        }
        for name, value in (
            variables | places | {"AWS_ALLOW_HTTP": "true", "AZURE_ALLOW_HTTP": "true"}
        ).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(
            OSError,
            match=(
                f"cannot be read: {first.url} redirects to {elsewhere}, which is not followed for "
                "a bucket"
            ),
        ):
            wkwdask.open(f"{url}/wkw/color/1")
        assert first.requests
        assert not other.requests


@pytest.mark.usefixtures("no_credentials")
def test_errors_of_a_bucket_hold_no_keys(s3, monkeypatch):
    with proxy(s3.server) as far:
        for name, value in (s3.environment(far.url) | KEYS).items():
            monkeypatch.setenv(name, value)
        array = wkwdask.open(WKW.url(s3.url))
        for status in (400, 403, 404, 500):
            far.fault = lambda request, status=status: Answer(
                status, " ".join(KEYS.values()).encode()
            )
            with pytest.raises(OURS) as caught:
                wkwdask.open(f"{s3.url}/none/color/1")
            chain = [caught.value, caught.value.__cause__]
            assert not [value for value in KEYS.values() if value in " ".join(map(str, chain))]
        assert not [value for value in KEYS.values() if value.encode() in pickle.dumps(array)]
