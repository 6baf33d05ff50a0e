"""Boxes from one form into another."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ....schema import Boxes

F64 = npt.NDArray[np.float64]


def boxes_as(boxes: npt.NDArray[Any], have: Boxes, want: Boxes, sizes: npt.NDArray[Any]) -> F64:
    """Boxes in another form. ``sizes``: width and height of the image of each, where one is normalized."""
    found = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    if have.format != want.format:
        found = _of_corners(_corners(found, have.format), want.format)
    if have.normalized != want.normalized:
        scale = np.tile(np.asarray(sizes, dtype=np.float64).reshape(-1, 2), 2)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = found / scale if want.normalized else found * scale
    return found


def narrowed(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Real numbers as float32 where its shortest digits are those of every value, else as they are.

    473.07 has no exact float32, and its nearest float32 is written as 473.07 again: nothing is lost. Of
    473.07000732421875, which has one, that would be another number.
    """
    with np.errstate(all="ignore"):
        small = values.astype(np.float32)
        fractional = np.unique(values[~_survives(values)])
        lost = any(float(str(np.float32(value))) != value for value in fractional.tolist())
    return values if lost else small


def _survives(values: F64) -> npt.NDArray[np.bool_]:
    """Flag values with up to seven digits that no neighbour of as many digits shares as float32."""
    exponent = np.floor(np.log10(np.abs(values)))
    up, down = 10.0 ** np.maximum(6 - exponent, 0), 10.0 ** np.maximum(exponent - 6, 0)
    seven_digits = np.rint(values * up / down) / up * down == values
    apart = np.abs(np.spacing(values.astype(np.float32))) < down / up
    usual = (np.abs(values) > 1e-15) & (np.abs(values) < 1e15)
    flags: npt.NDArray[np.bool_] = (seven_digits & apart & usual) | (values == 0) | np.isnan(values)
    return flags


def outside(boxes: npt.NDArray[Any], kind: Boxes, sizes: npt.NDArray[Any], slack: float = 1.0) -> Any:
    """Flag invalid boxes: not finite, without size, or more than ``slack`` pixels outside of the image."""
    corners = _corners(np.asarray(boxes, dtype=np.float64).reshape(-1, 4), kind.format)
    sizes = np.asarray(sizes, dtype=np.float64).reshape(-1, 2)
    if kind.normalized:
        corners = corners * np.tile(sizes, 2)
    good = np.isfinite(corners).all(axis=1)
    with np.errstate(invalid="ignore"):
        good &= (corners[:, :2] >= -slack).all(axis=1) & (corners[:, 2:] <= sizes + slack).all(axis=1)
        good &= (corners[:, 2:] > corners[:, :2]).all(axis=1)
    return ~good


def _corners(boxes: F64, format: str) -> F64:
    first, second = boxes[:, :2], boxes[:, 2:]
    if format == "xyxy":
        return boxes
    start = first if format == "xywh" else first - second / 2
    return np.concatenate([start, start + second], axis=1)


def _of_corners(corners: F64, format: str) -> F64:
    start, end = corners[:, :2], corners[:, 2:]
    if format == "xyxy":
        return corners
    first = start if format == "xywh" else (start + end) / 2
    return np.concatenate([first, end - start], axis=1)
