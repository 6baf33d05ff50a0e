"""Work ahead of the loop: a thread that prefetches, and threads that map in order.

A thread never holds the iterator that the loop has, only what they share. So when the loop lets go of its
iterator, by a break, an error or Ctrl-C, the threads are told to stop.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from ....errors import OptionError
from ....loading import threads


def cpu_count() -> int:
    return len(os.sched_getaffinity(0))


def cycle_length(calls: Any) -> int:
    """How many datasets are open at a time where nobody said: TensorFlow's rule, by the number of cores."""
    if calls is None:
        return cpu_count()
    # With automatic parallelism TensorFlow reckons with three threads for each.
    return -(-cpu_count() // 3) if int(calls) == -1 else min(int(calls), cpu_count())


class _Failure:
    """An exception on its way from the thread in which it happened to the loop."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def throw(self) -> Any:
        try:
            raise self.error
        finally:
            # Else the traceback would hold it, and with it the iterators in its frames.
            del self


class _Shared:
    """What an iterator and its threads share."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        # What the loop waits for where threads wait for `changed`: neither need wake its own side.
        self.finished = threading.Condition(self.lock)
        self.stopped = False

    def stop(self) -> None:
        # In a child of a fork, threads that are not there may hold the lock.
        if os.getpid() != self.process:
            return
        with self.lock:
            self.stopped = True
            self.changed.notify_all()
            self.finished.notify_all()

    def check_process(self) -> None:
        if os.getpid() != self.process:
            raise OptionError(
                "the iterator was made before this process was forked, and threads do not come along; "
                "iterate over the dataset anew in this process"
            )


def _start(target: Callable[..., None], shared: _Shared, name: str, *args: Any) -> None:
    thread = threading.Thread(
        target=target, args=(shared, *args), name=f"batchplant-tfrecord-{name}", daemon=True
    )
    threads.start([thread], shared)


class _Queue(_Shared):
    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.items: deque[Any] = deque()
        self.ended = False


def _fill(shared: _Queue, make: Callable[[], Iterator[Any]]) -> None:
    """The prefetching thread: goes on after an error, as what comes behind may be good."""
    try:
        source = make()
        while True:
            with shared.changed:
                shared.changed.wait_for(lambda: shared.stopped or len(shared.items) < shared.most)
                if shared.stopped:
                    return
            try:
                item: Any = next(source)
            except StopIteration:
                return
            # It is raised again in the loop.
            except Exception as error:
                item = _Failure(error)
            with shared.lock:
                shared.items.append(item)
                shared.finished.notify_all()
            del item
    except BaseException as error:
        with shared.lock:
            shared.items.append(_Failure(error))
    finally:
        with shared.lock:
            shared.ended = True
            shared.finished.notify_all()


class Prefetch:
    """Elements of an iterator that a thread takes up to ``most`` ahead."""

    def __init__(self, make: Callable[[], Iterator[Any]], most: int) -> None:
        self._shared = _Queue(most)
        _start(_fill, self._shared, "prefetch", make)

    def __iter__(self) -> Prefetch:
        return self

    def __next__(self) -> Any:
        shared = self._shared
        shared.check_process()
        with shared.lock:
            shared.finished.wait_for(lambda: shared.items or shared.ended or shared.stopped)
            if not shared.items or shared.stopped:
                raise StopIteration
            item = shared.items.popleft()
            shared.changed.notify_all()
        return item.throw() if isinstance(item, _Failure) else item

    def __del__(self) -> None:
        if hasattr(self, "_shared"):
            self._shared.stop()


class _Work(_Shared):
    def __init__(self) -> None:
        super().__init__()
        self.waiting: deque[tuple[_Task, Any]] = deque()


class _Task:
    """One call: its place in the order, and where its result goes."""

    __slots__ = ("done", "result")

    def __init__(self) -> None:
        self.done = False
        self.result: Any = None


def _work(shared: _Work, function: Callable[[Any], Any]) -> None:
    while True:
        with shared.changed:
            shared.changed.wait_for(lambda: shared.stopped or shared.waiting)
            if shared.stopped:
                return
            task, value = shared.waiting.popleft()
        try:
            result = function(value)
        # It is raised again in the loop.
        except BaseException as error:
            result = _Failure(error)
        with shared.changed:
            task.result, task.done = result, True
            shared.finished.notify_all()
        del task, value, result


class ParallelMap:
    """The function applied by several threads; results come in the order of the elements."""

    def __init__(self, source: Iterator[Any], function: Callable[[Any], Any], threads: int) -> None:
        self._source = source
        self._ended = False
        self._tasks: deque[_Task] = deque()
        # Twice as many as there are threads, so that none waits while the loop fetches.
        self._most = 2 * threads
        self._shared = _Work()
        for number in range(threads):
            _start(_work, self._shared, f"map-{number}", function)

    def __iter__(self) -> ParallelMap:
        return self

    def __next__(self) -> Any:
        shared = self._shared
        shared.check_process()
        while not self._ended and len(self._tasks) < self._most:
            task = _Task()
            try:
                value = next(self._source)
            except StopIteration:
                self._ended = True
                break
            except Exception as error:
                task.result, task.done = _Failure(error), True
                self._tasks.append(task)
                break
            self._tasks.append(task)
            with shared.changed:
                shared.waiting.append((task, value))
                shared.changed.notify()
        if not self._tasks:
            shared.stop()
            raise StopIteration
        task = self._tasks.popleft()
        with shared.lock:
            shared.finished.wait_for(lambda: task.done or shared.stopped)
        if not task.done:
            raise StopIteration
        return task.result.throw() if isinstance(task.result, _Failure) else task.result

    def __del__(self) -> None:
        if hasattr(self, "_shared"):
            self._shared.stop()
