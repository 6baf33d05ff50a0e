"""Images finished on a CUDA device: ``on_device`` takes the same request as ``loading.on_cpu``.

``split`` decides who reads the scans of JPEGs, ``coded`` brings them there, ``scan_kernel``, ``jpeg_kernel``
and ``colour`` make pixels of them; ``parts`` says how pixels came there, ``streams`` copies, ``resample`` and
``kernel`` make the batch, ``ops`` holds the device forms of ops.
"""
