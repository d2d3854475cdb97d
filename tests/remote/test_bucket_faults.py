"""Servers of buckets that refuse, fail after they did what was asked, or ignore conditions: jobs
end well, or stop with an error that names the object, and resume."""

from __future__ import annotations

import re
import threading
import warnings
from unittest import mock
from urllib.parse import parse_qs

import numpy as np
import pytest
from support.buckets import CARELESS, azure_container, careless_bucket, gs_bucket, s3_bucket
from support.proxy import After, Answer, Held, proxy

import wkwdask
from wkwdask.errors import ExistsError, UnsupportedError
from wkwdask.runs.status import jobs_of
from wkwdask.store import leases
from wkwdask.store.documents import read_object, update_json
from wkwdask.store.objects import access, object_store
from wkwdask.store.store import store_at

pytestmark = pytest.mark.needs("obstore", "zarr")
VOXELS = np.random.default_rng(2).integers(1, 255, (1, 40, 36, 20), np.uint8)
IMAGE = "precomputed://gs://bucket/v"


@pytest.fixture
def storage(monkeypatch):
    with gs_bucket() as bucket, bucket.reached():
        monkeypatch.setattr(leases, "_probed", set())
        yield bucket.service


def save(image=IMAGE):
    return wkwdask.to_precomputed(
        VOXELS, image, voxel_size=(4, 4, 8), chunk_shape=(8, 8, 8), shard_shape=False
    )


def is_record(path):
    return "/.wkwdask" in path or "-lock" in path


def test_a_server_that_ignores_conditions_is_refused(storage):
    storage.honours_conditions = False
    with pytest.raises(
        UnsupportedError, match=r"does not honour conditional writes.*single_writer"
    ):
        save()
    assert storage.objects == {}


@pytest.mark.parametrize("name", CARELESS)
def test_small_servers_that_ignore_conditions_are_refused(name, tmp_path, monkeypatch):
    """They serve a single writer."""
    image = "precomputed://s3://bucket/v"
    with careless_bucket(name, tmp_path) as bucket, bucket.reached():
        monkeypatch.setattr(leases, "_probed", set())
        with pytest.raises(
            UnsupportedError, match=r"does not honour conditional writes.*single_writer"
        ):
            save(image)
        assert not [names for _, _, names in store_at("s3://bucket/v").walk() if names]
        access.remember_access("s3://bucket", {"single_writer": True})
        save(image)
        np.testing.assert_array_equal(wkwdask.read(image), VOXELS)


def test_a_single_writer_needs_no_conditions(storage):
    """The objects of a dead job stay: without conditions nobody knows that it is dead."""
    storage.honours_conditions = False
    access.remember_access("gs://bucket", {"single_writer": True})
    save()
    storage.before = lambda number, method, path: (
        403 if method == "PUT" and re.search(r"/16\S*/\d+-\d+_", path) else None
    )
    with pytest.raises(PermissionError):
        wkwdask.build_pyramid(IMAGE, method="max")
    storage.before = lambda *_: None
    unfinished = set(storage.objects)
    assert wkwdask.clean(IMAGE, grace_seconds=0) == []
    assert set(storage.objects) == unfinished
    wkwdask.build_pyramid(IMAGE, method="max")
    wkwdask.to_precomputed(
        VOXELS[..., ::-1], IMAGE, voxel_size=(4, 4, 8), chunk_shape=(8, 8, 8), existing="overwrite"
    )
    np.testing.assert_array_equal(wkwdask.read(IMAGE, mag=1), VOXELS[..., ::-1])


@pytest.mark.parametrize("status", [500, 503, 429, 0], ids=str)
@pytest.mark.parametrize("is_done", [True, False], ids=["done", "not done"])
def test_failures_of_single_requests_do_no_harm(storage, status, is_done):
    """Some writes fail once, before or after it took effect; 0 drops the connection."""
    if status == 0 and not is_done:
        pytest.skip("a connection is dropped after the request")
    failed = set()

    def fail(number, method, path):
        if method in ("PUT", "DELETE") and number % 11 == 0 and path not in failed:
            failed.add(path)
            return status
        return None

    if is_done:
        storage.after = fail
    else:
        storage.before = fail
    save()
    wkwdask.build_pyramid(IMAGE, method="max")
    assert len(failed) > 3
    np.testing.assert_array_equal(wkwdask.read(IMAGE, mag=1), VOXELS)
    assert wkwdask.verify(IMAGE).is_sound
    assert not [path for path in storage.objects if "-job-" in path or "lock" in path]


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("methods", [("PUT",), ("PUT", "GET", "HEAD", "DELETE")], ids=len)
def test_keys_that_end_in_the_middle_of_a_job(storage, monkeypatch, status, methods):
    """The job stops with an error that names what was written, and the same call completes it, once
    the lease has ended that could not be given back."""
    save()
    before = wkwdask.read(IMAGE, mag=1)
    ended = []

    def refuse(number, method, path):
        if method == "PUT" and re.search(r"/\d+-\d+_", path):
            ended.append(path)
        return status if ended and method in methods else None

    storage.before = refuse
    with pytest.raises(PermissionError, match=rf"cannot be written.*{status}") as caught:
        wkwdask.build_pyramid(IMAGE, method="max")
    assert re.search(r"gs://bucket/v/\d", str(caught.value))
    storage.before = lambda *_: None
    np.testing.assert_array_equal(wkwdask.read(IMAGE, mag=1), before)
    monkeypatch.setattr(leases, "TTL_SECONDS", -10.0)
    report = wkwdask.build_pyramid(IMAGE, method="max")
    assert len(report.mags) >= 2
    assert wkwdask.verify(IMAGE).is_sound


def test_a_user_who_may_not_write(storage):
    storage.before = lambda number, method, path: 403 if method == "PUT" else None
    with pytest.raises(PermissionError, match=r"cannot be written.*gs://bucket/v/"):
        save()
    assert storage.objects == {}


def test_a_user_who_may_not_delete(storage):
    """The image is complete, and what stays is found by `clean`."""
    storage.before = lambda number, method, path: 403 if method == "DELETE" else None
    with pytest.raises(PermissionError, match=r"cannot be deleted.*gs://bucket/v/"):
        save()
    storage.before = lambda *_: None
    save()
    np.testing.assert_array_equal(wkwdask.read(IMAGE, mag=1), VOXELS)


def refuse_listings(number, method, path):
    return 403 if method == "GET" and path == "/bucket" else None


VERBS = {
    "build_pyramid": lambda: wkwdask.build_pyramid(IMAGE),
    "rechunk": lambda: wkwdask.rechunk(IMAGE, chunk_shape=(16, 16, 16)),
    "region": lambda: wkwdask.save(VOXELS[:, :8, :8, :8], IMAGE, region=((0, 0, 0), (8, 8, 8))),
    "convert": lambda: wkwdask.convert(IMAGE, "gs://bucket/w.ome.zarr"),
    "rm": lambda: wkwdask.rm(IMAGE, mags=[1]),
    "status": lambda: jobs_of(IMAGE),
    "clean": lambda: wkwdask.clean(IMAGE),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_user_who_may_not_list(storage, verb):
    """The jobs of others and the levels that they left are not overlooked, and reads need no
    listing."""
    save()
    before = dict(storage.objects)
    storage.before = refuse_listings
    np.testing.assert_array_equal(wkwdask.read(IMAGE), VOXELS)
    with pytest.raises(wkwdask.MissingError):
        wkwdask.read("precomputed://gs://bucket/absent")
    with pytest.raises(PermissionError, match=r"cannot be listed: 403.*gs://bucket"):
        VERBS[verb]()
    assert storage.objects == before


LOCKS = {"Google": (403, "RetentionPolicyNotMet"), "Azure": (409, "BlobImmutableDueToPolicy")}


@pytest.mark.parametrize("provider", LOCKS)
def test_a_bucket_whose_objects_are_locked(storage, provider):
    """The probe finds it out, before any work is done."""

    def refuse(number, method, path):
        is_locked = method in ("PUT", "DELETE") and path in storage.objects
        return LOCKS[provider] if is_locked else None

    storage.before = refuse
    with pytest.raises(PermissionError, match=r"a retention policy or a lock.*gs://bucket/v/"):
        save()
    assert all("probe" in path for path in storage.objects)


FULL = {"Ceph": (403, "QuotaExceeded"), "MinIO": (507, "XMinioStorageFull")}


@pytest.mark.parametrize("server", FULL)
def test_a_full_bucket(storage, server):
    """The error names the cause, and the same call goes on when there is room."""
    save()
    before, written = wkwdask.read(IMAGE, mag=1), []

    def refuse(number, method, path):
        is_shard = method == "PUT" and re.search(r"/16\S*/\d+-\d+_", path)
        written.extend([path] if is_shard else [])
        return FULL[server] if is_shard and len(written) > 3 else None

    storage.before = refuse
    with pytest.raises(OSError, match=r"cannot be written.*its quota is full.*gs://bucket/v/\d"):
        wkwdask.build_pyramid(IMAGE, method="max")
    storage.before = lambda *_: None
    np.testing.assert_array_equal(wkwdask.read(IMAGE, mag=1), before)
    assert len(wkwdask.build_pyramid(IMAGE, method="max").mags) >= 2
    assert wkwdask.verify(IMAGE).is_sound


@pytest.fixture
def amazon(monkeypatch, tmp_path):
    """A proxy in front of S3, whose keys are those of the file ``keys`` in the test's folder."""
    with s3_bucket() as bucket, proxy(bucket.server) as running:
        for name, value in bucket.environment(running.url).items():
            monkeypatch.setenv(name, value)
        for name in bucket.keys:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
        monkeypatch.setattr(access, "_given", {})
        object_store._connections.clear()
        yield running
        object_store._connections.clear()


def test_a_versioned_bucket(amazon, tmp_path):
    """Documents and leases return to no earlier version, and what is deleted is gone."""
    boto3 = pytest.importorskip("boto3", reason="sets versioning")
    place = f"s3://versioned/{tmp_path.name}"
    image = f"precomputed://{place}"
    (tmp_path / "keys").write_text("[default]\naws_access_key_id=A\naws_secret_access_key=B\n")
    setting = {"Status": "Enabled"}
    client = boto3.client("s3", endpoint_url=amazon.url)
    client.create_bucket(Bucket="versioned")
    client.put_bucket_versioning(Bucket="versioned", VersioningConfiguration=setting)
    for existing, voxels in (("error", VOXELS), ("overwrite", VOXELS[..., ::-1])):
        wkwdask.save(voxels, image, voxel_size=(4, 4, 8), existing=existing)
        wkwdask.build_pyramid(image, method="max", existing=existing)
    assert len(wkwdask.clean(image, grace_seconds=0)) >= 2
    np.testing.assert_array_equal(wkwdask.read(image, mag=1), VOXELS[..., ::-1])
    assert wkwdask.verify(image).is_sound
    wkwdask.rm(image)
    wkwdask.clean(place, grace_seconds=0)
    # moto lists the prefixes of deleted objects
    names = {name for _, _, found in store_at(place).walk() for name in found}
    assert names <= {"info", "provenance"}


@pytest.mark.parametrize("reads_all", [True, False])
def test_policies_of_one_prefix(amazon, tmp_path, reads_all):
    """That of the guide, and one that hides all else: jobs work, and levels that a document above
    the image may name are not removed."""
    (tmp_path / "keys").write_text("[default]\naws_access_key_id=A\naws_secret_access_key=B\n")

    def deny(request):
        path, _, query = request.path.partition("?")
        listed = parse_qs(query).get("prefix", [""])[0]
        name = listed if "list-type" in query else path.removeprefix("/bucket/")
        is_allowed = (reads_all and request.method in ("GET", "HEAD")) or query == "delete"
        is_allowed = is_allowed or name.startswith("em")
        return None if is_allowed else Answer(403, b"<Error><Code>AccessDenied</Code></Error>")

    amazon.fault = deny
    image = f"precomputed://s3://bucket/em-{reads_all}"
    save(image)
    wkwdask.build_pyramid(image)
    wkwdask.save(VOXELS[:, :8, :8, :8] // 2, image, region=((0, 0, 0), (8, 8, 8)))
    wkwdask.build_pyramid(image, update=True)
    wkwdask.rm(image, mags="2-2-1")
    assert jobs_of(image) == []
    assert wkwdask.verify(image).is_sound
    if reads_all:
        assert wkwdask.clean(image, grace_seconds=0)
    else:
        with pytest.raises(PermissionError, match=r"403.*s3://bucket/datasource-properties.json"):
            wkwdask.clean(image, grace_seconds=0)
    with pytest.raises(PermissionError, match="403"):
        save("precomputed://s3://bucket/other")


def test_a_put_that_arrives_late(amazon, tmp_path):
    """Another process has changed the document: the change is made again, on what is there."""
    (tmp_path / "keys").write_text("[default]\naws_access_key_id=A\naws_secret_access_key=B\n")
    store, name = store_at(f"s3://bucket/{tmp_path.name}"), "names.json"
    update_json(store, name, lambda document: document, {"names": []})
    is_held, may_arrive = threading.Event(), threading.Event()

    def fault(request):
        if request.method != "PUT" or not request.path.endswith(name) or is_held.is_set():
            return None
        is_held.set()
        return Held(may_arrive)

    def add(each):
        update_json(store, name, lambda document: {"names": [*document["names"], each]})

    amazon.fault = fault
    first = threading.Thread(target=add, args=("first",))
    first.start()
    assert is_held.wait(20)
    add("second")
    may_arrive.set()
    first.join()
    assert read_object(store, name) == {"names": ["second", "first"]}


@pytest.mark.parametrize("status", [404, 409, 412, 500])
@pytest.mark.parametrize("query", ["uploadId", "delete"])
def test_a_large_object_whose_answer_is_lost_is_ones_own(
    amazon, tmp_path, monkeypatch, status, query
):
    """S3 copies it from parts, without the token by which smaller ones are known; the parts may
    stay if they cannot be deleted."""
    (tmp_path / "keys").write_text("[default]\naws_access_key_id=A\naws_secret_access_key=B\n")
    for module in ("store.by_path", "store.objects.new_objects"):
        monkeypatch.setattr(f"wkwdask.{module}.MEMORY_NBYTES", 1 << 10)
    codes = {404: "NoSuchUpload", 409: "ConditionalRequestConflict", 412: "PreconditionFailed"}
    lost = Answer(status, f"<Error><Code>{codes.get(status)}</Code></Error>".encode())
    source, target = f"{tmp_path}/ds/em/1", f"s3://bucket/{tmp_path.name}/em.ozx"
    wkwdask.write(source, (0, 0, 0), VOXELS, voxel_size=(4, 4, 8))
    asked = []

    def fault(request):
        if request.method != "POST" or f"?{query}" not in request.path:
            return None
        asked.append(request.path)
        return After(lost) if ".ozx" in request.path else lost

    leases.check_conditions(f"s3://bucket/{tmp_path.name}")
    amazon.fault = fault
    wkwdask.convert(source, target)
    assert asked
    amazon.fault = lambda request: None
    np.testing.assert_array_equal(wkwdask.read(target), VOXELS)
    store_at(f"s3://bucket/{tmp_path.name}").put("other.ozx", b"of another process")
    with pytest.raises(ExistsError):
        wkwdask.convert(source, target.replace("em.ozx", "other.ozx"))


EXPIRED_TOKENS = {
    "gs": Answer(401, b"<Error><Code>AuthenticationRequired</Code></Error>"),
    "azure": Answer(401, b"<Error><Code>InvalidAuthenticationInfo</Code></Error>"),
    "azure-sas": Answer(
        403,
        b"<Error><Code>AuthenticationFailed</Code><AuthenticationErrorDetail>Signature not valid "
        b"in the specified time frame</AuthenticationErrorDetail></Error>",
    ),
}


@pytest.fixture(params=EXPIRED_TOKENS)
def tokens(request, monkeypatch, tmp_path):
    """A proxy in front of Google's or Azure's storage, the URL of the bucket, and the answer to a
    token that has expired."""
    start = gs_bucket() if request.param == "gs" else azure_container(tmp_path)
    with start as bucket, proxy(bucket.server) as running:
        for name, value in bucket.environment(running.url).items():
            monkeypatch.setenv(name, value)
        for name, value in bucket.keys.items():
            monkeypatch.setenv(name, value.replace(bucket.server, running.url))
        object_store._connections.clear()
        yield running, bucket.url, EXPIRED_TOKENS[request.param]
        object_store._connections.clear()


@pytest.mark.parametrize("is_renewed", [True, False])
@pytest.mark.parametrize("methods", [("PUT",), ("GET", "HEAD"), ("POST", "DELETE")], ids=str)
def test_tokens_that_expire_in_the_middle_of_a_job(tokens, monkeypatch, methods, is_renewed):
    """A new connection has a new token; without one, the job stops, and the same call resumes."""
    running, url, answer = tokens
    image, opened, real = f"precomputed://{url}/v", [], object_store._open
    monkeypatch.setattr(object_store, "_open", lambda *args: opened.append(1) or real(*args))
    save(image)
    before, requests = len(opened), iter(range(1000))
    few = 1 if "DELETE" in methods else 3

    def refuse(request):
        is_new = is_renewed and len(opened) > before
        return None if is_new or request.method not in methods or next(requests) < few else answer

    running.fault = refuse
    if not is_renewed:
        with pytest.raises(PermissionError, match=rf"the credentials have expired.*{url}/v"):
            wkwdask.build_pyramid(image, method="max")
        running.fault = lambda request: None
    with warnings.catch_warnings(), mock.patch.object(leases, "TTL_SECONDS", -10.0):
        warnings.simplefilter("error")
        report = wkwdask.build_pyramid(image, method="max")
    assert is_renewed is False or len(report.mags) >= 2
    assert next(requests) >= few
    assert wkwdask.verify(image).is_sound


EXPIRED = Answer(400, b"<Error><Code>ExpiredToken</Code><Message>expired</Message></Error>")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("is_renewed", [True, False])
@pytest.mark.parametrize("methods", [("PUT",), ("GET", "HEAD"), ("POST", "DELETE")], ids=str)
def test_credentials_that_expire_in_the_middle_of_a_job(amazon, tmp_path, methods, is_renewed):
    """New ones of the profile are used; without any, the job stops, and the same call resumes."""
    image, keys = f"precomputed://s3://bucket/{tmp_path.name}", tmp_path / "keys"

    def log_in(name):
        keys.write_text(f"[default]\naws_access_key_id={name}\naws_secret_access_key=secret\n")

    log_in("OLD")
    save(image)
    requests, few = iter(range(1000)), 1 if "DELETE" in methods else 3

    def refuse(request):
        is_old = "Credential=OLD/" in request.headers.get("authorization", "")
        if not is_old or request.method not in methods or next(requests) < few:
            return None
        if is_renewed:
            log_in("NEW")
        return EXPIRED

    amazon.fault = refuse
    if not is_renewed:
        with pytest.raises(PermissionError, match=r"ExpiredToken.*expired.*profile.*s3://bucket"):
            wkwdask.build_pyramid(image, method="max")
        log_in("NEW")
    with warnings.catch_warnings(), mock.patch.object(leases, "TTL_SECONDS", -10.0):
        warnings.simplefilter("error")
        report = wkwdask.build_pyramid(image, method="max")
    assert is_renewed is False or len(report.mags) >= 2
    assert next(requests) >= few
    assert wkwdask.verify(image).is_sound
