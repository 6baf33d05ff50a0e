"""The rules, one small function each. Their order is the order in which `advise --explain` prints them.

A rule looks at a :class:`Case` and says what it saw, what the format must be able to do, and which settings
follow. It knows no format by name; what a format can do is in its ``can``.
"""

from __future__ import annotations

from . import data, settings, wishes
from .base import RULES, Case, Must, Rule, Seen

__all__ = ["RULES", "Case", "Must", "Rule", "Seen", "data", "settings", "wishes"]
