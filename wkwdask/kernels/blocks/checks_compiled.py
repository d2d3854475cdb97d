"""Compiled checks of stored blocks that need no decoding."""

from __future__ import annotations

import numpy as np

from wkwdask.kernels.compiler import helper, kernel

_STRETCH = 256  # values that is_zero_raw combines before it branches

# Conditions at the end of a block (lz4_Block_format.md, "End of block conditions"), as
# LZ4_decompress_safe checks them: the last 5 bytes are literals, and the last match starts at least
# 12 bytes before the end. It also accepts no match when fewer than 8 compressed bytes are left.
_unsigned = np.uint64
_LAST_LITERALS, _MATCH_LIMIT, _SEQUENCE_NBYTES = _unsigned(5), _unsigned(12), _unsigned(8)


@helper
def is_zero_raw(values, start, stop):
    # OR over a stretch has no branch, so LLVM turns it into vector code; a block with data still
    # ends after its first stretch.
    while start < stop:
        count = min(_STRETCH, stop - start)
        at = _unsigned(start)
        bits = values[at]
        for i in range(_unsigned(count)):
            bits |= values[at + i]
        if bits != 0:
            return False
        start += count
    return True


@helper
def is_lz4(source, start, nbytes, decoded_nbytes, only_zeros):
    """Return whether bytes are a valid LZ4 block, and with ``only_zeros`` whether it decodes to
    zeros, without decoding it."""
    # A block is a series of sequences (lz4_Block_format.md, "Compressed block format"):
    #
    #   | token | more literal length | literals | offset | more match length |     | token | literals |  # noqa: E501
    #     4+4 bits    0-n bytes                    2 bytes      0-n bytes             the last sequence has only literals  # noqa: E501
    #
    # A match repeats bytes that were decoded before. If all literals are zero, all matches are zero
    # too, so checking the literals is enough. A block of 32^3 zero bytes takes about 140 bytes. For
    # damaged bytes the result is False, so the decoder meets and reports the damage. Numbers are
    # unsigned, since numba tests each signed index, and lengths are completed in place: with a
    # function for both the loop takes twice the time.
    at = _unsigned(start)
    end, expected, done = at + _unsigned(nbytes), _unsigned(decoded_nbytes), _unsigned(0)
    while at < end:
        token = _unsigned(source[at])
        at += _unsigned(1)
        literals = token >> _unsigned(4)
        if literals == _unsigned(15):
            # continued in the next bytes, up to the first that is not 255
            while at < end:
                more = _unsigned(source[at])
                at += _unsigned(1)
                literals += more
                if more != _unsigned(255):
                    break
        if literals > end - at or literals > expected - done:
            return False
        if only_zeros:
            for i in range(at, at + literals):
                if source[i] != 0:
                    return False
        at += literals
        done += literals
        if at == end:
            return done == expected
        if end - at < _SEQUENCE_NBYTES or done + _MATCH_LIMIT > expected:
            return False
        offset = _unsigned(source[at]) | _unsigned(source[at + _unsigned(1)]) << _unsigned(8)
        at += _unsigned(2)
        match = token & _unsigned(15)
        if match == _unsigned(15):
            while at < end:
                more = _unsigned(source[at])
                at += _unsigned(1)
                match += more
                if more != _unsigned(255):
                    break
        match += _unsigned(4)
        if offset == _unsigned(0) or offset > done or match + done + _LAST_LITERALS > expected:
            return False
        done += match
    return False


@helper
def is_zero_lz4(source, at, nbytes, decoded_nbytes):
    """Return whether LZ4 bytes are valid and decode to zeros, without decoding them."""
    return is_lz4(source, at, nbytes, decoded_nbytes, True)


@kernel
def first_invalid_lz4(source, places, decoded_nbytes):
    """Return the index of the first of some stored blocks that does not decode to a length, -1 if
    all do."""
    for n in range(places.shape[0]):
        if not is_lz4(source, places[n, 0], places[n, 1], decoded_nbytes, False):
            return n
    return -1
