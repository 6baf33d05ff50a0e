"""Arguments that the Loader does not have: what those of torch's DataLoader are called here."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import near
from ..storage.settings import NAMES as STORAGE

# Of torch.utils.data.DataLoader, and of datasets that people give it.
CALLED = {
    "shuffle": 'order="random" shuffles anew in every epoch, order="sequential" does not',
    "num_workers": "workers= is the number of decoding threads; all cores without it",
    "pin_memory": 'device="cuda" copies through pinned memory by itself',
    "pin_memory_device": 'device="cuda" copies through pinned memory by itself',
    "collate_fn": "what values of a batch become is said by ops and functions: pipelines={field: [Pad(64)]}",
    "sampler": "order= takes an array of sample numbers or a function of the epoch; indices= a subset",
    "batch_sampler": "order= takes sample numbers; pack= and bucket_by_length= make batches by size",
    "prefetch_factor": "ahead= is the number of batches made in advance",
    "persistent_workers": "threads stay as long as the Loader; there is nothing to set",
    "worker_init_fn": "workers are threads of this process; ops draw from seed= and are seeded by sample",
    "multiprocessing_context": 'workers are threads; Function(fn, parallel="processes") has processes',
    "generator": "seed= decides all random numbers",
    "timeout": "reading is tried again by itself; source_options= has what may be set for servers",
    "in_order": "batches always come in order",
    "dataset": "the first argument is the source: Loader(path_or_reader, batch_size)",
    "transform": "pipelines={field: [op, …]} holds ops and functions",
    "transforms": "pipelines={field: [op, …]} holds ops and functions",
    "target_transform": "pipelines={field: [op, …]} holds ops and functions",
}


def unexpected(name: str, known: Iterable[str]) -> TypeError:
    """What is said of an argument that is not there."""
    hint = f", which is one of torch's DataLoader: {CALLED[name]}" if name in CALLED else near(name, known)
    if name in STORAGE:
        hint = f'; open the source with it: source_options={{"{name}": …}}'
    return TypeError(f"Loader() got an unexpected keyword argument {name!r}{hint}")
