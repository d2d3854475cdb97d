"""Moves of 1 to 32 bytes and transposed tiles, as single instructions of the CPU.

Addresses are integers and need no alignment. numba would check for overlap before each short loop, and would move the ends of a row byte by byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from wkwdask.kernels.compiler import helper

if TYPE_CHECKING:
    from collections.abc import Callable

_VECTOR_NBYTES = 16
_inlined: Callable[[Callable[..., Any]], Callable[..., Any]] = intrinsic  # callers do not pass the context


def _pointer(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _move(nbytes: int) -> Any:
    """Return a function (to, at) that moves so many bytes."""

    @_inlined
    def move(typing_context: Any, to: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = ir.IntType(8) if nbytes == 1 else ir.VectorType(ir.IntType(8), nbytes)
            value = builder.load(_pointer(builder, arguments[1], kind), align=1)
            builder.store(value, _pointer(builder, arguments[0], kind), align=1)
            return context.get_dummy_value()

        return types.void(types.intp, types.intp), generate

    return move


_move_1, _move_2, _move_4, _move_8, _move_16, _move_32 = (_move(nbytes) for nbytes in (1, 2, 4, 8, 16, 32))


@helper
def move_row(to: Any, at: Any, nbytes: Any) -> None:
    """Move bytes that do not overlap. The last move may overlap the one before it."""
    if nbytes >= 32:
        for i in range(0, nbytes - 31, 32):
            _move_32(to + i, at + i)
        _move_32(to + nbytes - 32, at + nbytes - 32)
    elif nbytes >= 16:
        _move_16(to, at)
        _move_16(to + nbytes - 16, at + nbytes - 16)
    elif nbytes >= 8:
        _move_8(to, at)
        _move_8(to + nbytes - 8, at + nbytes - 8)
    elif nbytes >= 4:
        _move_4(to, at)
        _move_4(to + nbytes - 4, at + nbytes - 4)
    elif nbytes >= 2:
        _move_2(to, at)
        _move_2(to + nbytes - 2, at + nbytes - 2)
    elif nbytes == 1:
        _move_1(to, at)


@_inlined
def move_value(typing_context: Any, values: Any, to: Any, at: Any) -> Any:
    """Move one value of the type of an array."""
    kind = ir.IntType(values.dtype.bitwidth)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(builder.load(_pointer(builder, arguments[2], kind), align=1), _pointer(builder, arguments[1], kind), align=1)
        return context.get_dummy_value()

    return types.void(values, types.intp, types.intp), generate


@_inlined
def transpose_tile(typing_context: Any, values: Any, to: Any, to_step: Any, at: Any, at_step: Any) -> Any:
    """Transpose a square of 16 x 16 bytes, or as many values of the type of an array as 16 bytes hold; the steps are bytes between its rows."""
    bits = values.dtype.bitwidth
    count = 8 * _VECTOR_NBYTES // bits
    kind = ir.VectorType(ir.IntType(bits), count)

    def mask(first: int) -> Any:
        lanes = [lane for n in range(first, first + count // 2) for lane in (n, count + n)]
        return ir.Constant(ir.VectorType(ir.IntType(32), count), [ir.Constant(ir.IntType(32), lane) for lane in lanes])

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, target, target_step, source, source_step = arguments
        step = ir.Constant(source.type, 0)
        rows = []
        for _ in range(count):
            rows.append(builder.load(_pointer(builder, builder.add(source, step), kind), align=1))
            step = builder.add(step, source_step)
        # Interleaving row n with row n + count / 2 shifts the bits of every value's place by one; after log2(count) rounds, row and column have changed places.
        for _ in range(count.bit_length() - 1):
            pairs = zip(rows[: count // 2], rows[count // 2 :], strict=True)
            rows = [builder.shuffle_vector(first, second, mask(part)) for first, second in pairs for part in (0, count // 2)]
        step = ir.Constant(target.type, 0)
        for row in rows:
            builder.store(row, _pointer(builder, builder.add(target, step), kind), align=1)
            step = builder.add(step, target_step)
        return context.get_dummy_value()

    return types.void(values, types.intp, types.intp, types.intp, types.intp), generate
