"""The iterators behind a dataset's methods, each a small function of other iterators."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from .. import nest
from ..values import Element

# Starts a new pass over the elements.
StartPass: TypeAlias = Callable[[], Iterator[Element]]


class Map:
    """Applies a function to one element after the other; can continue after an element that failed."""

    def __init__(self, source: Iterator[Element], function: Callable[[Element], Element]) -> None:
        self._source, self._function = source, function

    def __iter__(self) -> Map:
        return self

    def __next__(self) -> Element:
        return self._function(next(self._source))


def ignore_errors(source: Iterator[Element], report: Callable[[Exception], None] | None) -> Iterator[Element]:
    while True:
        try:
            element = next(source)
        except StopIteration:
            return
        except Exception as error:
            if report is not None:
                report(error)
            continue
        yield element


def shuffle(source: Iterator[Element], buffer_size: int, seed: str) -> Iterator[Element]:
    """Yield elements drawn at random from a buffer of the next ``buffer_size`` ones."""
    draw = random.Random(seed)
    buffer: list[Element] = []
    for element in source:
        if len(buffer) < buffer_size:
            buffer.append(element)
            continue
        slot = int(draw.random() * buffer_size)
        buffer[slot], element = element, buffer[slot]
        yield element
    draw.shuffle(buffer)
    # Popped, so that the buffer keeps no reference to an element that was handed out.
    while buffer:
        yield buffer.pop()


def cache(start_pass: StartPass) -> StartPass:
    """Return passes over the same elements, which stay in memory after the first complete pass."""
    cached: list[Element] | None = None

    def start_cached_pass() -> Iterator[Element]:
        nonlocal cached
        if cached is not None:
            yield from cached
            return
        elements = []
        for element in start_pass():
            elements.append(element)
            yield element
        cached = elements

    return start_cached_pass


def batch(
    source: Iterator[Element], size: int, drop_remainder: bool, join: Callable[[list[Element]], Element]
) -> Iterator[Element]:
    elements: list[Element] = []
    for element in source:
        elements.append(element)
        if len(elements) == size:
            yield join(elements)
            elements = []
    if elements and not drop_remainder:
        yield join(elements)


def unbatch(source: Iterator[Element]) -> Iterator[Element]:
    for element in source:
        for index in range(nest.row_count(element)):
            yield nest.row(element, index)


def repeat(start_pass: StartPass, count: int | None) -> Iterator[Element]:
    passes = 0
    while count is None or passes < count:
        is_empty = True
        for element in start_pass():
            is_empty = False
            yield element
        # Repeating an empty dataset endlessly would never return.
        if is_empty:
            return
        passes += 1


def concatenate(passes: Iterable[StartPass]) -> Iterator[Element]:
    for start_pass in passes:
        yield from start_pass()


def zip_structure(passes: Element) -> Iterator[Element]:
    """Yield elements in the structure of ``passes``, until the shortest ends."""
    iterators = nest.map_structure(lambda start_pass: start_pass(), passes)
    while True:
        try:
            element = nest.map_structure(next, iterators)
        except StopIteration:
            return
        yield element


def interleave(
    source: Iterator[Element], open_input: Callable[[Element], Iterator[Element]], cycle: int, block: int
) -> Iterator[Element]:
    """Yield ``block`` elements of each of ``cycle`` open iterators in turn.

    An iterator that ends leaves its slot to the next input, which begins when its turn comes again.
    """
    slots: list[Iterator[Element] | None] = [None] * cycle
    slot, yielded, open_count, has_input = 0, 0, 0, True
    while has_input or open_count:
        current = slots[slot]
        if current is None:
            if has_input:
                try:
                    next_input = next(source)
                except StopIteration:
                    has_input = False
                else:
                    slots[slot] = open_input(next_input)
                    open_count += 1
                    continue
            slot, yielded = (slot + 1) % cycle, 0
            continue
        try:
            element = next(current)
        except StopIteration:
            slots[slot] = None
            open_count -= 1
            slot, yielded = (slot + 1) % cycle, 0
            continue
        yield element
        yielded += 1
        if yielded == block:
            slot, yielded = (slot + 1) % cycle, 0
