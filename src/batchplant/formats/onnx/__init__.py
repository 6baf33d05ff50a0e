"""ONNX models: their initialisers as named tensors, in the order in which they stand.

The model is read by hand, without a library, and values are used where they lie: in ``raw_data``, in lists of
floats and doubles, and in files of external data, which must be in the folder of the model. Values in other
lists are put together when they are read. The initialisers of graphs inside of nodes (If, Loop) carry the
node and its attribute in their name: ``node.then_branch.weight``. Sparse initialisers, and those of text, are
listed in the facts and are no samples.

What is written is a model that has initialisers, which are its outputs, and no operators. Only `verify` needs
the ``onnx`` library.
"""

from __future__ import annotations

from ...codecs.protobuf import BYTES, VARINT, parts
from ...data.tensors import TENSORS
from ...errors import BatchplantError
from ..base.capabilities import Capabilities
from ..base.format import Format, Probe
from .reader import OnnxReader
from .writer import OnnxWriter

# The wire types of the fields that a model may begin with, up to its graph.
KINDS = {1: VARINT, 5: VARINT, **dict.fromkeys((2, 3, 4, 6, 8, 14, 20, 25, 26), BYTES)}
GRAPH = 7
MOST_VERSION = 100


def sniff(probe: Probe) -> bool:
    """A message that begins with the IR version and comes to a graph that fits into the file."""
    head = probe.head
    try:
        for count, part in enumerate(parts(memoryview(head), 0, probe.size)):
            if part[:2] == (GRAPH, BYTES):
                return count > 0 and part.start < part.end
            if KINDS.get(part.number) != part.kind or (part.number == 1) != (count == 0):
                return False
            if count == 0 and not 0 < part.value <= MOST_VERSION:
                return False
    # The graph may come later than what is looked at; then the suffix tells.
    except (BatchplantError, IndexError):
        pass
    return False


FORMAT = Format(
    name="onnx",
    title="ONNX",
    suffixes=(".onnx",),
    spec="https://onnx.ai/onnx/repo-docs/IR.html",
    reader=OnnxReader,
    writer=OnnxWriter,
    sniff=sniff,
    extra="onnx",
    only=TENSORS,
    notes="initialisers, used in place, also in external data; writes a model of outputs without operators",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        keeps_schema=True,
        streaming_write=True,
        max_size="2 GB; larger tensors lie beside it",
        metadata=True,
        ecosystem=("ONNX Runtime", "PyTorch", "TensorRT", "OpenVINO"),
    ),
)
