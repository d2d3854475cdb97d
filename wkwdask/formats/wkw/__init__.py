"""The webKNOSSOS-wrap file format: header, jump table, blocks in Morton order.

Specification: webknossos-wrap README at commit 4ee472b. Everything here works on bytes and arrays in memory, one block at a time;
it is the reference that the compiled batches of ``wkwdask.kernels`` are tested against.
"""
