"""Loading as a service: CPU machines make batches, and a trainer pulls them over TCP.

``client`` has the reader of ``batchplant://host:port`` and the Executor of its Loader: it asks servers for a
batch by the samples in it. ``pool`` spreads requests over servers; ``channel`` has the connections: messages,
tokens and TLS. ``server`` answers requests with what a plan makes of samples, or with their cells as they
are stored. ``plans`` reads plans, which name ops and their arguments.

The order of samples is a pure function that the client computes, so servers have no state: a request can go
to any of them, and to another one when the first is slow or dead.
"""
