"""Redirects of web servers and buckets: which are followed, and errors that name both hosts."""

from __future__ import annotations

import contextlib
import http.server
import os
import shutil
import ssl
import subprocess
import threading
from urllib.parse import urlsplit

import pytest
from support.inside import limited
from support.proxy import Answer, proxy
from support.range_server import range_server

from wkwdask.errors import UnsupportedError
from wkwdask.store.objects import access, object_store, redirects
from wkwdask.store.objects.access import Access
from wkwdask.store.objects.object_store import Request

pytestmark = pytest.mark.needs("obstore")

DATA = bytes(range(200))


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    """No pauses, no configuration of the machine, and no proxies."""
    for name in [
        name
        for name in os.environ
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_")) or name.lower().endswith("_proxy")
    ]:
        monkeypatch.delenv(name)
    for name in (
        "AWS_CONFIG_FILE",
        "AWS_SHARED_CREDENTIALS_FILE",
        "CLOUDSDK_CONFIG",
        "XDG_CONFIG_HOME",
    ):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setattr(access, "_given", {})
    with limited(pauses=(0.0, 0.0)):
        yield


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """Paths of the certificate of a server on this machine and of its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is absent: apt-get install openssl")
    folder = tmp_path_factory.mktemp("certificate")
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    paths = ["-keyout", folder / "key.pem", "-out", folder / "certificate.pem"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *paths],
        check=True,
        capture_output=True,
    )
    return folder / "certificate.pem", folder / "key.pem"


@pytest.fixture
def trusted(certificate, monkeypatch):
    """Let both clients trust the certificate."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    monkeypatch.setattr(
        object_store, "_CLIENT", {**object_store._CLIENT, "allow_invalid_certificates": True}
    )


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.requests.append((self.command, self.path, dict(self.headers)))
        location = self.server.location(self.path)
        if location is not None:
            self._answer(302, b"", Location=location)
        elif "absent" in self.path:
            self._answer(404, b"")
        elif "refused" in self.path:
            self._answer(403, b"")
        elif self.headers.get("Range"):
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            self._answer(
                206,
                DATA[first : last + 1],
                **{"Content-Range": f"bytes {first}-{last}/{len(DATA)}"},
            )
        else:
            self._answer(200, DATA)

    do_HEAD = do_GET  # noqa: N815

    def _answer(self, status, data, **headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_):
        """Print nothing."""


@contextlib.contextmanager
def _server(location=lambda path: None, certificate=None, host="127.0.0.1"):
    """Run a server that has the data under every path that it does not redirect."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.requests, server.location, server.daemon_threads = [], location, True
        server.url = f"{'https' if certificate else 'http'}://{host}:{server.server_port}"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def _read(url, *ends):
    return object_store.read(Request(url, *ends), Access()).data


# ------------------------------------------------------------------------------------------------
# followed


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize(
    "target", ["{path}", "/other{path}", "{path}?signature=a%2Fb&part=1", "/a%2Fb{path}"]
)
def test_a_redirect_to_https_on_another_host(certificate, target):
    with (
        _server(certificate=certificate, host="localhost") as end,
        _server(lambda path: end.url + target.format(path=path)) as first,
    ):
        assert _read(f"{first.url}/data/x%20y") == DATA
        assert _read(f"{first.url}/data/x%20y", 10, 20) == DATA[10:20]
        assert object_store.size(f"{first.url}/data/z", Access()) == len(DATA)
        with pytest.raises(FileNotFoundError, match="data/absent"):
            _read(f"{first.url}/data/absent")
        with pytest.raises(
            PermissionError, match=f"403 Forbidden, from {end.url}, to which {first.url} redirects"
        ):
            _read(f"{first.url}/data/refused")
    assert {path for _, path, _ in end.requests} == {
        target.format(path=f"/data/{name}") for name in ("x%20y", "z", "absent", "refused")
    }
    assert not [
        headers
        for _, _, headers in end.requests
        if headers.keys() & {"Authorization", "Cookie", "Referer", "referer"}
    ]


@pytest.mark.usefixtures("trusted")
def test_only_redirected_files_of_a_server_are_read_elsewhere(certificate):
    with (
        _server(certificate=certificate, host="localhost") as end,
        _server(lambda path: end.url + path if "far" in path else None) as first,
    ):
        for name in ("near", "far", "near2", "far"):
            assert _read(f"{first.url}/{name}") == DATA
    assert {path for _, path, _ in end.requests} == {"/far"}
    # obstore asks for the first one until it gives up; the address at which it ends is then asked
    # for once
    assert [
        path for _, path, headers in first.requests if headers.get("User-Agent") == "wkwdask"
    ] == ["/far", "/near2"]


@pytest.mark.usefixtures("trusted")
def test_as_many_redirects_as_are_followed(certificate):
    def location(path):
        number = int(path.rpartition("/")[2])
        host = "localhost" if number % 2 else "127.0.0.1"
        return None if number == 0 else f"https://{host}:{end.server_port}/{number - 1}"

    with (
        _server(lambda path: f"https://localhost:{end.server_port}{path}") as first,
        _server(location, certificate) as end,
    ):
        assert _read(f"{first.url}/9") == DATA
        with pytest.raises(
            OSError,
            match=(
                r"cannot be read: http://127\.0\.0\.1:.* redirects to https://localhost:.* after "
                r"10 other redirects"
            ),
        ):
            _read(f"{first.url}/10")


@pytest.mark.usefixtures("trusted")
def test_a_file_that_is_redirected_from_now_on(certificate):
    moved = {"/moved"}
    with (
        _server(certificate=certificate, host="localhost") as end,
        _server(lambda path: end.url + path if path in moved else None) as first,
    ):
        assert _read(f"{first.url}/moved") == DATA  # the server is known to redirect
        assert _read(f"{first.url}/stays") == DATA
        moved.add("/stays")
        assert _read(f"{first.url}/stays") == DATA
    assert {path for _, path, _ in end.requests} == {"/moved", "/stays"}


@pytest.mark.usefixtures("trusted")
def test_other_packages_are_refused_a_server_that_redirects(certificate):
    with (
        _server(certificate=certificate, host="localhost") as end,
        _server(lambda path: end.url + path) as first,
    ):
        object_store.store_of(f"{first.url}/folder", Access())
        assert _read(f"{first.url}/folder/zarr.json") == DATA
        with pytest.raises(
            UnsupportedError, match=f"{first.url} redirects to another host, .* download it first"
        ):
            object_store.store_of(f"{first.url}/folder", Access())


def test_a_redirect_on_the_same_host_needs_no_second_request():
    with _server() as end, _server(lambda path: end.url + path) as first:
        assert _read(f"{first.url}/data/x") == DATA
    assert len(first.requests) == len(end.requests) == 1


# ------------------------------------------------------------------------------------------------
# refused


REFUSED = {
    "http://localhost:{port}/x": (
        "redirects to http://localhost:[0-9]+, an address without encryption"
    ),
    "ftp://localhost/x": "redirects to ftp://localhost, which is no web server",
    "file:///etc/passwd": "redirects to file://, which is no web server",
    "https://me:secret@localhost:{port}/x": (
        "redirects to https://localhost:[0-9]+, with a password"
    ),
    "https://[::1/x": "redirects to what is no address",
    "https://localhost:port/x": "redirects to what is no address",
    "https://no-such-host.invalid/x": (
        r"no answer from https://no-such-host\.invalid, to which http://127\.0\.0\.1:[0-9]+ "
        r"redirects"
    ),
}


@pytest.mark.parametrize("location", REFUSED)
def test_a_redirect_that_is_refused(location):
    with _server() as end, _server(lambda path: location.format(port=end.server_port)) as first:
        with pytest.raises(OSError, match=REFUSED[location]) as caught:
            redirects.resolve(f"{first.url}/data/x")
        assert caught.value.filename == f"{first.url}/data/x"
        assert first.url in str(caught.value)
        assert "secret" not in str(caught.value)
    assert not end.requests


@pytest.mark.parametrize("call", [_read, lambda url: object_store.size(url, Access())])
def test_a_redirect_to_another_host_without_encryption(call):
    with _server(host="localhost") as end, _server(lambda path: end.url + path) as first:
        refused = (
            f"cannot be read: {first.url} redirects to {end.url}, an address without encryption"
        )
        with pytest.raises(OSError, match=refused):
            call(f"{first.url}/data/x")
    assert not end.requests


@pytest.mark.usefixtures("trusted")
def test_a_redirect_from_a_public_to_a_private_address(certificate, monkeypatch):
    monkeypatch.setattr(redirects, "is_private_address", lambda address: address == "10.0.0.1")
    found = redirects.socket.getaddrinfo

    # the first host has its true address, which counts as a public one here; the other one has two
    def private(host, *rest, **flags):
        return [
            *found(host, *rest, **flags),
            *([(2, 1, 6, "", ("10.0.0.1", 443))] if host == "localhost" else []),
        ]

    monkeypatch.setattr(redirects.socket, "getaddrinfo", private)
    with (
        _server(certificate=certificate, host="localhost") as end,
        _server(lambda path: end.url + path) as first,
    ):
        with pytest.raises(
            OSError,
            match=(
                f"{first.url} redirects to {end.url}, an address of a private network, which is "
                "not followed"
            ),
        ):
            _read(f"{first.url}/data/x")
        assert not end.requests


PRIVATE = [
    "127.0.0.1",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "::1",
    "fe80::1%eth0",
    "fd00::1",
    "::ffff:10.0.0.1",
    "64:ff9b::a00:1",
    "2002:a00:1::",
]
PUBLIC = ["8.8.8.8", "2001:4860:4860::8888", "::ffff:8.8.8.8", "64:ff9b::808:808"]


@pytest.mark.parametrize(
    ("address", "is_private"),
    [*((each, True) for each in PRIVATE), *((each, False) for each in PUBLIC)],
)
def test_private_addresses(address, is_private):
    assert redirects.is_private_address(address) == is_private


def test_an_endless_answer_to_the_question_where_to(monkeypatch):
    monkeypatch.setattr(redirects, "_SECONDS", 0.3)

    class Slow(_Handler):
        def do_GET(self):
            with contextlib.suppress(OSError):
                self.wfile.write(b"HTTP/1.1 302 Found\r\n")
                while not stopped.wait(0.05):
                    self.wfile.write(b"x")

    stopped = threading.Event()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with pytest.raises(
                TimeoutError, match=r"no answer within 0\.3 seconds from http://127\.0\.0\.1"
            ):
                redirects.resolve(f"http://127.0.0.1:{server.server_port}/x")
        finally:
            stopped.set()
            server.shutdown()


# ------------------------------------------------------------------------------------------------
# buckets


BUCKETS = {
    "s3": (
        "s3://bucket/x",
        {"AWS_ENDPOINT_URL": "{url}", "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"},
    ),
    "gs": ("gs://bucket/x", {"STORAGE_EMULATOR_HOST": "{url}"}),
    "az": (
        "az://bucket/x",
        {
            "AZURE_STORAGE_ENDPOINT": "{url}/account",
            "AZURE_STORAGE_ACCOUNT_NAME": "account",
            "AZURE_ALLOW_HTTP": "true",
        },
    ),
}


@pytest.mark.parametrize("name", BUCKETS)
def test_an_anonymous_bucket_that_redirects_to_another_host(name, monkeypatch):
    url, variables = BUCKETS[name]
    with _server(host="localhost") as end, _server(lambda path: end.url + path) as first:
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value.format(url=first.url))
        with pytest.raises(
            OSError,
            match=(
                f"cannot be read: {first.url} redirects to {end.url}, which is not followed for a "
                "bucket"
            ),
        ):
            object_store.read(Request(url), Access(anonymous=True))
    assert first.requests
    assert not end.requests


@pytest.mark.parametrize(
    ("kind", "host"),
    [
        ("S3Store", "s3.eu-central-1.amazonaws.com"),
        ("GCSStore", "storage.googleapis.com"),
        ("AzureStore", "a.blob.core.windows.net"),
    ],
)
def test_anonymous_buckets_reach_the_hosts_of_their_provider_alone(kind, host):
    options = object_store._no_other_host(
        kind, object_store.Credentials({"skip_signature": True}, "")
    )
    assert options["proxy_url"] == f"http://{redirects.NOWHERE}"
    assert any(host.endswith(f".{name}") for name in options["proxy_excludes"].split(","))


# ------------------------------------------------------------------------------------------------
# the user's proxy


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_the_proxy_of_the_environment_is_used(monkeypatch, tmp_path, variable):
    with _server() as web, proxy(web.url) as own:
        monkeypatch.setenv(variable, own.url)
        # a name that only the proxy knows
        assert _read(f"http://{variable.lower().replace('_', '-')}.data.invalid/x") == DATA
        assert own.requests


def test_a_host_for_which_the_environment_has_no_proxy(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with (
        _server(host="localhost") as end,
        _server(lambda path: end.url + path if "far" in path else None) as first,
    ):
        assert _read(f"{first.url}/near") == DATA
        with pytest.raises(
            OSError, match=f"{first.url} redirects to {end.url}, an address without encryption"
        ):
            _read(f"{first.url}/far")
        assert not end.requests


def test_redirects_behind_the_users_proxy_stay_behind_it(monkeypatch):
    """The proxy is asked for the host of a redirect too, although the environment has no proxy for
    it."""
    with _server(host="localhost") as end, proxy(end.url) as own:
        monkeypatch.setenv("HTTP_PROXY", own.url)
        monkeypatch.setenv("NO_PROXY", "localhost")
        own.fault = lambda request: (
            Answer(302, b"", {"Location": f"{end.url}/x"})
            if "data.invalid" in request.path
            else None
        )
        assert _read("http://behind.data.invalid/x") == DATA
        assert [urlsplit(request.path).hostname for request in own.requests] == [
            "behind.data.invalid",
            "localhost",
        ]


def test_the_question_where_to_goes_through_the_users_proxy(monkeypatch):
    with proxy("http://127.0.0.1:1") as own:
        own.fault = lambda request: Answer(403)
        monkeypatch.setenv("HTTPS_PROXY", own.url.replace("://", "://user:word@"))
        with pytest.raises(OSError, match=r"no answer from https://data\.invalid: .*403"):
            redirects.resolve("https://data.invalid/x")
        assert [(request.method, request.path) for request in own.requests] == [
            ("CONNECT", "data.invalid:443")
        ]
        assert own.requests[0].headers["proxy-authorization"] == "Basic dXNlcjp3b3Jk"


@pytest.mark.parametrize(
    ("host", "excluded"),
    [
        ("127.1", "127.0.0.1"),
        ("LOCALHOST", "localhost"),
        ("[::1]", "::1"),
        ("münchen.invalid", "xn--mnchen-3ya.invalid"),
    ],
)
def test_the_own_host_is_written_as_the_network_library_writes_it(host, excluded):
    assert redirects.client_options(f"http://{host}:8000")["proxy_excludes"] == excluded


def test_a_server_by_another_form_of_its_address(tmp_path):
    (tmp_path / "x").write_bytes(DATA)
    with range_server(tmp_path) as server:
        assert _read(f"{server.url.replace('127.0.0.1', '127.1')}/x") == DATA
