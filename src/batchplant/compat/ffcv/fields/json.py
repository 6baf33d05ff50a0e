"""Field of JSON values, stored as bytes that end with a NUL."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from .base import Array, Field, Malloc
from .bytes import BytesField

ENCODING = "utf8"
SEPARATOR = "\0"


class JSONField(BytesField):
    """Any JSON value. Batches hold its text as bytes: ``JSONField.unpack(batch)`` parses it."""

    @staticmethod
    def from_binary(binary: Array) -> Field:
        return JSONField()

    def encode(self, destination: Array, field: Any, malloc: Malloc) -> None:
        super().encode(destination, (json.dumps(field) + SEPARATOR).encode(ENCODING), malloc)

    @staticmethod
    def unpack(batch: Any) -> Any:
        """Return the values of a batch as a list; for the row of one sample, its value."""
        rows = batch.cpu().numpy() if isinstance(batch, torch.Tensor) else np.asarray(batch)
        texts = [
            row.tobytes().partition(SEPARATOR.encode())[0].decode(ENCODING) for row in np.atleast_2d(rows)
        ]
        values = [json.loads(text) for text in texts]
        return values[0] if rows.ndim == 1 else values
