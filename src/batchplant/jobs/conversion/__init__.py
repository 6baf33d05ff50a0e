"""How a conversion is made of parts that any process can do: job, plan, task, and the shards of one dataset.

``convert`` is the only one that calls it; the engines run its tasks.
"""
