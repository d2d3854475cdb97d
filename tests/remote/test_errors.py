"""Servers that fail: each read ends soon, in a separate process with a time limit, with one clear
error."""

from __future__ import annotations

import contextlib
import re
import socket
from dataclasses import dataclass, field

import pytest
from remote.fresh_process import KEYS, FreshProcess, report
from remote.volumes import FORMS
from support.proxy import Answer, Cut, Silence, proxy

import wkwdask
from wkwdask.store.objects import object_store

pytestmark = pytest.mark.needs("obstore")

GOOGLE_REFUSES = Answer(
    403,
    b"<Error><Code>AccessDenied</Code><Message>Access denied.</Message></Error>",
    {"Content-Type": "application/xml"},
)


def _amazon(status, code, message, more="", **headers):
    """Return an error of S3 as its reference documents it."""
    text = (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{code}</Code><Message>{message}</Message>{more}<RequestId>4442587F</RequestId></Error>"
    )
    return Answer(
        status,
        text.encode(),
        {
            "Content-Type": "application/xml",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        },
    )


REGION = "eu-central-1"
_NO_CONTAINER = Answer(
    404,
    (
        b"<Error><Code>ContainerNotFound</Code><Message>The specified container does not "
        b"exist.</Message></Error>"
    ),
)
_MALFORMED = (
    f"The authorization header is malformed; the region 'us-east-1' is wrong; expecting '{REGION}'"
)
_OTHER_ENDPOINT = (
    "The bucket you are attempting to access must be addressed using the specified endpoint. "
    "Please send all future requests to this endpoint."
)


@dataclass(frozen=True)
class Case:
    """A read that fails."""

    message: str
    """Pattern of the error, with its type."""
    server: str = "web"
    """Name of a fixture."""
    path: str = "wkw/color/1"
    prefix: str = ""
    bucket: str | None = None
    """Name of the bucket, where it is not the right one."""
    fault: object = None
    """Answer of the proxy in front of the server, None for an honest one."""
    only: str = ""
    """Part of the paths that the fault is for."""
    environment: dict = field(default_factory=dict)


CASES = {
    "no such dataset": Case("MissingError: .*/none/color/1: no dataset", path="none/color/1"),
    "no such volume": Case(
        "MissingError: .*/none/info: not found", path="none", prefix="precomputed://"
    ),
    "no such bucket": Case("MissingError: s3://none/.*no such bucket", "s3", bucket="none"),
    "no such container": Case(
        "MissingError: az://none/.*no such bucket", "azure", bucket="none", fault=_NO_CONTAINER
    ),
    "a page instead of data": Case(
        "UnsupportedError: .*HTML page instead of data", "paging", "none/color/1"
    ),
    "a page instead of a volume": Case(
        "UnsupportedError: .*HTML page instead of data", "paging", "none", "precomputed://"
    ),
    "no ranges": Case(
        "UnsupportedError: .*x0.wkw: the server does not support range requests", "without_ranges"
    ),
    "a password is asked for": Case("PermissionError: .*401 Unauthorized", "protected"),
    "refused": Case("PermissionError: .*403 Forbidden", fault=Answer(403)),
    "nobody listens": Case("OSError: .*refuses connections", "nobody"),
    "an unknown host": Case("OSError: .*name of the server is unknown", "unknown"),
    "silence": Case(
        "TimeoutError: .*no answer from http://127.0.0.1:[0-9]+ within [0-9]+ seconds",
        fault=Silence(),
    ),
    "silence of a block": Case(
        "TimeoutError: .*no answer from http://127.0.0.1:[0-9]+ within [0-9]+ seconds",
        fault=Silence(),
        only="x0.wkw",
    ),
    "dropped": Case("OSError: .*cannot be read: ", fault=Cut()),
    "dropped in a block": Case("OSError: .*x0.wkw", fault=Cut(), only="x0.wkw"),
    "truncated": Case("(OSError|TruncatedError): .*x0.wkw", fault=Cut(10), only="x0.wkw"),
    "broken": Case("OSError: .*cannot be read: 500", fault=Answer(500)),
    "busy": Case("OSError: .*cannot be read: 503", fault=Answer(503)),
    "redirected for ever": Case("OSError: .*cannot be read: ", "redirecting", "loop"),
    "private": Case(
        "PermissionError: .*403 Forbidden.*anonymous access, because no credentials were found",
        "s3",
        "private",
    ),
    "denied by a policy": Case(
        "PermissionError: .*403 Forbidden, AccessDenied",
        "s3",
        fault=_amazon(403, "AccessDenied", "Access Denied"),
        environment=KEYS,
    ),
    "expired": Case(
        (
            "PermissionError: .*ExpiredToken, the credentials have expired: log in again; this was "
            "credentials of the environment"
        ),
        "s3",
        fault=_amazon(400, "ExpiredToken", "The provided token has expired."),
        environment=KEYS,
    ),
    "unknown key": Case(
        "PermissionError: .*InvalidAccessKeyId, the credentials are not valid",
        "s3",
        fault=_amazon(
            403,
            "InvalidAccessKeyId",
            "The AWS Access Key Id you provided does not exist in our records.",
        ),
        environment=KEYS,
    ),
    "wrong signature": Case(
        "PermissionError: .*SignatureDoesNotMatch, the credentials are not valid",
        "s3",
        fault=_amazon(
            403,
            "SignatureDoesNotMatch",
            "The request signature we calculated does not match the signature you provided.",
        ),
        environment=KEYS,
    ),
    "wrong clock": Case(
        "PermissionError: .*RequestTimeTooSkewed",
        "s3",
        fault=_amazon(
            403,
            "RequestTimeTooSkewed",
            "The difference between the request time and the current time is too large.",
        ),
        environment=KEYS,
    ),
    "wrong region": Case(
        (
            "OSError: .*s3://bucket is in the region eu-central-1, not in the default one; state "
            "its region"
        ),
        "s3",
        fault=_amazon(
            301,
            "PermanentRedirect",
            _OTHER_ENDPOINT,
            f"<Endpoint>bucket.s3.{REGION}.amazonaws.com</Endpoint>",
            x_amz_bucket_region=REGION,
        ),
    ),
    "wrong region of a signature": Case(
        "OSError: .*s3://bucket is in the region eu-central-1",
        "s3",
        fault=_amazon(
            400, "AuthorizationHeaderMalformed", _MALFORMED, f"<Region>{REGION}</Region>"
        ),
        environment=KEYS,
    ),
    "slow down": Case(
        "OSError: .*503.*SlowDown",
        "s3",
        fault=_amazon(503, "SlowDown", "Please reduce your request rate."),
    ),
    "refused by Google": Case(
        "PermissionError: .*403 Forbidden, AccessDenied.*gs://bucket/", "gs", fault=GOOGLE_REFUSES
    ),
    "not public on Azure": Case(
        "(PermissionError|OSError): .*PublicAccessNotPermitted.*az://bucket/",
        "azure",
        fault=Answer(
            409,
            (
                b"<Error><Code>PublicAccessNotPermitted</Code><Message>Public access is not "
                b"permitted on this storage account.</Message></Error>"
            ),
        ),
    ),
    "wrong key of Azure": Case(
        "PermissionError: .*AuthenticationFailed, the credentials are not valid",
        "azure",
        fault=Answer(
            403,
            (
                b"<Error><Code>AuthenticationFailed</Code><Message>Server failed to authenticate "
                b"the request.</Message></Error>"
            ),
        ),
    ),
}

_OF_NGINX = ("without_ranges", "paging", "redirecting", "protected")


@pytest.fixture(scope="module")
def failing(request, tmp_path_factory):
    """Start the reads of all cases at once, each in a process; returns them by name, a skip in
    place of those whose server is absent."""
    folder = tmp_path_factory.mktemp("failing")
    with contextlib.ExitStack() as stack:
        started = {}
        for number, (name, case) in enumerate(CASES.items()):
            try:
                url, environment = _place(case, request, stack)
            except pytest.skip.Exception as skipped:
                started[name] = skipped
                continue
            (folder / str(number)).mkdir()
            started[name] = FreshProcess(
                report, url, folder=folder / str(number), **environment, **case.environment
            )
            stack.callback(started[name].kill)
        yield started


def _place(case, request, stack):
    """Return the URL of a case, and the variables that lead there."""
    if case.server in ("nobody", "unknown"):
        with socket.create_server(("127.0.0.1", 0)) as free:
            host = (
                f"127.0.0.1:{free.getsockname()[1]}"
                if case.server == "nobody"
                else "no-such-host.invalid"
            )
        return f"{case.prefix}http://{host}/{case.path}", {}
    server = request.getfixturevalue("web" if case.server in _OF_NGINX else case.server)
    url = (
        getattr(server, case.server)
        if case.server in _OF_NGINX
        else server.url
        if case.server == "web"
        else server.server
    )
    if case.fault is not None:
        front = stack.enter_context(proxy(url))
        front.fault = lambda request: case.fault if case.only in request.path else None
        url = front.url
    if case.server not in ("s3", "gs", "azure"):
        return f"{case.prefix}{url}/{case.path}", {}
    if case.path == "private":
        server.put("private/datasource-properties.json", b"{}", "private")
    bucket = (
        server.url if case.bucket is None else f"{server.url.partition('://')[0]}://{case.bucket}"
    )
    return f"{case.prefix}{bucket}/{case.path}", server.environment(url)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CASES)
def test_a_server_that_fails(failing, name):
    if isinstance(failing[name], BaseException):
        raise failing[name]
    (line,) = failing[name].output().splitlines()
    assert re.match(CASES[name].message, line), line
    for secret in KEYS.values():
        assert secret not in line


@pytest.mark.parametrize("seconds", ["1.507", "507"])
def test_a_time_in_an_error_is_no_status(seconds):
    text = f"Error performing GET http://host/v in {seconds}s - status code: 403 Forbidden"
    assert object_store._FULL.search(text) is None
    assert object_store._FULL.search(text.replace("403 Forbidden", "507 Insufficient Storage"))


def test_every_format_names_the_file_that_is_refused(far):
    """A document stays readable, the data are refused; there is no reason to believe that they are
    absent once the documents are refused too."""
    for form in FORMS:
        if form.needs is not None:
            pytest.importorskip(form.needs)
        array = wkwdask.open(form.url(far.url))
        far.fault = lambda request: Answer(403)
        with pytest.raises(PermissionError, match=rf"403.*{form.path.partition('/')[0]}"):
            array.compute(scheduler="synchronous")
        far.clear()
