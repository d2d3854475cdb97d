"""A function of chunks that fails; in a module of its own, so that processes that tests start can import it."""


def fail_behind(block, limit, block_info=None):
    if limit is not None and block_info[0]["array-location"][2][0] >= limit:
        raise OverflowError("no")
    return block


def fail_first(chunk, folder, fails, block_id=None):
    """Raise for the first chunk, and leave a byte for each other one."""
    if not any(block_id) and fails:
        raise ZeroDivisionError("the first chunk")
    with open(f"{folder}/{block_id}", "ab") as file:
        file.write(b".")
    return chunk
