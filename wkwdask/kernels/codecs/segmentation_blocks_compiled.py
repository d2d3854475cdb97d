"""Compiled loops of ``segmentation_blocks``. Layout of a channel, in 32-bit words (neuroglancer,
``sliceview/compressed_segmentation/README.md``)::

    | header of block 0 | header of block 1 | ... | indices 0 | table 0 | indices 1 | table 1 | ...
      2 words each                                  packed      ids       a block with the table of an earlier one refers to that

    header   bits 0-23 start of the table, bits 24-31 bits of an index; second word: start of the indices

Arrays (x, y, z) arrive as a flat view of their memory with shape and strides in elements. Indices
into flat memory are unsigned: a signed one could be negative, and the code for that is slower.
"""  # noqa: E501

from __future__ import annotations

import numpy as np

from wkwdask.kernels.compiler import helper, kernel

BITS, VALUES, TABLE, INDEX = 1, 2, 3, 4
TABLES_FULL, WORDS_FULL = -1, -2
_MAX_TABLE = 1 << 24  # 24 bits of a header hold the position of the table
_MAX_VALUES = 1 << 32  # 32 bits hold the position of the indices
# 2^64 divided by the golden ratio (Knuth, The Art of Computer Programming, volume 3, 6.4)
_HASH = 0x9E3779B97F4A7C15
# for Shell's sort (Ciura, Best Increments for the Average Case of Shellsort, 2001)
_GAPS = (1750, 701, 301, 132, 57, 23, 10, 4, 1)
_unsigned = np.uint64


@helper
def _loop_order(lengths, is_z_fastest):
    """Return three lengths with the axis of the innermost loop first: x, or z if it is closer
    together in memory."""
    if is_z_fastest:
        return lengths[2], lengths[1], lengths[0]
    return lengths[0], lengths[1], lengths[2]


@helper
def _label(words, at, out):
    """Read an id of a lookup table; ids of 64 bits take two words, the lower one first."""
    if out.itemsize == 8:
        return _unsigned(words[at]) | _unsigned(words[at + _unsigned(1)]) << _unsigned(32)
    return _unsigned(words[at])


@helper
def _unpack(words, values, bits, table, table_len, out, counts, to, steps, at, block_steps):
    """Look up the voxels of a box inside a block; the first axis is the innermost loop. Return
    whether all indices lie inside the table."""
    mask = _unsigned((1 << bits) - 1)
    width, per_label = _unsigned(bits), _unsigned(out.itemsize // 4)
    values, table, table_len = _unsigned(values), _unsigned(table), _unsigned(table_len)
    step, block_step = _unsigned(steps[0]), _unsigned(block_steps[0])
    for k in range(counts[2]):
        for j in range(counts[1]):
            place = _unsigned(to + j * steps[1] + k * steps[2])
            bit = _unsigned(at + j * block_steps[1] + k * block_steps[2]) * width
            for _ in range(_unsigned(counts[0])):
                index = (
                    _unsigned(words[values + (bit >> _unsigned(5))]) >> (bit & _unsigned(31)) & mask
                )
                if index >= table_len:
                    return False
                out[place] = _label(words, table + index * per_label, out)
                place += step
                bit += block_step * width
    return True


@helper
def _unpack_words(words, values, bits, labels, out, counts, to, steps, at, block_steps):
    """Look up the voxels of a box, for indices of at most 4 bits, a table with a label for each
    index, and rows that lie inside one word."""
    # No index needs a check, and a row needs one word. One of two or four labels is selected, not
    # loaded: LLVM vectorizes selections.
    width, values = _unsigned(bits), _unsigned(values)
    one, two = _unsigned(1), _unsigned(2)
    count, step = _unsigned(counts[0]), _unsigned(steps[0])
    a, b, c, d = labels[0], labels[1], labels[2], labels[3]
    for k in range(counts[2]):
        for j in range(counts[1]):
            place = _unsigned(to + j * steps[1] + k * steps[2])
            bit = _unsigned(at + j * block_steps[1] + k * block_steps[2]) * width
            word = _unsigned(words[values + (bit >> _unsigned(5))]) >> (bit & _unsigned(31))
            if bits == 1:
                for i in range(count):
                    out[place + i * step] = b if word >> i & one else a
            elif bits == 2:
                for i in range(count):
                    low = b if word >> (two * i) & one else a
                    high = d if word >> (two * i) & one else c
                    out[place + i * step] = high if word >> (two * i) & two else low
            else:
                for i in range(count):
                    out[place + i * step] = labels[word >> (_unsigned(4) * i) & _unsigned(15)]


@helper
def _fill(value, out, counts, to, steps):
    """Set a box of voxels."""
    step = _unsigned(steps[0])
    for k in range(counts[2]):
        for j in range(counts[1]):
            place = _unsigned(to + j * steps[1] + k * steps[2])
            for i in range(_unsigned(counts[0])):
                out[place + i * step] = value


@kernel
def decode_channel(
    words, start, shape, block_size, values_per_block, out, out_shape, strides, corner
):
    """Decode the part of a channel that lies inside the array. Return (broken block or -1, its
    fault)."""
    bx, by, bz = block_size
    grid_x, grid_y = (shape[0] + bx - 1) // bx, (shape[1] + by - 1) // by
    low = (max(0, -corner[0]), max(0, -corner[1]), max(0, -corner[2]))
    high = (
        min(shape[0], out_shape[0] - corner[0]),
        min(shape[1], out_shape[1] - corner[1]),
        min(shape[2], out_shape[2] - corner[2]),
    )
    if high[0] <= low[0] or high[1] <= low[1] or high[2] <= low[2]:
        return -1, 0
    size = words.size - start
    per_label = out.itemsize // 4
    is_z_fastest = strides[2] < strides[0]
    steps, block_steps = (
        _loop_order(strides, is_z_fastest),
        _loop_order((1, bx, bx * by), is_z_fastest),
    )
    labels = np.zeros(16, out.dtype)
    for gz in range(low[2] // bz, (high[2] - 1) // bz + 1):
        z0, z1 = max(gz * bz, low[2]), min(gz * bz + bz, high[2])
        for gy in range(low[1] // by, (high[1] - 1) // by + 1):
            y0, y1 = max(gy * by, low[1]), min(gy * by + by, high[1])
            for gx in range(low[0] // bx, (high[0] - 1) // bx + 1):
                x0, x1 = max(gx * bx, low[0]), min(gx * bx + bx, high[0])
                block = gx + grid_x * (gy + grid_y * gz)
                header = np.int64(words[start + 2 * block])
                bits, table, values = (
                    header >> 24,
                    header & 0xFFFFFF,
                    np.int64(words[start + 2 * block + 1]),
                )
                # an upper limit, up to the end of the data: the format does not store the length of
                # a table
                table_len = (size - table) // per_label
                if bits > 32 or bits & (bits - 1):
                    return block, BITS
                if table > size or table_len < 1:
                    return block, TABLE
                to = (
                    (corner[0] + x0) * strides[0]
                    + (corner[1] + y0) * strides[1]
                    + (corner[2] + z0) * strides[2]
                )
                counts = _loop_order((x1 - x0, y1 - y0, z1 - z0), is_z_fastest)
                if bits == 0:
                    _fill(_label(words, _unsigned(start + table), out), out, counts, to, steps)
                    continue
                if values + (bits * values_per_block + 31) // 32 > size:
                    return block, VALUES
                at = x0 - gx * bx + bx * (y0 - gy * by + by * (z0 - gz * bz))
                if (
                    bits <= 4
                    and 1 << bits <= table_len
                    and block_steps[0] == 1
                    and 32 % (bx * bits) == 0
                ):
                    for i in range(_unsigned(1 << bits)):
                        labels[i] = _label(words, _unsigned(start + table + i * per_label), out)
                    _unpack_words(
                        words, start + values, bits, labels, out, counts, to, steps, at, block_steps
                    )
                    continue
                is_valid = _unpack(
                    words,
                    start + values,
                    bits,
                    start + table,
                    table_len,
                    out,
                    counts,
                    to,
                    steps,
                    at,
                    block_steps,
                )
                if not is_valid:
                    return block, INDEX
    return -1, 0


@helper
def _collect(array, counts, at, steps, block_steps, codes, seen, slots, first_code):
    """Number the distinct values of a box by their first appearance. Return how many there are. The
    first axis is the innermost loop."""
    # ``slots`` is a hash table that is never cleared. A slot holds ``first_code`` plus the number
    # of its value, and ``first_code`` grows from block to block: a smaller entry was left by an
    # earlier block and counts as free.
    shift = _unsigned(64)
    n = slots.size
    while n > 1:
        shift -= _unsigned(1)
        n >>= 1
    last_slot = _unsigned(slots.size - 1)
    num_seen = 0
    before, code = array[_unsigned(at)], np.int64(-1)
    step, block_step = _unsigned(steps[0]), _unsigned(block_steps[0])
    for k in range(counts[2]):
        for j in range(counts[1]):
            place = _unsigned(at + j * steps[1] + k * steps[2])
            to = _unsigned(j * block_steps[1] + k * block_steps[2])
            for _ in range(_unsigned(counts[0])):
                value = array[place]
                if value != before or code < 0:
                    before = value
                    slot = _unsigned(value) * _unsigned(_HASH) >> shift
                    while (
                        slots[slot] >= first_code
                        and seen[_unsigned(slots[slot] - first_code)] != value
                    ):
                        slot = (slot + _unsigned(1)) & last_slot
                    if slots[slot] < first_code:
                        slots[slot] = first_code + num_seen
                        seen[num_seen] = value
                        num_seen += 1
                    code = slots[slot] - first_code
                codes[to] = code
                place += step
                to += block_step
    return num_seen


@helper
def _sort(seen, order, ranks, num_seen):
    """Sort the values, and write the rank of each former position to ``ranks``."""
    for i in range(num_seen):
        order[i] = i
    for gap in _GAPS:
        for i in range(gap, num_seen):
            value, code = seen[i], order[i]
            j = i
            while j >= gap and seen[j - gap] > value:
                seen[j], order[j] = seen[j - gap], order[j - gap]
                j -= gap
            seen[j], order[j] = value, code
    for i in range(num_seen):
        ranks[order[i]] = i


@helper
def _pack(codes, ranks, bits, out, start, num_words):
    per_word = 32 // bits
    at = _unsigned(0)
    for n in range(_unsigned(num_words)):
        word = np.uint32(0)
        for i in range(per_word):
            word |= ranks[codes[at]] << np.uint32(i * bits)
            at += _unsigned(1)
        out[_unsigned(start) + n] = word


@helper
def _is_table(out, at, seen, num_seen):
    """Return whether these values are those of a table in the output, which has as many."""
    for i in range(num_seen):
        if seen.itemsize == 8:
            if out[at + 2 * i] != np.uint32(seen[i]) or out[at + 2 * i + 1] != np.uint32(
                _unsigned(seen[i]) >> _unsigned(32)
            ):
                return False
        elif out[at + i] != seen[i]:
            return False
    return True


@helper
def _write_table(out, at, seen, num_seen):
    """Write a table and return its end."""
    for i in range(num_seen):
        if seen.itemsize == 8:
            out[at] = np.uint32(seen[i])
            out[at + 1] = np.uint32(_unsigned(seen[i]) >> _unsigned(32))
            at += 2
        else:
            out[at] = seen[i]
            at += 1
    return at


@helper
def _find_table(tables, out, start, seen, num_seen):
    """Return the slot of an equal table, or the empty slot where this one belongs. Tables are
    written once and shared by blocks."""
    key = _unsigned(num_seen)
    for i in range(num_seen):
        key = (key ^ _unsigned(seen[i])) * _unsigned(_HASH)
        key ^= key >> _unsigned(29)
    last = len(tables) - 1
    slot = np.int64(key & _unsigned(last))
    while tables[slot, 1] > 0 and not (
        tables[slot, 1] == num_seen and _is_table(out, start + tables[slot, 0], seen, num_seen)
    ):
        slot = (slot + 1) & last
    return slot


@kernel
def encode_channel(
    array, shape, strides, block_size, out, start, codes, ranks, seen, order, slots, tables
):
    """Encode a channel. Return its end, or why it cannot be encoded. Arguments after ``start`` are
    scratch memory; see ``segmentation_blocks``."""
    bx, by, bz = block_size
    grid_x, grid_y, grid_z = (
        (shape[0] + bx - 1) // bx,
        (shape[1] + by - 1) // by,
        (shape[2] + bz - 1) // bz,
    )
    num_blocks, num_values, most = grid_x * grid_y * grid_z, bx * by * bz, seen.size
    is_z_fastest = strides[2] < strides[0]
    steps, block_steps = (
        _loop_order(strides, is_z_fastest),
        _loop_order((1, bx, bx * by), is_z_fastest),
    )
    end = start + 2 * num_blocks
    block = 0
    for gz in range(grid_z):
        for gy in range(grid_y):
            for gx in range(grid_x):
                counts = (
                    min(bx, shape[0] - gx * bx),
                    min(by, shape[1] - gy * by),
                    min(bz, shape[2] - gz * bz),
                )
                if counts[0] * counts[1] * counts[2] < num_values:
                    for i in range(_unsigned(num_values)):
                        codes[i] = most
                at = gx * bx * strides[0] + gy * by * strides[1] + gz * bz * strides[2]
                num_seen = _collect(
                    array,
                    _loop_order(counts, is_z_fastest),
                    at,
                    steps,
                    block_steps,
                    codes,
                    seen,
                    slots,
                    block * most,
                )
                bits = 0
                while bits < 32 and 1 << bits < num_seen:
                    bits = max(1, 2 * bits)
                if end - start >= _MAX_VALUES:
                    return WORDS_FULL
                out[start + 2 * block + 1] = np.uint32(end - start)
                if bits > 0:
                    _sort(seen, order, ranks, num_seen)
                    num_words = (num_values * bits + 31) // 32
                    _pack(codes, ranks, bits, out, end, num_words)
                    end += num_words
                slot = _find_table(tables, out, start, seen, num_seen)
                if tables[slot, 1] == 0:
                    if end - start >= _MAX_TABLE:
                        return TABLES_FULL
                    tables[slot, 0], tables[slot, 1] = end - start, num_seen
                    end = _write_table(out, end, seen, num_seen)
                out[start + 2 * block] = np.uint32(tables[slot, 0] | bits << 24)
                block += 1
    return end
