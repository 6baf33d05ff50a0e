"""From sample numbers to batches: what a training loop gets.

Read in this order: ``loader`` (Loader: options, epochs, state) makes a ``plan`` (which step runs where) and
an ``ordering`` (which sample comes when). ``epoch`` runs threads that make batches ahead of the training
loop. ``executor`` makes one batch: it reads columns, asks for ``images`` (one request for all images of a
batch, its steps fused in ``stage``), and runs the ops. ``on_cpu`` (the engine) or a device in ``interop``
answers the request; ``decoded`` is the cache of decoded images, ``annotations`` moves boxes and masks with
their images. ``packing`` wraps the executor to make rows of tokens; ``sequence`` cuts the slices of a mesh.

Bytes: ``locate`` finds encoded images in memory, ``prefetch`` fetches them before they are needed, ``warm``
fills the disk cache.

``node`` has batches made once for several processes of a machine.

``advice`` says what would make loading faster, ``preview`` makes single samples for the viewer, and
``threads`` ends threads before the interpreter does. Nothing here knows a framework or a format. Public:
``batchplant.Loader``, ``batchplant.Pipe``, ``batchplant.Pack``, ``batchplant.DecodeOptions``,
``batchplant.DecodedCache``.
"""
