"""Previews of volumes as pictures, and a demo dataset.

:mod:`wkwdask.viewer.preview` draws orthogonal slices with Pillow, :mod:`wkwdask.viewer.demo` computes a small dataset that resembles cortex. Modules import
formats, model, geometry and store; the demo calls :mod:`wkwdask.api` inside a function. Start with :func:`wkwdask.viewer.preview.preview`.
"""
