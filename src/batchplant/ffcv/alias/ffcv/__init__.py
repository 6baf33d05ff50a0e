"""Stands on the path of the processes that a script of ``python -m batchplant.ffcv`` starts."""

import sys

from batchplant import ffcv
from batchplant.ffcv import redirect

redirect.install()
sys.modules[__name__] = ffcv
