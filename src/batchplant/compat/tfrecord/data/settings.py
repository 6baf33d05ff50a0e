"""Options of TensorFlow's runtime. They are taken and have no effect."""

from __future__ import annotations

import enum
from typing import Any


class Options:
    """Any option may be set, and options of options: ``options.threading.private_threadpool_size = 4``."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = Options()
        setattr(self, name, made)
        return made

    def merge(self, options: Options) -> Options:
        return self


ThreadingOptions = Options


class AutoShardPolicy(enum.IntEnum):
    OFF = -1
    AUTO = 0
    FILE = 1
    DATA = 2
    HINT = 3
