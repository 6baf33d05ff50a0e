"""Stands on the path of the processes that a script of ``python -m batchplant.ffcv`` starts."""

import importlib
import sys

from batchplant.ffcv import redirect

redirect.install()
sys.modules[__name__] = importlib.import_module("batchplant.ffcv")
