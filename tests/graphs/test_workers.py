"""Which workers of a cluster get a task."""

from __future__ import annotations

from wkwdask.graphs.workers import Workers, rather_on


class Cluster:
    """A client of three workers, whose scheduler may not answer."""

    status = "running"

    def __init__(self):
        self.answers = True

    def nthreads(self):
        return self._answer(dict.fromkeys("abc", 2))

    def processing(self):
        return self._answer({"a": ("one", "two"), "b": ()})

    def who_has(self, futures):
        return self._answer(dict.fromkeys(futures, ("b", "c")))

    def _answer(self, value):
        if not self.answers:
            raise ConnectionResetError
        return value


def test_workers_to_avoid():
    workers = Workers(Cluster())
    assert workers.away_from() == {}
    assert workers.away_from("a") == {"workers": ["b", "c"], "allow_other_workers": True}
    workers.avoid("b")
    assert workers.away_from() == rather_on(["a", "c"])
    assert workers.away_from("a") == rather_on(["c"])
    assert workers.away_from("ac") == rather_on(["b"])  # rather one to be avoided than one where it failed
    assert workers.away_from("abc") == {}
    workers.avoid("ac")
    assert workers.good() == ["a", "b", "c"]


def test_a_scheduler_that_does_not_answer():
    cluster = Cluster()
    workers = Workers(cluster)
    cluster.answers = False
    assert workers.num_threads() == {}
    cluster.answers = True
    known = workers.num_threads(), workers.running(), workers.holding("future")
    assert known == ({"a": 2, "b": 2, "c": 2}, {"one": "a", "two": "a"}, {"b", "c"})
    cluster.answers = False
    assert (workers.num_threads(), workers.running(), workers.holding("future")) == (known[0], {}, set())
