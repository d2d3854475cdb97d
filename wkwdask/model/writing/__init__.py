"""Arrays and images that are being written, in any format. Opens no file.

``target_image`` lays out the levels of an image, and ``target_array`` describes one of them. Its
voxels are encoded box by box (``encoding``) and written (``writers``) to parts of shards, which are
joined (``joining``), or to whole shards. ``spliced_shards`` copies stored chunks instead.
``target_files`` names and publishes the files, and ``receipts`` report what was written.
"""
