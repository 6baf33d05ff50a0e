"""PyTorch, what torch.save and torch.jit.save write.

A ZIP archive with ``data.pkl``, which says what the tensors are, and one member ``data/N`` for each storage,
not compressed. Files of PyTorch before 1.6 have the same pickle, and the storages behind it, without archive.

The pickle is read by a reader of our own that knows tensors and containers, and runs nothing. Tensors are
named by the keys that lead to them, joined with dots: ``{"model": {"weight": …}}`` has ``model.weight``. A
view with gaps is made whole when it is read. In a TorchScript archive the tensors are the attributes of the
modules.

A ``.bin`` file is known by its content. A model in several files has a ``pytorch_model.bin.index.json``
beside them; open that one.
"""

from __future__ import annotations

from ...data.tensors import TENSORS
from ...errors import BatchplantError
from ...storage.zips import ZipMembers
from ..base.capabilities import Capabilities
from ..base.format import Format, Probe
from ..base.tensors import indexed
from .reader import INDEX, LEGACY, PytorchReader
from .writer import PytorchWriter

__all__ = ["FORMAT"]


def sniff(probe: Probe) -> bool:
    """An archive with data.pkl in its one folder, or the number that older files begin with."""
    head = probe.head
    if probe.path.endswith(INDEX):
        return head.lstrip()[:1] == b"{"
    if LEGACY.match(head):
        return True
    if head[:4] != b"PK\3\4" or len(head) < 30:
        return False
    name = head[30 : 30 + int.from_bytes(head[26:28], "little")]
    if b"/" not in name:
        return False
    try:
        root = name.partition(b"/")[0].decode()
        return f"{root}/data.pkl" in ZipMembers(probe.source)
    except (BatchplantError, UnicodeDecodeError):
        return False


FORMAT = Format(
    name="pytorch",
    title="PyTorch",
    suffixes=(".pt", ".pth", ".ckpt", ".bin.index.json"),
    spec="https://docs.pytorch.org/docs/stable/notes/serialization.html",
    reader=PytorchReader,
    writer=PytorchWriter,
    sniff=sniff,
    only=TENSORS,
    parts=indexed(INDEX),
    notes="state dicts and TorchScript, read without PyTorch and without running anything; storages in place",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        checksums="tensor",
        column_pruning=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        splittable=True,
        ecosystem=("PyTorch",),
    ),
)
