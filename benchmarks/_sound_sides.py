"""One side of the benchmark of sound and clips, in a process of its own: `python _sound_sides.py NAME JOB`.

It runs in any interpreter and imports what its side needs, nothing else. It says what it is once it is warm,
then works once for every line on standard input and answers with the seconds.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

Work = Callable[[], Any]


def batchplant_mel(job: dict[str, Any]) -> Work:
    from batchplant import ops
    from batchplant.ops import Draws

    op = ops.MelSpectrogram(job["rate"], **job["mel"], workers=job["threads"])
    sounds, ids = np.load(job["sounds"]), np.arange(job["count"])
    return lambda: op.run(sounds, ids, Draws(0, 0, ids, "mel"))


def librosa_mel(job: dict[str, Any]) -> Work:
    import librosa

    sounds, mel = np.load(job["sounds"]), job["mel"]
    pool = ThreadPoolExecutor(job["threads"])

    def one(sound: Any) -> Any:
        return librosa.feature.melspectrogram(
            y=sound, sr=job["rate"], n_fft=mel["n_fft"], hop_length=mel["hop_length"], n_mels=mel["n_mels"],
            htk=True, norm=None, pad_mode="reflect",
        )  # fmt: skip

    return lambda: np.stack(list(pool.map(one, sounds)))


def torch_mel(job: dict[str, Any]) -> Work:
    """The same tensor functions that torchaudio's transform calls."""
    import torch

    torch.set_num_threads(job["threads"])
    sounds, mel = torch.from_numpy(np.load(job["sounds"])), job["mel"]
    window = torch.hann_window(mel["n_fft"])
    filters = torch.from_numpy(np.load(job["filters"]))

    def work() -> Any:
        spectra = torch.stft(sounds, mel["n_fft"], mel["hop_length"], window=window, return_complex=True)
        return torch.matmul(spectra.abs().pow(2.0).transpose(-1, -2), filters).transpose(-1, -2).numpy()

    return work


def torchaudio_mel(job: dict[str, Any]) -> Work:
    import torch
    import torchaudio

    torch.set_num_threads(job["threads"])
    transform = torchaudio.transforms.MelSpectrogram(job["rate"], **job["mel"])
    sounds = torch.from_numpy(np.load(job["sounds"]))
    return lambda: transform(sounds).numpy()


def batchplant_clips(job: dict[str, Any]) -> Work:
    from batchplant import ops
    from batchplant.loading.loader import Loader

    pipeline = [
        ops.DecodeVideo(job["frames"], stride=job["stride"]),
        ops.RandomResizedCrop(job["size"]),
        ops.RandomHorizontalFlip(),
    ]
    loader = Loader(
        job["dataset"], job["batch"], order="random", pipelines={"video": pipeline}, workers=job["threads"]
    )
    return lambda: sum(len(batch["video"]) for batch in loader)


class Films:
    """Clips as a torch dataset: from the keyframe before a random place, cropped and resized by torch."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job

    def __len__(self) -> int:
        return len(self.job["files"])

    def __getitem__(self, index: int) -> Any:
        import torch

        job, rng = self.job, np.random.default_rng()
        frames = torch.from_numpy(np.stack(list(self._frames(job["files"][index], rng)))).permute(0, 3, 1, 2)
        height, width = frames.shape[2:]
        area, aspect = (
            height * width * rng.uniform(0.08, 1.0),
            np.exp(rng.uniform(np.log(0.75), np.log(4 / 3))),
        )
        wide = min(width, max(1, round(np.sqrt(area * aspect))))
        high = min(height, max(1, round(np.sqrt(area / aspect))))
        top, left = rng.integers(height - high + 1), rng.integers(width - wide + 1)
        cut = frames[:, :, top : top + high, left : left + wide].float()
        size = (job["size"], job["size"])
        result = torch.nn.functional.interpolate(cut, size, mode="bilinear", antialias=True)
        result = result.round_().clamp_(0, 255).to(torch.uint8)
        return result.flip(3) if rng.random() < 0.5 else result

    def _frames(self, path: str, rng: Any) -> Iterator[Any]:
        import av

        job = self.job
        span = (job["frames"] - 1) * job["stride"] + 1
        with av.open(path) as container:
            stream = container.streams.video[0]
            stream.thread_count = 1
            rate, base = stream.average_rate, stream.time_base
            first = int(rng.integers(stream.frames - span + 1))
            container.seek(int(first / rate / base), stream=stream)
            written = 0
            for frame in container.decode(stream):
                number = round(float(frame.pts * base) * rate) - first
                if number >= 0 and number % job["stride"] == 0:
                    yield frame.to_ndarray(format="rgb24")
                    written += 1
                if written == job["frames"]:
                    return


def pyav_clips(job: dict[str, Any]) -> Work:
    import av  # noqa: F401
    import torch

    torch.set_num_threads(1)
    loader = torch.utils.data.DataLoader(
        Films(job), job["batch"], shuffle=True, num_workers=job["threads"], persistent_workers=True
    )
    return lambda: sum(len(batch) for batch in loader)


SIDES: dict[str, tuple[Callable[[dict[str, Any]], Work], str]] = {
    "mel: batchplant": (batchplant_mel, "batchplant"),
    "mel: librosa": (librosa_mel, "librosa"),
    "mel: torch.stft": (torch_mel, "torch"),
    "mel: torchaudio": (torchaudio_mel, "torchaudio"),
    "clips: batchplant": (batchplant_clips, "batchplant"),
    "clips: PyAV + torch": (pyav_clips, "av"),
}


def main() -> None:
    make, library = SIDES[sys.argv[1]]
    work = make(json.loads(sys.argv[2]))
    result = work()
    if isinstance(result, np.ndarray):
        np.save(json.loads(sys.argv[2])["result"], result)
    print(json.dumps({"version": importlib.metadata.version(library)}), flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        work()
        print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main()
