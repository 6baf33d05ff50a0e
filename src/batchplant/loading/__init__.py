"""From sample numbers to batches: what a training loop gets.

Read in this order: ``loader`` (Loader: options, epochs, state) makes a ``plan`` (which step runs where) and
an ``ordering`` (which sample comes when). ``epoch`` runs threads that make batches ahead of the training
loop. ``executor`` makes one batch: it reads columns, asks for ``images`` (one request for all images of a
batch, its steps fused in ``stage``), moves boxes and masks with their images, and runs the ops. The engine or
a device in ``interop`` answers the request; ``decoded`` is the cache of decoded images. ``packing`` wraps the
executor to make rows of tokens; ``sequence`` cuts the slices of a mesh; ``skipping`` leaves samples out;
``recording`` writes down what was loaded. ``prefetch`` fetches bytes before they are needed.

``node`` has batches made once for several processes of a machine, ``service`` has servers make them.

``advice`` says what would make loading faster, ``preview`` makes single samples for the viewer, and
``threads`` ends threads before the interpreter does. Nothing here knows a framework or a format. Public:
``batchplant.Loader``, ``batchplant.Pipe``, ``batchplant.Pack``, ``batchplant.DecodeOptions``,
``batchplant.DecodedCache``.
"""
