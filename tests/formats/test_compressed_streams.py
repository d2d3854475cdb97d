"""Streams of gzip, by whichever packages are installed; zlib is what they are held against."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from wkwdask.errors import CorruptError, TruncatedError
from wkwdask.formats import compressed_streams
from wkwdask.formats.compressed_streams import compress_gzip, decompress_gzip

DATA = bytes(range(256)) * 40
NOISE = np.random.default_rng(3).integers(0, 64, 10240).astype(np.uint8).tobytes()


@pytest.fixture(params=["all", "no isal", "zlib alone"])
def packages(request, monkeypatch):
    """Take packages away."""
    if request.param != "all":
        monkeypatch.setattr(compressed_streams, "_isal", lambda: None)
    if request.param == "zlib alone":
        monkeypatch.setattr(compressed_streams, "_imagecodecs", lambda: None)


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("data", [DATA, NOISE], ids=["labels", "noise"])
@pytest.mark.parametrize("is_image", [True, False])
def test_there_and_back(is_image, data):
    packed = compress_gzip(data, is_image=is_image)
    assert packed[:2] == b"\x1f\x8b"
    assert packed[4:8] == bytes(4)  # no time: the same bytes whenever they are written
    assert zlib.decompress(packed, 31) == data
    for more in (b"", b"behind it"):
        assert decompress_gzip(packed + more, len(data), "f", 7) == data
    assert zlib.decompress(compress_gzip(b"", is_image=is_image), 31) == b""


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("data", [DATA, NOISE], ids=["labels", "noise"])
def test_what_is_no_stream(data):
    packed = compress_gzip(data)
    with pytest.raises(
        CorruptError,
        match=(
            f"f: byte 7: a gzip stream of {len(packed)} bytes decompresses to more, expected at "
            f"most {len(data) - 1}"
        ),
    ):
        decompress_gzip(packed, len(data) - 1, "f", 7)
    with pytest.raises(CorruptError, match="f: byte 7: expected a gzip stream"):
        decompress_gzip(b"no gzip", 10, "f", 7)
    with pytest.raises(CorruptError, match="f: byte 7: expected a gzip stream"):
        decompress_gzip(packed[:-8] + bytes(8), len(data), "f", 7)
    for cut in (0, 5, 20, len(packed) - 1):
        with pytest.raises(TruncatedError, match="f: byte 7: a gzip stream of"):
            decompress_gzip(packed[:cut], len(data), "f", 7)
