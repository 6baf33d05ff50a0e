"""PyTorch: batches as tensors, ops on tensors, a DataLoader's face, ranks; on a GPU where there is one."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pickle
import socket
import subprocess
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant as bp
import processes
from batchplant import ops
from batchplant.errors import OptionError
from batchplant.loading.loader import Loader
from batchplant.loading.plan import Pipe, make_plan
from batchplant.ops import Draws, Spec
from loaders import (
    PATIENCE,
    checksum,
    ids_of,
    leaves_nothing,
    numbers,
    pixels,
    write,
    write_jpeg,
    write_raw,
)

torch = pytest.importorskip("torch")
interop = pytest.importorskip("batchplant.interop.torch")

nothing_left_behind = pytest.fixture(autouse=True)(leaves_nothing)

MEAN, STD = [120.0, 115.0, 100.0], [60.0, 55.0, 50.0]
AUGMENT = [
    ops.RandomResizedCrop(10),
    ops.RandomHorizontalFlip(),
    ops.ColorJitter(0.4, 0.4),
    ops.ChannelsFirst(),
]
HAS_CUDA = torch.cuda.is_available()
# Each device is tried by the same tests.
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not HAS_CUDA, reason="there is no CUDA device")]
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("torch")


@pytest.fixture(scope="module")
def raw(folder):
    return write_raw(folder / "raw.beton")


@pytest.fixture(scope="module")
def jpeg(folder):
    return write_jpeg(folder / "jpeg.beton", 23)


@pytest.fixture(scope="module")
def plain(folder):
    return numbers(folder / "plain.npz")


def as_numpy(batches: Any) -> list[dict[str, Any]]:
    return [
        {name: np.asarray(torch.as_tensor(value).cpu()) for name, value in batch.items()} for batch in batches
    ]


def run(op: ops.Op, batch: Any) -> Any:
    ids = np.arange(len(batch))
    return op.run(batch, ids, Draws(0, 0, ids, "op"))


def run_script(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return processes.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


# -- arrays as tensors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int16", "int64", "float16", "float32", "uint32", "complex64"]
)
def test_arrays_and_tensors_share_memory(dtype):
    array = np.arange(6).astype(dtype).reshape(2, 3)
    tensor = interop.as_tensor(array)
    assert tensor.dtype == interop.torch_dtype(dtype)
    assert interop.numpy_dtype(tensor.dtype) == array.dtype
    array[0, 0] = 1
    assert tensor[0, 0].item() == 1


def test_what_cannot_be_shared_is_copied_in_silence():
    fixed = np.arange(6)
    fixed.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert interop.as_tensor(fixed).tolist() == list(range(6))
        assert interop.as_tensor(np.arange(6)[::-1]).tolist() == list(range(6))[::-1]
        assert interop.as_tensor(np.arange(6).reshape(2, 3)[:, ::2]).tolist() == [[0, 2], [3, 5]]


def test_what_torch_has_no_type_for_stays():
    times = np.array(["2020-01-01"], dtype="datetime64[ms]")
    assert interop.as_tensor(times) is times
    words = ["a", "b"]
    assert interop.as_tensor(words) is words


def test_what_is_inside_tuples_and_lists():
    values, offsets = interop.as_tensor((np.arange(3.0), np.array([0, 1, 3])))
    assert values.tolist() == [0, 1, 2]
    assert offsets.tolist() == [0, 1, 3]
    several = interop.as_tensor([np.zeros((1, 2)), None, np.zeros((3, 0))])
    assert [None if item is None else tuple(item.shape) for item in several] == [(1, 2), None, (3, 0)]


def test_names_of_dtypes():
    assert interop.numpy_dtype(torch.bfloat16) is None
    assert interop.numpy_dtype("float32") == np.float32
    assert interop.torch_dtype(torch.int8) is torch.int8


# -- batches on a device ------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_tensors_hold_what_arrays_hold(jpeg, device):
    how: dict[str, Any] = {"order": "random", "ids": True, "pipelines": {"image": AUGMENT}}
    arrays, tensors = Loader(jpeg, 4, **how), Loader(jpeg, 4, device=device, **how)
    for _ in range(2):
        batches = list(tensors)
        for batch in batches:
            assert batch["image"].device.type == batch["label"].device.type == device
            assert batch["image"].is_contiguous()
            assert isinstance(batch["ids"], torch.Tensor)
        assert checksum(as_numpy(batches)) == checksum(arrays)


@pytest.mark.parametrize("device", DEVICES)
def test_every_kind_of_value(tmp_path, device):
    schema = {
        "ragged": bp.Tensor("float32", (None, 2)),
        "free": bp.Tensor("int64", (None, None)),
        "text": bp.Text(),
        "blob": bp.Bytes(),
        "time": bp.Tensor("datetime64[ms]", (1,)),
    }
    samples = [
        {
            "ragged": np.full((n, 2), n, np.float32),
            "free": np.full((n, 2 + n), n),
            "text": f"{n}",
            "blob": bytes([n]) * n,
            "time": np.array([n], dtype="datetime64[ms]"),
        }
        for n in range(3)
    ]
    [batch] = Loader(write(tmp_path / "data.npz", schema, samples), 3, device=device)
    values, offsets = batch["ragged"]
    assert values.device.type == offsets.device.type == device
    assert values.tolist() == [[1, 1], [2, 2], [2, 2]]
    assert offsets.tolist() == [0, 0, 1, 3]
    assert [tuple(item.shape) for item in batch["free"]] == [(0, 2), (1, 3), (2, 4)]
    assert {item.device.type for item in batch["free"]} == {device}
    assert batch["text"] == ["0", "1", "2"]
    assert batch["blob"][0].tolist() == [1, 2, 2]
    assert isinstance(batch["time"], np.ndarray)


@pytest.mark.parametrize("device", DEVICES)
def test_held_tensors_are_never_overwritten(raw, device):
    loader = Loader(raw, 3, order="random", ids=True, device=device, prefetch_batches=2)
    held: list[Any] = []
    views: list[Any] = []
    for _ in range(5):
        for batch in loader:
            held.append(batch)
            views.append((int(batch["ids"][0]), batch["image"][0].permute(2, 0, 1)))
            del batch
    for batch in held:
        assert np.array_equal(batch["image"].cpu(), [pixels(int(n)) for n in batch["ids"]])
    del held
    list(loader)
    for sample, view in views:
        assert np.array_equal(view.cpu(), pixels(sample).transpose(2, 0, 1))


def test_tensors_of_the_cpu_are_the_memory_that_was_decoded_into(raw):
    loader = Loader(raw, 4, device="cpu", prefetch_batches=2)
    addresses = {batch["image"].data_ptr() for _ in range(10) for batch in loader}
    assert len(addresses) <= 4


@pytest.mark.parametrize("device", DEVICES)
def test_resume_and_break(jpeg, device):
    how: dict[str, Any] = {"order": "random", "ids": True, "pipelines": {"image": AUGMENT}, "device": device}
    want = checksum(as_numpy(Loader(jpeg, 4, **how)))
    loader = Loader(jpeg, 4, **how)
    before = []
    for batch in loader:
        before.append(batch)
        if len(before) == 3:
            break
    other = Loader(jpeg, 5, workers=1, **how)
    other.load_state_dict(loader.state_dict())
    assert checksum(as_numpy([*before, *other])) == want


def test_wrong_devices(plain):
    with pytest.raises(OptionError, match="gpu"):
        Loader(plain, 4, device="gpu")
    if not HAS_CUDA:
        with pytest.raises(OptionError, match="there is no cuda:3 here: torch finds no CUDA device"):
            Loader(plain, 4, device="cuda:3")


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from batchplant.errors import MissingLibraryError
from batchplant.loading.loader import Loader
print(sum(len(batch["value"]) for batch in Loader(sys.argv[1], 4)))
path = sys.argv[1]
for use in (lambda: Loader(path, 4, device="cpu"), lambda: Loader(path, 4).as_iterable_dataset()):
    try:
        use()
    except MissingLibraryError as error:
        print(error)
"""


def test_without_torch_it_says_what_to_install(plain):
    done = run_script(WITHOUT_TORCH, plain)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["20", *["this needs PyTorch: pip install torch"] * 2]


# -- ops on tensors -----------------------------------------------------------------------------------------


def test_to_tensor_and_to_device():
    array = np.arange(6, dtype=np.int16)
    assert run(interop.ToTensor(), array).data_ptr() == array.ctypes.data
    moved = run(interop.ToDevice("cpu"), (array, np.array([0, 6])))
    assert [item.tolist() for item in moved] == [list(range(6)), [0, 6]]
    assert interop.ToDevice("cpu").infer(Spec(np.dtype(np.int16))).torch
    assert run(interop.ToDevice("cpu"), ["text"]) == ["text"]


@pytest.mark.parametrize("channels_last", [True, False])
def test_to_torch_image(channels_last):
    batch = np.stack([pixels(n) for n in range(3)])
    op = interop.ToTorchImage(channels_last)
    done = run(op, batch)
    assert op.infer(Spec(np.dtype(np.uint8), (12, 16, 3))).shape == (3, 12, 16)
    assert np.array_equal(done, batch.transpose(0, 3, 1, 2))
    assert (done.data_ptr() == batch.ctypes.data) == channels_last
    assert done.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


def test_to_torch_image_brings_half_floats_back():
    half = np.random.default_rng(1).random((2, 4, 5, 3)).astype(np.float16)
    done = run(interop.ToTorchImage(), half.view(np.int16))
    assert done.dtype == torch.float16
    assert np.array_equal(done, half.transpose(0, 3, 1, 2))
    assert interop.ToTorchImage().infer(Spec(np.dtype(np.int16), (4, 5, 3))).dtype == np.float16
    assert run(interop.ToTorchImage(convert_back_int16=False), half.view(np.int16)).dtype == torch.int16


@pytest.mark.parametrize("to", ["float16", torch.float16, np.float16])
def test_convert_takes_the_names_of_both(to):
    array = np.array([[1, 2], [3, 400]], np.int16)
    for batch in (array, torch.from_numpy(array)):
        converted = run(interop.Convert(to), batch)
        assert type(converted) is type(batch)
        assert np.array_equal(converted, array.astype(np.float16))
    assert interop.Convert(to).infer(Spec(np.dtype(np.int16), (2,), torch=True)) == Spec(
        np.dtype(np.float16), (2,), torch=True
    )
    values, _ = interop.Convert(to).run((array, np.array([0, 2])), np.arange(1), None)
    assert values.dtype == np.float16


def test_bfloat16_which_numpy_lacks(raw):
    steps = [ops.Decode(), interop.ToTensor(), interop.Convert(torch.bfloat16)]
    batch = next(iter(Loader(raw, 4, pipelines={"image": steps})))
    assert batch["image"].dtype == torch.bfloat16
    assert np.array_equal(batch["image"][2].float(), torch.from_numpy(pixels(2)).bfloat16().float())


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([interop.ToTensor(), ops.RandomGrayscale()], "needs images"),
        ([interop.ToTensor(), ops.ChannelsFirst()], "needs images"),
        ([ops.Convert(torch.bfloat16)], r"NumPy has no torch.bfloat16: put ToTensor\(\) before Convert"),
        ([ops.ChannelsFirst(), interop.ToTorchImage()], "ToTorchImage needs images"),
        ([interop.ToTorchImage(), interop.ToTorchImage()], "ToTorchImage needs images"),
        ([interop.ToTensor], r"write ToTensor\(\) with parentheses"),
        ([torch.nn.ReLU], r"write ReLU\(\) with parentheses"),
    ],
)
def test_wrong_order_of_steps(raw, steps, message):
    with pytest.raises(OptionError, match=message) as caught:
        make_plan(bp.open(raw), {"image": steps})
    assert caught.value.field == "image"


# -- modules and functions ----------------------------------------------------------------------------------


class _Scale(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, batch: Any) -> Any:
        return batch.float() * self.weight


def test_a_module_in_a_pipeline(raw):
    module = _Scale()
    pipelines = {"image": [module], "again": Pipe("image", [interop.ModuleWrapper(module)])}
    for batch in Loader(raw, 8, pipelines=pipelines, ids=True):
        want = 2.0 * np.stack([pixels(n) for n in batch["ids"]])
        for name in ("image", "again"):
            assert not batch[name].requires_grad
            assert np.array_equal(batch[name], want)


class _Fails(torch.nn.Module):
    def forward(self, batch: Any) -> Any:
        raise ZeroDivisionError("forward")


def test_an_exception_in_a_module(raw):
    with pytest.raises(ZeroDivisionError, match="forward") as caught:
        list(Loader(raw, 8, pipelines={"image": [_Fails()]}))
    assert "field 'image'" in caught.value.__notes__[0]


def test_a_function_of_tensors_with_draws_by_sample(raw):
    def noise(batch: Any, rng: Draws) -> Any:
        return batch.float() + torch.from_numpy(rng.uniform())[:, None, None, None]

    steps = [interop.ToTorchImage(), noise]
    result = [checksum(as_numpy(Loader(raw, size, pipelines={"image": steps}))) for size in (1, 7, 20)]
    assert len(set(result)) == 1


# -- DLPack -------------------------------------------------------------------------------------------------


def test_arrays_and_tensors_pass_through_dlpack(raw):
    for batch in Loader(raw, 4, ids=True):
        tensor = torch.from_dlpack(batch["image"])
        assert tensor.data_ptr() == batch["image"].ctypes.data
        assert np.array_equal(tensor, [pixels(n) for n in batch["ids"]])
    for batch in Loader(raw, 4, ids=True, device="cpu"):
        array = np.from_dlpack(batch["image"])
        assert array.ctypes.data == batch["image"].data_ptr()
        assert np.array_equal(array, [pixels(int(n)) for n in batch["ids"]])


# -- a DataLoader's face ------------------------------------------------------------------------------------


def test_as_an_iterable_dataset(raw):
    loader = Loader(raw, 6, order="random", ids=True)
    want = [ids_of(loader), ids_of(loader)]
    again = Loader(raw, 6, order="random", ids=True)
    dataset = again.as_iterable_dataset()
    assert isinstance(dataset, torch.utils.data.IterableDataset)
    feed = torch.utils.data.DataLoader(dataset, batch_size=None)
    assert len(feed) == len(dataset) == 4
    for epoch in want:
        batches = list(feed)
        assert ids_of(batches) == epoch
        for batch in batches:
            assert isinstance(batch["image"], torch.Tensor)
            assert np.array_equal(batch["image"], [pixels(int(n)) for n in batch["ids"]])


WORKERS = """
import json, sys
import torch
from batchplant.loading.loader import Loader
if __name__ == "__main__":
    path, start, *ways = sys.argv[1:]
    everything = []
    for persistent in ways:
        loader = Loader(path, 3, order="random", ids=True, workers=1, indices=range(19))
        dataset = loader.as_iterable_dataset()
        how = {"num_workers": 2, "multiprocessing_context": start, "persistent_workers": persistent == "True"}
        feed = torch.utils.data.DataLoader(dataset, batch_size=None, **how)
        found = [[batch["ids"].tolist() for batch in feed] for _ in range(2)]
        if persistent == "False":
            loader.load_state_dict({**loader.state_dict(), "epoch": 1, "position": 9})
            found += [[batch["ids"].tolist() for batch in feed] for _ in range(2)]
        everything.append(found)
    print(json.dumps(everything))
"""


@pytest.mark.parametrize(
    ("start", "ways"),
    [("fork", [False, True]), pytest.param("spawn", [True], marks=pytest.mark.exhaustive)],
)
def test_worker_processes_make_the_batches_in_turn(plain, tmp_path, start, ways):
    """In the order of one process, epoch after epoch, and after a resume."""
    # What is spawned imports the script.
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    done = processes.run(
        [sys.executable, "-W", "ignore", str(script), plain, start, *map(str, ways)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    alone = Loader(plain, 3, order="random", ids=True, indices=range(19))
    want = [[batch["ids"].tolist() for batch in alone] for _ in range(3)]
    for persistent, load in zip(ways, json.loads(done.stdout), strict=True):
        assert load == [*want[:2], *([] if persistent else [want[1][3:], want[2]])]


def test_the_parts_of_workers_on_every_rank(plain):
    for workers, world_size in ((1, 1), (2, 2), (9, 1)):
        result = []
        for rank in range(world_size):
            loader = Loader(plain, 3, order="random", ids=True)
            alone = [
                batch["ids"].tolist()
                for batch in Loader(plain, 3, order="random", ids=True, rank=rank, world_size=world_size)
            ]
            parts = [
                list(loader.part(number, workers, rank=rank, world_size=world_size))
                for number in range(workers)
            ]
            turns = [
                part[turn]["ids"].tolist() for turn in range(len(alone)) for part in parts if turn < len(part)
            ]
            assert turns == alone
            result += itertools.chain(*alone)
        assert sorted(result) == list(range(20))


def test_batches_for_a_device_are_not_made_in_workers(plain):
    loader = Loader(plain, 4, device="cpu")
    assert len(list(loader.part(0, 2, rank=0, world_size=1))) == 3
    loader._delivery.elsewhere = True
    with pytest.raises(OptionError, match="use num_workers=0"):
        loader.part(0, 2, rank=0, world_size=1)


def test_as_a_data_loader(raw):
    loader = Loader(raw, 6, order="random", ids=True)
    feed = loader.as_data_loader(pin_memory=False)
    assert isinstance(feed, torch.utils.data.DataLoader)
    assert len(feed) == 4
    batches = list(feed)
    assert ids_of(batches) == ids_of(Loader(raw, 6, order="random", ids=True))
    assert isinstance(batches[0]["image"], torch.Tensor)


def test_worker_processes_make_no_batches_of_a_recorded_run(raw, tmp_path):
    loader = Loader(raw, 6, record=tmp_path / "run.bprun")
    with pytest.raises(OptionError, match="use num_workers=0"):
        loader.as_data_loader(num_workers=1)
    assert len(list(loader.as_data_loader())) == loader.steps == 4
    dataset = pickle.loads(pickle.dumps(loader.as_iterable_dataset()))
    with pytest.raises(OptionError, match="use num_workers=0"):
        dataset.check_workers(2)


class _Accelerated:
    """What Accelerate has that we look at."""

    active_dataloader: Any = None

    def __call__(self) -> Any:
        return self


def test_batches_that_somebody_would_split_again_are_refused(plain, monkeypatch):
    """Accelerate takes what a DataLoader gives on one process for the whole, and deals it out."""
    state = types.ModuleType("accelerate.state")
    state.GradientState = gradient = _Accelerated()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "accelerate.state", state)
    loader = Loader(plain, 4, rank=0, world_size=2)
    dataset = loader.as_iterable_dataset()
    wrapped = types.SimpleNamespace(dataset=dataset)
    for held in (dataset, wrapped):
        gradient.active_dataloader = types.SimpleNamespace(dataset=held)
        for use in (lambda: iter(dataset), lambda: pickle.dumps(dataset)):
            with pytest.raises(OptionError, match="pass prepare\\(\\) the Loader itself"):
                use()
        assert len(list(loader)) == 3
        # Of one process there is nothing to split.
        other = Loader(plain, 4).as_iterable_dataset()
        gradient.active_dataloader = types.SimpleNamespace(dataset=other)
        assert len(list(other)) == 5
        assert len(list(dataset)) == 3


# -- other people's loops; skipped where they are not installed ---------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_jax_takes_batches_through_dlpack(raw):
    jax = pytest.importorskip("jax")
    for batch in Loader(raw, 4, ids=True):
        taken = jax.numpy.from_dlpack(batch["image"])
        assert np.array_equal(np.asarray(taken), [pixels(n) for n in batch["ids"]])
        assert int(taken.astype("int32").sum()) == int(batch["image"].sum(dtype=np.int64))


@pytest.mark.filterwarnings("ignore")
def test_accelerate_prepares_it(raw):
    accelerate = pytest.importorskip("accelerate")
    feed = torch.utils.data.DataLoader(Loader(raw, 6, ids=True).as_iterable_dataset(), batch_size=None)
    prepared = accelerate.Accelerator(cpu=True).prepare(feed)
    for _ in range(2):
        batches = list(prepared)
        assert ids_of(batches) == list(range(20))
        assert np.array_equal(
            torch.cat([batch["image"] for batch in batches]), [pixels(n) for n in range(20)]
        )


def launch(tmp_path: Path, script: str, *arguments: str, **environment: str) -> list[Any]:
    """Run a script, which starts a second process or is started twice, and what each has written.

    It stands in a file, for what is spawned imports it. Nothing but the loopback is used.
    """
    path, out = tmp_path / "launched.py", tmp_path / "out"
    path.write_text(script)
    out.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    usual = {
        name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    }
    usual |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    each: list[dict[str, str]] = [{}]
    if environment:
        each = [{name: value.format(rank=rank) for name, value in environment.items()} for rank in range(2)]
    command = [sys.executable, "-W", "ignore", str(path), str(out), *arguments]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(processes.start(command, env={**usual, **item}, **pipes)) for item in each
        ]
        output = [process.communicate(timeout=PATIENCE)[0] for process in started]
    assert [process.returncode for process in started] == [0] * len(started), output
    return [json.loads(path.read_text()) for path in sorted(out.iterdir())]


def assert_dealt_out(found: list[Any], samples: int, epochs: int = 2) -> None:
    """Each process wrote its batches of every epoch: every sample is there once."""
    assert len(found) == 2
    for epoch in range(epochs):
        batches = [item[epoch] for item in found]
        assert len({len(batch) for batch in batches}) == 1
        assert sorted(itertools.chain(*itertools.chain(*batches))) == list(range(samples))
    assert found[0][0] != found[0][1]


LIGHTNING = """
import json, sys
import torch
import pytorch_lightning as lightning
from batchplant.loading.loader import Loader

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), [[], []]

    def training_step(self, batch, index):
        self.seen[self.current_epoch].append(batch["ids"].tolist())
        return self.layer(batch["value"].float()[:, None]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_train_end(self):
        assert self.trainer.num_training_batches == len(self.seen[0])
        with open(f"{sys.argv[1]}/{self.global_rank}", "w") as file:
            json.dump(self.seen, file)

if __name__ == "__main__":
    out, path, strategy = sys.argv[1:]
    loader = Loader(path, 4, order="random", ids=True, device="cpu", workers=1)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", devices=2, strategy=strategy, **quiet)
    trainer.fit(Model(), loader)
"""


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("ddp_spawn", marks=pytest.mark.exhaustive)])
def test_lightning_starts_its_processes(tmp_path, strategy):
    """With ddp it runs the script once more for the second; with ddp_spawn it pickles the loader."""
    pytest.importorskip("pytorch_lightning")
    path = numbers(tmp_path / "data.npz", 21)
    assert_dealt_out(launch(tmp_path, LIGHTNING, path, strategy), 21)


ACCELERATE = """
import json, sys
import torch
from accelerate import Accelerator
from batchplant.errors import OptionError
from batchplant.loading.loader import Loader

out, path = sys.argv[1:]
accelerator = Accelerator(cpu=True)
loader = Loader(path, 4, order="random", ids=True, device=accelerator.device, workers=1)
model = accelerator.prepare(torch.nn.Linear(1, 1))
found = []
for feed in (loader, Loader(path, 4, order="random", ids=True, workers=1).as_data_loader()):
    prepared = accelerator.prepare(feed)
    assert prepared is feed
    epochs = []
    for _ in range(2):
        epochs.append([])
        for batch in prepared:
            accelerator.backward(model(batch["value"].float()[:, None]).mean())
            epochs[-1].append(batch["ids"].tolist())
    found.append(epochs)
assert found[0] == found[1]
split = accelerator.prepare(torch.utils.data.DataLoader(loader.as_iterable_dataset(), batch_size=None))
try:
    next(iter(split))
except OptionError as error:
    assert "once more" in str(error)
    with open(f"{out}/{accelerator.process_index}", "w") as file:
        json.dump(found[0], file)
"""


def test_accelerate_on_two_processes(tmp_path):
    pytest.importorskip("accelerate")
    path = numbers(tmp_path / "data.npz", 101)
    ranks = {"RANK": "{rank}", "LOCAL_RANK": "{rank}", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    assert_dealt_out(launch(tmp_path, ACCELERATE, path, **ranks), 101)


@pytest.mark.filterwarnings("ignore")
def test_lightning_trains_on_it(raw):
    lightning = pytest.importorskip("pytorch_lightning")
    seen: list[int] = []

    class Model(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            seen.extend(batch["ids"].tolist())
            return self.layer(batch["image"].float().mean(dim=(1, 2)) / 255).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    loader = Loader(raw, 6, order="random", ids=True, device="cpu")
    lightning.Trainer(max_epochs=2, accelerator="cpu", **quiet).fit(Model(), loader)
    again = Loader(raw, 6, order="random", ids=True)
    assert seen == [*ids_of(again), *ids_of(again)]


# -- ranks --------------------------------------------------------------------------------------------------


@pytest.fixture
def group(tmp_path, monkeypatch):
    """A process group of this process alone."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield distributed
    distributed.destroy_process_group()


def test_rank_and_world_of_the_process_group(plain, group, monkeypatch):
    # It knows better than the environment, and the caller better than it.
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    loader = Loader(plain, 4)
    assert (loader.rank, loader.world_size) == (0, 1)
    loader = Loader(plain, 4, rank=1, world_size=2)
    assert (loader.rank, loader.world_size) == (1, 2)
    monkeypatch.setattr(group, "get_rank", lambda: 1)
    monkeypatch.setattr(group, "get_world_size", lambda: 3)
    loader = Loader(plain, 4)
    assert (loader.rank, loader.world_size) == (1, 3)
    assert ids_of(loader, "value") == ids_of(Loader(plain, 4, rank=1, world_size=3), "value")


def test_the_environment_counts_without_a_process_group(plain, monkeypatch):
    assert not torch.distributed.is_initialized()
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    loader = Loader(plain, 4)
    assert (loader.rank, loader.world_size) == (3, 4)


GROUP = """
import json, os, sys
import torch
from batchplant.loading.loader import Loader

out, path = sys.argv[1:]
# As a trainer does: the loader is there before the group, and the environment names no rank.
loader = Loader(path, 4, order="random", ids=True, workers=1)
rank = int(os.environ.pop("OUR_RANK"))
os.environ["WORLD_SIZE"] = "2"
torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
found = []
for feed in (loader, loader.as_data_loader(num_workers=2, multiprocessing_context="fork")):
    for _ in range(2):
        found.append([batch["ids"].tolist() for batch in feed])
        assert len(found[-1]) == len(feed) == len(loader)
# The workers went on from where the loader was.
gathered = [None, None]
torch.distributed.all_gather_object(gathered, [len(epoch) for epoch in found])
assert gathered[0] == gathered[1]
with open(f"{out}/{rank}", "w") as file:
    json.dump(found, file)
torch.distributed.destroy_process_group()
"""


@pytest.mark.exhaustive
def test_two_processes_of_a_group_that_came_after_the_loader(tmp_path):
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    path = numbers(tmp_path / "data.npz", 21)
    assert_dealt_out(launch(tmp_path, GROUP, path, OUR_RANK="{rank}"), 21, epochs=4)


SPAWN = """
import json, os, sys
import torch
from batchplant.loading.loader import Loader

def work(rank, out, loader):
    os.environ["LOCAL_RANK"] = str(rank)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    found = [[batch["ids"].tolist() for batch in loader] for _ in range(2)]
    with open(f"{out}/{rank}", "w") as file:
        json.dump(found, file)
    torch.distributed.destroy_process_group()

if __name__ == "__main__":
    out, path = sys.argv[1:]
    loader = Loader(path, 4, order="random", ids=True, device="cpu", workers=1)
    torch.multiprocessing.start_processes(work, (out, loader), nprocs=2, start_method="spawn")
"""


@pytest.mark.exhaustive
def test_a_loader_is_pickled_to_processes_that_are_spawned(tmp_path):
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    path = numbers(tmp_path / "data.npz", 21)
    assert_dealt_out(launch(tmp_path, SPAWN, path), 21)


# -- only on a GPU ------------------------------------------------------------------------------------------

gpu = [pytest.mark.gpu, pytest.mark.skipif(not HAS_CUDA, reason="there is no CUDA device")]


class TestGpu:
    pytestmark = gpu

    def test_batches_are_made_in_pinned_memory(self, raw):
        loader = Loader(raw, 4, device="cuda")
        memory = loader._executor.on_cpu.buffers.take((1000,), np.dtype(np.uint8))
        assert torch.from_numpy(memory).is_pinned()

    def test_pinned_memory_is_not_filled_again_before_it_was_copied(self, tmp_path):
        """The copies wait behind long work on the stream that they go by; the host runs far ahead."""
        path = write_raw(tmp_path / "large.beton", 64, 128, 128)
        loader = Loader(path, 16, device="cuda", prefetch_batches=1, ids=True)
        busy = torch.randn(4096, 4096, device="cuda")
        stream = loader._delivery.stream  # type: ignore[union-attr]
        sums = []
        for _ in range(8):
            for batch in loader:
                with torch.cuda.stream(stream):
                    for _ in range(4):
                        busy = busy @ busy / 4096
                sums.append((batch["ids"].tolist(), batch["image"].sum(dim=(1, 2, 3), dtype=torch.int64)))
                del batch
        for samples, total in sums:
            want = [int(pixels(n, 128, 128).sum(dtype=np.int64)) for n in samples]
            assert total.tolist() == want

    def test_the_stream_of_the_caller_waits(self, raw):
        loader = Loader(raw, 4, device="cuda", ids=True)
        with torch.cuda.stream(torch.cuda.Stream()):
            for batch in loader:
                result = batch["image"].clone()
                torch.cuda.current_stream().synchronize()
                assert np.array_equal(result.cpu(), [pixels(int(n)) for n in batch["ids"]])

    def test_copying_is_counted(self, raw):
        loader = Loader(raw, 4, device="cuda")
        list(loader)
        assert loader.stats()["device"] > 0

    def test_to_device_and_modules(self, raw):
        steps = [interop.ToTorchImage(), interop.ToDevice("cuda"), _Scale().cuda()]
        for batch in Loader(raw, 4, pipelines={"image": steps}, ids=True):
            want = 2.0 * np.stack([pixels(n) for n in batch["ids"]]).transpose(0, 3, 1, 2)
            assert batch["image"].is_cuda
            assert np.array_equal(batch["image"].cpu(), want)


# --- samples as a torch dataset -----------------------------------------------------------------------


def _tables(tmp_path):
    schema = {
        "n": bp.Int("int16"), "x": bp.Float("float32"), "ok": bp.Bool(), "v": bp.Tensor("float64", (2,)),
        "one": bp.Tensor("float32"), "t": bp.Text(), "image": bp.Image(),
    }  # fmt: skip
    with bp.create(tmp_path / "a.npz", schema) as out:
        for row in range(10):
            numbers = {
                "n": row,
                "x": row / 3,
                "ok": row % 2 == 0,
                "v": np.full(2, row),
                "one": np.float32(row),
            }
            out.append({**numbers, "t": f"text {row}", "image": pixels(row)})
    return bp.open(tmp_path / "a.npz")


def test_samples_as_tensors(tmp_path):
    dataset = _tables(tmp_path).to_torch()
    assert len(dataset) == 10
    sample = dataset[-1]
    assert sample["n"].dtype == torch.int16
    assert sample["x"].dtype == torch.float32
    assert sample["ok"].dtype == torch.bool
    assert (int(sample["n"]), bool(sample["ok"]), sample["v"].tolist()) == (9, False, [9.0, 9.0])
    assert (sample["one"].shape, float(sample["one"])) == ((), 9.0)
    assert sample["t"] == "text 9"
    assert np.array_equal(sample["image"], pixels(9))
    with pytest.raises(IndexError):
        dataset[10]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_over_samples(workers, tmp_path):
    reader = _tables(tmp_path)
    read = []
    if not workers:
        plain = reader._read
        reader._read = lambda indices, fields: read.append(len(indices)) or plain(indices, fields)
    dataset = reader.to_torch(["n", "v", "t"])
    batches = list(torch.utils.data.DataLoader(dataset, batch_size=4, num_workers=workers))
    assert [batch["n"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert batches[0]["v"].shape == (4, 2)
    assert batches[2]["t"] == ["text 8", "text 9"]
    assert read == ([] if workers else [4, 4, 2]), "a batch is read at once"


def test_a_damaged_sample_of_a_torch_dataset_is_named(tmp_path):
    with bp.create(tmp_path / "a.npz", {"j": bp.Json()}) as out:
        out.append({"j": [1, 2, 3]})
        out.append({"j": [4, 5, 6]})
    data = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(data.replace(b"[4, 5, 6]", b"[4, 5, 6}"))
    with pytest.raises(bp.DecodeError, match=r"a\.npz, sample 1, field 'j'"):
        bp.open(tmp_path / "a.npz").to_torch()[1]
