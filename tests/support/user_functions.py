"""Functions that worker processes run: they import this module by its name, which must take little."""

import os
import signal
import sys

import numpy as np

from batchplant.errors import DecodeError


def double(value):
    return value * 2


def plus(value, rng):
    return value + rng.uniform()[0]


def plus_batch(values, rng):
    return values + rng.uniform()


def mean(image):
    return image.mean(axis=(0, 1)).astype(np.float32)


def drawn(image, rng):
    return rng.generator().permutation(image, axis=0)


def letters(text):
    return np.frombuffer(text.encode(), dtype=np.uint8)


def upper(text):
    return text.upper()


def cumulated(values):
    return np.cumsum(values)


def growing(value):
    return np.full(int(value) * 1000, value)


def uneven(value):
    return np.zeros(2 if value == 13 else 3)


def divides(value):
    return 1 // (int(value) - 13)


class OddError(Exception):
    """Cannot be unpickled."""

    def __init__(self, one, two):
        super().__init__("oddly")


def odd(value):
    raise OddError(1, 2)


def refuses(value):
    if value in (3, 13):
        raise DecodeError("no good")
    return value


def dies(value):
    if value == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    return value


def dies_once(path):
    if not os.path.exists(path):
        open(path, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return len(path)


def leaves(value):
    sys.exit(3)


def worker_of(value):
    return os.getpid()


def waits(path):
    """Tells who it is, and never comes back."""
    with open(path + ".part", "w") as file:
        file.write(str(os.getpid()))
    os.rename(path + ".part", path)
    signal.pause()
