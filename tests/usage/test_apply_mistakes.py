"""Mistakes in an applied function fail at once, with the traceback of the user's code."""

from __future__ import annotations

import numpy as np
import pytest
from support.commands import run_here

import wkwdask
from wkwdask.errors import TaskFailedError

FUNCTIONS = """
def two(a, b):
    return a

def misspelt(a):
    return a + undefined_name

def doubled(a):
    return a.astype("float64")

def cropped(a):
    return a[1:]

class Threshold:
    def __call__(self, a):
        raise KeyError("level")

threshold = Threshold()
"""


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    wkwdask.create_dataset(tmp_path / "ds", (4, 4, 4))
    voxels = np.random.default_rng(1).integers(0, 255, (40, 40, 40)).astype(np.uint8)
    wkwdask.to_wkw(voxels, tmp_path / "ds/color/1", block_len=8, file_len=2)
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "ds"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            "functions.py:two",
            (
                "functions.py:two cannot be called with 1 array, one for each source: missing a "
                "required argument: 'b'"
            ),
        ),
        (
            "functions.py:misspelt",
            (
                "functions.py:misspelt failed in a trial, before anything was written: NameError: "
                "name 'undefined_name' is not defined"
            ),
        ),
        (
            "functions.py:doubled",
            (
                "which uint8 cannot store without loss: cast it in the function, or set --dtype to "
                "a type that stores float64"
            ),
        ),
        (
            "functions.py:cropped",
            (
                "functions.py:cropped returned shape (39, 40, 40), expected (40, 40, 40) voxels in "
                "1 channel (--channels sets their number)"
            ),
        ),
        (
            "functions.py:threshold",
            (
                "functions.py:threshold failed in a trial, before anything was written: KeyError: "
                "'level'"
            ),
        ),
        (
            "scipy.ndimage:zoom",
            (
                "scipy.ndimage:zoom cannot be called with 1 array, one for each source: missing a "
                "required argument: 'zoom'"
            ),
        ),
    ],
)
def test_a_wrong_function_fails_before_anything_is_planned(dataset, function, message):
    done = run_here("apply", function, "ds/color/1", "ds/new/1")
    assert done.returncode == 1
    assert message in done.stderr
    assert "tasks failed" not in done.stderr
    assert not (dataset / "new").exists()


def test_the_traceback_is_that_of_the_users_code(dataset):
    done = run_here("apply", "functions.py:misspelt", "ds/color/1", "ds/new/1")
    assert "Traceback (most recent call last):" in done.stderr
    assert f'File "{dataset.parent}/functions.py", line 6, in misspelt' in done.stderr
    assert done.stderr.count("File ") == 1, done.stderr  # no frame of wkwdask


def test_debug_shows_all_of_it(dataset):
    with pytest.raises(TaskFailedError) as failed:
        run_here("apply", "functions.py:misspelt", "ds/color/1", "ds/new/1", "--debug")
    assert isinstance(failed.value.__cause__, NameError)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(:", "line 1"),
        (
            "import no_such_module_here",
            "ModuleNotFoundError: No module named 'no_such_module_here'",
        ),
        ("print(undefined_name)", "line 1, in <module>"),
    ],
)
def test_a_file_that_cannot_be_imported_is_named_with_the_line(dataset, text, message):
    (dataset.parent / "wrong.py").write_text(text)
    done = run_here("apply", "wrong.py:f", "ds/color/1", "ds/new/1")
    assert "wrong.py cannot be imported" in done.stderr
    assert message in done.stderr


def test_permanent_errors_are_not_retried(dataset):
    calls = []

    def broken(em):
        calls.append(em.shape)
        if em.shape == (16, 16, 16) and len(calls) > 1:
            raise ValueError("always")
        return em

    with pytest.raises(
        TaskFailedError,
        match=r"ValueError: always \(box [^,]+, [^,]+, [^,]+, [^,]+, [^,]+ in mag 1\)",
    ) as failed:
        wkwdask.apply(broken, dataset / "color/1", dataset / "new/1", chunks=16, most_failures=0)
    assert "times" not in str(failed.value)
    assert 'raise ValueError("always")' in str(failed.value)  # where the first one was raised
    assert isinstance(failed.value.__cause__, ValueError)


def test_transient_errors_are_retried(dataset):
    for error in (
        OSError("gone"),
        MemoryError(),
        TimeoutError("slow"),
        RuntimeError("the device is busy"),
    ):
        failures = iter([error, error])

        def flaky(em, failures=failures):
            for one in failures:
                raise one
            return em

        wkwdask.apply(flaky, dataset / "color/1", dataset / "new/1", existing="overwrite")
        np.testing.assert_array_equal(
            wkwdask.read(dataset / "new/1"), wkwdask.read(dataset / "color/1")
        )


def test_a_function_that_needs_large_boxes_is_accepted(dataset):
    """The trial on one block fails, the one on a whole brick succeeds."""
    whole = wkwdask.read(dataset / "color/1").shape[1:]

    def network(em):
        if em.shape != whole:
            raise ValueError("the input has another size")
        return em

    wkwdask.apply(network, dataset / "color/1", dataset / "new/1", chunks=64)
    np.testing.assert_array_equal(
        wkwdask.read(dataset / "new/1"), wkwdask.read(dataset / "color/1")
    )


def test_a_reduction_has_a_trial_too(dataset):
    with pytest.raises(
        TaskFailedError, match=r"failed in a trial, before anything was written: ZeroDivisionError"
    ):
        wkwdask.apply(lambda em: 1 // 0, dataset / "color/1")
