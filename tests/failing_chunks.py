"""A function of chunks that fails; in a module of its own, so that processes that tests start can import it."""


def fail_behind(block, limit, block_info=None):
    if limit is not None and block_info[0]["array-location"][2][0] >= limit:
        raise OverflowError("no")
    return block
