"""The cache that threads share."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from wkwdask.store.lru import LruCache


def test_threads_that_need_the_same_values_make_each_once():
    cache, made, start = LruCache(100), [], threading.Barrier(8)

    def make(keys):
        made.extend(keys)
        return [-key for key in keys]

    def get(n):
        start.wait()
        keys = list(range(n, n + 20))[:: 1 if n % 2 else -1]  # overlapping, and in two orders
        assert cache.get_or_make(keys, make) == [-key for key in keys]

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(get, range(1, 9)))
    assert sorted(made) == list(range(1, 28))


def test_a_value_that_could_not_be_made_is_made_again():
    cache = LruCache(100)
    with pytest.raises(ZeroDivisionError):
        cache.get_or_make([1], lambda keys: [1 // 0])
    assert cache.get_or_make([1], lambda keys: ["made"]) == ["made"]


def test_more_values_than_the_cache_keeps_are_returned():
    assert LruCache(2).get_or_make(range(5), lambda keys: map(str, keys)) == [
        "0",
        "1",
        "2",
        "3",
        "4",
    ]
