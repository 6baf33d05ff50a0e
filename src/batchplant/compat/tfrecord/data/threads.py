"""Threads that work ahead of the loop: a thread that prefetches, and threads that map in order.

A thread never refers to the loop's iterator, only to the state that both share. When the loop drops its
iterator, by a break, an error or Ctrl-C, the iterator's finalizer therefore runs and stops the threads.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import NoReturn, SupportsInt

from ....errors import OptionError
from ....loading import threads
from ....storage.platform import cpu_count
from ..values import Element
from .iterate import StartPass


def cycle_length(calls: SupportsInt | None) -> int:
    """Return the default number of datasets to interleave: TensorFlow's rule, by the number of cores."""
    if calls is None:
        return cpu_count()
    # With automatic parallelism TensorFlow assumes three threads for each.
    return -(-cpu_count() // 3) if int(calls) == -1 else min(int(calls), cpu_count())


class _Failure:
    """An exception on its way from the thread in which it happened to the loop."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def throw(self) -> NoReturn:
        try:
            raise self.error
        finally:
            # Otherwise the traceback would refer to it, and to the iterators in its frames.
            del self


class _State:
    """State that an iterator and its threads share."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lock = threading.RLock()
        # Two conditions, so that neither side wakes itself: threads wait for work, the loop for results.
        self.has_work = threading.Condition(self.lock)
        self.has_result = threading.Condition(self.lock)
        self.stopped = False

    def stop(self) -> None:
        # After a fork, a thread that does not exist in the child may hold the lock.
        if os.getpid() != self.process:
            return
        with self.lock:
            self.stopped = True
            self.has_work.notify_all()
            self.has_result.notify_all()

    def check_process(self) -> None:
        if os.getpid() != self.process:
            raise OptionError(
                "the iterator was made before this process was forked, and threads do not come along; "
                "iterate over the dataset anew in this process"
            )


def _start(target: Callable[..., None], state: _State, name: str, *args: object) -> None:
    thread = threading.Thread(
        target=target, args=(state, *args), name=f"batchplant-tfrecord-{name}", daemon=True
    )
    threads.start([thread], state)


class _Queue(_State):
    """State of a prefetching thread: the elements that are ready."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.items: deque[Element] = deque()
        self.ended = False


def _fill(state: _Queue, start_pass: StartPass) -> None:
    """Run the prefetching thread; it continues after an error, since later elements may be good."""
    try:
        source = start_pass()
        while True:
            with state.has_work:
                state.has_work.wait_for(lambda: state.stopped or len(state.items) < state.capacity)
                if state.stopped:
                    return
            try:
                item: Element = next(source)
            except StopIteration:
                return
            # The loop raises it again.
            except Exception as error:
                item = _Failure(error)
            with state.lock:
                state.items.append(item)
                state.has_result.notify_all()
            del item
    except BaseException as error:
        with state.lock:
            state.items.append(_Failure(error))
    finally:
        with state.lock:
            state.ended = True
            state.has_result.notify_all()


class Prefetch:
    """Elements of an iterator that a thread prefetches, up to ``capacity`` of them."""

    def __init__(self, start_pass: StartPass, capacity: int) -> None:
        self._state = _Queue(capacity)
        _start(_fill, self._state, "prefetch", start_pass)

    def __iter__(self) -> Prefetch:
        return self

    def __next__(self) -> Element:
        state = self._state
        state.check_process()
        with state.lock:
            state.has_result.wait_for(lambda: state.items or state.ended or state.stopped)
            if not state.items or state.stopped:
                raise StopIteration
            item = state.items.popleft()
            state.has_work.notify_all()
        return item.throw() if isinstance(item, _Failure) else item

    def __del__(self) -> None:
        if hasattr(self, "_state"):
            self._state.stop()


class _Tasks(_State):
    """State of mapping threads: the calls that no thread has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: deque[tuple[_Task, Element]] = deque()


class _Task:
    """One call and its result."""

    __slots__ = ("done", "result")

    def __init__(self) -> None:
        self.done = False
        self.result: Element = None


def _work(state: _Tasks, function: Callable[[Element], Element]) -> None:
    """Run a mapping thread."""
    while True:
        with state.has_work:
            state.has_work.wait_for(lambda: state.stopped or state.waiting)
            if state.stopped:
                return
            task, value = state.waiting.popleft()
        try:
            result = function(value)
        # The loop raises it again.
        except BaseException as error:
            result = _Failure(error)
        with state.has_work:
            task.result, task.done = result, True
            state.has_result.notify_all()
        del task, value, result


class ParallelMap:
    """Applies a function in several threads; results keep the order of the elements."""

    def __init__(
        self, source: Iterator[Element], function: Callable[[Element], Element], threads: int
    ) -> None:
        self._source = source
        self._ended = False
        self._tasks: deque[_Task] = deque()
        # Twice as many as threads, so that no thread waits while the loop uses a result.
        self._max_tasks = 2 * threads
        self._state = _Tasks()
        for number in range(threads):
            _start(_work, self._state, f"map-{number}", function)

    def __iter__(self) -> ParallelMap:
        return self

    def __next__(self) -> Element:
        state = self._state
        state.check_process()
        while not self._ended and len(self._tasks) < self._max_tasks:
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
            with state.has_work:
                state.waiting.append((task, value))
                state.has_work.notify()
        if not self._tasks:
            state.stop()
            raise StopIteration
        task = self._tasks.popleft()
        with state.lock:
            state.has_result.wait_for(lambda: task.done or state.stopped)
        if not task.done:
            raise StopIteration
        return task.result.throw() if isinstance(task.result, _Failure) else task.result

    def __del__(self) -> None:
        if hasattr(self, "_state"):
            self._state.stop()
