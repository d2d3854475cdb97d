"""Part of the campaign: random steps of several jobs and readers over one dataset and OME-NGFF
images, compared with a model of what must be visible.

The model maps each mag to its array. A job that ends without an error makes what the model says;
one that ends with an error changes nothing. A job that is killed leaves each mag as before it or
as after it, or file by file if it changes mags in place. A reader that was opened before sees one
of the states since then, whole, or a ReplacedError.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask
import numpy as np
from hypothesis import HealthCheck, Phase, Verbosity, reporting, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from support import warm_imports  # noqa: F401 (loads kernels)
from support.commands import run_here
from verbs.cases import Case, largest_of_windows

import wkwdask
from wkwdask.errors import MissingError, ReplacedError

from . import system_calls
from .results import Trial
from .system_calls import FAULTS, NO_FAULT, STOP
from .trials import JobChild

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from .system_calls import Fault
    from .trials import Ending

dask.config.set(scheduler="synchronous")
_STEPS = {"full": 13_000, "sample": 300}
_STEPS_OF_EXAMPLE = 40
_EXAMPLES_OF_TASK = 10
_EDGE, _FILE = 32, 16
"""Length of an image and of its files [voxels]."""
_SMALLEST_FILE = 8
_VOXEL_SIZE = (4.0, 4.0, 4.0)
_MAGS = ("1", "2", "4")
_MOST_CALLS = 250
_WAIT_SECONDS = 2.0
_LAYERS = ("first", "second", "third")
_IMAGES = ("first.ome.zarr", "second.ome.zarr")
_URLS = (*(f"dataset/{name}" for name in _LAYERS), *_IMAGES)
State = dict[str, np.ndarray]
"""Arrays (x, y, z) by mag."""


@dataclass(frozen=True)
class Call:
    """A call of a public function, and what it makes of the mags of an image."""

    name: str
    url: str
    run: Callable[[], Any]
    change: Callable[[State], State]
    """Returns the state after it."""
    new: State
    """State after it, if nothing runs beside it."""
    is_by_file: bool = False
    source: str = ""
    """URL of the image that it copies."""


@dataclass
class Opened:
    """A reader, and the arrays that its mag had since it was opened."""

    url: str
    mag: str
    reader: wkwdask.Reader
    seen: list[np.ndarray | None] = field(default_factory=list)


def _voxels(number: int) -> np.ndarray:
    """Draw an image; some of its files hold zeros."""
    rng = np.random.default_rng(number)
    small = rng.integers(0, 200, (8, 8, 8), np.uint8) * (rng.random((8, 8, 8)) < 0.7)
    array = small.repeat(4, 0).repeat(4, 1).repeat(4, 2)
    if number % 3 == 0:
        array[:_FILE] = 0
    array[0, 0, 0] = 1 + number % 200
    return array


def _half(array: np.ndarray) -> np.ndarray:
    return largest_of_windows(Case(array[np.newaxis], (0, 0, 0)), (2, 2, 2)).array[0]


class Model(RuleBasedStateMachine):
    """Two layers of a dataset, and two OME-NGFF images."""

    steps = 0
    """Steps of all examples."""
    counts: dict[str, int]

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.mkdtemp(dir=_folder)
        self.states: dict[str, State] = {url: {} for url in _URLS}
        self.killed: dict[str, Call] = {}
        """Jobs that were killed and did not complete."""
        self.readers: list[Opened] = []
        wkwdask.create_dataset(f"{self.root}/dataset", _VOXEL_SIZE)

    # --------------------------------------------------------------------------------------------
    # what is visible

    def _path(self, url: str, mag: str = "") -> str:
        """Return the URL of an image, or of a mag of a layer."""
        below = f"/{mag}" if mag and not url.endswith(".zarr") else ""
        return f"{self.root}/{url}{below}"

    def _visible(self, url: str) -> State:
        found = {}
        for mag in _MAGS:
            with contextlib.suppress(MissingError):
                found[mag] = wkwdask.read(self._path(url), mag=mag)[0]
        return found

    def _check(self, url: str, expected: State, after: str) -> None:
        found = self._visible(url)
        assert found.keys() == expected.keys(), (
            f"{url} has the mags {sorted(found)} after {after}, expected {sorted(expected)}"
        )
        for mag, array in expected.items():
            np.testing.assert_array_equal(found[mag], array, f"{url}, mag {mag}, after {after}")

    def _become(self, url: str, state: State) -> None:
        self.states[url] = state
        for opened in self.readers:
            if opened.url == url:
                opened.seen.append(state.get(opened.mag))

    def _observe(self, url: str, states: list[State], *, is_by_file: bool) -> None:
        """Check that each mag is as in one of the states, and take what is visible for the state
        from now on."""
        found = self._visible(url)
        for mag in _MAGS:
            allowed = [state.get(mag) for state in states]
            array = found.get(mag)
            if array is None:
                assert any(each is None for each in allowed), f"{url}: mag {mag} is lost"
            else:
                known = [each for each in allowed if each is not None]
                is_one = any(np.array_equal(array, each) for each in known)
                assert is_one or (is_by_file and _is_of_files(array, known, int(mag))), (
                    f"{url}: mag {mag} is a mixture"
                )
        self._become(url, found)

    # --------------------------------------------------------------------------------------------
    # calls

    def _call(self, name: str, url: str, run, change, **others: Any) -> Call:
        return Call(name, url, run, change, change(self.states[url]), **others)

    def _save(self, url: str, number: int, existing: str) -> Call:
        array = _voxels(number)
        options = (
            {
                "mag": 1,
                "voxel_size": _VOXEL_SIZE,
                "chunk_shape": (8, 8, 8),
                "shard_shape": (_FILE,) * 3,
            }
            if url.endswith(".zarr")
            else {"block_len": 8, "file_len": 2}
        )
        path = self._path(url, "1")

        def change(state):
            return state if existing == "error" and "1" in state else {**state, "1": array}

        return self._call(
            f"save with {existing}",
            url,
            lambda: wkwdask.save(array, path, existing=existing, **options),
            change,
        )

    def _write(self, url: str, low: int, high: int, value: int) -> Call:
        box = (slice(low, high), slice(low, high), slice(0, high))
        path, region = self._path(url, "1"), ((low, low, 0), (high, high, high))
        patch = np.full([part.stop - part.start for part in box], value, np.uint8)

        def change(state):
            if "1" not in state:  # another job has removed it
                return state
            array = state["1"].copy()
            array[box] = patch
            return {**state, "1": array}

        return self._call(
            "write into a region",
            url,
            lambda: wkwdask.write(path, None, patch, region=region),
            change,
            is_by_file=True,
        )

    def _pyramid(self, url: str, *, update: bool) -> Call:
        def change(state):
            if "1" not in state:
                return state
            half = _half(state["1"])
            return {**state, "2": half, "4": _half(half)}

        options = {"update": True} if update else {"existing": "overwrite"}
        path = self._path(url)
        return self._call(
            "update of a pyramid" if update else "pyramid",
            url,
            lambda: wkwdask.build_pyramid(path, mags=["2", "4"], method="max", **options),
            change,
            is_by_file=update,
        )

    def _store(self, url: str, number: int) -> Call:
        """Change the chunks, files or compression, and no voxel."""
        path = self._path(url)
        if number == 0:
            run = functools.partial(wkwdask.compress, path)
        elif url.endswith(".zarr"):
            shapes = {"chunk_shape": (8, 8, 8), "shard_shape": (8 * number,) * 3}
            run = functools.partial(wkwdask.rechunk, path, **shapes)
        else:
            run = functools.partial(wkwdask.rechunk, path, file_len=number)
        return self._call("rechunk" if number else "compress", url, run, dict)

    def _copy(self, url: str, source: str) -> Call:
        """Copy or convert a whole image to a place that is empty."""
        origin, target = self._path(source), self._path(url)
        if source.endswith(".zarr") == url.endswith(".zarr"):
            name, run = "copy", functools.partial(wkwdask.copy, origin, target)
        elif url.endswith(".zarr"):
            name, run = "convert", functools.partial(wkwdask.convert, origin, target)
        else:
            dataset, _, layer = target.rpartition("/")
            name, run = "convert", functools.partial(wkwdask.convert, origin, dataset, layer=layer)
        state = self.states[source]
        return self._call(name, url, run, lambda _: state, source=source)

    def _remove(self, url: str, mag: str) -> Call:
        """Remove a mag, or all of an image."""
        path, options = self._path(url), {"mags": [mag]} if mag else {}

        def change(state):
            return {key: array for key, array in state.items() if mag and key != mag}

        name = "rm of a mag" if mag else "rm"
        return self._call(name, url, lambda: wkwdask.rm(path, **options), change)

    def _draw(self, data: st.DataObject, url: str) -> Call:
        """Draw a call that the state of an image permits."""
        state, number = self.states[url], data.draw(st.integers(0, 99), label="number")
        if not state:
            sources = [each for each in _URLS if "1" in self.states[each] and self._is_clean(each)]
            if sources and number % 2:
                return self._copy(url, sources[number % len(sources)])
            return self._save(url, number, "error")
        names = ["save", "store"]
        names += ["write", "pyramid"] if "1" in state else []
        names += ["update"] if {"1", "2", "4"} <= state.keys() else []
        names += ["remove"] if len(state) > 1 or number % 4 == 0 else []
        name = data.draw(st.sampled_from(names), label="job")
        if name == "save":
            existing = "overwrite" if number % 4 or "1" not in state else "error"
            return self._save(url, number, existing)
        if name == "write":
            return self._write(url, number % 20, 20 + number % 13, number)
        if name == "store":
            return self._store(url, (0, 1, 2, 4)[number % 4])
        if name == "remove":
            mags = [mag for mag in state if mag != "1"] if number % 4 else [""]
            return self._remove(url, mags[number % len(mags)])
        return self._pyramid(url, update=name == "update")

    def _is_clean(self, url: str) -> bool:
        """Check whether no job that was killed writes or reads an image."""
        return url not in self.killed and all(call.source != url for call in self.killed.values())

    # --------------------------------------------------------------------------------------------
    # steps

    def _start(self, call: Call, at: int = 0, fault: Fault = NO_FAULT) -> JobChild:
        def run():
            system_calls.arm(self.root, at, fault)
            call.run()

        Model.steps += 1
        Model.counts[call.name] = Model.counts.get(call.name, 0) + 1
        return JobChild(run)

    def _settle(self, call: Call, ending: Ending) -> None:
        """Compare what a job without others beside it made with the model."""
        assert ending.is_ours, f"{call.name} of {call.url} ended badly: {ending.error}"
        if ending.is_killed:
            self._observe(call.url, [self.states[call.url], call.new], is_by_file=call.is_by_file)
            self.killed[call.url] = call
            Model.counts["killed"] = Model.counts.get("killed", 0) + 1
            return
        if not ending.error:
            self._become(call.url, call.new)
        self._check(call.url, self.states[call.url], f"{call.name} ({ending.error or 'done'})")

    @rule(data=st.data(), url=st.sampled_from(_URLS))
    def run_job(self, data, url):
        """Run a job beside no others; after a killed one it may be refused."""
        if not self._is_clean(url):
            return
        call = self._draw(data, url)
        ending = self._start(call).ended()
        may_fail = (call.name == "save with error" and "1" in self.states[url]) or (
            call.name == "update of a pyramid"
        )
        assert may_fail or not ending.error, f"{call.name} of {url}: {ending.error}"
        self._settle(call, ending)

    @rule(
        data=st.data(),
        url=st.sampled_from(_URLS),
        at=st.integers(1, _MOST_CALLS),
        fault=st.sampled_from(["killed before", "killed after"]),
    )
    def kill_job(self, data, url, at, fault):
        if not self._is_clean(url):
            return
        call = self._draw(data, url)
        self._settle(call, self._start(call, at, FAULTS[fault]).ended())

    @precondition(lambda self: self.killed)
    @rule(data=st.data(), at=st.integers(0, 2 * _MOST_CALLS))
    def resume(self, data, at):
        """Make the same call again, which may be killed again."""
        url = data.draw(st.sampled_from(sorted(self.killed)))
        call = self.killed.pop(url)
        fault = FAULTS["killed after"] if 0 < at < _MOST_CALLS else NO_FAULT
        ending = self._start(call, at if fault is not NO_FAULT else 0, fault).ended()
        if not ending.is_killed:
            is_done = _same(self._visible(url), call.new)
            assert is_done, f"{call.name} of {url} does not complete: {ending.error}"
            assert not ending.error or ending.exists, ending.error
            self._become(url, call.new)
            return
        self._settle(call, ending)

    @precondition(lambda self: self.killed)
    @rule(data=st.data())
    def cancel(self, data):
        """Discard the work of a killed job, which is refused if it left nothing."""
        url = data.draw(st.sampled_from(sorted(self.killed)))
        call = self.killed[url]
        Model.steps += 1
        is_discarded = self._discard(url)
        self._observe(url, [self.states[url], call.new], is_by_file=call.is_by_file)
        if is_discarded:
            del self.killed[url]

    def _discard(self, url: str) -> bool:
        """Discard interrupted jobs; return whether there were any."""
        path = self._path(url)
        ending = JobChild(lambda: run_here("cancel", path, "--discard").returncode).ended()
        assert not ending.error, ending.error
        return not ending.value

    @rule(url=st.sampled_from(_URLS))
    def clean(self, url):
        Model.steps += 1
        path = self._path(url)
        ending = JobChild(lambda: wkwdask.clean(path, grace_seconds=0)).ended()
        assert not ending.error or ending.exists, ending.error
        states = [self.states[url]]
        if url in self.killed:
            states.append(self.killed[url].new)
        self._observe(url, states, is_by_file=url in self.killed and self.killed[url].is_by_file)

    @rule(
        data=st.data(),
        first=st.sampled_from(_URLS),
        second=st.sampled_from(_URLS),
        at=st.integers(1, _MOST_CALLS),
    )
    def run_two(self, data, first, second, at):
        """A job stops; another one runs, perhaps on the same image; then the first one goes on."""
        if not (self._is_clean(first) and self._is_clean(second)):
            return
        one, other = self._draw(data, first), self._draw(data, second)
        if one.source == second or other.source == first:
            return
        before = self.states[first]
        stopped = self._start(one, at, STOP)
        while (early := stopped.poll()) is None and not stopped.is_stopped():
            time.sleep(0.0005)
        running, end = self._start(other), time.monotonic() + _WAIT_SECONDS
        while (later := running.poll(0.05)) is None and time.monotonic() < end:
            pass
        if early is None:
            stopped.wake()
            early = stopped.ended()
        later = later or running.ended()
        for call, ending in ((one, early), (other, later)):
            assert ending.is_ours, f"{call.name} of {call.url} ended badly: {ending.error}"
            if ending.error:  # what it can resume would refuse other jobs
                self._discard(call.url)
        if first != second:
            self._settle(one, early)
            self._settle(other, later)
            return
        done = [call for call, ending in ((one, early), (other, later)) if not ending.error]
        states = [call.new for call in done] or [before]
        if len(done) == 2:
            # mags that one of them read or left unchanged may be as before the other
            states += [before, one.change(other.new), other.change(one.new)]
        self._observe(first, states, is_by_file=one.is_by_file or other.is_by_file)

    @rule(old=st.sampled_from(_LAYERS), new=st.sampled_from(_LAYERS))
    def rename(self, old, new):
        old, new = f"dataset/{old}", f"dataset/{new}"
        if not self.states[old] or self.states[new]:
            return
        if not (self._is_clean(old) and self._is_clean(new)):
            return
        Model.steps += 1

        def run():
            dataset = wkwdask.open_dataset(f"{self.root}/dataset")
            dataset.rename_layer(old.rpartition("/")[2], new.rpartition("/")[2])

        # the new name may be that of an empty folder, which a job that was killed made
        ending = JobChild(run).ended()
        assert not ending.error, f"rename of {old} to {new}: {ending.error}"
        self._become(new, self.states[old])
        self._become(old, {})
        self._check(new, self.states[new], "rename")
        self._check(old, self.states[old], "rename")

    @rule(data=st.data(), url=st.sampled_from(_URLS))
    def open_reader(self, data, url):
        if not self.states[url] or len(self.readers) >= 6:
            return
        Model.steps += 1
        mag = data.draw(st.sampled_from(sorted(self.states[url])))
        opened = Opened(url, mag, wkwdask.reader(self._path(url), mag=mag))
        opened.seen.append(self.states[url][mag])
        self.readers.append(opened)

    @precondition(lambda self: self.readers)
    @rule(number=st.integers(0, 5), whole=st.booleans())
    def read(self, number, whole):
        """Read by a reader that was opened before."""
        opened = self.readers[number % len(self.readers)]
        Model.steps += 1
        box = tuple(slice(0, n if whole else n // 2 + 1) for n in opened.seen[0].shape)
        try:
            found = opened.reader.read(((0, 0, 0), tuple(part.stop for part in box)))[0]
        except (ReplacedError, MissingError) as error:
            if len(opened.seen) == 1:
                raise AssertionError("a reader finds a change, and there is none") from error
            self.readers.remove(opened)
            return
        known = [array[box] for array in opened.seen if array is not None]
        assert any(np.array_equal(found, array) for array in known), (
            f"a reader of {opened.url}, mag {opened.mag}, sees a mixture"
        )

    def teardown(self):
        """Let all jobs end; then nothing is left over, and ``verify`` finds nothing."""
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, self.root)
            if sys.exc_info()[0] is not None:  # a step has failed, and says more
                return
            for url in sorted(self.killed):
                call = self.killed[url]
                ending = self._start(call).ended()
                assert not ending.error or ending.exists, f"{call.name} of {url}: {ending.error}"
                found = self._visible(url)
                assert _same(found, call.new), (
                    f"{call.name} of {url} does not complete: {sorted(found)}, {ending}"
                )
                self.states[url] = call.new
            for url in _URLS:
                if self.states[url]:
                    path = self._path(url)
                    ending = JobChild(lambda p=path: _faults_of(p)).ended()
                    assert ending.value == [], f"verify of {url}: {ending}"
            left = list(Path(self.root).rglob(".wkwdask-job-*"))
            assert not left, f"left over: {left}"


def _faults_of(url: str) -> list[str]:
    report = wkwdask.verify(url)
    return [] if report.is_sound else list(map(str, report.faults))


def _same(first: State, second: State) -> bool:
    return first.keys() == second.keys() and all(
        np.array_equal(first[mag], second[mag]) for mag in first
    )


def _is_of_files(array: np.ndarray, known: list[np.ndarray], mag: int) -> bool:
    """Check whether the part of a mag that is made from each file of mag 1 is as in one of some
    arrays: a job beside one that writes files may read both."""
    edge = _SMALLEST_FILE // mag
    return all(
        any(np.array_equal(array[part], each[part]) for each in known if each.shape == array.shape)
        for part in (
            tuple(slice(n * edge, n * edge + edge) for n in index)
            for index in np.ndindex(*(-(-n // edge) for n in array.shape))
        )
    )


_folder: Path | None = None
"""Folder of the machines of this process."""


def model_tasks(options: argparse.Namespace) -> Iterator[tuple[str, Callable[[Path], list[Trial]]]]:
    """Yield tasks of some examples each, with a seed of their own."""
    examples = -(-_STEPS[options.size] // _STEPS_OF_EXAMPLE)
    for number in range(-(-examples // _EXAMPLES_OF_TASK)):
        name = f"model-{number}"
        if options.cell in (None, name):
            count = min(_EXAMPLES_OF_TASK, examples - number * _EXAMPLES_OF_TASK)
            yield name, functools.partial(_run, name, 1000 * options.seed + number, count)


def _run(name: str, number: int, examples: int, folder: Path) -> list[Trial]:
    global _folder  # hypothesis makes the machines
    _folder, Model.steps, Model.counts = folder, 0, {}
    told: list[str] = []
    problems = ()
    chosen = settings(
        max_examples=examples,
        stateful_step_count=_STEPS_OF_EXAMPLE,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.normal,
    )
    try:
        with reporting.with_reporter(told.append):
            run_state_machine_as_test(seed(number)(Model), settings=chosen)
    except Exception as error:
        steps = "\n".join([*told, *getattr(error, "__notes__", ())])
        # of an error that did not come again, the first one tells more
        causes = getattr(error, "exceptions", ())
        text = "\n".join(f"{type(each).__name__}: {each}" for each in (error, *causes))
        problems = (f"{text}\n{steps}",)
    done = ", ".join(f"{count} {key}" for key, count in sorted(Model.counts.items()))
    return [
        Trial(name, "model", done, False, "failed" if problems else "succeeded", problems,
              bool(problems), number=Model.steps)
    ]  # fmt: skip
