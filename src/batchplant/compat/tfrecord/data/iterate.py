"""The iterators behind a dataset's methods, each a small function of other iterators."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ....errors import OptionError
from .. import nest

Make = Callable[[], Iterator[Any]]


class Map:
    """The function applied to one element after the other; goes on behind one that fails."""

    def __init__(self, source: Iterator[Any], function: Callable[[Any], Any]) -> None:
        self._source, self._function = source, function

    def __iter__(self) -> Map:
        return self

    def __next__(self) -> Any:
        return self._function(next(self._source))


def ignore_errors(source: Iterator[Any], report: Callable[[Exception], None] | None) -> Iterator[Any]:
    while True:
        try:
            item = next(source)
        except StopIteration:
            return
        except Exception as error:
            if report is not None:
                report(error)
            continue
        yield item


def shuffle(source: Iterator[Any], most: int, seed: str | None) -> Iterator[Any]:
    """One of the ``most`` next elements at a time, drawn at random."""
    draw = random.Random(seed)
    buffer: list[Any] = []
    for item in source:
        if len(buffer) < most:
            buffer.append(item)
            continue
        place = int(draw.random() * most)
        buffer[place], item = item, buffer[place]
        yield item
    draw.shuffle(buffer)
    # Popped, so that the buffer lets go of what was given out.
    while buffer:
        yield buffer.pop()


def kept(make: Make) -> Make:
    """The elements, which stay in memory once they were all seen."""
    whole: list[list[Any]] = []

    def through() -> Iterator[Any]:
        if whole:
            yield from whole[0]
            return
        seen = []
        for element in make():
            seen.append(element)
            yield element
        if not whole:
            whole.append(seen)

    return through


def group(
    source: Iterator[Any],
    key_of: Callable[[Any], int],
    size_of: Callable[[int], int],
    reduced: Callable[[int, list[Any]], Iterator[Any]],
) -> Iterator[Any]:
    """What becomes of so many elements of one key each; at the end of those that are left, by their keys."""
    groups: dict[int, tuple[int, list[Any]]] = {}
    for item in source:
        key = key_of(item)
        if key not in groups:
            size = size_of(key)
            if size < 1:
                raise OptionError(f"the window of the key {key} must be at least 1, not {size}")
            groups[key] = size, []
        size, items = groups[key]
        items.append(item)
        if len(items) == size:
            del groups[key]
            yield from reduced(key, items)
    for key in sorted(groups):
        yield from reduced(key, groups.pop(key)[1])


def batch(source: Iterator[Any], size: int, drop: bool, join: Callable[[list[Any]], Any]) -> Iterator[Any]:
    items: list[Any] = []
    for item in source:
        items.append(item)
        if len(items) == size:
            yield join(items)
            items = []
    if items and not drop:
        yield join(items)


def unbatch(source: Iterator[Any]) -> Iterator[Any]:
    for item in source:
        for number in range(nest.rows(item)):
            yield nest.row(item, number)


def repeat(make: Make, count: int | None) -> Iterator[Any]:
    done = 0
    while count is None or done < count:
        empty = True
        for item in make():
            empty = False
            yield item
        # An endless repetition of nothing would never come back.
        if empty:
            return
        done += 1


def concatenate(makes: Iterable[Make]) -> Iterator[Any]:
    for make in makes:
        yield from make()


def take_while(source: Iterator[Any], holds: Callable[[Any], Any]) -> Iterator[Any]:
    for item in source:
        if not holds(item):
            return
        yield item


def interleave(
    source: Iterator[Any], open_one: Callable[[Any], Iterator[Any]], cycle: int, block: int
) -> Iterator[Any]:
    """``block`` elements of each of ``cycle`` open iterators in turn.

    An iterator that ends leaves its place to the next input, which begins when its turn comes again.
    """
    places: list[Iterator[Any] | None] = [None] * cycle
    place, taken, live, more = 0, 0, 0, True
    while more or live:
        current = places[place]
        if current is None:
            if more:
                try:
                    opened = next(source)
                except StopIteration:
                    more = False
                else:
                    places[place] = open_one(opened)
                    live += 1
                    continue
            place, taken = (place + 1) % cycle, 0
            continue
        try:
            item = next(current)
        except StopIteration:
            places[place] = None
            live -= 1
            place, taken = (place + 1) % cycle, 0
            continue
        yield item
        taken += 1
        if taken == block:
            place, taken = (place + 1) % cycle, 0


def choose(choices: Iterator[Any], makes: list[Make], stop: bool) -> Iterator[Any]:
    """One element of the iterator that each choice names."""
    iterators = [make() for make in makes]
    for choice in choices:
        if not 0 <= int(choice) < len(iterators):
            raise OptionError(f"choice {int(choice)}, but there are {len(iterators)} datasets")
        try:
            item = next(iterators[int(choice)])
        except StopIteration:
            if stop:
                return
            continue
        yield item


def sample(makes: list[Make], weights: list[float] | None, seed: str | None, stop: bool) -> Iterator[Any]:
    """Elements of iterators drawn at random by weight."""
    draw = random.Random(seed)
    iterators = [make() for make in makes]
    chances = list(weights or [1.0] * len(makes))
    alive = list(range(len(makes)))
    while alive and any(chances[one] > 0 for one in alive):
        [which] = draw.choices(alive, [chances[one] for one in alive])
        try:
            item = next(iterators[which])
        except StopIteration:
            if stop:
                return
            alive.remove(which)
            continue
        yield item


def windows(source: Iterator[Any], size: int, shift: int, stride: int, drop: bool) -> Iterator[list[Any]]:
    """Lists of ``size`` elements, ``stride`` apart, each list beginning ``shift`` behind the one before."""
    held: deque[Any] = deque()
    span, skip, ended = (size - 1) * stride + 1, 0, False
    while True:
        while not ended and len(held) < span:
            try:
                item = next(source)
            except StopIteration:
                ended = True
                break
            if skip:
                skip -= 1
            else:
                held.append(item)
        found = list(held)[::stride][:size]
        if not found or (drop and len(found) < size):
            return
        yield found
        for _ in range(shift):
            if held:
                held.popleft()
            else:
                skip += 1
