"""Find what spoils a training run before it starts: ``batchplant doctor PATH`` and ``doctor.examine``.

``examination`` chooses samples, reads them once and shows every batch to every check of ``checks/``; each
check is a small class with a sentence and a section in docs/guides/doctor.md. It uses readers as anybody
does, and imports no format.
"""

from .check import EXAMPLES, SEVERITIES, Batch, Check, Example, Finding, Report, Subject
from .checks import CHECKS
from .examination import SAMPLE, choose, examine

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
