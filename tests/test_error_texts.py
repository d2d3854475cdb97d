"""Errors of all verbs on all formats: class and text change only where a change is meant."""

from __future__ import annotations

from support.error_texts import GOLDEN, comparable, error_texts, public_folder


def test_errors_are_as_recorded():
    """``python -m support.error_texts`` records a change that is meant."""
    with public_folder() as folder:
        found = error_texts(folder)
    assert len(found) > 3000
    found_lines, recorded = comparable(found, GOLDEN.read_text().splitlines())
    assert found_lines == recorded


def test_rows_that_need_a_missing_package_are_left_out():
    found = {"read | wkw | a": "X: 1", "view | wkw | b": None, "read | zarr | c": None}
    recorded = ["read | wkw | a | X: 1 | 2", "view | wkw | b | Y: 2", "read | zarr | d | Z: 3"]
    assert comparable(found, recorded) == (["read | wkw | a | X: 1"], recorded[:1])
