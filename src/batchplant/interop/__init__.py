"""Frameworks: ``torch`` delivers batches, ``gpu/`` finishes images. No other package imports torch.

``keras`` and ``map_dataset`` adapt a loader to Keras and to trainers such as Hugging Face's.
:mod:`batchplant.data.hooks` loads these parts when the loader needs one; nothing else may import them.
"""
