"""Images finished on a CUDA device: ``on_device`` takes the same request as the engine in ``loading.images``.

``split`` divides JPEGs between CPU and GPU. ``jpeg`` uploads them, and ``scan_kernel``, ``jpeg_kernel`` and
``colour`` make pixels of them. ``parts`` describes pixels that came by different routes, ``streams`` copies,
``resample`` and ``resample_kernel`` make the batch.
"""
