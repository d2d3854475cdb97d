"""Moves of 1 to 64 bytes, past the cache if asked, and transposed tiles, as single instructions of
the CPU.

Addresses are integers and need no alignment. numba would check for overlap before each short loop,
and would move the ends of a row byte by byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from wkwdask.kernels.compiler import helper

if TYPE_CHECKING:
    from collections.abc import Callable

LINE_NBYTES = 64
"""Length of a line of the cache."""

# callers do not pass the context
_inlined: Callable[[Callable[..., Any]], Callable[..., Any]] = intrinsic


def _pointer(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _bypass_cache(builder: Any, store: Any) -> None:
    store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))


def _move(nbytes: int, *, bypasses: bool = False) -> Any:
    """Return a function (to, at) that moves so many bytes; past the cache, ``to`` must be a
    multiple of their number."""

    @_inlined
    def move(typing_context: Any, to: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = ir.IntType(8) if nbytes == 1 else ir.VectorType(ir.IntType(8), nbytes)
            value = builder.load(_pointer(builder, arguments[1], kind), align=1)
            store = builder.store(
                value, _pointer(builder, arguments[0], kind), align=nbytes if bypasses else 1
            )
            if bypasses:
                _bypass_cache(builder, store)
            return context.get_dummy_value()

        return types.void(types.intp, types.intp), generate

    return move


_move_1, _move_2, _move_4, _move_8, _move_16, _move_32 = (
    _move(nbytes) for nbytes in (1, 2, 4, 8, 16, 32)
)
_bypass_64 = _move(LINE_NBYTES, bypasses=True)


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
        builder.store(
            builder.load(_pointer(builder, arguments[2], kind), align=1),
            _pointer(builder, arguments[1], kind),
            align=1,
        )
        return context.get_dummy_value()

    return types.void(values, types.intp, types.intp), generate


@helper
def bypass_row(to: Any, at: Any, nbytes: Any) -> None:
    """Move whole lines of the cache to memory, without reading the lines first. Call ``fence``
    afterwards."""
    for i in range(0, nbytes, LINE_NBYTES):
        _bypass_64(to + i, at + i)


@_inlined
def fence(typing_context: Any) -> Any:
    """Let other threads see what was moved past the cache before anything that this thread does
    next."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


def _shuffled(builder: Any, first: Any, second: Any, lanes: list[int]) -> Any:
    return builder.shuffle_vector(
        first,
        second,
        ir.Constant(
            ir.VectorType(ir.IntType(32), len(lanes)),
            [ir.Constant(ir.IntType(32), n) for n in lanes],
        ),
    )


def transposition(
    num_rows: Callable[[int], int], row_len: Callable[[int], int], *, bypasses: bool = False
) -> Any:
    """Return a function (values, to, to_step, at, at_step) that transposes a tile of values of the
    type of an array.

    The size of the tile depends on the size of a value [bytes]; both lengths are powers of two. The
    steps are bytes between rows.
    """

    @_inlined
    def transpose(
        typing_context: Any, values: Any, to: Any, to_step: Any, at: Any, at_step: Any
    ) -> Any:
        bits = values.dtype.bitwidth
        height, width = num_rows(bits // 8), row_len(bits // 8)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _, target, target_step, source, source_step = arguments
            kind = ir.VectorType(ir.IntType(bits), width)
            step = ir.Constant(source.type, 0)
            rows = []
            for _ in range(height):
                rows.append(
                    builder.load(_pointer(builder, builder.add(source, step), kind), align=1)
                )
                step = builder.add(step, source_step)
            # The bits of a value's place are those of its row, then those of its column.
            # Interleaving the first half of the rows with the second half moves the highest bit to
            # the end. After log2(height) rounds, row and column have changed places. Vectors
            # shorter than a new row are joined, others cut.
            for _ in range(height.bit_length() - 1):
                half, count = len(rows) // 2, rows[0].type.count
                lanes = [lane for n in range(count) for lane in (n, count + n)]
                parts = [lanes] if count < height else [lanes[:count], lanes[count:]]
                rows = [
                    _shuffled(builder, *pair, part)
                    for pair in zip(rows[:half], rows[half:], strict=True)
                    for part in parts
                ]
            if width > height:
                rows = [
                    _shuffled(builder, row, row, list(range(n, n + height)))
                    for row in rows
                    for n in range(0, width, height)
                ]
            step = ir.Constant(target.type, 0)
            for row in rows:
                store = builder.store(
                    row,
                    _pointer(builder, builder.add(target, step), row.type),
                    align=height * bits // 8 if bypasses else 1,
                )
                if bypasses:
                    _bypass_cache(builder, store)
                step = builder.add(step, target_step)
            return context.get_dummy_value()

        return types.void(values, types.intp, types.intp, types.intp, types.intp), generate

    return transpose
