"""A conversion in parts that any process can do: job, plan, task, staged files."""
