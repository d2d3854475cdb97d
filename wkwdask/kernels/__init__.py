"""Compiled inner loops: LZ4 over batches of blocks, and window reducers. Arrays in, arrays out, without the GIL.

``blocks`` and ``window`` are the doors; nothing here is compiled or even imported before a door is first used.
"""
