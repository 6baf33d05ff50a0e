"""A suite of tests that every format has to pass; for plug-ins too. Needs pytest.

::

    class TestNpz(FormatSuite):
        format = "npz"
        suffix = ".npz"

The attributes of :class:`FormatSuite`, which its docstring lists, describe the peculiarities of a format. A
format without a writer overrides ``write``, with the format's own library for example. :class:`ModelSuite` is
for formats of models.
"""

from __future__ import annotations

import pytest

# Lets failing tests show the values that differ. It must precede the import of the modules.
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in ("cases", "suite")))

from .suite import FormatSuite, ModelSuite  # noqa: E402

__all__ = ["FormatSuite", "ModelSuite"]
