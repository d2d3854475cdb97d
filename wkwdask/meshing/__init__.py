"""Meshes of the labels of a segmentation, in several levels of detail.

Cells of one grid bound the memory of a task: neighbouring cells share a layer of voxels, and a
surface that crosses the plane between two cells has the same vertices on both sides. Each level of
detail joins eight cells to one.
"""
