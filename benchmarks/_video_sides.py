"""Decode frames of videos by one library, in a process of its own: `python _video_sides.py NAME JOB`.

A sample is a film and its first frame; `span` frames follow each other. See _sides.py for the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import _sides

Job = dict[str, Any]
# Decodes frames of a film, both by number.
Read = Callable[[int, list[int]], Any]


def batchplant_side(job: Job) -> _sides.Build:
    import batchplant as bp

    def build() -> _sides.Epoch:
        reader = bp.open(job["paths"])
        rows = [film * job["frames"] + start for film, start in job["samples"]]
        if job["span"] > 1:
            reader = bp.DeltaWindows(
                reader, {"frame": [n / job["fps"] for n in range(job["span"])]}, fps=job["fps"]
            )
        loader = bp.Loader(reader.subset(rows), job["batch"], order="sequential", workers=job["workers"])

        def epoch() -> Iterator[int]:
            for batch in loader:
                yield len(batch["frame"])

        return epoch

    return build


def by_threads(opening: Callable[[Job], Read]) -> Callable[[Job], _sides.Build]:
    """A side whose library decodes one film at a time: those of a batch on several threads."""

    def side(job: Job) -> _sides.Build:
        def build() -> _sides.Epoch:
            read, pool = opening(job), ThreadPoolExecutor(job["workers"])

            def epoch() -> Iterator[int]:
                for first in range(0, len(job["samples"]), job["batch"]):
                    batch = job["samples"][first : first + job["batch"]]
                    wanted: dict[int, list[int]] = {}
                    for film, start in batch:
                        wanted.setdefault(film, []).extend(range(start, start + job["span"]))
                    list(pool.map(read, wanted, wanted.values()))
                    yield len(batch)

            return epoch

        return build

    return side


def torchcodec_read(job: Job) -> Read:
    from torchcodec.decoders import VideoDecoder

    decoders = [VideoDecoder(path, num_ffmpeg_threads=1, dimension_order="NHWC") for path in job["paths"]]
    return lambda film, numbers: decoders[film].get_frames_at(numbers).data


def decord_read(job: Job) -> Read:
    import decord

    readers = [decord.VideoReader(path, num_threads=1) for path in job["paths"]]
    return lambda film, numbers: readers[film].get_batch(numbers).asnumpy()


def lance_read(job: Job) -> Read:
    import lance
    import pyarrow as pa
    from torchcodec.decoders import VideoDecoder

    field = pa.field("video", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    films = [Path(path).read_bytes() for path in job["paths"]]
    table = pa.table([pa.array(films, pa.large_binary())], schema=pa.schema([field]))
    dataset = lance.write_dataset(table, job["scratch"], mode="overwrite")
    blobs = dataset.take_blobs("video", indices=list(range(len(films))))
    decoders = [VideoDecoder(blob, num_ffmpeg_threads=1, dimension_order="NHWC") for blob in blobs]
    return lambda film, numbers: decoders[film].get_frames_at(numbers).data


def pyav_read(job: Job) -> Read:
    import av
    import numpy as np

    def read(film: int, numbers: list[int]) -> Any:
        images = {}
        with av.open(job["paths"][film]) as container:
            stream = container.streams.video[0]
            stream.codec_context.thread_count = 1
            unit = 1 / (job["fps"] * stream.time_base)
            last, flow = None, container.decode(stream)
            for number in sorted(set(numbers)):
                # On from the frame before where that is near, else from a keyframe.
                if last is None or not 0 < number - last <= 2:
                    container.seek(round(number * unit), stream=stream)
                    flow = container.decode(stream)
                for frame in flow:
                    last = round(frame.pts / unit)
                    if last >= number:
                        images[number] = frame.to_ndarray(format="rgb24")
                        break
        return np.stack([images[number] for number in numbers])

    return read


if __name__ == "__main__":
    import sys

    _sides.SIDES = {
        "batchplant": batchplant_side,
        "torchcodec": by_threads(torchcodec_read),
        "PyAV": by_threads(pyav_read),
        "decord": by_threads(decord_read),
        "Lance": by_threads(lance_read),
    }
    _sides.main(*sys.argv[1:])
