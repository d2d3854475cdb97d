"""The size of a JPEG XL image by its header: no library gives it without decoding. Opens nothing."""

from __future__ import annotations

import struct

from wkwdask.errors import CorruptError, TruncatedError

_JXL_CODESTREAM = b"\xff\x0a"
_JXL_CONTAINER = b"\x00\x00\x00\x0cJXL \r\n\x87\n"
_JXL_RATIOS = ((1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))


def jxl_size(data: bytes) -> tuple[int, int]:
    """Read width and height of a JPEG XL image (ISO/IEC 18181-1, section 9 and annex D)."""
    bits = _Bits(_jxl_codestream(data))
    width, height = _jxl_dimensions(bits)
    if bits.take(1):  # everything has its default: three channels of eight bits
        return width, height
    if bits.take(1):  # extra fields
        bits.take(3)
        if bits.take(1):
            _jxl_dimensions(bits)
        if bits.take(2):
            raise CorruptError("a JPEG XL image that moves, or has a preview")
    _skip_jxl_depth(bits)
    bits.take(1)
    extra = bits.choose(((0, 0), (0, 1), (4, 2), (12, 1)))
    if extra > 1:
        raise CorruptError(f"a JPEG XL image with {extra} channels besides its colors")
    return width, height


class _Bits:
    """Takes bits from bytes, the lowest first."""

    def __init__(self, data: bytes) -> None:
        self._value = int.from_bytes(data[:256], "little")
        self._left = 8 * min(len(data), 256)

    def take(self, count: int) -> int:
        """Take an unsigned number of so many bits."""
        if count > self._left:
            raise TruncatedError("a JPEG XL image is cut off in its header")
        value = self._value & ((1 << count) - 1)
        self._value >>= count
        self._left -= count
        return value

    def choose(self, forms: tuple[tuple[int, int], ...]) -> int:
        """Take a number in one of four forms: so many bits, and what is added to them."""
        count, plus = forms[self.take(2)]
        return self.take(count) + plus


def _jxl_codestream(data: bytes) -> bytes:
    """Find the start of the codestream, which may be in a container of boxes."""
    if data.startswith(_JXL_CODESTREAM):
        return data[2:258]
    if not data.startswith(_JXL_CONTAINER):
        raise CorruptError("no JPEG XL image")
    at = len(_JXL_CONTAINER)
    while at + 8 <= len(data):
        length, name = struct.unpack_from(">I4s", data, at)
        head = 8
        if length == 1 and at + 16 <= len(data):
            length, head = struct.unpack_from(">Q", data, at + 8)[0], 16
        if name in (b"jxlc", b"jxlp"):
            start = at + head + (4 if name == b"jxlp" else 0)
            if data[start : start + 2] != _JXL_CODESTREAM:
                break
            return data[start + 2 : start + 258]
        if length < head:
            break
        at += length
    raise CorruptError("a JPEG XL container without a codestream")


def _jxl_dimensions(bits: _Bits) -> tuple[int, int]:
    forms = ((9, 1), (13, 1), (18, 1), (30, 1))
    is_small = bits.take(1)
    height = 8 * (bits.take(5) + 1) if is_small else bits.choose(forms)
    ratio = bits.take(3)
    if ratio:
        numerator, denominator = _JXL_RATIOS[ratio - 1]
        return height * numerator // denominator, height
    return (8 * (bits.take(5) + 1) if is_small else bits.choose(forms)), height


def _skip_jxl_depth(bits: _Bits) -> None:
    if bits.take(1):
        bits.choose(((0, 32), (0, 16), (0, 24), (6, 1)))
        bits.take(4)
    else:
        bits.choose(((0, 8), (0, 10), (0, 12), (6, 1)))
