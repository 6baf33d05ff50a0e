"""How a verification is made of parts that any process can do: job and task, checksums, comparison.

``verify`` is the only one that calls it; the engines run its tasks.
"""
