"""A packed mixture in other people's training loops: Lightning, Accelerate, the Hugging Face Trainer.

One process has those that are installed. A tiny language model is trained, stopped in the middle and resumed:
the batches are exactly those of a run without a stop.
"""

from __future__ import annotations

import importlib.util
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_frameworks import environment, needs, run_script

import batchplant as bp
from loaders import leaves_nothing

nothing_left_behind = pytest.fixture(autouse=True)(leaves_nothing)

FRAMEWORKS = ("lightning", "accelerate", "transformers")
PLAN = """
sources:
  web: {path: web.idx, weight: 0.6}
  books: {path: books.idx, weight: 0.4}
stop: all
seed: 5
batch_size: 2
pack: {length: 32, eos: 0, window: 16}
"""

TRAIN = """
import importlib.util, json, os, sys, zlib
import torch
import batchplant as bp

plan, folder, which = sys.argv[1:]


class Model(torch.nn.Module):
    # A language model of a few thousand parameters: what follows a token, from the token alone.
    def __init__(self):
        super().__init__()
        self.embed, self.out, self.seen = torch.nn.Embedding(64, 16), torch.nn.Linear(16, 64), []

    def forward(self, tokens, labels, **more):
        self.seen.append(zlib.crc32(tokens.numpy().tobytes()))
        logits = self.out(self.embed(tokens))[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, 64), labels[:, 1:].reshape(-1))
        return {"loss": loss}


def make(**more):
    return bp.Loader.from_file(plan, device="cpu", workers=1, **more)


def lightning_side():
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model()

        def training_step(self, batch, index):
            return self.model(batch["tokens"], batch["labels"])["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def train(*callbacks, **more):
        module = Module()
        quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
        trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", callbacks=list(callbacks), **quiet)
        trainer.fit(module, make(), **more)
        return module.model.seen

    save = lightning.pytorch.callbacks.ModelCheckpoint(
        dirpath=folder, filename="{step}", every_n_train_steps=5, save_top_k=-1
    )
    return train(save), train(ckpt_path=f"{folder}/step=5.ckpt")


def accelerate_side():
    import accelerate

    def train(resume):
        accelerator = accelerate.Accelerator(cpu=True)
        loader, model = make(), Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        accelerator.register_for_checkpointing(loader)
        kept = model.seen
        model, optimizer = accelerator.prepare(model, optimizer)
        steps = 0
        if resume:
            accelerator.load_state(f"{folder}/accelerate")
        for epoch in range(2 - (loader.state_dict()["epoch"] if resume else 0)):
            for batch in loader:
                accelerator.backward(model(batch["tokens"], batch["labels"])["loss"])
                optimizer.step()
                steps += 1
                if not resume and steps == 5:
                    accelerator.save_state(f"{folder}/accelerate")
        return kept

    return train(False), train(True)


def trainer_side():
    import transformers

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self):
            return make_from(self)

    def make_from(trainer):
        if trainer.loader is None:
            trainer.loader = make()
            if trainer.resumed:
                with open(f"{trainer.resumed}/loader.json") as file:
                    trainer.loader.load_state_dict(json.load(file))
        return trainer.loader

    class Keep(transformers.TrainerCallback):
        # The loader's state beside the Trainer's own.
        def on_save(self, args, state, control, **more):
            with open(f"{args.output_dir}/checkpoint-{state.global_step}/loader.json", "w") as file:
                json.dump(self.trainer.loader.state_dict(), file)

    def train(resume):
        args = transformers.TrainingArguments(
            f"{folder}/hf", max_steps=MOST, save_steps=5, use_cpu=True, report_to=[], disable_tqdm=True,
            remove_unused_columns=False, ignore_data_skip=True,
        )
        model, keep = Model(), Keep()
        trainer = Trainer(model=model, args=args, callbacks=[keep])
        trainer.loader, trainer.resumed, keep.trainer = None, resume, trainer
        trainer.train(resume_from_checkpoint=resume)
        return model.seen

    return train(None), train(f"{folder}/hf/checkpoint-5")


MOST = 2 * len(make())
sides = {"lightning": lightning_side, "accelerate": accelerate_side, "transformers": trainer_side}
print(json.dumps({name: sides[name]() for name in which.split()}))
"""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    rng = np.random.default_rng(0)
    for name, count in (("web", 40), ("books", 12)):
        with bp.create(folder / f"{name}.idx", {"tokens": bp.Tensor("int32", (None,))}) as out:
            for size in rng.lognormal(2.5, 0.7, count).astype(int).clip(1, 60):
                out.append({"tokens": rng.integers(1, 64, size, dtype=np.int32)})
    (folder / "plan.yaml").write_text(PLAN)
    return folder / "plan.yaml"


def seen_by(loader: Any) -> list[int]:
    with_end = [zlib.crc32(batch["tokens"].tobytes()) for _ in range(2) for batch in loader]
    loader.close()
    return with_end


@pytest.fixture(scope="module")
def trained(plan: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each framework that is installed saw, in one process: they take long to import."""
    folder = tmp_path_factory.mktemp("saved")
    there = [name for name in FRAMEWORKS if importlib.util.find_spec(name) is not None]
    output = run_script(TRAIN, str(plan), str(folder), " ".join(there), cwd=folder, env=environment())
    answer: dict[str, Any] = json.loads(output.splitlines()[-1])
    return answer


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_packed_mixture_trains_and_resumes(
    framework: str, plan: Path, request: pytest.FixtureRequest
) -> None:
    needs(f"torch {framework}")
    whole, rest = request.getfixturevalue("trained")[framework]
    assert whole == seen_by(bp.Loader.from_file(plan))
    assert len(whole) > 12
    assert rest == whole[5:]


def test_rank_and_world_come_from_the_environment(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = seen_by(bp.Loader.from_file(plan))
    ranks = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        loader = bp.Loader.from_file(plan)
        assert (loader.rank, loader.world_size) == (rank, 2)
        ranks.append(seen_by(loader))
    assert len(ranks[0]) < len(one)
    together = [batch for step in zip(*ranks, strict=True) for batch in step]
    # All but the last step, which is dealt out evenly.
    assert together[: len(one) // 2 - 2] == one[: len(one) // 2 - 2]
