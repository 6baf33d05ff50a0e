"""Frameworks: ``torch`` delivers batches, ``gpu/`` finishes images. Nobody else imports torch.

``keras`` and ``map_dataset`` show a loader as what Keras and trainers such as Hugging Face's take.
:mod:`batchplant.data.hooks` loads these parts when the loader needs one; nothing else may import them.
"""
