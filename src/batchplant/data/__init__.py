"""Readers, writers and what combines them: views of datasets as sequences of samples.

``Reader`` and ``Writer`` are the base classes of all formats. Concatenation, joins, mixtures, windows,
patches, filters and keys wrap readers. Formats build on this package; it knows none of them, and opens paths
through :mod:`batchplant.data.hooks`.
"""
