"""Pictures finished on a CUDA device: ``on_device`` takes the same request as ``loading.on_cpu``.

``nvjpeg`` decodes there, ``split`` decides who decodes how many, ``parts`` says how pixels came there,
``streams`` copies, ``resample`` and ``kernel`` make the batch, ``ops`` holds the device forms of ops.
"""
