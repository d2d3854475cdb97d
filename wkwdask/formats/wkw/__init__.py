"""The webKNOSSOS-wrap (WKW) file format: header, jump table, and blocks in Morton order.

Specification: webknossos-wrap README at commit 4ee472b, cited by section at each constant that
comes from it.

Start with ``header`` (the 16 bytes of every file) and ``file`` (blocks and jump table in memory,
one block at a time; the reference that the compiled batches of ``wkwdask.kernels`` are tested
against). ``folder`` lists the files of a mag, ``stored_file`` reads them, and ``layout`` and
``array`` present a mag as a :class:`wkwdask.model.stored_array.StoredArray`. ``splice`` copies
stored blocks between mags, ``file_check`` finds faults, ``repair`` the header of a damaged file.

Modules here may import ``model``, ``plans``, ``kernels``, ``geometry``, ``store`` and other
formats, never ``runs``, ``verbs`` or dask. They reach files through ``wkwdask.store`` only.
"""
