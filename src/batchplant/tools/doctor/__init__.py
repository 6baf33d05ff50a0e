"""Find what spoils a training run before it starts: ``batchplant doctor PATH`` and ``doctor.examine``.

``examination`` reads a dataset once (``sampling`` says which samples) and shows every batch to every check of
``checks/``; each check is a small class with a sentence and a section in docs/guides/doctor.md. ``likeness``
tells images that look the same. It is a user of readers like any other, and imports no format.
"""

from .check import Batch, Check, Subject
from .checks import CHECKS
from .examination import SAMPLE, choose, examine
from .report import EXAMPLES, SEVERITIES, Example, Finding, Report

__all__ = [
    "CHECKS",
    "EXAMPLES",
    "SAMPLE",
    "SEVERITIES",
    "Batch",
    "Check",
    "Example",
    "Finding",
    "Report",
    "Subject",
    "choose",
    "examine",
]
