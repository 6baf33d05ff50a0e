"""Base classes of formats, one module or package for each way of storing samples.

- ``records``: one run of bytes for each sample (TFRecord, RecordIO, FFRecord, MessagePack);
- ``shards/``: the same in shards with an index, each record the cells of many columns (MDS, LitData);
- ``text``: rows of text (CSV, JSON);
- ``tables/``: columns in row groups (Parquet, Arrow);
- ``ipc/``: Arrow's own files, by themselves or inside of others (Arrow, LitData);
- ``lake/``: tables whose files a log lists (Delta, Iceberg);
- ``arrays/``: arrays in chunks (Zarr, N5);
- ``folders/``: one file for each sample (images, sound, video);
- ``detection/``: the same, and beside them what lies in the images (COCO, YOLO, VOC);
- ``tokens``: sequences of tokens and nothing else (Megatron, flat files);
- ``objects``: Python objects (pickle, joblib); ``tensors``: models as named tensors (safetensors, ONNX …).

Only formats inherit from here. A family knows readers, writers, codecs and storage, and no format.
"""
