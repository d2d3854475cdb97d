"""Part of the campaign that makes chains of jobs: each works on what the one before it wrote.

A chain begins with an image that wkwdask or other software saved. After each job, all levels have
the voxels that numpy computes, and other software reads them.
"""

from __future__ import annotations

import functools
import random
from typing import TYPE_CHECKING

import dask
import numpy as np
from support import toy_format, warm_imports  # noqa: F401 (loads kernels)
from verbs.all_verbs import _in_box_of_layer, _inverse
from verbs.cases import Case, largest_of_windows, other_voxels, step_of
from verbs.foreign_forms import FOREIGN
from verbs.forms import FORMS, VOXEL_SIZE
from verbs.other_readers import expect_by_others
from verbs.stored_path import stored_path

import wkwdask
from wkwdask.formats import registry

from .jobs import is_installed
from .results import Trial
from .trials import trace_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from verbs.forms import Form

registry._added = [toy_format.FORMAT]
dask.config.set(scheduler="synchronous")
_CHAINS = {"full": 3000, "sample": 20}
_CHAINS_OF_TASK = 50
_STEPS = 5
_LADDER = ("2-2-1", "4-4-2")
_TYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "float32")
"""Types that all formats store."""
_TARGETS = tuple(
    form for form in FORMS if not form.name.startswith(("layer-", "zarr-", "toy", "ngff-0.6"))
)
_REFUSED = frozenset({"too-few-axes"})
"""Forms that are refused at opening."""
_REFUSALS = (wkwdask.UnsupportedError, wkwdask.AlignmentError, wkwdask.ResumeError)
"""Such as an update of a level that no pyramid job made."""


def _starts() -> list[Form]:
    """List the forms of the first image of a chain."""
    foreign = (form for form in FOREIGN if min(form.offset) >= 0 and not form.is_source)
    return [
        form
        for form in (*FORMS, *foreign)
        if (form.needs is None or is_installed(form.needs)) and form.name not in _REFUSED
    ]


class Chain:
    """Image that jobs change or replace, with the voxels that its levels must have."""

    def __init__(self, form: Form, folder: Path, seed: int) -> None:
        self.rng, self.form, self._folder = np.random.default_rng(seed), form, folder
        self.url, self._number = form.url(str(folder), "image0"), 0
        case = form.draw(seed, _TYPES, 0)
        form.save(case.array, self.url, case.offset)
        self.levels = {"1": case, **{mag: form.level_of(case, mag) for mag in form.levels}}
        self._has_own_levels, self._has_usual_chunks = not form.levels, True
        self._is_foreign, self._states_size = form in FOREIGN, form.states_voxel_size
        self._cast, self.done = form.cast, [str(form)]

    @property
    def case(self) -> Case:
        """Mag 1."""
        return self.levels["1"]

    def steps(self) -> list[Callable[[], None]]:
        """List the jobs that are possible."""
        found = [self.convert, self.copy, self.write_region, self.rechunk, self.compress]
        if self._states_size:
            found.append(self.inverse)
        if self.form.other_files is not None and self._has_usual_chunks:
            found.append(self.rechunk_files)
        if len(self.levels) == 1:
            found.append(self.copy_box)
        if self._has_own_levels and self.case.array.dtype != bool:
            found.append(self.pyramid)
        if len(self.levels) > 1 and self._has_own_levels:
            found += [self.remove, self.update]
        if self._is_single_array:
            found = [step for step in found if step not in (self.pyramid, self.inverse)]
        return found

    @property
    def _is_single_array(self) -> bool:
        return self.form.name in ("zarr-2", "zarr-3") and self.url.endswith("image0")

    @property
    def _voxel_size(self) -> dict[str, object]:
        return {} if self._states_size else {"voxel_size": VOXEL_SIZE}

    def _place(self, form: Form) -> str:
        """Return an unused URL of a form."""
        self._number += 1
        url = form.url(str(self._folder), f"image{self._number}")
        if form.engine == "wkw":
            wkwdask.create_dataset(stored_path(url).parent, VOXEL_SIZE, existing="keep")
        return url

    def _become(self, url: str, form: Form, levels: dict[str, Case]) -> None:
        dtype = wkwdask.open(url, mag=1).dtype
        if dtype == self._cast:
            levels = {
                mag: Case(case.array.astype(dtype), case.offset) for mag, case in levels.items()
            }
        self.url, self.form, self.levels = url, form, levels
        self._is_foreign = self._has_usual_chunks = False

    def write_region(self) -> None:
        low, high = self.case.part(self.rng)
        patch = other_voxels(self.case.crop((low, high)))
        wkwdask.write(self.url + self.form.finest, None, patch, region=(low, high))
        changed = Case(self.case.array.copy(), self.case.offset)
        changed.crop((low, high))[...] = patch
        self.levels["1"] = changed

    def pyramid(self) -> None:
        mags = list(_LADDER[: int(self.rng.integers(1, 3))])
        wkwdask.build_pyramid(self.url, mags=mags, method="max", existing="overwrite")
        self._expect_levels(mags)

    def update(self) -> None:
        mags = [mag for mag in self.levels if mag != "1"]
        wkwdask.build_pyramid(self.url, mags=mags, method="max", update=True)
        self._expect_levels(mags)

    def _expect_levels(self, mags: list[str]) -> None:
        for mag in mags:
            self.levels[mag] = largest_of_windows(self.case, step_of(mag))

    def remove(self) -> None:
        mag = str(self.rng.choice([mag for mag in self.levels if mag != "1"]))
        wkwdask.rm(self.url, mags=[mag])
        del self.levels[mag]

    def rechunk(self) -> None:
        wkwdask.rechunk(self.url, **self.form.other_chunks)
        self._has_usual_chunks = False

    def rechunk_files(self) -> None:
        wkwdask.rechunk(self.url, **self.form.other_files)

    def compress(self) -> None:
        wkwdask.compress(self.url, compression=self.form.compression)

    def copy(self) -> None:
        url = self._place(self.form)
        wkwdask.copy(self.url, url)
        self.url = url

    def copy_box(self) -> None:
        (low, high), url = self.case.part(self.rng), self._place(self.form)
        size = [b - a for a, b in zip(low, high, strict=True)]
        wkwdask.copy(self.url, url, bounding_box=[*low, *size], translate=self.form.move)
        offset = tuple(a + b for a, b in zip(low, self.form.move, strict=True))
        self.url, self.levels = url, {"1": Case(self.case.crop((low, high)).copy(), offset)}

    def inverse(self) -> None:
        form = self._target()
        url = self._place(form)
        wkwdask.apply(
            _inverse, self.url + self.form.finest, url + form.finest,
            channels=len(self.case.array),
        )  # fmt: skip
        self._become(url, form, {"1": Case(_inverse(self.case.array), self.case.offset)})

    def convert(self) -> None:
        form = self._target()
        url = self._place(form)
        if form.engine == "wkw":
            folder, _, layer = url.rpartition("/")
            wkwdask.convert(self.url, folder, layer=layer, **self._voxel_size)
        else:
            wkwdask.convert(self.url, url, **self._voxel_size)
        levels = dict(self.levels)
        if form.engine == "wkw":
            levels = {
                mag: case if mag == "1" else _in_box_of_layer(case, self.case, mag)
                for mag, case in levels.items()
            }
        self._become(url, form, levels)
        self._states_size = True

    def _target(self) -> Form:
        """Draw a form of a new image; ``convert`` takes the names of layers from a dataset."""
        targets = [form for form in _TARGETS if "wkw" not in {form.engine} & {self.form.engine}]
        return targets[self.rng.integers(len(targets))]

    def check(self) -> None:
        """Compare all levels, also as other software reads them."""
        for mag, case in self.levels.items():
            whole = wkwdask.open(self.url, mag=mag)
            assert (whole.shape, whole.dtype) == (case.array.shape, case.array.dtype)
            np.testing.assert_array_equal(whole.compute(), case.array)
            expect_by_others(self.url, mag, case, self.form.unread_by if self._is_foreign else ())

    def run(self) -> None:
        """Do some steps. A refused one must change nothing."""
        self.check()
        for _ in range(_STEPS):
            step = self.rng.choice(self.steps())
            self.done.append(step.__name__)
            before = self.url, self.form, dict(self.levels), self._is_foreign
            try:
                step()
            except _REFUSALS as error:
                self.done[-1] += f" (refused: {error})"
                self.url, self.form, self.levels, self._is_foreign = before
            else:
                if step.__name__ in ("inverse", "convert"):
                    self.done[-1] += f" to {self.form}"
            self.check()
        report = wkwdask.verify(self.url)
        assert report.is_sound, str(report)


def chain_tasks(options: argparse.Namespace) -> Iterator[tuple[str, Callable[[Path], list[Trial]]]]:
    """Yield tasks of some chains each."""
    number = _CHAINS[options.size]
    for first in range(0, number, _CHAINS_OF_TASK):
        chains = range(first, min(first + _CHAINS_OF_TASK, number))
        name = f"chains-{first}"
        if options.cell in (None, name):
            chosen = [n for n in chains if options.point in (None, str(n))]
            yield name, functools.partial(_run_chains, options.seed, chosen)


def _run_chains(seed: int, numbers: list[int], folder: Path) -> list[Trial]:
    return [_run_chain(seed, number, folder / str(number)) for number in numbers]


def _run_chain(seed: int, number: int, folder: Path) -> Trial:
    folder.mkdir()
    rng = random.Random(f"{seed} {number}")
    form = rng.choice(_starts())
    problems, done = (), [str(form)]
    try:
        chain = Chain(form, folder, rng.randrange(1 << 31))
        done = chain.done
        chain.run()
    except Exception as error:
        problems = (f"{type(error).__name__}: {error}{trace_of(error)}",)
    return Trial(
        str(number), "chain", " > ".join(done), False, "failed" if problems else "succeeded",
        problems, bool(problems),
    )  # fmt: skip
