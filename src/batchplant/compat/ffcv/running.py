"""The lock of code that is not ours: FFCV runs it in one thread, so it may not be safe in two."""

from __future__ import annotations

import threading

RUNNING = threading.RLock()
