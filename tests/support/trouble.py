"""A task that fails. Worker processes import this module by its name, which must take little."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from batchplant.errors import DamagedError


class Trouble:
    """Fails or dies at some of the first tries; a folder counts them."""

    def __init__(self, folder: Path, how: str, times: int) -> None:
        self.folder, self.how, self.times = folder, how, times

    def __call__(self, number: int) -> int:
        tries = len(list(self.folder.glob(f"{number}-*")))
        (self.folder / f"{number}-{tries}-{os.getpid()}").touch()
        if number == 2 and tries < self.times:
            if self.how == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            raise {"disk": OSError("no"), "data": DamagedError("bad", path="x", sample=4)}[self.how]
        return number * number
