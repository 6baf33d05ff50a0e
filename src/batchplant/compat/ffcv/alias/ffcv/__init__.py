"""Stands on the path of the processes that a script of ``python -m batchplant.ffcv`` starts."""

import sys

from batchplant.compat import ffcv

ffcv.redirect_imports()
sys.modules[__name__] = ffcv
