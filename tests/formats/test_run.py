"""Runs: part files with every damage, and the plan of a join against brute force over blocks."""

from __future__ import annotations

import struct
import zlib
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wkwdask.errors import CorruptError, FormatError, TruncatedError
from wkwdask.model.writing.run import (
    FOOTER_NBYTES,
    RunTable,
    format_run_tail,
    join_order,
    parse_run_tail,
    run_tail_nbytes,
)


def _table(codes, sizes):
    return RunTable(np.array(codes, np.uint64), np.array(sizes, np.int64))


def _parse(raw):
    """Read a part file as a join does: the footer, then the tail."""
    tail = run_tail_nbytes(raw[-FOOTER_NBYTES:], len(raw), "part")
    return parse_run_tail(raw[len(raw) - tail :], "part")


TABLE = _table([3, 0, 5], [4, 0, 2])
PART = b"aaaabb" + format_run_tail(TABLE)


def test_bytes():
    tables = struct.pack("<6Q", 3, 0, 5, 4, 0, 2)
    assert format_run_tail(TABLE) == tables + b"WKWRUN01" + struct.pack(
        "<QQI", 3, 6, zlib.crc32(tables)
    )
    assert TABLE.payload_nbytes == 6


def test_round_trip():
    found = _parse(PART)
    assert (found.codes.dtype, found.sizes.dtype) == (np.uint64, np.int64)
    assert (found.codes.tolist(), found.sizes.tolist()) == ([3, 0, 5], [4, 0, 2])


def test_empty_run():
    found = _parse(format_run_tail(_table([], [])))
    assert (found.codes.size, found.sizes.size, found.payload_nbytes) == (0, 0, 0)


def test_every_truncation():
    for length in range(len(PART)):
        with pytest.raises(FormatError, match="part: "):
            _parse(PART[:length])


def test_every_damaged_byte_of_the_tail():
    """The checksum covers the tables, the file size covers the footer; the payload is checked when
    its blocks are read."""
    for at in range(6, len(PART)):
        for value in (0, 0xFF, PART[at] ^ 1):
            if value != PART[at]:
                with pytest.raises(FormatError, match="part: "):
                    _parse(PART[:at] + bytes([value]) + PART[at + 1 :])


def test_messages():
    with pytest.raises(
        TruncatedError,
        match=f"part: expected a part file of at least {FOOTER_NBYTES} bytes, found 3",
    ):
        _parse(b"abc")
    with pytest.raises(
        CorruptError, match=f"part: byte {100 - FOOTER_NBYTES}: expected the footer of a part file"
    ):
        _parse(bytes(100))
    with pytest.raises(
        TruncatedError,
        match=f"part: expected {len(PART)} bytes as its footer states, found {len(PART) - 1}",
    ):
        _parse(PART[1:])
    with pytest.raises(
        TruncatedError,
        match=f"part: expected {len(PART)} bytes as its footer states, found {len(PART) + 1}",
    ):
        _parse(b"x" + PART)
    with pytest.raises(CorruptError, match="part: the tables of the part file are damaged"):
        _parse(PART[:6] + b"\x07" + PART[7:])


@st.composite
def _scattered_runs(draw):
    """Blocks of a file dealt to runs in any stored order, some to none, some all-zero: codes
    interleave as those of anisotropic steps do."""
    blocks_per_file = draw(st.sampled_from([1, 8, 64]))
    num_runs = draw(st.integers(1, 4))
    owner = draw(
        st.lists(st.integers(-1, num_runs - 1), min_size=blocks_per_file, max_size=blocks_per_file)
    )
    runs = []
    for index in range(num_runs):
        codes = [code for code, run in enumerate(owner) if run == index]
        if draw(st.booleans()):
            codes = draw(st.permutations(codes))
        runs.append(
            _table(
                codes,
                draw(
                    st.lists(st.sampled_from([0, 1, 3]), min_size=len(codes), max_size=len(codes))
                ),
            )
        )
    return blocks_per_file, runs


@given(_scattered_runs())
def test_join_copies_every_block_to_its_place(case):
    blocks_per_file, runs = case
    payloads, stored = [], {}
    for index, run in enumerate(runs):
        blocks = [
            bytes([65 + index, code, size])[:size]
            for code, size in zip(run.codes.tolist(), run.sizes.tolist(), strict=True)
        ]
        payloads.append(b"".join(blocks))
        stored.update(zip(run.codes.tolist(), blocks, strict=True))
    expected = [stored.get(code, b"") for code in range(blocks_per_file)]

    sizes, segments = join_order(runs, blocks_per_file)

    assert sizes.tolist() == [len(block) for block in expected]
    assert sum(segment.num_blocks for segment in segments) == blocks_per_file
    copied = [
        payloads[s.run][s.offset : s.offset + s.nbytes] if s.run >= 0 else b"" for s in segments
    ]
    at = 0
    for segment, raw in zip(segments, copied, strict=True):
        assert raw == b"".join(expected[at : at + segment.num_blocks])
        assert segment.nbytes == len(raw)
        assert (segment.run == -1) == (not raw)
        at += segment.num_blocks
    for before, after in pairwise(segments):  # neighbours that could be one copy are one
        assert before.run != after.run or (
            before.run >= 0 and before.offset + before.nbytes != after.offset
        )


def test_octants_join_in_eight_copies():
    runs = [_table(range(8 * n, 8 * n + 8), [n + 1] * 8) for n in range(8)]
    sizes, segments = join_order(runs[::-1], 64)
    assert sizes.tolist() == [n + 1 for n in range(8) for _ in range(8)]
    assert [(s.run, s.offset, s.nbytes, s.num_blocks) for s in segments] == [
        (7 - n, 0, 8 * (n + 1), 8) for n in range(8)
    ]


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([_table([8], [1])], "run 0 contains block 8 of a file with 8 blocks"),
        (
            [_table([2**63], [1])],
            "run 0 contains block 9223372036854775808 of a file with 8 blocks",
        ),
        ([_table([1, 1], [1, 1])], "run 0 contains a block that it or another run already has"),
        (
            [_table([1], [1]), _table([0, 1], [1, 1])],
            "run 1 contains a block that it or another run already has",
        ),
        # all-zero blocks have one owner as well
        (
            [_table([1], [0]), _table([1], [0])],
            "run 1 contains a block that it or another run already has",
        ),
    ],
)
def test_runs_that_do_not_join(runs, message):
    with pytest.raises(CorruptError, match=message):
        join_order(runs, 8)
