"""Other people's training loops: Lightning, Accelerate, the Hugging Face Trainer, JAX, Keras.

Each runs in processes of its own, for they do not like each other's company; one that is not installed is
skipped. test_torch.py has Lightning and Accelerate on two processes.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import pickle
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant as bp
import processes
from batchplant.errors import MissingLibraryError, OptionError
from batchplant.loading.loader import Loader
from batchplant.ops.parallel import Threads
from batchplant.order import default_threads
from loaders import leaves_nothing, numbers, write_jpeg
from pages import FRAMEWORKS, load_script
from repository import ROOT, SUPPORT

nothing_left_behind = pytest.fixture(autouse=True)(leaves_nothing)
NEEDS = {
    "lightning": "torch lightning",
    "accelerate": "torch accelerate",
    "hf-trainer": "torch transformers accelerate",
    "jax": "jax",
    "keras": "keras",
}
BACKENDS = ("torch", "jax", "tensorflow")


def needs(modules: str) -> None:
    for module in modules.split():
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


def environment(**more: str) -> dict[str, str]:
    """No ranks of another launcher, few threads, nothing but the loopback, nothing from the network."""
    usual = {name: value for name, value in os.environ.items() if not name.endswith(("RANK", "WORLD_SIZE"))}
    alone = {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "JAX_PLATFORMS": "cpu",
    }
    return {**usual, **alone, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", **more}


def run_script(script: str, *arguments: str, **how: Any) -> str:
    done = processes.run(
        [sys.executable, "-W", "ignore", "-c", script, *arguments], capture_output=True, text=True, **how
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return str(done.stdout)


# -- the guides ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frameworks") / "photos"
    load_script(ROOT / "demo" / "photos.py").make_folder(folder, 60, size=80)
    return folder


def run_page(name: str, photos: Path, tmp_path: Path, **more: str) -> None:
    (tmp_path / "photos").symlink_to(photos)
    page = ROOT / "docs" / "guides" / f"{name}.md"
    done = processes.run(
        [sys.executable, "-W", "ignore", SUPPORT / "pages.py", page],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(**more),
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def test_every_framework_has_a_page() -> None:
    assert tuple(NEEDS) == FRAMEWORKS


@pytest.mark.parametrize("name", [name for name in FRAMEWORKS if name != "keras"])
def test_the_page_runs(name: str, photos: Path, tmp_path: Path) -> None:
    needs(NEEDS[name])
    # So that sharding over devices has something to do.
    run_page(name, photos, tmp_path, XLA_FLAGS="--xla_force_host_platform_device_count=2")


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_page_of_keras_runs(backend: str, photos: Path, tmp_path: Path) -> None:
    needs(f"keras {backend}")
    run_page("keras", photos, tmp_path, KERAS_BACKEND=backend)


# -- Keras --------------------------------------------------------------------------------------------------

KERAS = """
import json, sys
import keras
import batchplant as bp

path = sys.argv[1]


class Total(keras.metrics.Metric):
    # The sum of the targets so far tells which samples were in each batch, for they are powers of two.
    def __init__(self, name="total"):
        super().__init__(name=name)
        self.sum = self.add_weight(name="sum", initializer="zeros")

    def update_state(self, targets, outputs, sample_weight=None):
        self.sum.assign(self.sum + keras.ops.sum(keras.ops.cast(targets, "float32")))

    def result(self):
        return self.sum + 0.0

    def reset_state(self):
        self.sum.assign(0.0)


class Seen(keras.callbacks.Callback):
    def __init__(self, loader):
        super().__init__()
        self.loader, self.totals, self.states = loader, [], []

    def on_epoch_begin(self, epoch, logs=None):
        self.totals.append([])

    def on_train_batch_end(self, batch, logs=None):
        self.totals[-1].append(int(logs["total"]))

    def on_epoch_end(self, epoch, logs=None):
        state = self.loader.state_dict()
        self.states.append([state["epoch"], state["position"]])


def make(**options):
    return bp.Loader(path, 4, order="random", seed=3, workers=1, **options)


def model():
    made = keras.Sequential([keras.layers.Reshape((1,)), keras.layers.Dense(1)])
    made.compile(optimizer=keras.optimizers.SGD(0.0), loss="mse", metrics=[Total()])
    return made


found = {"backend": keras.backend.backend()}
loader, valid, net = make(), make(), model()
seen = Seen(loader)
found["history"] = sorted(
    net.fit(
        loader.as_keras("value", "target"),
        validation_data=valid.as_keras("value", "target"),
        epochs=3, callbacks=[seen], verbose=0,
    ).history
)
found["totals"], found["states"], found["valid"] = seen.totals, seen.states, valid.state_dict()["epoch"]

# Resumed at the end of an epoch, and with the same data for a second call.
loader = make()
loader.load_state_dict({**loader.state_dict(), "epoch": 1})
data, seen = loader.as_keras("value", "target"), Seen(loader)
net = model()
net.fit(data, epochs=1, callbacks=[seen], verbose=0)
net.fit(data, epochs=1, callbacks=[seen], verbose=0)
found["resumed"] = seen.totals

# Resumed in the middle of one: the rest, then whole epochs.
loader = make()
loader.load_state_dict({**loader.state_dict(), "position": 8})
data, seen = loader.as_keras("value", "target"), Seen(loader)
net = model()
net.fit(data, epochs=1, callbacks=[seen], verbose=0)
net.fit(data, epochs=1, callbacks=[seen], verbose=0)
found["rest"] = seen.totals

# Steps that do not divide the epoch, a part of it for evaluation, inputs by name, weights.
loader, part = make(), make()
seen = Seen(loader)
net.fit(
    loader.as_keras("value", "target"), steps_per_epoch=3, epochs=2, callbacks=[seen], verbose=0,
    validation_data=part.as_keras("value", "target"), validation_steps=2,
)
found["steps"] = seen.totals
found["predicted"] = list(net.predict(make().as_keras("value"), verbose=0).shape)
several = keras.Input((), name="value")
named = keras.Model({"value": several}, keras.layers.Dense(1)(keras.layers.Reshape((1,))(several)))
named.compile(optimizer="sgd", loss="mse")
found["named"] = len(named.fit(make().as_keras(["value"], "target", "weight"), verbose=0).history)
print(json.dumps(found))
"""


def totals(batches: Any) -> list[int]:
    return np.cumsum([int(batch["target"].sum()) for batch in batches]).tolist()  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def powers(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("keras") / "data.npz")
    schema = {
        "value": bp.Float("float32"),
        "target": bp.Int(),
        "weight": bp.Float("float32"),
        "text": bp.Text(),
    }
    with bp.create(path, schema) as out:
        for n in range(21):
            out.append({"value": n, "target": 2**n, "weight": 1.0, "text": "a"})
    return path


@pytest.mark.parametrize("backend", BACKENDS)
def test_keras_fits_a_loader(powers: str, backend: str) -> None:
    """It peeks at batches, prefetches and counts; each epoch still has each batch once, in order."""
    needs(f"keras {backend}")
    answer = json.loads(run_script(KERAS, powers, env=environment(KERAS_BACKEND=backend)).splitlines()[-1])
    loader = Loader(powers, 4, order="random", seed=3)
    want = [totals(loader) for _ in range(3)]
    assert answer["backend"] == backend
    assert answer["history"] == ["loss", "total", "val_loss", "val_total"]
    assert answer["totals"] == want
    assert answer["states"] == [[1, 0], [2, 0], [3, 0]]
    assert answer["valid"] == 3
    assert answer["resumed"] == want[1:]
    rest = Loader(powers, 4, order="random", seed=3)
    rest.load_state_dict({**rest.state_dict(), "position": 8})
    assert answer["rest"] == [totals(rest), want[1]]
    # Keras goes on where the steps before ended.
    assert answer["steps"][0] == want[0][:3]
    assert answer["steps"][1] == (np.array(want[0][3:]) - want[0][2]).tolist()
    assert answer["predicted"] == [21, 1]
    assert answer["named"] == 1


WRONG = """
import sys
import batchplant as bp
from batchplant.errors import OptionError

loader = bp.Loader(sys.argv[1], 4, workers=1)
for arguments in (("colour",), ("value", None, "weight"), ("text",)):
    try:
        next(loader.as_keras(*arguments).get_numpy_iterator())
    except OptionError as error:
        print(error)
"""


def test_what_keras_cannot_take(powers: str) -> None:
    needs("keras torch")
    output = run_script(WRONG, powers, env=environment(KERAS_BACKEND="torch")).splitlines()
    assert output == [
        "the loader gives no 'colour', it gives target, text, value, weight",
        "weights are for targets: name these too",
        "field 'text': Keras needs an array, and 'text' is none in this batch: add a step that makes one",
    ]


def test_without_keras_it_says_what_to_install(powers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "batchplant.interop.keras", raising=False)
    monkeypatch.setitem(sys.modules, "keras", None)
    with pytest.raises(MissingLibraryError, match="pip install keras"):
        Loader(powers, 4).as_keras("value")


# -- Lightning ----------------------------------------------------------------------------------------------

LIGHTNING = """
import json, sys
import lightning, torch
import batchplant as bp

path, folder = sys.argv[1:]


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), []

    def training_step(self, batch, index):
        self.seen.append([self.current_epoch, index, batch["ids"].tolist()])
        return self.layer(batch["value"].float()[:, None]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train(*callbacks, **more):
    model, loader = Model(), bp.Loader(path, 4, order="random", ids=True, device="cpu", workers=1)
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(max_epochs=3, accelerator="cpu", callbacks=list(callbacks), **quiet)
    trainer.fit(model, loader, **more)
    return model.seen


save = lightning.pytorch.callbacks.ModelCheckpoint(
    dirpath=folder, filename="{step}", every_n_train_steps=4, save_top_k=-1
)
found = {"0": train(save)}
for step in (4, 8, 12):
    found[str(step)] = train(ckpt_path=f"{folder}/step={step}.ckpt")
print(json.dumps(found))
"""


def test_lightning_resumes_within_an_epoch(tmp_path: Path) -> None:
    """Its checkpoints hold the loader's state, and it counts the batches of a resumed epoch as a whole."""
    needs("torch lightning")
    path = numbers(tmp_path / "data.npz", 21)
    output = run_script(LIGHTNING, path, str(tmp_path / "saved"), cwd=tmp_path, env=environment())
    answer = json.loads(output.splitlines()[-1])
    assert len(answer["0"]) == 18
    for step in (4, 8, 12):
        assert answer[str(step)] == answer["0"][step:]


# -- the Hugging Face Trainer -------------------------------------------------------------------------------

TRAINER = """
import json, sys
import torch, transformers
import batchplant as bp

path, folder = sys.argv[1:]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), []

    def forward(self, value, labels=None):
        if self.training:
            self.seen.append(labels.tolist())
        out = self.layer(value.float()[:, None])[:, 0]
        return {"loss": (out - labels).mean(), "logits": out}


def train(resume=None, **more):
    loader = bp.Loader(path, 1, pipelines={"label": bp.Pipe("value", [])})
    args = transformers.TrainingArguments(
        folder, per_device_train_batch_size=4, num_train_epochs=2, save_steps=2, seed=5,
        use_cpu=True, report_to=[], disable_tqdm=True, **more,
    )
    model = Model()
    trainer = transformers.Trainer(model=model, args=args, train_dataset=loader.as_map_dataset())
    trainer.train(resume_from_checkpoint=resume)
    return [args.process_index, loader.threads, model.seen]


found = [train()]
if found[0][0] == 0 and len(found[0][2]) == 12:
    found += [train(f"{folder}/checkpoint-8"), train(dataloader_num_workers=1)]
print(json.dumps(found))
"""


def test_the_trainer_trains_and_resumes(tmp_path: Path) -> None:
    needs(NEEDS["hf-trainer"])
    path = numbers(tmp_path / "data.npz", 21)
    output = run_script(TRAINER, path, str(tmp_path / "saved"), cwd=tmp_path, env=environment())
    [whole, resumed, prefetched] = [seen for *_, seen in json.loads(output.splitlines()[-1])]
    assert len(whole) == 12
    for epoch in (whole[:6], whole[6:]):
        assert sorted(itertools.chain(*epoch)) == list(range(21))
    assert whole[:6] != whole[6:]
    assert resumed == whole[8:]
    assert prefetched == whole


def test_the_trainer_on_two_processes(tmp_path: Path) -> None:
    """It deals the samples out; the loaders share the cores."""
    needs(NEEDS["hf-trainer"])
    path = numbers(tmp_path / "data.npz", 24)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    # A shell gives each process its rank.
    command = f'RANK=$0 LOCAL_RANK=$0 {sys.executable} -W ignore -c "$1" "$2" "$3"'
    done = processes.run_together(
        *(["sh", "-c", command, str(rank), TRAINER, path, str(tmp_path / "saved")] for rank in range(2)),
        stdout=-1,
        stderr=-1,
        text=True,
        env=environment(**group, LOCAL_WORLD_SIZE="2"),
    )
    assert [item.returncode for item in done] == [0, 0], [item.stderr[-3000:] for item in done]
    ranks = [json.loads(item.stdout.splitlines()[-1])[0] for item in done]
    assert sorted(rank for rank, *_ in ranks) == [0, 1]
    assert {threads for _, threads, _ in ranks} == {max(1, len(os.sched_getaffinity(0)) // 2)}
    for epoch in (slice(0, 3), slice(3, 6)):
        batches = [batch for *_, seen in ranks for batch in seen[epoch]]
        assert sorted(itertools.chain(*batches)) == list(range(24))


# -- map-style datasets -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def jpeg(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_jpeg(tmp_path_factory.mktemp("map") / "jpeg.beton", 10)


def augmented(jpeg: str, **options: Any) -> Loader:
    steps = [bp.ops.RandomResizedCrop(8), bp.ops.RandomHorizontalFlip()]
    return Loader(jpeg, 4, pipelines={"image": steps}, seed=2, workers=2, **options)


def test_a_map_dataset_has_the_loaders_samples(jpeg: str) -> None:
    needs("torch")
    loader = augmented(jpeg)
    dataset = loader.as_map_dataset()
    assert len(dataset) == 10
    for epoch in range(2):
        dataset.set_epoch(epoch)
        want = [(image, label) for batch in loader for image, label in zip(*batch.values(), strict=True)]
        result = dataset.__getitems__([3, 9, 0, 3])
        for sample, number in zip(result, [3, 9, 0, 3], strict=True):
            assert np.array_equal(sample["image"], want[number][0])
            assert int(sample["label"]) == want[number][1] == number
        assert np.array_equal(dataset[7]["image"], want[7][0])
    assert sum(1 for _ in dataset) == 10
    with pytest.raises(IndexError, match="0 to 9"):
        dataset[10]
    loader.close()


def test_a_map_dataset_of_some_samples(jpeg: str) -> None:
    needs("torch")
    dataset = augmented(jpeg, indices=[8, 2, 5]).as_map_dataset()
    assert [int(sample["label"]) for sample in dataset] == [8, 2, 5]


def test_a_map_dataset_of_values_of_varying_length(tmp_path: Path) -> None:
    needs("torch")
    path = str(tmp_path / "data.npz")
    with bp.create(path, {"points": bp.Tensor("float32", (None, 2)), "text": bp.Text()}) as out:
        for n in range(4):
            out.append({"points": np.full((n, 2), n, np.float32), "text": str(n)})
    dataset = Loader(path, 1).as_map_dataset()
    assert [
        (tuple(getitem["points"].shape), getitem["text"]) for getitem in dataset.__getitems__([3, 0, 2])
    ] == [
        ((3, 2), "3"),
        ((0, 2), "0"),
        ((2, 2), "2"),
    ]


WORKERS = """
import sys
import torch
import batchplant as bp

if __name__ == "__main__":
    steps = [bp.ops.RandomResizedCrop(8)]
    dataset = bp.Loader(sys.argv[1], 1, pipelines={"image": steps}, workers=2).as_map_dataset()
    want = [sample["image"] for sample in dataset]
    how = {"num_workers": 2, "multiprocessing_context": sys.argv[2]}
    feed = torch.utils.data.DataLoader(dataset, batch_size=4, **how)
    for _ in range(2):
        found = torch.cat([batch["image"] for batch in feed])
        assert torch.equal(found, torch.stack(want))
"""


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.exhaustive)])
def test_a_map_dataset_in_worker_processes(jpeg: str, tmp_path: Path, start: str) -> None:
    needs("torch")
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    done = processes.run(
        [sys.executable, "-W", "ignore", script, jpeg, start], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_map_dataset_can_be_pickled(jpeg: str) -> None:
    needs("torch")
    dataset = augmented(jpeg).as_map_dataset()
    dataset.set_epoch(3)
    again = pickle.loads(pickle.dumps(dataset))
    assert np.array_equal(again[4]["image"], dataset[4]["image"])


def test_a_map_dataset_is_not_for_a_device(jpeg: str) -> None:
    needs("torch")
    loader = augmented(jpeg, device="cpu")
    assert len(loader.as_map_dataset()) == 10
    assert loader._delivery is not None
    loader._delivery.elsewhere = True
    with pytest.raises(OptionError, match="make the loader without a device"):
        loader.as_map_dataset()


# -- threads ------------------------------------------------------------------------------------------------


@pytest.mark.linux
@pytest.mark.parametrize(
    ("processes_here", "want"), [(None, 6), ("1", 6), ("2", 3), ("4", 1), ("64", 1), ("0", 6)]
)
def test_processes_of_one_machine_share_its_cores(
    powers: str, monkeypatch: pytest.MonkeyPatch, processes_here: str | None, want: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(6)))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if processes_here is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", processes_here)
    assert default_threads() == want
    assert Loader(powers, 4).threads == want
    assert Loader(powers, 4, workers=5).threads == 5
    assert Loader(powers, 4, workers=[0]).threads == 1
    assert Threads(None)._pool()._max_workers == want


def test_a_number_of_processes_that_is_none(powers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "many")
    with pytest.raises(OptionError, match="LOCAL_WORLD_SIZE is 'many', not a number"):
        Loader(powers, 4)
