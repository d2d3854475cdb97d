"""Servers of the same volumes, each started once, when a test first needs it."""

from __future__ import annotations

import os

import pytest
from remote.fresh_process import hidden
from remote.volumes import FORMS, SERVERS, write_all
from support.buckets import azure_container, gs_bucket, s3_bucket
from support.nginx import nginx, nginx_program
from support.proxy import proxy

_CREDENTIALS = ("AWS_", "AZURE_", "GOOGLE_", "STORAGE_EMULATOR_")
"""Beginnings of the variables by which clients find servers and credentials."""


@pytest.fixture(scope="session")
def stored(tmp_path_factory):
    """The folder of all volumes."""
    pytest.importorskip("obstore", reason="reads from servers")
    folder = tmp_path_factory.mktemp("served")
    write_all(folder)
    return folder


@pytest.fixture(scope="session")
def web(stored, tmp_path_factory):
    """nginx over the folder of all volumes."""
    if nginx_program() is None:
        pytest.skip("nginx is absent: apt-get install nginx-light")
    with nginx(stored, tmp_path_factory.mktemp("nginx")) as running:
        yield running


@pytest.fixture
def far(web):
    """A proxy in front of nginx, which counts requests, and can fail."""
    with proxy(web.url) as running:
        yield running


@pytest.fixture(scope="session")
def s3(stored):
    """The same volumes in a bucket of S3."""
    with s3_bucket() as bucket:
        bucket.upload(stored)
        yield bucket


@pytest.fixture(scope="session")
def gs(stored):
    """The same volumes in a bucket of Google Cloud Storage."""
    with gs_bucket() as bucket:
        bucket.upload(stored)
        yield bucket


@pytest.fixture(scope="session")
def azure(stored, tmp_path_factory):
    """The same volumes in a container of Azure."""
    with azure_container(tmp_path_factory.mktemp("azurite")) as bucket:
        bucket.upload(stored)
        yield bucket


@pytest.fixture(params=SERVERS)
def place(request):
    """URL of the folder of all volumes on each server, which this process reaches without
    credentials."""
    if request.param == "http":
        return request.getfixturevalue("web").url
    request.getfixturevalue("no_credentials")
    bucket = request.getfixturevalue({"s3": "s3", "gs": "gs", "az": "azure"}[request.param])
    patch = request.getfixturevalue("monkeypatch")
    for name, value in bucket.environment(bucket.server).items():
        patch.setenv(name, value)
    return bucket.url


@pytest.fixture
def no_credentials(monkeypatch, tmp_path):
    """Hide the credentials of the user who runs the tests."""
    for name in [name for name in os.environ if name.startswith(_CREDENTIALS)]:
        monkeypatch.delenv(name)
    for name, value in hidden(tmp_path).items():
        monkeypatch.setenv(name, value)


@pytest.fixture(params=FORMS, ids=str)
def form(request):
    """A format; those whose writer is absent are skipped."""
    if request.param.needs is not None:
        pytest.importorskip(request.param.needs, reason="writes the volume")
    return request.param
