"""Single damaged bytes in chunks and shards of zarr-python and tensorstore: one with a checksum is
found, and no error of other software escapes."""

from __future__ import annotations

import shutil
from pathlib import Path

import dask
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("tensorstore", reason="the oracle tensorstore is not installed")
pytest.importorskip("zarr", reason="the oracle zarr-python is not installed")

from support.foreign_arrays import LEVELS, WRITERS, url

import wkwdask
from wkwdask.errors import FormatError, UnsupportedError


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    with dask.config.set(scheduler="synchronous"):
        root = tmp_path_factory.mktemp("images")
        for writer in WRITERS:
            writer.write(str(root / writer.name))
    return root


@given(writer=st.sampled_from(WRITERS), data=st.data())
def test_a_damaged_byte_is_found_or_harmless(images, writer, data):
    """Bytes that decoders skip have no checksum: the time in the header of gzip, for example."""
    path = images / writer.name / writer.file(0, (1, 1, 1))
    raw = path.read_bytes()
    at, change = data.draw(st.integers(0, len(raw) - 1)), data.draw(st.integers(1, 255))
    path.write_bytes(raw[:at] + bytes([raw[at] ^ change]) + raw[at + 1 :])
    try:
        with dask.config.set(scheduler="synchronous"):
            report = wkwdask.verify(url(writer, images / writer.name), mags=["1"])
            try:
                found = wkwdask.open(url(writer, images / writer.name), mag="1").compute()
            except (FormatError, UnsupportedError):
                assert not report.is_sound
                return
        assert report.is_sound
        if writer.has_checksums:
            np.testing.assert_array_equal(found[0].T, LEVELS[0])
    finally:
        path.write_bytes(raw)


@given(writer=st.sampled_from(WRITERS), share=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_off_anywhere_is_found(images, tmp_path_factory, writer, share):
    folder = Path(shutil.copytree(images / writer.name, tmp_path_factory.mktemp("cut") / "image"))
    path = folder / writer.file(0, (1, 1, 1))
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * share)])
    with dask.config.set(scheduler="synchronous"):
        assert not wkwdask.verify(url(writer, folder), mags=["1"]).is_sound
        wkwdask.repair(url(writer, folder), salvage=True, quarantine=True)
        assert wkwdask.verify(url(writer, folder)).is_sound
        found = wkwdask.open(url(writer, folder), mag="1").compute()[0].T
    assert np.all((found == LEVELS[0]) | (found == 0))
