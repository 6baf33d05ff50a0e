"""Write tests/golden/gguf with gguf itself.

usage: make_gguf.py FOLDER
"""

import sys
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter, quants

out = Path(sys.argv[1])
writer = GGUFWriter(out / "quantised.gguf", "llama")
writer.add_name("größe")
writer.add_block_count(2)
writer.add_float32("llama.rope.freq_base", 0.5)
writer.add_bool("flag", True)
writer.add_array("tokenizer.ggml.tokens", ["<s>", "ä", ""])
writer.add_array("tokenizer.ggml.scores", [0.5, -1.0, 2.0])
writer.add_key_value("nested", [[1, 2], [3, 4]], GGUFValueType.ARRAY)
values = np.arange(512, dtype=np.float32).reshape(2, 256) / 64
for kind in ("F32", "F16", "BF16", "Q4_0", "Q5_1", "Q8_0", "TQ1_0", "MXFP4"):
    number = GGMLQuantizationType[kind]
    writer.add_tensor(f"blk.0.{kind}", quants.quantize(values, number), raw_dtype=number)
writer.add_tensor("ids", np.arange(6, dtype=np.int32).reshape(1, 2, 3))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
