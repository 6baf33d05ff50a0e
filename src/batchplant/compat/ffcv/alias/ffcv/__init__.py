"""Stands on the path of the processes that a script of ``python -m batchplant.ffcv`` starts."""

import sys

from batchplant.compat import ffcv
from batchplant.compat.ffcv import redirect

redirect.install()
sys.modules[__name__] = ffcv
