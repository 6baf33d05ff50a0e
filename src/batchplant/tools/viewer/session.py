"""A running viewer: the dataset that it has open, its jobs and caches."""

from __future__ import annotations

import functools
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from ...data.reader import Reader
from ...errors import NotFoundError, OptionError
from .cells import Cell, Dataset, Progress, Tokenizer, cells_of
from .pixels import Images

if TYPE_CHECKING:
    from .augment import PipelineLoaders

# Digits of an integer in a request: 64-bit integers have fewer.
MAX_DIGITS = 20
INTEGER = re.compile(rf"-?[0-9]{{1,{MAX_DIGITS}}}")
# Bytes of decoded sounds, of videos, and of what slides keep in memory.
MAX_CACHED_BYTES = 128 << 20
# Results of jobs that are cached, their bytes, and jobs that run at a time.
MAX_RESULTS, MAX_RESULT_BYTES, MAX_RUNNING = 32, 96 << 20, 2
# A job is abandoned after so long without a request for it: its page was closed.
ABANDON_SECONDS = 20.0
# Integers of a list in a request: NumPy has no more axes.
MAX_INTEGERS = 64
CACHED = {"Cache-Control": "private, max-age=600"}
# Seconds that a request waits for its job before it answers how far the job is.
WAIT_SECONDS = 0.2
# A failed job is run again after so long: a server that was down may be up, a file complete.
RETRY_SECONDS = 5.0


class Session:
    """State of one viewer, shared by all requests.

    pipeline: keyword arguments of a Loader, see ``augment``. live: the Dashboard of this process's loaders.
    """

    def __init__(
        self, reader: Reader, *, pipeline: Any = None, live: Any = None, title: str = "",
        tokenizer: Tokenizer | None = None,
    ) -> None:  # fmt: skip
        self.dataset = Dataset(reader, title or str(reader.path), tokenizer)
        self.pipeline, self.live = pipeline, live
        self.jobs, self.cache, self.images = Jobs(), RecentCache(MAX_CACHED_BYTES), Images()

    @functools.cached_property
    def loaders(self) -> PipelineLoaders:
        """Loaders that augment single samples; imported on first use because that takes long."""
        from .augment import PipelineLoaders

        return PipelineLoaders()

    def close(self) -> None:
        self.jobs.close()
        if "loaders" in vars(self):
            self.loaders.close()
        self.images.close()
        self.cache.clear()


def parse_integer(text: str) -> int | None:
    """Return an integer of a few ASCII digits; None for other texts, such as those that int() refuses."""
    return int(text) if INTEGER.fullmatch(text) else None


class PageRequest:
    """A request of the page: ``path`` has the parts of its path by name, ``params`` its query."""

    def __init__(self, session: Session, request: Request) -> None:
        self.session, self.dataset, self.reader = session, session.dataset, session.dataset.reader
        self.path: Mapping[str, str] = request.path_params
        self.params, self.headers = request.query_params, request.headers

    def text(self, name: str) -> str:
        return self.params.get(name, "")

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        """Return an integer of the query, clipped to bounds."""
        text = self.params.get(name)
        if text is None:
            return default
        number = parse_integer(text)
        if number is None:
            raise OptionError(f"{name} has to be a whole number of at most {MAX_DIGITS} digits")
        return min(max(number, low), high)

    def integers(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """Return integers of the query, with commas between them."""
        text = self.params.get(name)
        if text is None:
            return default
        numbers = [parse_integer(part) for part in text.split(",", MAX_INTEGERS)] if text else []
        if None in numbers or len(numbers) > MAX_INTEGERS:
            raise OptionError(f"{name} has to be whole numbers with commas between them")
        return tuple(number for number in numbers if number is not None)

    def in_path(self, name: str) -> int:
        """Return an integer of the path; -1, which nothing has, for other texts."""
        number = parse_integer(self.path[name])
        return -1 if number is None else number

    def existing_sample(self, text: str) -> int:
        number, count = parse_integer(text), len(self.reader)
        if number is None or not 0 <= number < count:
            raise NotFoundError(f"there is no sample {text[:20]}; there are {count:,}")
        return number

    def existing_field(self, name: str) -> str:
        if name not in self.reader.schema:
            raise NotFoundError(f"there is no field {name[:100]!r}")
        return name

    @property
    def sample(self) -> int:
        """The sample that the path names."""
        return self.existing_sample(self.path["n"])

    @property
    def cell(self) -> Cell:
        """The cell that the path names, without a copy where its file is mapped."""
        number, name = self.sample, self.existing_field(self.path["field"])
        return cells_of(self.dataset, [number], [name])[0][name]

    def job(self, key: Hashable, work: Callable[[Progress], Any], wait: float = WAIT_SECONDS) -> Job:
        return self.session.jobs.get(key, work, wait)


# Functions that answer requests, by paths below ``api/``.
Routes = Mapping[str, Callable[[PageRequest], Any]]


def cached_response(data: bytes, media_type: str, **headers: str) -> Response:
    """Return an image or an array that a browser may keep for a while."""
    return Response(data, media_type=media_type, headers={**CACHED, **headers})


# -- jobs ----------------------------------------------------------------------------------------------


class Abandoned(Exception):  # noqa: N818
    """Raised in a job whose result is not wanted any more."""


class Job:
    """A computation in a thread, and how far it is: ``done`` of ``of``."""

    def __init__(self) -> None:
        self.done, self.of = 0, 0
        self.value: Any = None
        self.error: Exception | None = None
        self.finished = threading.Event()
        self.last_request = time.monotonic()
        self.ended = 0.0
        self.stopped = False

    @classmethod
    def ready(cls, value: Any) -> Job:
        """Return a finished job with this value."""
        job = cls()
        job.value = value
        job.finished.set()
        return job

    @property
    def failed(self) -> bool:
        return self.error is not None

    @property
    def pending(self) -> bool:
        """True while it has no value: it runs, or it failed."""
        return not self.finished.is_set() or self.failed

    def report_progress(self, done: int, of: int) -> None:
        """Note the progress; raises Abandoned when the result is not wanted any more."""
        self.done, self.of = done, of
        if self.stopped or time.monotonic() - self.last_request > ABANDON_SECONDS:
            raise Abandoned


class Jobs:
    """Jobs by key: requests with the same key share one job."""

    def __init__(self, retry_seconds: float = RETRY_SECONDS) -> None:
        self._retry_seconds = retry_seconds
        self._jobs: OrderedDict[Hashable, Job] = OrderedDict()
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(MAX_RUNNING)
        self._closed = False

    def get(self, key: Hashable, work: Callable[[Progress], Any], wait: float = WAIT_SECONDS) -> Job:
        """Return the job of this key, started if there is none; wait so many seconds at most for its end.

        ``work`` gets :meth:`Job.report_progress`.
        """
        with self._lock:
            job = self._jobs.get(key)
            # A stopped job ends soon, but its result is wanted again.
            if job is None or job.stopped or self._retries(job):
                job = Job()
                if self._closed:
                    job.error = Abandoned()
                    job.finished.set()
                    return job
                self._jobs[key] = job
                args = key, job, work
                threading.Thread(target=self._run, args=args, name="view-job", daemon=True).start()
                self._evict()
            self._jobs.move_to_end(key)
            job.last_request = time.monotonic()
        job.finished.wait(wait)
        return job

    def _retries(self, job: Job) -> bool:
        return job.failed and time.monotonic() - job.ended > self._retry_seconds

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for job in self._jobs.values():
                job.stopped = True
            self._jobs.clear()

    def _evict(self) -> None:
        """Evict the least recently requested results above the limits; the newest stays."""
        ready = [key for key, job in self._jobs.items() if job.finished.is_set()]
        sizes = [getattr(self._jobs[key].value, "nbytes", 0) for key in ready]
        total = sum(sizes)
        for key, size in zip(ready[:-1], sizes, strict=False):
            if len(self._jobs) <= MAX_RESULTS and total <= MAX_RESULT_BYTES:
                return
            total -= size
            del self._jobs[key]

    def _run(self, key: Hashable, job: Job, work: Callable[[Progress], Any]) -> None:
        with self._slots:
            try:
                job.report_progress(0, 0)
                job.value = work(job.report_progress)
            except Exception as error:
                job.error = error
            job.ended = time.monotonic()
            job.finished.set()
            with self._lock:
                if isinstance(job.error, Abandoned) and self._jobs.get(key) is job:
                    del self._jobs[key]
                self._evict()


# -- cached values -------------------------------------------------------------------------------------


class Cacheable(Protocol):
    @property
    def nbytes(self) -> int: ...


Value = TypeVar("Value", bound=Cacheable)


class RecentCache:
    """LRU cache of a number of bytes. Threads that ask for a value that is being computed wait for it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._futures: OrderedDict[Hashable, Future[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, compute: Callable[[], Value]) -> Value:
        with self._lock:
            future: Future[Value] | None = self._futures.get(key)
            is_new = future is None
            if future is None:
                future = self._futures[key] = Future()
            self._futures.move_to_end(key)
        if is_new:
            try:
                future.set_result(compute())
            except BaseException as error:
                future.set_exception(error)
                with self._lock:
                    self._futures.pop(key, None)
            self._evict()
        return future.result()

    def clear(self) -> None:
        with self._lock:
            self._futures.clear()

    def _evict(self) -> None:
        with self._lock:
            total = 0
            for key in list(reversed(self._futures)):
                future = self._futures[key]
                if not future.done() or future.exception() is not None:
                    continue
                first, total = not total, total + future.result().nbytes
                # The newest stays however large it is: a player asks for it range by range.
                if total > self._max_bytes and not first:
                    del self._futures[key]
