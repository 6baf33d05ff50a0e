"""From sample numbers to batches: what a training loop gets.

``loader`` (Loader: epochs, state) → ``epoch`` (threads that prefetch) → ``batch`` (Executor: one batch:
read, decode, run the ops as ``plan`` says) → ``images`` (one request for the images of a batch) →
``on_cpu`` (the engine). ``locate`` finds encoded images in memory, ``threads`` ends threads in time,
``buffers`` is the memory that batches use again, and ``interop`` adds frameworks and devices. Nothing
here knows a framework or a format. Public: ``batchplant.Loader``, ``batchplant.Pipe``,
``batchplant.DecodeOptions``.
"""
