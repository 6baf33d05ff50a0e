"""FFCV 1.0.2's interface to batchplant: change ``from ffcv.loader …`` to ``from batchplant.ffcv.loader …``.

The modules have FFCV's names, argument order and results; :mod:`batchplant.loading`, :mod:`batchplant.ops`
and the registry of formats do the work. ``python -m batchplant.ffcv train.py`` runs a script
that still says ``import ffcv``.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path

from .. import Alias
from . import beton_fields, epochs, operations, reader, steps, translate, writer
from .epochs import Loader
from .writer import DatasetWriter

# The release that this mirrors.
__version__ = "1.0.2"

__all__ = ["DatasetWriter", "Loader"]

# FFCV's modules that are no files here, by the module that defines their names. Parents come first.
MIRRORED_MODULES = {
    operations: "pipeline pipeline.allocation_query pipeline.compiler pipeline.operation pipeline.pipeline "
    "pipeline.state",
    translate: "pipeline pipeline.pipeline_spec",
    beton_fields: "fields fields.base fields.basics fields.bytes fields.decoders fields.json fields.ndarray "
    "fields.rgb_image types",
    steps: "transforms transforms.color_jitter transforms.common transforms.cutout transforms.flip "
    "transforms.mixup transforms.module transforms.normalize transforms.ops transforms.poisoning "
    "transforms.random_resized_crop transforms.replace_label transforms.translate",
    reader: "memory_managers memory_managers.base memory_managers.os_cache memory_managers.process_cache",
    epochs: "loader loader.epoch_iterator loader.loader traversal_order traversal_order.base "
    "traversal_order.quasi_random traversal_order.random traversal_order.sequential",
    writer: "utils",
}
# A folder with a package "ffcv", for processes that a script starts.
ALIAS_FOLDER = Path(__file__).parent / "alias"


def _make_mirrored_modules() -> None:
    for source, paths in MIRRORED_MODULES.items():
        names = {name: value for name, value in vars(source).items() if not name.startswith("_")}
        for path in paths.split():
            full_name = f"{__name__}.{path}"
            if full_name not in sys.modules:
                sys.modules[full_name] = module_from_spec(ModuleSpec(full_name, None, is_package=True))
                parent, _, child = full_name.rpartition(".")
                setattr(sys.modules[parent], child, sys.modules[full_name])
            module = vars(sys.modules[full_name])
            module.update(names)
            # For ``import *``.
            module.setdefault("__all__", []).extend(
                name for name, value in names.items() if getattr(value, "__module__", "") == source.__name__
            )


def redirect_imports() -> None:
    """Let ``import ffcv`` find this package, in this process and in those it starts."""
    if not any(isinstance(finder, Alias) and finder.alias == "ffcv" for finder in sys.meta_path):
        sys.meta_path.insert(0, Alias("ffcv", __name__))
    # A process that is spawned gets this path; any other gets the variable.
    if str(ALIAS_FOLDER) not in sys.path:
        sys.path.insert(1, str(ALIAS_FOLDER))
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if str(ALIAS_FOLDER) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ALIAS_FOLDER), *paths])


_make_mirrored_modules()
