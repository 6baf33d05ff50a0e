"""Pipelines and the compiler of user-written operations."""

from __future__ import annotations

from .compiler import Compiler
from .pipeline import Pipeline
from .pipeline_spec import PipelineSpec

__all__ = ["Compiler", "Pipeline", "PipelineSpec"]
