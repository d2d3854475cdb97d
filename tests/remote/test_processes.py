"""Remote data in threads, in forked and spawned processes, in pickles, and on workers of dask."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor

import cloudpickle
import numpy as np
import pytest
from remote.fresh_process import KEYS, FreshProcess, read_then_fork
from remote.volumes import FORMS, PARTS

import wkwdask

pytestmark = pytest.mark.needs("obstore")

WKW = FORMS[0]


@pytest.fixture
def in_s3(s3, monkeypatch, no_credentials):
    """URL of the volumes in S3, for this process."""
    for name, value in s3.environment(s3.server).items():
        monkeypatch.setenv(name, value)
    return s3.url


def test_many_threads_read_at_once(form, place):
    url = form.url(place)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda part: wkwdask.read(url, form.box(part)), PARTS * 6))
    for part, voxels in zip(PARTS * 6, found, strict=True):
        np.testing.assert_array_equal(voxels, form.crop(part))


def test_threads_of_dask_read_at_once(form, place):
    array = wkwdask.open(form.url(place), chunks="block")
    np.testing.assert_array_equal(array.compute(scheduler="threads", num_workers=8), form.array())


@pytest.mark.parametrize("kind", ["http", "s3"])
def test_a_fork_after_use_ends_with_data_or_an_error(kind, request, tmp_path):
    server = request.getfixturevalue("web" if kind == "http" else "s3")
    environment = {} if kind == "http" else server.environment(server.server)
    of_fork, of_parent = (
        FreshProcess(
            read_then_fork,
            WKW.url(server.url),
            WKW.box(),
            WKW.array(),
            folder=tmp_path,
            **environment,
        )
        .output()
        .splitlines()
    )
    assert of_fork == "True" or ("spawn" in of_fork and "forkserver" in of_fork), of_fork
    assert of_parent == "True"


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_that_start_afresh_read(web, method):
    url = WKW.url(web.url)
    np.testing.assert_array_equal(wkwdask.read(url, WKW.box()), WKW.array())
    with multiprocessing.get_context(method).Pool(1) as pool:
        found = pool.apply_async(wkwdask.read, (url, WKW.box())).get(60)
    np.testing.assert_array_equal(found, WKW.array())


@pytest.mark.parametrize("source", ["environment", "profile"])
def test_pickles_hold_no_credentials(in_s3, form, source, tmp_path, monkeypatch):
    if source == "environment":
        for name, value in KEYS.items():
            monkeypatch.setenv(name, value)
    else:
        lines = [f"{name.lower()} = {value}" for name, value in KEYS.items()]
        (tmp_path / "credentials").write_text("\n".join(["[lab]", *lines]))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        monkeypatch.setenv("AWS_PROFILE", "lab")
    array = wkwdask.open(form.url(in_s3))
    np.testing.assert_array_equal(array.compute(scheduler="synchronous"), form.array())
    for data in (
        pickle.dumps(array),
        cloudpickle.dumps(dict(array.__dask_graph__())),
        array.name.encode(),
        repr(array).encode(),
    ):
        for value in KEYS.values():
            assert value.encode() not in data


def test_a_pickle_is_read_where_other_credentials_are(in_s3, form, monkeypatch):
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    data = pickle.dumps(wkwdask.open(form.url(in_s3)))
    for name in KEYS:
        monkeypatch.delenv(name)
    np.testing.assert_array_equal(pickle.loads(data).compute(scheduler="synchronous"), form.array())


@pytest.mark.one_in(2)
@pytest.mark.usefixtures("client")
def test_workers_of_dask_read(form, web):
    np.testing.assert_array_equal(
        wkwdask.open(form.url(web.url), chunks="block").compute(), form.array()
    )


@pytest.mark.usefixtures("client", "no_credentials")
def test_workers_of_dask_get_the_names_of_a_store(form, s3):
    """The workers started before, with an environment that leads nowhere: what the array carries
    has to suffice."""
    options = {"endpoint": s3.server, "region": "us-east-1", "anonymous": True}
    array = wkwdask.open(form.url(s3.url), storage_options=options)
    np.testing.assert_array_equal(array.compute(), form.array())


@pytest.mark.usefixtures("client")
def test_a_job_of_many_processes_reads(form, web, tmp_path):
    report = wkwdask.copy(form.url(web.url), f"{form.prefix}{tmp_path}/{form.path}")
    assert report.files > 0
    np.testing.assert_array_equal(
        wkwdask.read(f"{form.prefix}{tmp_path}/{form.path}", form.box()), form.array()
    )
