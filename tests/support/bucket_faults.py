"""A bucket in memory whose processes die or stop at a request, and whose server answers badly."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import defaultdict, deque
from functools import cached_property
from unittest import mock

import dask

from wkwdask.formats import record_paths
from wkwdask.model.image import Image
from wkwdask.model.store import Expected
from wkwdask.runs import job_folder, progress
from wkwdask.store import documents, leases, locks, lru
from wkwdask.store.objects import line_objects, memory_bucket, remote, writing
from wkwdask.store.objects.writing import RefusedPut

URL = "memory://bucket"
_CACHES = (
    (remote, "_recent"),
    (remote, "_stored"),
    (documents, "_created"),
    (progress, "_written"),
    (line_objects, "_next_numbers"),
)
_CALLS = ("read", "size", "names", "walk", "head", "put_once", "copy_once", "delete")


class Killed(BaseException):
    """The process was killed; it makes no further request."""


class Bucket:
    """Requests to the bucket, counted for one of its processes: the thread that is *watched*."""

    def __init__(self):
        self.requests = []
        self.watched = None
        self._kill_at = self._pause_at = None
        self._after = False
        self._is_dead = False
        self.is_paused, self.may_go_on = threading.Event(), threading.Event()
        self._leases = defaultdict(dict)
        self._process = threading.local()

    def snapshot(self):
        return dict(memory_bucket._objects)

    def restore(self, objects):
        memory_bucket._objects.clear()
        memory_bucket._objects.update(objects)
        _forget_all()

    @property
    def held(self):
        """Leases of the process that runs now: each thread of a test stands for one."""
        return self._leases[self.name]

    @property
    def name(self):
        """Name of the process that runs now."""
        return getattr(self._process, "name", "main")

    @contextlib.contextmanager
    def process(self, name):
        """Let this thread, and those that it asks for requests, stand for another process."""
        self._process.name = name
        try:
            yield
        finally:
            self._process.name = "main"

    def call(self, name, real, *args):
        url = args[0].url if name == "read" else args[0]
        number = len(self.requests)
        if self._is_dead:
            raise Killed
        if name == "walk" and self.requests[-1:] == [("names", url)]:  # which makes it
            return real(*args)
        self.requests.append((name, url))
        if number == self._kill_at and not self._after:
            self._is_dead = True
            raise Killed
        if number == self._pause_at and not self._after:
            self._pause()
        result = real(*args)
        if number == self._kill_at and self._after:
            self._is_dead = True
            raise Killed
        if number == self._pause_at and self._after:
            self._pause()
        return result

    def _pause(self):
        self._pause_at = None
        self.is_paused.set()
        assert self.may_go_on.wait(20)

    @contextlib.contextmanager
    def killed_at(self, number, *, after):
        """Kill the process at a request, before or after it took effect."""
        self.requests, self._kill_at, self._after = [], number, after
        try:
            yield
        except Killed:
            pass
        finally:
            self._kill_at, self._is_dead = None, False
            self._leases.clear()
            _forget_all()

    @contextlib.contextmanager
    def paused_at(self, number, job, *, after=False):
        """Run a job in a process that stops at a request, and continues after this block; yield a
        list of how it ended: the type of its error, or None."""
        ends = []

        def run():
            with self.process("first"), dask.config.set(scheduler="synchronous"):
                try:
                    job()
                    ends.append(None)
                except Exception as error:
                    ends.append(type(error))

        _forget_all()  # it is a new process
        self.pause_at(number, after=after)
        process = threading.Thread(target=run)
        process.start()
        while process.is_alive() and not self.is_paused.wait(0.01):
            pass
        if not self.is_paused.is_set():  # it made fewer requests
            self._pause_at = None
        try:
            yield ends
        finally:
            self.may_go_on.set()
            process.join()

    def pause_at(self, number, *, after):
        self.requests, self._pause_at, self._after = [], number, after
        self.is_paused.clear()
        self.may_go_on.clear()


def _forget_all():
    for module, name in _CACHES:
        getattr(module, name).clear()


class _OfProcess:
    """Stands for a cache, which each process has for itself."""

    def __init__(self, bucket, cache):
        self._bucket, self._capacity = bucket, cache._capacity
        self.clear()

    def clear(self):
        self._caches = defaultdict(lambda: lru.LruCache(self._capacity))

    def __getattr__(self, name):
        return getattr(self._caches[self._bucket.name], name)


class _Held:
    """Stands for ``leases._held``, which each process has for itself."""

    def __init__(self, bucket):
        self._bucket = bucket

    def __getattr__(self, name):
        return getattr(self._bucket.held, name)

    def __contains__(self, key):
        return key in self._bucket.held

    def __setitem__(self, key, value):
        self._bucket.held[key] = value

    def __bool__(self):
        return bool(self._bucket.held)


def _make_all(cache, keys, make):
    del cache
    return list(make(list(keys)))


@contextlib.contextmanager
def faulty_bucket():
    """Yield a :class:`Bucket`. Requests are made one after the other, by the thread that asks."""
    bucket = Bucket()
    with contextlib.ExitStack() as patches:
        for name in _CALLS:
            real = getattr(memory_bucket, name)
            patches.enter_context(
                mock.patch.object(
                    memory_bucket,
                    name,
                    lambda *args, _name=name, _real=real: bucket.call(_name, _real, *args),
                )
            )
        patches.enter_context(mock.patch.object(memory_bucket, "IS_CONCURRENT", False))
        patches.enter_context(
            mock.patch.object(remote, "for_all", lambda f, items: [f(item) for item in items])
        )
        patches.enter_context(mock.patch.object(leases, "_held", _Held(bucket)))
        for module, name in _CACHES:
            cache = _OfProcess(bucket, getattr(module, name))
            patches.enter_context(mock.patch.object(module, name, cache))
        patches.enter_context(mock.patch.object(leases, "_start_renewing"))
        patches.enter_context(mock.patch.object(leases, "_probed_copies", {URL}))
        patches.enter_context(mock.patch.object(leases, "TTL_SECONDS", -10.0))
        # a cache of one process must not wait for a paused one
        patches.enter_context(mock.patch.object(lru.LruCache, "get_or_make", _make_all))
        classes = (record_paths.RecordPaths, Image, job_folder.JobFolder)
        for each in (value for owner in classes for value in vars(owner).values()):
            if isinstance(each, cached_property) and hasattr(each, "lock"):  # Python 3.11
                patches.enter_context(mock.patch.object(each, "lock", contextlib.nullcontext()))
        # processes are known by their leases alone, as those of other machines are
        patches.enter_context(mock.patch.object(locks.Owner, "_can_be_seen", return_value=False))
        memory_bucket._objects.clear()
        _forget_all()
        yield bucket
        memory_bucket._objects.clear()
        _forget_all()


@contextlib.contextmanager
def empty_bucket():
    """Empty the buckets in memory before and after a test."""
    for when in (0, 1):
        memory_bucket._objects.clear()
        _forget_all()
        if not when:
            yield


_lately = deque(maxlen=3)
"""The last changes of objects, which listings may lack, with the sizes before them."""


_older = {}
"""The last version but one of documents, which readers may get."""


def let_answers_settle():
    """Let listings and reads show all changes before now, as after a moment between two jobs."""
    _lately.clear()
    _older.clear()


@contextlib.contextmanager
def unreliable_answers(seed):
    """Refuse conditional puts, lose the answers to others that were done, answer with documents
    that are one version old, and list what was there a moment ago, at random."""
    rng, lately, older = random.Random(seed), _lately, _older
    let_answers_settle()
    put_once, read_state = memory_bucket.put_once, remote.RemoteStore.read_state
    walk, delete = memory_bucket.walk, memory_bucket.delete
    copy_once, read_known = memory_bucket.copy_once, remote.RemoteStore.read_known

    def put(url, data, expect, writer, access):
        content = data if isinstance(data, bytes) else data.read()
        kind = rng.random()
        if kind < 0.1 and expect is not Expected.ANY:
            raise RefusedPut(may_repeat=True)
        found = memory_bucket._objects.get(url)
        if found is not None:
            older[url] = found.data, found.state
        else:
            lately.append((url, None))
        state = put_once(url, content, expect, writer, access)
        if kind > 0.9 and expect is not Expected.ANY:
            raise OSError("the answer was lost")
        return state

    def copy(source, url, access):
        copy_once(source, url, access)
        lately.append((url, None))
        if rng.random() < 0.2:
            raise OSError("the answer was lost")

    def read(store, name, largest):
        url = store.path_of(name)
        # an old lease ends a job, which the same call then completes
        is_old = url in older and name != "owner.json" and rng.random() < 0.2
        return older[url] if is_old else read_state(store, name, largest)

    def read_to_change(store, names, largest, *, is_fresh=False):
        found = read_known(store, names, largest, is_fresh=is_fresh)
        urls = map(store.path_of, names)
        return [
            each._replace(data=older[url][0], state=older[url][1])
            if leases.is_fenced() and url in older and rng.random() < 0.2
            else each
            for url, each in zip(urls, found, strict=True)
        ]

    def remove(urls, access):
        lately.extend(
            (url, len(each.data)) for url in urls if (each := memory_bucket._objects.get(url))
        )
        delete(urls, access)

    def listed(url, access):
        found = dict(walk(url, access))
        # a record that a job overlooks in its own folder stays until clean
        is_stale = rng.random() < 0.3 and ".wkwdask-job-" not in url
        for changed, nbytes in lately if is_stale else ():
            if changed.startswith(f"{url}/"):
                name = changed.removeprefix(f"{url}/")
                found.pop(name, None)
                found |= {} if nbytes is None else {name: nbytes}
        return iter(sorted(found.items()))

    with (
        mock.patch.object(memory_bucket, "put_once", put),
        mock.patch.object(memory_bucket, "copy_once", copy),
        mock.patch.object(memory_bucket, "delete", remove),
        mock.patch.object(memory_bucket, "walk", listed),
        mock.patch.object(remote.RemoteStore, "read_state", read),
        mock.patch.object(remote.RemoteStore, "read_known", read_to_change),
        mock.patch.object(writing, "_PAUSES_SECONDS", (0.0,) * 8),
    ):
        yield
