"""Frameworks: ``torch`` delivers batches, ``gpu/`` finishes pictures. Nobody else imports torch.

The loader loads this part by name when a ``device`` or a torch module is given; nothing else may import it.
"""
