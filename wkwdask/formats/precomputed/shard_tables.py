"""The tables of a shard file whose chunks lie in it in the order of their identifiers: what follows them, and what goes before them. Opens nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wkwdask.formats.precomputed.sharding import format_minishard_index

if TYPE_CHECKING:
    import numpy.typing as npt

    from wkwdask.formats.precomputed.sharding import Sharding


def format_shard_tables(sharding: Sharding, first_id: int, sizes: npt.NDArray[np.int64]) -> tuple[bytes, bytes]:
    """Write the tables of a shard of identity hash.

    Parameters
    ----------
    sharding : Sharding
        How identifiers are spread.
    first_id : int
        The lowest identifier of the shard.
    sizes : ndarray of int64, shape (n,)
        Encoded length of the chunk of each identifier from ``first_id`` on [bytes], 0 for one that is not stored.

    Returns
    -------
    index, tail : bytes
        The shard index, which goes before the chunks, and the minishard indices, which follow them.
    """
    stored = np.flatnonzero(sizes)
    ends = np.cumsum(sizes)
    payload = int(ends[-1]) if ends.size else 0
    per_minishard = 1 << min(sharding.preshift_bits, 62)
    minishards, firsts = np.unique(stored // per_minishard, return_index=True)
    index = np.zeros((1 << sharding.minishard_bits, 2), "<u8")
    tail, place = [], payload
    for minishard, codes in zip(minishards.tolist(), np.split(stored, firsts[1:]), strict=True):
        ids = codes.astype(np.uint64) + np.uint64(first_id)
        table = format_minishard_index(ids, (ends[codes] - sizes[codes]).astype(np.uint64), sizes[codes].astype(np.uint64), sharding.minishard_index_encoding)
        index[minishard] = place, place + len(table)
        place += len(table)
        tail.append(table)
    return index.tobytes(), b"".join(tail)
