"""Write tests/golden/arrayrecord with array_record itself.

usage: make_arrayrecord.py FOLDER
"""

import lzma
import sys
from pathlib import Path

from array_record.python.array_record_module import ArrayRecordWriter

FILES = {
    "none": "group_size:1,uncompressed",
    "padded": "group_size:1,uncompressed,pad_to_block_boundary:true",
    "zstd": "group_size:1,zstd:3",
    "zstd_groups": "group_size:5,zstd:3",
    "brotli_groups": "group_size:5,brotli:6",
    "snappy_groups": "group_size:5,snappy",
    "none_groups": "group_size:5,uncompressed",
    "transposed": "group_size:5,transpose:true",
}

out = Path(sys.argv[1])
for name, options in FILES.items():
    path = out / f"{name}.array_record"
    writer = ArrayRecordWriter(str(path), options)
    # The last one crosses two block headers.
    for number in range(12 if name != "padded" else 2):
        writer.write(bytes([number]) * (number * 7 if number < 11 else 150_000))
    writer.close()
    (out / f"{name}.array_record.xz").write_bytes(lzma.compress(path.read_bytes()))
    path.unlink()
