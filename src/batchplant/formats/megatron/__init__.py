"""Megatron's token datasets: ``NAME.idx`` says where sequences are in ``NAME.bin``. Little-endian.

The index: ``MMIDIDX\\0\\0``, u64 version (1), u8 code of the dtype, u64 S sequences, u64 D entries of
documents; from byte 34 on i32 lengths[S] in tokens, i64 offsets[S] in bytes of the .bin, i64 documents[D]:
with which sequence each document begins, and last S; then, where sequences have modes, i8 modes[S]. Nothing
is aligned. The .bin is tokens and nothing else.

A sample is a sequence. Where documents are not one sequence each, ``document`` says of which one it is a
part.
"""

from __future__ import annotations

from ...errors import BatchplantError
from ...schema import Int, Tensor
from ...storage import beside, open_source, tree
from ..base.capabilities import Capabilities
from ..base.format import Format, Probe
from ..base.tokens import TOKENS
from .layout import BIN, DOCUMENT, IDX, MAGIC, MODE
from .reader import MegatronReader
from .writer import MegatronWriter


def sniff(probe: Probe) -> bool:
    """The magic, or that of the index beside a .bin."""
    if probe.head.startswith(MAGIC):
        return True
    if not probe.path.endswith(BIN.removeprefix("{stem}")) or not tree.is_file(beside(probe.path, IDX)):
        return False
    try:
        source = open_source(beside(probe.path, IDX))
        return source.size >= len(MAGIC) and source.view(0, len(MAGIC)).tobytes() == MAGIC
    except BatchplantError:
        return False


FORMAT = Format(
    name="megatron",
    title="Megatron (.bin/.idx)",
    suffixes=(".idx",),
    spec="https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/datasets/indexed_dataset.py",
    reader=MegatronReader,
    writer=MegatronWriter,
    sniff=sniff,
    kinds=(Tensor, Int),
    fields={TOKENS: Tensor("int32", (None,)), DOCUMENT: Int(), MODE: Int("int8")},
    notes="sequences of tokens, read in place; documents and modes as fields where there are such",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        column_pruning=True,
        remote_ranges=True,
        streaming_write=True,
        splittable=True,
        max_size="2³¹ tokens in a sequence",
        ecosystem=("Megatron-LM", "NeMo", "GPT-NeoX", "OLMo"),
    ),
)
