"""A suite of tests that every format has to pass; for plug-ins too. Needs pytest.

::

    class TestNpz(FormatSuite):
        format = "npz"
        suffix = ".npz"

The attributes of :class:`FormatSuite` say what is peculiar about a format. A format without a writer
overrides ``write``, with the format's own library for example. :class:`ModelSuite` is for formats of models.
"""

from __future__ import annotations

from .models import ModelSuite
from .suite import FormatSuite

__all__ = ["FormatSuite", "ModelSuite"]
