"""Previews of volumes as pictures, a web viewer, a reader for napari, and a demo dataset.

:mod:`wkwdask.viewer.preview` draws orthogonal slices with Pillow, :mod:`wkwdask.viewer.view` serves layers to Neuroglancer, :mod:`wkwdask.viewer.napari`
opens layers for napari, :mod:`wkwdask.viewer.demo` computes a small dataset that resembles cortex. The demo calls :mod:`wkwdask.api` inside a function. Start
with :func:`wkwdask.viewer.preview.preview`.
"""
