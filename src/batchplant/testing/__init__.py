"""A suite of tests that every format has to pass; for plug-ins too. Needs pytest.

::

    class TestNpz(FormatSuite):
        format = "npz"
        suffix = ".npz"

The attributes of :class:`FormatSuite`, which its docstring lists, say what is peculiar about a format. A
format without a writer overrides ``write``, with the format's own library for example. :class:`ModelSuite` is
for formats of models.
"""

from __future__ import annotations

import pytest

# A test that fails shows the values that differ. This has to come before the modules are imported.
pytest.register_assert_rewrite(
    *(f"{__name__}.{module}" for module in ("base", "cases", "damage", "elsewhere", "models", "suite"))
)

from .models import ModelSuite  # noqa: E402
from .suite import FormatSuite  # noqa: E402

__all__ = ["FormatSuite", "ModelSuite"]
