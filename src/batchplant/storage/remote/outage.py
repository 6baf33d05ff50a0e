"""How long requests to a server are tried again: over a window of time, not a number of tries.

All requests to a server share its :class:`Outage`. So an outage is announced once, and when its window is
over, requests that come later do not begin another.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
import warnings

from ...errors import shown

# Tries of a request, unless the window is 0: a window that is over costs a request no more than these.
MIN_TRIES = 3
# Seconds before the second try, by which factor they grow, and up to where; all with jitter.
FIRST_PAUSE, PAUSE_GROWTH, MAX_PAUSE = 0.1, 1.5, 10.0
# No pause is longer than this share of the window.
MAX_PAUSE_SHARE = 1 / 8
# A server may ask for a longer pause.
MAX_PAUSE_ASKED = 30.0
# A server that never answered this process may not exist: it is tried for so many seconds at most.
MAX_OPENING_SECONDS = 10.0
# An outage is announced when it has lasted for so many seconds, or this share of the window.
ANNOUNCED_AFTER, ANNOUNCED_SHARE = 2.0, 1 / 4
# A failure so many seconds after the last one begins a new outage. Tries of a request are closer together.
FORGOTTEN_AFTER = 45.0
# Its own: a program that seeds the module's draws the same numbers again, whatever is fetched meanwhile.
JITTER = random.SystemRandom()


class Outage:
    """The time during which a server does not answer, or answers that it is busy. Any thread may call it."""

    def __init__(self, url: str, seconds: float) -> None:
        self._url, self._seconds = url, seconds
        self._lock = threading.Lock()
        # Whether the server ever answered this process.
        self.answered = False
        self._began: float | None = None
        self._last = 0.0
        self._announced = False

    @property
    def window(self) -> float:
        """Seconds for which a request is tried again."""
        return self._seconds if self.answered else min(self._seconds, MAX_OPENING_SECONDS)

    def end(self) -> None:
        """The server answered."""
        self.answered = True
        # Without the lock where nothing changes: it is called after every request.
        if self._began is not None:
            with self._lock:
                self._began = None

    def pause(
        self, attempt: int, began: float, why: str, asked: float, least: int = MIN_TRIES
    ) -> float | None:
        """Seconds until a request that failed is tried again; None where it is not.

        attempt: how often it was tried. began: when it was tried first, by time.monotonic(). asked: seconds
        that the server asks for. least: tries that it has in any case.
        """
        now, window = time.monotonic(), self.window
        with self._lock:
            if self._began is None or now - self._last > FORGOTTEN_AFTER:
                self._began, self._announced = now, False
            self._last = now
            # One object may fail while others are answered.
            left = window - max(now - self._began, now - began)
            if not window or (left <= 0 and attempt >= least):
                return None
            lasted = window - left
            announces = attempt >= MIN_TRIES and lasted >= min(ANNOUNCED_AFTER, ANNOUNCED_SHARE * window)
            announces, self._announced = announces and not self._announced, self._announced or announces
        if announces and left > 0:
            self._announce(why, left)
        pause = min(MAX_PAUSE, FIRST_PAUSE * PAUSE_GROWTH ** min(attempt - 1, 40), MAX_PAUSE_SHARE * window)
        pause = max(JITTER.uniform(pause / 2, pause), min(asked, MAX_PAUSE_ASKED))
        # The last try comes when the window ends.
        return min(pause, left) if left > 0 else min(pause, FIRST_PAUSE)

    def _announce(self, why: str, left: float) -> None:
        message = f"{shown(self._url)}: {why}; trying for another {left:.0f} s (retry_seconds)"
        # A filter that turns warnings into errors must not end the request.
        with contextlib.suppress(Warning):
            # Not warn(): that shows a text once, and an outage may come again.
            warnings.warn_explicit(message, RuntimeWarning, "batchplant", 1, module="batchplant")
