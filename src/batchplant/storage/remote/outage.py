"""Duration of retries: requests to a server are retried over a window of time, not a number of times.

All requests to a server share its :class:`Outage`. So an outage is announced once, and requests that come
after the end of its window do not begin another.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
import warnings

from ...errors import shown

# Tries of a request, unless the window is 0: even after the end of the window a request has these.
MIN_TRIES = 3
# Seconds before the second try, their growth factor, and their maximum; all with jitter.
FIRST_PAUSE, PAUSE_GROWTH, MAX_PAUSE = 0.1, 1.5, 10.0
# A pause is at most this fraction of the window.
MAX_PAUSE_SHARE = 1 / 8
# Seconds that a server may ask to wait.
MAX_PAUSE_ASKED = 30.0
# A server that never answered this process may not exist: retry it for at most this many seconds.
MAX_OPENING_SECONDS = 10.0
# An outage is announced when it has lasted this many seconds, or this fraction of the window.
ANNOUNCED_AFTER, ANNOUNCED_SHARE = 2.0, 1 / 4
# A failure this many seconds after the last one begins a new outage. Tries of a request are closer together.
FORGOTTEN_AFTER = 45.0
# Not the module's generator: fetching must not advance a generator that the program has seeded.
JITTER = random.SystemRandom()


class Outage:
    """The time during which a server does not answer, or answers that it is busy. Thread-safe."""

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
        """Seconds for which a request is retried."""
        return self._seconds if self.answered else min(self._seconds, MAX_OPENING_SECONDS)

    def end(self) -> None:
        """Record that the server answered."""
        self.answered = True
        # No lock if nothing changes: this is called after every request.
        if self._began is not None:
            with self._lock:
                self._began = None

    def pause(
        self, attempt: int, began: float, reason: str, retry_after: float, min_tries: int = MIN_TRIES
    ) -> float | None:
        """Return the seconds until a failed request is tried again; None if it is not.

        attempt: number of tries so far. began: time.monotonic() of the first. reason: of the failure.
        retry_after: seconds that the server asks to wait. min_tries: tries that it has in any case.
        """
        now, window = time.monotonic(), self.window
        with self._lock:
            if self._began is None or now - self._last > FORGOTTEN_AFTER:
                self._began, self._announced = now, False
            self._last = now
            # One object may fail while others are answered.
            remaining = window - max(now - self._began, now - began)
            if not window or (remaining <= 0 and attempt >= min_tries):
                return None
            lasted = window - remaining
            announces = attempt >= MIN_TRIES and lasted >= min(ANNOUNCED_AFTER, ANNOUNCED_SHARE * window)
            announces, self._announced = announces and not self._announced, self._announced or announces
        if announces and remaining > 0:
            self._announce(reason, remaining)
        pause = min(MAX_PAUSE, FIRST_PAUSE * PAUSE_GROWTH ** min(attempt - 1, 40), MAX_PAUSE_SHARE * window)
        pause = max(JITTER.uniform(pause / 2, pause), min(retry_after, MAX_PAUSE_ASKED))
        # The last try comes when the window ends.
        return min(pause, remaining) if remaining > 0 else min(pause, FIRST_PAUSE)

    def _announce(self, reason: str, remaining: float) -> None:
        message = f"{shown(self._url)}: {reason}; trying for another {remaining:.0f} s (retry_seconds)"
        # A filter that turns warnings into errors must not end the request.
        with contextlib.suppress(Warning):
            # Not warn(): it shows a text once, but an outage may come again.
            warnings.warn_explicit(message, RuntimeWarning, "batchplant", 1, module="batchplant")
