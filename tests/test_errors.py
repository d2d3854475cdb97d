"""The error tree: builtin bases, public names, and pickling between dask workers."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

import wkwdask
from wkwdask import errors

CLASSES = [
    value
    for _, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, Exception)
    and not issubclass(value, Warning)
    and value.__module__ == errors.__name__
]

BUILTIN_BASES = {
    "FormatError": ValueError,
    "TruncatedError": ValueError,
    "CorruptError": ValueError,
    "UnsupportedError": NotImplementedError,
    "AlignmentError": ValueError,
    "BoundsError": IndexError,
    "MissingError": FileNotFoundError,
    "ExistsError": FileExistsError,
    "ReplacedError": OSError,
    "ResumeError": ValueError,
    "LockedError": OSError,
    "TaskFailedError": RuntimeError,
    "BatchError": RuntimeError,
    "IncompleteWriteError": RuntimeError,
    "SpaceError": OSError,
}


def test_every_class_is_in_the_table():
    assert {cls.__name__ for cls in CLASSES} == {*BUILTIN_BASES, "WkwDaskError"}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_public(cls):
    assert cls.__name__ in wkwdask.__all__
    assert getattr(wkwdask, cls.__name__) is cls
    assert cls.__doc__


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_bases(cls):
    assert issubclass(cls, errors.WkwDaskError)
    if cls is not errors.WkwDaskError:
        assert issubclass(cls, BUILTIN_BASES[cls.__name__])


def test_format_errors():
    assert {cls.__name__ for cls in CLASSES if issubclass(cls, errors.FormatError)} == {
        "FormatError",
        "TruncatedError",
        "CorruptError",
    }


@pytest.mark.parametrize(
    "message", ["ds/color/1/z0/y0/x0.wkw: byte 8: data offset 0", "", "µm: 100 %\nsecond line"]
)
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("protocol", [0, pickle.HIGHEST_PROTOCOL])
def test_pickle(cls, message, protocol):
    error = cls(message)
    for found in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error)):
        assert type(found) is cls
        assert str(found) == message == str(error)
        assert found.args == error.args


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_notes_survive(cls):
    """A runner adds the task to the error of a worker."""
    error = cls("message")
    error.add_note("while reading region (0, 0, 0)")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["while reading region (0, 0, 0)"]
