"""Failures of servers and buckets: each is one clear error, or is overcome by asking again."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import re
import socket
import threading

import numpy as np
import pytest
from support.inside import limited
from support.range_server import range_server

import wkwdask
from wkwdask.errors import FormatError, MissingError, UnsupportedError
from wkwdask.store.objects import access
from wkwdask.store.store import open_store

pytest.importorskip("obstore", reason="reads http and s3")

DATA = bytes(range(256))


@pytest.fixture(autouse=True)
def _quick(monkeypatch, tmp_path):
    """No pauses, and no credentials or configuration of the machine."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "AZURE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "aws-credentials"))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(access, "_given", {})
    with limited(pauses=(0.0, 0.0)):
        yield


def answer(status, body=b"", *, length=None, **headers):
    """Format an answer; ``length`` is the stated one if it differs from that of the body."""
    lines = {
        "Content-Length": len(body) if length is None else length,
        "Last-Modified": "Sun, 01 Nov 2026 00:00:00 GMT",
        "ETag": '"x"',
        **headers,
    }
    head = "".join(
        f"{name.replace('_', '-')}: {value}\r\n"
        for name, value in lines.items()
        if value is not None
    )
    return f"HTTP/1.1 {status}\r\nConnection: close\r\n{head}\r\n".encode() + body


def part(start, stop, *, missing=0):
    """Format the answer to a request for a range, whose last bytes may be missing."""
    return answer(
        "206 Partial Content",
        DATA[start : stop - missing],
        length=stop - start,
        Content_Range=f"bytes {start}-{stop - 1}/{len(DATA)}",
    )


def amazon(status, code, more=""):
    return answer(status, f"<Error><Code>{code}</Code>{more}</Error>".encode())


@contextlib.contextmanager
def server(*answers):
    """Serve answers one after another, then the last one again; yields the URL."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            waiting = list(answers)
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with connection:
                        connection.recv(1 << 16)
                        connection.sendall(waiting.pop(0) if len(waiting) > 1 else waiting[0])

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def read(url, *span):
    file = open_store(url).open("file")
    return file.read([span])


@pytest.mark.parametrize(
    "failure",
    [
        part(10, 20, missing=3),
        answer("503 Slow Down"),
        answer("429 Too Many Requests"),
        answer("408 Request Timeout"),
        b"",
    ],
)
def test_a_failure_that_passes_is_overcome(failure):
    with server(failure, part(10, 20)) as url:
        assert read(url, 10, 20) == [DATA[10:20]]


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (part(10, 20, missing=3), "cannot be read: .*body"),
        (answer("503 Slow Down"), "cannot be read: 503 Service Unavailable"),
        (answer("200 OK", DATA), "the server does not support range requests"),
        (
            answer("206 Partial Content", b"", length="no", Content_Range="bytes 10-19/256"),
            "cannot be read",
        ),
        (answer("403 Forbidden"), "cannot be read: 403 Forbidden"),
        (answer("401 Unauthorized"), "cannot be read: 401 Unauthorized"),
    ],
)
def test_a_failure_that_stays_is_an_error(failure, expected):
    with server(failure) as url, pytest.raises((OSError, UnsupportedError), match=expected):
        read(url, 10, 20)


def test_an_html_page_is_no_data():
    page = answer(
        "200 OK", b"<!doctype html><title>Log in</title>", Content_Type="text/html; charset=utf-8"
    )
    with (
        server(page) as url,
        pytest.raises(
            UnsupportedError, match="/em/info: the server sent an HTML page instead of data"
        ),
    ):
        wkwdask.open(f"precomputed://{url}/em")


def test_a_file_without_a_stated_size_is_an_error():
    with (
        server(answer("200 OK", b"{}", length=None).replace(b"Content-Length: 2\r\n", b"")) as url,
        pytest.raises(OSError, match="Content-Length"),
    ):
        wkwdask.open(f"precomputed://{url}/em")


def test_hosts_that_cannot_be_reached():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(OSError, match=f"refuses connections.*127.0.0.1:{port}"):
        wkwdask.open(f"http://127.0.0.1:{port}/ds")
    with pytest.raises(OSError, match=r"the name of the server is unknown.*no-such-host\.invalid"):
        wkwdask.open("https://no-such-host.invalid/ds")
    with (
        limited(answer_seconds=1),
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(TimeoutError, match=r"no answer from http://127.0.0.1:.* within 1 seconds"),
    ):
        wkwdask.open(f"http://127.0.0.1:{silent.getsockname()[1]}/ds")


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (amazon("404 Not Found", "NoSuchBucket"), "no such bucket: s3://cells"),
        (
            amazon("403 Forbidden", "AccessDenied"),
            (
                "403 Forbidden, AccessDenied; this was anonymous access, because no credentials "
                "were found"
            ),
        ),
        (amazon("400 Bad Request", "ExpiredToken"), "ExpiredToken, the credentials have expired"),
        (
            amazon("403 Forbidden", "InvalidAccessKeyId"),
            "InvalidAccessKeyId, the credentials are not valid",
        ),
        (
            amazon("400 Bad Request", "AuthorizationHeaderMalformed", "<Region>eu-west-1</Region>"),
            "s3://cells is in the region eu-west-1",
        ),
        (
            answer("301 Moved Permanently"),
            "s3://cells is in another region, not in the default one",
        ),
    ],
)
@pytest.mark.parametrize("url", ["s3://cells/ds", "zarr://s3://cells/ds"])
def test_buckets_say_what_is_wrong(monkeypatch, url, failure, expected):
    with server(failure) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        with pytest.raises((OSError, MissingError), match=expected):
            wkwdask.open(url)


@pytest.mark.parametrize("endpoint", ["", "localhost:9000"])
def test_an_endpoint_that_is_no_url(monkeypatch, endpoint):
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    expected = f"s3://cells/ds.* the endpoint is '{endpoint}', expected a URL .*AWS_ENDPOINT_URL"
    with pytest.raises(UnsupportedError, match=expected):
        wkwdask.open("s3://cells/ds")


def test_profiles(tmp_path):
    with pytest.raises(MissingError, match="no profile 'lab'"):
        wkwdask.open("s3://cells/ds", storage_options={"profile": "lab"})
    (tmp_path / "aws-credentials").write_text(
        "[lab]\naws_access_key_id = key\naws_secret_access_key = hidden\n"
    )
    with server(amazon("403 Forbidden", "AccessDenied")) as endpoint:
        (tmp_path / "aws-config").write_text(
            f"[profile lab]\nendpoint_url = {endpoint}\nregion = eu-west-1\n"
        )
        with pytest.raises(PermissionError, match="this was profile lab"):
            wkwdask.open("s3://cells/ds", storage_options={"profile": "lab"})
        assert b"hidden" not in pickle.dumps(open_store("s3://cells/ds/color/1"))
        assert b"lab" in pickle.dumps(open_store("s3://cells/ds/color/1"))


def test_the_longest_prefix_of_a_url_counts(tmp_path):
    (tmp_path / "config/wkwdask").mkdir(parents=True)
    table = tmp_path / "config/wkwdask/stores.yaml"
    table.write_text(
        "s3://cells:\n  profile: lab\ns3://cells/open/:\n  anonymous: true\n  region: eu-west-1\n"
    )
    assert access.access_of("s3://cells/a") == access.Access(profile="lab")
    assert access.access_of("s3://cells/open/a") == access.Access(
        anonymous=True, region="eu-west-1"
    )
    assert access.access_of("s3://cells2/a") == access.Access()
    # holds for the bucket
    access.remember_access("s3://cells/open/a/", {"endpoint": "http://host"})
    assert access.access_of("s3://cells/a") == access.Access(endpoint="http://host")
    for text, expected in (
        ("[]", "expected URL prefixes"),
        ("a: {}", "expected a URL prefix"),
        ("s3://a: {secret: x}", "unknown option 'secret'"),
        ("{", "YAML"),
    ):
        table.write_text(text)
        with pytest.raises(FormatError, match=f"{re.escape(str(table))}.*{expected}"):
            access.access_of("s3://other/a")


def test_credentials_are_no_options():
    with pytest.raises(
        ValueError,
        match=(
            r"unknown option 'key', expected profile, region.*; credentials come from the "
            r"environment"
        ),
    ):
        wkwdask.open("s3://cells/ds", storage_options={"key": "x"})
    with pytest.raises(ValueError, match="storage_options= applies to remote URLs only"):
        wkwdask.read("/some/folder", storage_options={"profile": "lab"})


def _child(url, results):
    try:
        results.put(wkwdask.read(url).sum())
    except Exception as error:
        results.put(str(error))


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_says_that_it_cannot_read(tmp_path):
    wkwdask.write(tmp_path / "1", (0, 0, 0), np.ones((32, 32, 32), np.uint8), file_len=1)
    with range_server(tmp_path) as files:
        assert wkwdask.read(f"{files.url}/1").all()
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        process = context.Process(target=_child, args=(f"{files.url}/1", results))
        process.start()
        assert re.search(
            "was forked after remote data were read.*spawn or forkserver", results.get(timeout=60)
        )
        process.join()
