"""Load by one library, in a process of its own: `python _peer_sides.py NAME JOB`.

Each library loads in the way that its documentation recommends, on ``job["workers"]`` threads or
processes. A side first writes its own format, from the same images or the same table, if it does not
read them in place. See _sides.py for the protocol.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import _sides
import numpy as np

Job = dict[str, Any]
Epoch = _sides.Epoch
Build = _sides.Build

# --- images -------------------------------------------------------------------------------------------


def labelled_files(root: str) -> list[tuple[str, int]]:
    """List the files of a folder of images, each with the number of its class."""
    classes = sorted(folder for folder in Path(root).iterdir() if folder.is_dir())
    return [(str(file), label) for label, folder in enumerate(classes) for file in sorted(folder.iterdir())]


def pixels(data: bytes, crop: int) -> Any:
    """Crop at random by Pillow, and flip half of the images."""
    return _sides.flipped(_sides.pillow(data, crop))


def crop_file(sample: tuple[str, int], crop: int) -> tuple[Any, int]:
    return pixels(Path(sample[0]).read_bytes(), crop), sample[1]


def batchplant_folder(job: Job) -> Build:
    return _sides.batchplant_side(job)


def spdl_images(job: Job) -> Build:
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    samples = labelled_files(job["path"])

    def decode(sample: tuple[str, int]) -> Any:
        packets = spdl.io.demux_image(sample[0])
        width, height = packets.codec.width, packets.codec.height
        left, top, right, bottom = _sides.random_box(width, height)
        size = job["crop"]
        steps = f"crop={right - left}:{bottom - top}:{left}:{top},scale={size}:{size}:flags=bilinear"
        steps += ",hflip" if random.random() < 0.5 else ""
        return spdl.io.decode_packets(packets, filter_desc=f"{steps},format=pix_fmts=rgb24")

    def collate(frames: list[Any]) -> Any:
        return spdl.io.to_numpy(spdl.io.convert_frames(frames))

    def build() -> Epoch:
        def epoch() -> Iterator[int]:
            random.shuffle(samples)
            pipeline = (
                PipelineBuilder()
                .add_source(list(samples))
                .pipe(decode, concurrency=job["workers"])
                .aggregate(job["batch"])
                .pipe(collate)
                .add_sink(3)
                .build(num_threads=job["workers"] + 1)
            )
            with pipeline.auto_stop():
                for batch in pipeline:
                    yield len(batch)

        return epoch

    return build


def dali_images(job: Job) -> Build:
    from nvidia.dali import fn, pipeline_def, types

    count = len(labelled_files(job["path"]))

    @pipeline_def(batch_size=job["batch"], num_threads=job["workers"], device_id=None)
    def images() -> Any:
        data, labels = fn.readers.file(file_root=job["path"], random_shuffle=True, name="reader")
        decoded = fn.decoders.image_random_crop(
            data, device="cpu", output_type=types.RGB,
            random_area=(0.08, 1.0), random_aspect_ratio=(3 / 4, 4 / 3),
        )  # fmt: skip
        resized = fn.resize(decoded, size=(job["crop"], job["crop"]), interp_type=types.INTERP_LINEAR)
        return fn.flip(resized, horizontal=fn.random.coin_flip()), labels

    def build() -> Epoch:
        pipeline = images()
        pipeline.build()

        def epoch() -> Iterator[int]:
            rest = count
            while rest > 0:
                batch = pipeline.run()[0].as_array()
                yield min(len(batch), rest)
                rest -= len(batch)

        return epoch

    return build


class CropFile:
    """Read and crop a file; an object, so that worker processes can be given it."""

    def __init__(self, crop: int) -> None:
        self.crop = crop

    def __call__(self, sample: tuple[str, int]) -> tuple[Any, int]:
        return crop_file(sample, self.crop)


class CropRows:
    """Crop the images of rows, and stack them."""

    def __init__(self, crop: int) -> None:
        self.crop = crop

    def __call__(self, rows: list[dict[str, Any]]) -> Any:
        return np.stack([pixels(row["image"], self.crop) for row in rows])


def torchdata_images(job: Job) -> Build:
    import torchdata.nodes as nodes
    from torch.utils.data import default_collate

    samples = labelled_files(job["path"])

    def build() -> Epoch:
        def epoch() -> Iterator[int]:
            random.shuffle(samples)
            node: Any = nodes.IterableWrapper(list(samples))
            crop = CropFile(job["crop"])
            node = nodes.ParallelMapper(node, crop, num_workers=job["workers"], method="thread")
            node = nodes.Mapper(nodes.Batcher(node, job["batch"], drop_last=False), default_collate)
            for images, _ in nodes.Loader(nodes.Prefetcher(node, 2)):
                yield len(images)

        return epoch

    return build


def torch_images(job: Job) -> Build:
    from torch.utils.data import DataLoader

    class Files:
        def __init__(self) -> None:
            self.samples = labelled_files(job["path"])

        def __len__(self) -> int:
            return len(self.samples)

        def __getitem__(self, index: int) -> Any:
            return crop_file(self.samples[index], job["crop"])

    def build() -> Epoch:
        loader: Any = DataLoader(
            Files(), job["batch"], shuffle=True, num_workers=job["workers"], persistent_workers=True
        )  # type: ignore[arg-type,var-annotated]
        return lambda: (len(images) for images, _ in loader)

    return build


def hf_images(job: Job) -> Build:
    import datasets
    from torch.utils.data import DataLoader

    samples = labelled_files(job["path"])
    target = f"{job['scratch']}/hf"
    columns: dict[str, list[Any]] = {"image": [Path(file).read_bytes() for file, _ in samples]}
    columns["label"] = [label for _, label in samples]
    datasets.Dataset.from_dict(columns).save_to_disk(target)

    def crop(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return {"image": [pixels(data, job["crop"]) for data in rows["image"]], "label": rows["label"]}

    def build() -> Epoch:
        dataset = datasets.load_from_disk(target).with_transform(crop)
        loader: Any = DataLoader(
            dataset, job["batch"], shuffle=True, num_workers=job["workers"], persistent_workers=True
        )
        return lambda: (len(batch["image"]) for batch in loader)

    return build


def grain_images(job: Job) -> Build:
    import grain
    from array_record.python.array_record_module import ArrayRecordWriter

    target = f"{job['scratch']}/images.array_record"
    writer = ArrayRecordWriter(target, "group_size:1,uncompressed")
    for file, label in labelled_files(job["path"]):
        writer.write(label.to_bytes(4, "little") + Path(file).read_bytes())
    writer.close()

    def decode(record: bytes) -> dict[str, Any]:
        return {"image": pixels(record[4:], job["crop"]), "label": int.from_bytes(record[:4], "little")}

    def build() -> Epoch:
        source = grain.sources.ArrayRecordDataSource([target])

        def epoch() -> Iterator[int]:
            data = grain.MapDataset.source(source).shuffle(seed=random.randrange(1 << 30)).map(decode)
            options = grain.ReadOptions(num_threads=job["workers"], prefetch_buffer_size=job["batch"])
            batches = data.to_iter_dataset(options).batch(job["batch"], drop_remainder=False)
            for batch in batches:
                yield len(batch["image"])

        return epoch

    return build


def lance_images(job: Job) -> Build:
    import lance
    import pyarrow as pa
    from lance.torch.data import SafeLanceDataset
    from torch.utils.data import DataLoader

    target = f"{job['scratch']}/images.lance"
    samples = labelled_files(job["path"])
    table = pa.table({
        "image": pa.array([Path(file).read_bytes() for file, _ in samples], pa.large_binary()),
        "label": [label for _, label in samples],
    })  # fmt: skip
    lance.write_dataset(table, target)

    def build() -> Epoch:
        loader: Any = DataLoader(
            SafeLanceDataset(target), job["batch"], shuffle=True, num_workers=job["workers"],
            collate_fn=CropRows(job["crop"]), persistent_workers=True, multiprocessing_context="spawn",
        )  # fmt: skip
        return lambda: (len(batch) for batch in loader)

    return build


# --- rows of tables -----------------------------------------------------------------------------------


def batches(job: Job, count: int) -> Iterator[Any]:
    """Yield the rows of each batch of an epoch, in the job's order."""
    order = np.random.permutation(count) if job["order"] == "random" else np.arange(count)
    for first in range(0, count, job["batch"]):
        yield order[first : first + job["batch"]]


def plain(field: Any) -> Any:
    """Give a field a type that `take` knows: text as offsets in place of views."""
    import pyarrow as pa

    return pa.field(field.name, pa.large_string()) if field.type == pa.string_view() else field


def is_text(kind: Any) -> bool:
    import pyarrow as pa

    return kind in (pa.string(), pa.large_string(), pa.string_view())


def arrays(table: Any) -> dict[str, Any]:
    """Return the columns of an Arrow table as arrays; lists become rows of a matrix, text a list of str."""
    import pyarrow as pa

    columns: dict[str, Any] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if pa.types.is_fixed_size_list(values.type) or pa.types.is_list(values.type):
            columns[name] = values.flatten().to_numpy(zero_copy_only=False).reshape(len(values), -1)
        elif is_text(values.type):
            columns[name] = values.to_pylist()
        else:
            columns[name] = values.to_numpy(zero_copy_only=False)
    return columns


def batchplant_rows(job: Job) -> Build:
    from batchplant.loading.loader import Loader

    def build() -> Epoch:
        order = "random" if job["order"] == "random" else "sequential"
        loader = Loader(job["path"], job["batch"], order=order, workers=job["workers"])
        return lambda: (len(batch["label"]) for batch in loader)

    return build


def batchplant_arrow(job: Job) -> Build:
    """Load the table from the Arrow file that HF datasets stores: neither compressed nor encoded."""
    return batchplant_rows(job | {"path": str(Path(job["path"]).with_suffix(".arrow"))})


def lance_rows(job: Job) -> Build:
    import lance
    import pyarrow.parquet as pq

    target = f"{job['scratch']}/rows.lance"
    lance.write_dataset(pq.read_table(job["path"]), target, mode="overwrite")

    def build() -> Epoch:
        dataset = lance.dataset(target)
        count = dataset.count_rows()

        def epoch() -> Iterator[int]:
            if job["order"] == "random":
                for rows in batches(job, count):
                    yield len(arrays(dataset.take(rows))["label"])
            else:
                for batch in dataset.to_batches(batch_size=job["batch"]):
                    yield len(arrays(batch)["label"])

        return epoch

    return build


def vortex_rows(job: Job) -> Build:
    import pyarrow as pa
    import pyarrow.parquet as pq
    import vortex

    target = f"{job['scratch']}/rows.vortex"
    vortex.io.write(vortex.array(pq.read_table(job["path"])), target)

    def build() -> Epoch:
        file = vortex.open(target)
        count = len(file)

        def epoch() -> Iterator[int]:
            if job["order"] == "random":
                for rows in batches(job, count):
                    # Rows are named in order; the batch is put into its own order afterwards.
                    places = np.argsort(rows)
                    chosen = vortex.array(pa.array(rows[places].astype(np.uint64)))
                    table = file.scan(indices=chosen).read_all().to_arrow_table()
                    table = table.cast(pa.schema([plain(field) for field in table.schema]))
                    back = np.empty_like(places)
                    back[places] = np.arange(len(places))
                    yield len(arrays(table.take(pa.array(back)))["label"])
            else:
                for batch in file.to_arrow(batch_size=job["batch"]):
                    yield len(arrays(batch)["label"])

        return epoch

    return build


def hf_rows(job: Job) -> Build:
    import datasets
    import pyarrow.parquet as pq

    target = f"{job['scratch']}/rows-hf"
    datasets.Dataset(pq.read_table(job["path"])).save_to_disk(target)

    def build() -> Epoch:
        dataset = datasets.load_from_disk(target).with_format("arrow")

        def epoch() -> Iterator[int]:
            for rows in batches(job, len(dataset)):
                chosen = slice(int(rows[0]), int(rows[-1]) + 1) if job["order"] != "random" else rows
                yield len(arrays(dataset[chosen])["label"])

        return epoch

    return build


def pyarrow_rows(job: Job) -> Build:
    import pyarrow.parquet as pq

    def build() -> Epoch:
        def epoch() -> Iterator[int]:
            for batch in pq.ParquetFile(job["path"]).iter_batches(job["batch"]):
                yield len(arrays(batch)["label"])

        return epoch

    return build


# --- video and sound ----------------------------------------------------------------------------------


def batchplant_media(job: Job) -> Build:
    from batchplant import ops
    from batchplant.loading.loader import Loader

    def build() -> Epoch:
        if job["kind"] == "clips":
            field, op = "video", ops.DecodeVideo(job["frames"])
        else:
            field, op = "audio", ops.DecodeAudio(seconds=job["seconds"], rate=job["rate"])
        loader = Loader(
            job["path"], job["batch"], order="random", pipelines={field: [op]}, workers=job["workers"]
        )
        return lambda: (len(batch[field]) for batch in loader)

    return build


class Clips:
    """A torch dataset of the frames at a random place of each video, by torchcodec."""

    def __init__(self, job: Job) -> None:
        self.job, self.files = job, sorted(map(str, Path(job["path"]).iterdir()))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        from torchcodec.decoders import VideoDecoder
        from torchcodec.samplers import clips_at_random_indices

        decoder = VideoDecoder(self.files[index], seek_mode="approximate", num_ffmpeg_threads=1)
        return clips_at_random_indices(decoder, num_frames_per_clip=self.job["frames"]).data[0]


class Sounds(Clips):
    """A torch dataset of a second at a random place of each sound."""

    def __getitem__(self, index: int) -> Any:
        from torchcodec.decoders import AudioDecoder

        decoder, seconds = AudioDecoder(self.files[index]), self.job["seconds"]
        first = random.uniform(0, decoder.metadata.duration_seconds_from_header - seconds)
        samples = decoder.get_samples_played_in_range(first, first + seconds).data
        return samples[:, : int(seconds * self.job["rate"])]


def torchcodec_side(dataset: type[Clips]) -> Callable[[Job], Build]:
    def side(job: Job) -> Build:
        import torchcodec  # noqa: F401
        from torch.utils.data import DataLoader

        def build() -> Epoch:
            loader: Any = DataLoader(
                dataset(job), job["batch"], shuffle=True, num_workers=job["workers"], persistent_workers=True
            )
            return lambda: (len(batch) for batch in loader)

        return build

    return side


IMAGES: dict[str, Callable[[Job], Build]] = {
    "batchplant": batchplant_folder,
    "SPDL": spdl_images,
    "DALI": dali_images,
    "torchdata nodes": torchdata_images,
    "torch DataLoader": torch_images,
    "HF datasets": hf_images,
    "Grain + ArrayRecord": grain_images,
    "Lance": lance_images,
}
ROWS: dict[str, Callable[[Job], Build]] = {
    "batchplant": batchplant_rows,
    "batchplant, Arrow": batchplant_arrow,
    "Lance": lance_rows,
    "Vortex": vortex_rows,
    "HF datasets": hf_rows,
    "pyarrow": pyarrow_rows,
}

SIDES = {
    "images": IMAGES,
    "rows": ROWS,
    "clips": {"batchplant": batchplant_media, "torchcodec": torchcodec_side(Clips)},
    "sounds": {"batchplant": batchplant_media, "torchcodec": torchcodec_side(Sounds)},
}

if __name__ == "__main__":
    import json
    import sys

    _sides.SIDES = SIDES[json.loads(sys.argv[2])["kind"]]
    _sides.main(*sys.argv[1:])
