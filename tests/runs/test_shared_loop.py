"""Loops that the threads of a pool share, and queues that keep the order of their results."""

from __future__ import annotations

import threading
import time
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wkwdask.runs.shared_loop import OrderedQueue, num_sharing, share, sharing_pool

SECONDS = 120


def in_pool(threads, *functions):
    """Run functions as tasks of a pool, and return what they return."""
    with sharing_pool(threads) as pool:
        return [
            future.result(SECONDS) for future in [pool.submit(function) for function in functions]
        ]


def test_without_a_pool_the_loop_runs_here():
    threads = []
    share(range(3), lambda _: threads.append(threading.get_ident()))
    assert threads == [threading.get_ident()] * 3
    assert num_sharing() == 1


@given(st.integers(1, 4), st.integers(0, 30), st.integers(1, 5))
def test_each_item_of_each_loop_runs_once(threads, num_items, num_tasks):
    seen = Counter()

    def task(number):
        share(
            range(num_items),
            lambda outer: share(range(3), lambda inner: seen.update([(number, outer, inner)])),
        )

    in_pool(threads, *(lambda number=number: task(number) for number in range(num_tasks)))
    assert seen == Counter(
        (number, outer, inner)
        for number in range(num_tasks)
        for outer in range(num_items)
        for inner in range(3)
    )


def test_threads_without_a_task_work_on_the_items_of_others():
    together = threading.Barrier(3)
    in_pool(3, lambda: share(range(3), lambda _: together.wait(SECONDS)))


def test_a_thread_whose_loop_has_ended_works_on_the_inner_loop_of_its_last_item():
    together, has_item, owners = threading.Barrier(2), threading.Event(), []

    def work(number):
        if number == 0:
            owners.append(threading.get_ident())
            # the other thread has the second item, and this one will have nothing left to do
            has_item.wait(SECONDS)
            return
        has_item.set()
        share(range(2), lambda _: together.wait(SECONDS))

    in_pool(2, lambda: share(range(2), work))


def test_a_loop_ends_when_all_its_items_have():
    ended = []

    def work(number):
        time.sleep(0.02 * (number % 3))
        ended.append(number)

    def task():
        share(range(7), work)
        return len(ended)

    assert in_pool(3, task) == [7]


@pytest.mark.parametrize("at", [0, 3, 9])
def test_the_error_of_an_item_ends_the_loop(at):
    seen = []

    def work(number):
        seen.append(number)
        if number == at:
            raise ValueError(f"item {number}")
        if number > at:
            time.sleep(0.001)  # the thread of the error may wait for a core while others go on

    def task():
        with pytest.raises(ValueError, match=f"item {at}"):
            share(range(1000), work)

    in_pool(3, task)
    assert len(seen) < 1000


@given(st.integers(1, 4), st.lists(st.integers(0, 3), max_size=30), st.integers(0, 99))
def test_results_are_passed_on_in_the_expected_order(threads, sizes, seed):
    random, passed, ahead = Random(seed), [], []

    def task():
        ordered = OrderedQueue(passed.append)

        def work(item):
            ahead.append(item - len({number for number, _ in passed}))
            if random.random() < 0.2:
                time.sleep(0.001)
            keys = [(item, n) for n in range(sizes[item])]
            random.shuffle(keys)
            for key in keys:
                ordered.add(key, key)

        share(
            ordered.expecting(
                (item, [(item, n) for n in range(size)]) for item, size in enumerate(sizes)
            ),
            work,
        )
        assert ordered.is_last

    in_pool(threads, task)
    assert passed == [(item, n) for item, size in enumerate(sizes) for n in range(size)]
    if all(sizes):
        assert all(distance <= 2 * threads for distance in ahead)


def test_an_error_frees_threads_that_wait_for_results():
    failing = threading.Event()

    def task():
        ordered = OrderedQueue(lambda _: None)

        def work(item):
            try:
                if item == 0:
                    failing.wait(SECONDS)
                    raise ValueError("the first item")
                if item == 3:  # no thread may be farther ahead
                    failing.set()
                ordered.add(item, item)
            except ValueError:
                ordered.give_up()
                raise

        with pytest.raises(ValueError, match="the first item"):
            share(ordered.expecting((item, [item]) for item in range(100)), work)

    in_pool(2, task)
