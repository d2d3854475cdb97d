"""Arrays and images that are being written, in any format. Opens no file.

``target_image`` lays out the levels of an image, ``target_array`` is one of them. Its voxels are
encoded box by box (``file_buffer``) into parts of shards (``run``), which are joined into shards;
``splice`` copies stored chunks instead. ``receipts`` report what was written.
"""
