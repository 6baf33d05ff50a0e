"""PipelineSpec: the source of a pipeline, its decoder, and the steps after it."""

from __future__ import annotations

from typing import Any

import torch

from ....errors import OptionError
from ....ops import ImageDecoder
from ..transforms.module import ModuleWrapper
from ..transforms.ops import ToTensor
from .operation import Operation


class PipelineSpec:
    """``PipelineSpec("image", decoder, [steps])``: one more view of the field ``image``.

    With an operation of another pipeline in place of the name, it continues from that operation's output.
    """

    def __init__(
        self, source: str | Operation, decoder: Operation | None = None, transforms: list[Any] | None = None
    ) -> None:
        self.source = source
        self.decoder = decoder
        # A copy: one list of steps may serve several loaders.
        self.transforms: list[Any] = list(transforms or ())
        self.default_pipeline = decoder is None and not self.transforms and isinstance(source, str)

    def __repr__(self) -> str:
        return repr((self.source, self.decoder, self.transforms))

    def accept_decoder(self, Decoder: Any, output_name: str) -> None:  # noqa: N803
        """Find the decoder: the first step, or the field's own; wrap torch modules."""
        if not isinstance(self.source, str) and self.decoder is not None:
            raise OptionError(
                f"the pipeline {output_name!r} starts at an operation of another, so it has no decoder"
            )
        if Decoder is not None and self.decoder is None:
            if self.transforms and isinstance(self.transforms[0], (Decoder, ImageDecoder)):
                self.decoder = self.transforms.pop(0)
            else:
                self.decoder = _default(Decoder, output_name)
        if self.default_pipeline:
            self.transforms.append(ToTensor())
            self.default_pipeline = False
        self.transforms = [
            ModuleWrapper(step) if isinstance(step, torch.nn.Module) else step for step in self.transforms
        ]


def _default(decoder_class: type[Operation], output_name: str) -> Operation:
    try:
        return decoder_class()
    except TypeError as error:
        raise OptionError(
            f"the pipeline {output_name!r} needs a decoder as its first step: "
            f"{decoder_class.__name__} has no default ({error})"
        ) from None
