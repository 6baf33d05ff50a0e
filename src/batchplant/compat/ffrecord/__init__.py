"""The interface of the ``ffrecord`` package: ``import batchplant.ffrecord as ffrecord``.

::

    with FileWriter("train.ffr", len(samples)) as writer:
        for sample in samples:
            writer.write_one(pickle.dumps(sample))

    reader = FileReader(["train-0.ffr", "train-1.ffr"], check_data=True)
    data = reader.read([3, 6, 0, 10])

``batchplant.ffrecord.torch`` has ``Dataset`` and ``DataLoader``. The guide "From FFRecord" says what differs.
"""

from __future__ import annotations

from .fileio import FileReader, FileWriter

__all__ = ["FileReader", "FileWriter"]

# The version of the package whose interface this is.
__version__ = "1.4.0"
