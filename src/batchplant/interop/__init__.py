"""Frameworks: ``torch`` delivers batches, ``gpu/`` finishes images. No other package imports torch.

``keras`` adapts a loader to Keras.
:mod:`batchplant.data.hooks` loads these parts when the loader needs one; nothing else may import them.
"""
