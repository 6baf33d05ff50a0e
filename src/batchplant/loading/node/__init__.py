"""One decode for a node: processes that need the same batches have one server make each of them once.

``client`` has the Executor of a ``Loader(share="node")``: it asks the server for a batch by the samples in
it, and makes the batch itself where the server does not. ``server`` makes the batches, in memory that the
readers map; ``memory`` is that memory. ``recipe`` says what makes a batch, as data and not as code: the
dataset and the plan. ``wire`` has the messages between them, ``place`` the socket that they go through.

The order of samples is a pure function, so the server has no state that could be lost. A reader names the
samples of every batch, and the server knows a batch by them.
"""
