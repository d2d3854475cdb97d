"""Annotations with several volume layers: the report names the merged one and the others, and the
user can choose."""

from __future__ import annotations

import numpy as np
import pytest
from support.annotations import write_annotations
from support.commands import run_here

import wkwdask
from wkwdask.errors import MissingError


def block(value):
    return np.full((32, 32, 32), value, np.uint32)


@pytest.fixture
def dataset(tmp_path):
    wkwdask.create_dataset(tmp_path / "ds", (11.24, 11.24, 28.0))
    wkwdask.write(
        tmp_path / "ds" / "seg" / "1",
        (0, 0, 0),
        np.ones((64, 64, 64), np.uint32),
        category="segmentation",
    )
    return tmp_path / "ds"


@pytest.fixture
def annotation(tmp_path):
    return write_annotations(
        tmp_path / "annotation.zip",
        {"other": {"1": {(0, 0, 0): block(7)}}, "seg": {"1": {(0, 0, 0): block(9)}}},
    )


def test_the_report_names_used_and_unused_layers(dataset, annotation, tmp_path):
    report = wkwdask.merge(dataset, annotation, tmp_path / "merged")
    assert (
        "used volume layer Volume 1 (data_1_Volume.zip), drawn on layer seg; left out Volume 0 "
        "(data_0_Volume.zip), drawn on layer other" in report.note
    )
    assert wkwdask.read(tmp_path / "merged", ((0, 0, 0), (1, 1, 1))).item() == 9


def test_a_single_volume_layer_is_not_mentioned(dataset, tmp_path):
    path = write_annotations(tmp_path / "annotation.zip", {"other": {"1": {(0, 0, 0): block(7)}}})
    assert "volume layer" not in wkwdask.merge(dataset, path, tmp_path / "merged").note


@pytest.mark.parametrize("name", ["Volume 0", "data_0_Volume.zip"])
def test_a_volume_layer_is_chosen_by_name(dataset, annotation, tmp_path, name):
    report = wkwdask.merge(dataset, annotation, tmp_path / "merged", volume_layer=name)
    assert "used volume layer Volume 0" in report.note
    assert "left out Volume 1" in report.note
    assert wkwdask.read(tmp_path / "merged", ((0, 0, 0), (1, 1, 1))).item() == 7


def test_the_command_chooses_a_volume_layer(dataset, annotation, tmp_path):
    done = run_here("merge", dataset, annotation, tmp_path / "merged", "--volume-layer", "Volume 0")
    assert (done.returncode, "left out Volume 1 (data_1_Volume.zip)" in done.stdout) == (0, True)


def test_an_unknown_volume_layer_is_an_error(dataset, annotation, tmp_path):
    with pytest.raises(
        MissingError,
        match=(
            r"no volume layer 'Volume 2'; there are Volume 0 .data_0_Volume.zip., drawn on layer "
            r"other; Volume 1"
        ),
    ):
        wkwdask.merge(dataset, annotation, tmp_path / "merged", volume_layer="Volume 2")
    both = write_annotations(
        tmp_path / "both.zip",
        {"a": {"1": {(0, 0, 0): block(7)}}, "b": {"1": {(0, 0, 0): block(8)}}},
    )
    with pytest.raises(
        ValueError,
        match=r"0 of them drawn on layer seg; name one with volume_layer=: Volume 0 .*Volume 1",
    ):
        wkwdask.merge(dataset, both, tmp_path / "merged")
