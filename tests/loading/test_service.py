"""Loaders of servers: the same batches as of local files, whoever is slow, hostile or killed."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import math
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant as bp
import processes
import repository
from batchplant.cli import build_parser, main
from batchplant.errors import AccessError, DamagedError, DecodeError, OptionError
from batchplant.loading.service import channel as channels
from batchplant.loading.service import plans
from batchplant.loading.service.channel import HEADER, MAGIC, Channel, Security, greet, listen, split_address
from batchplant.loading.service.client import hosts_of
from batchplant.loading.service.server import Server, serve_metrics
from loaders import write, write_jpeg, write_raw

SAMPLES, BATCH = 61, 8
CROP = {"image": [bp.ops.RandomResizedCrop(40), bp.ops.RandomHorizontalFlip()]}
CROP_PLAN = {"pipelines": {"image": [{"op": "RandomResizedCrop", "size": 40}, "RandomHorizontalFlip"]}}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_jpeg(tmp_path_factory.mktemp("service") / "photos.beton", SAMPLES)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    def sample(n: int) -> dict[str, Any]:
        tokens = np.arange(n % 7 + 1, dtype=np.int32)
        return {"text": f"é{n}", "tokens": tokens, "facts": {"n": [n, None]}, "maybe": None if n % 3 else n}

    schema = {
        "text": bp.Text(), "tokens": bp.Tensor("int32", (None,)), "facts": bp.Json(),
        "maybe": bp.Int(optional=True),
    }  # fmt: skip
    return write(tmp_path_factory.mktemp("service") / "texts.parquet", schema, map(sample, range(SAMPLES)))


@contextlib.contextmanager
def serving(path: Any, plan: Any = None, security: Security | None = None, **options: Any):
    """A server in a thread of this process; its URL is ``url``."""
    security = security or Security()
    server = Server(
        bp.open(path), listen("127.0.0.1:0", security), plan=plan, security=security, workers=2, **options
    )
    server.url = f"batchplant://127.0.0.1:{server._listener.getsockname()[1]}"
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(processes.PATIENCE)


@pytest.fixture(scope="module")
def url(photos):
    """Two servers of the photos, with a plan."""
    with serving(photos, CROP_PLAN) as first, serving(photos, CROP_PLAN) as second:
        yield f"{first.url},{second.url.removeprefix('batchplant://')}"


@pytest.fixture(scope="module")
def texts_url(texts):
    with serving(texts, {"pipelines": {"tokens": [{"op": "Pad", "length": 4, "mask": True}]}}) as server:
        yield server.url


@contextlib.contextmanager
def reading(url: str, **options: Any):
    """The dataset of servers, closed at the end."""
    with bp.open(url, **options) as reader:
        yield reader


def assert_same(first: Any, second: Any) -> None:
    assert type(first) is type(second)
    if isinstance(first, dict):
        assert list(first) == list(second)
        first, second = list(first.values()), list(second.values())
    if isinstance(first, np.ndarray):
        assert (first.dtype, first.shape) == (second.dtype, second.shape)
        assert first.tobytes() == second.tobytes()
        assert first.flags.writeable
    elif isinstance(first, list | tuple):
        for value, other in zip(first, second, strict=True):
            assert_same(value, other)
    else:
        assert first == second


def assert_same_epochs(service: bp.Loader, local: bp.Loader, epochs: int = 2) -> None:
    for _ in range(epochs):
        for batch, other in zip(service, local, strict=True):
            assert_same(batch, other)
            assert service.state_dict() == local.state_dict()


# -- the same batches --------------------------------------------------------------------------------------


def negative(batch):
    return 255 - batch


IMAGE_CASES = {
    "random": {"order": "random", "ids": True},
    "blocks": {"order": bp.order.QuasiRandom(window=4), "drop_last": True},
    "a function": {"order": lambda n, rng: rng.permutation(n)},
    "some": {"indices": np.arange(3, 40), "rank": 1, "world_size": 2},
    "balanced": {"order": bp.order.Balanced(), "rank": 0, "world_size": 3},
    "by aspect": {"order": bp.order.ByAspect()},
    "code behind the plan": {"pipelines": {"image": [*CROP["image"], negative]}},
    "less": {"pipelines": {**CROP, "label": None}},
    "more": {
        "pipelines": {
            "image": [*CROP["image"], bp.ops.Normalize([120] * 3, [60] * 3), bp.ops.ChannelsFirst()]
        }
    },
}


@pytest.mark.parametrize("case", IMAGE_CASES)
def test_batches_are_those_of_local_files(photos, url, case):
    options = {"seed": 5, **IMAGE_CASES[case]}
    with reading(url) as reader:
        service = bp.Loader(reader, BATCH, **options)
        assert_same_epochs(service, bp.Loader(photos, BATCH, **{"pipelines": CROP, **options}))
        stats = service.stats()["service"]
        assert stats["alone"] == 0
        assert stats["ship"] == ("encoded" if case == "more" else "decoded")
        assert sum(server["answers"] for server in stats["servers"].values()) >= stats["from servers"]


@pytest.mark.parametrize("ship", ["encoded", "auto"])
def test_cells_become_the_same_batches_in_the_client(photos, url, ship):
    pipelines = {"image": [bp.ops.CenterCrop(32), negative], "view": bp.Pipe("image", [bp.ops.Resize(8)])}
    with reading(url, ship=ship) as reader:
        service = bp.Loader(reader, BATCH, order="random", pipelines=pipelines)
        assert_same_epochs(service, bp.Loader(photos, BATCH, order="random", pipelines=pipelines))
        assert service.stats()["service"]["ship"] == "encoded"


@pytest.mark.parametrize(("ship", "size"), [("encoded", 40), ("smaller", 40), ("smaller", 4)])
def test_what_is_shipped_changes_no_batch(photos, ship, size):
    crop = {"image": [bp.ops.RandomResizedCrop(size), bp.ops.RandomHorizontalFlip()]}
    plan = {"pipelines": {"image": [{"op": "RandomResizedCrop", "size": size}, "RandomHorizontalFlip"]}}
    with serving(photos, plan) as server, reading(server.url, ship=ship) as reader:
        service = bp.Loader(reader, BATCH, order="random")
        assert_same_epochs(service, bp.Loader(photos, BATCH, order="random", pipelines=crop), 1)
        stats = service.stats()["service"]
        assert stats["ship"] == ("encoded" if size == 40 else "decoded")
        assert stats["why encoded"].startswith(f'ship="{ship}"' if size == 40 else "")
        assert server.counts.batches == (0 if size == 40 else len(service))


@pytest.mark.parametrize("ship", ["decoded", "encoded"])
def test_texts_numbers_and_missing_values_are_those_of_local_files(texts, texts_url, ship):
    pipelines = {"tokens": [bp.ops.Pad(4, mask=True)]}
    with reading(texts_url, ship=ship) as reader:
        assert reader[7]["text"] == "é7"
        service = bp.Loader(reader, BATCH, order="random")
        assert_same_epochs(service, bp.Loader(texts, BATCH, order="random", pipelines=pipelines), 1)
    order = bp.order.ByLength("tokens")
    with reading(texts_url, ship="encoded") as reader:
        loaders = [bp.Loader(source, BATCH, order=order, pipelines={}) for source in (reader, texts)]
        assert_same_epochs(*loaders, 1)
        packed = [
            bp.Loader(
                source,
                2,
                pipelines={"text": None, "facts": None, "maybe": None},
                pack=bp.Pack(length=16, field="tokens"),
            )
            for source in (reader, texts)
        ]
        assert_same_epochs(*packed, 1)


def test_raw_pixels_joint_steps_and_mixtures(tmp_path, texts, texts_url):
    path = write_raw(tmp_path / "raw.beton", 24)
    plan = {"joint": [{"op": "MixUp", "alpha": 0.4, "num_classes": 24}]}
    mixup = {"pipelines": [bp.ops.MixUp(0.4, num_classes=24)]}
    with serving(path, plan) as server, reading(server.url) as reader:
        service = bp.Loader(reader, 5, order="random")
        assert_same_epochs(service, bp.Loader(path, 5, order="random", **mixup), 1)
        assert service.stats()["service"]["ship"] == "decoded"
        plain = bp.Loader(reader, 5, order="random", pipelines={})
        assert_same_epochs(plain, bp.Loader(path, 5, order="random"), 1)
        assert plain.stats()["service"]["ship"] == "encoded"
        mixes = [
            bp.Mix({"pixels": (source, 0.3), "again": (source, 0.7)}, seed=1)
            for source in (reader, bp.open(path))
        ]
        loaders = [bp.Loader(mix, 4, order="random") for mix in mixes]
        assert_same_epochs(*loaders, 1)


@pytest.mark.parametrize("op", [None, "RandomHorizontalFlip", "RandomResizedCrop", "ChannelsFirst", "Invert"])
def test_raw_pixels_are_sent_as_they_are_stored_or_after_steps(tmp_path, op):
    path = write_raw(tmp_path / "raw.beton", 24)
    entry = {"op": op, "size": 8} if op == "RandomResizedCrop" else op
    plan = {"pipelines": {"image": [entry] if entry else []}}
    with serving(path, plan) as server, reading(server.url) as reader:
        service = bp.Loader(reader, 5, order="random")
        assert_same_epochs(service, bp.Loader(path, 5, order="random", pipelines=plans.build(plan)[0]))
        assert service.stats()["service"]["ship"] == "decoded"
        assert service.stats()["service"]["alone"] == 0


def test_every_stream_of_every_server_has_a_request(photos, url):
    with reading(url, streams=4) as reader:
        epoch = iter(bp.Loader(reader, 2, prefetch_batches=1))
        next(epoch)
        deadline = time.monotonic() + processes.PATIENCE
        while sum(epoch.queue) < 2 * 4 and time.monotonic() < deadline:
            time.sleep(0.001)
        assert sum(epoch.queue) >= 2 * 4
        epoch.close()


@pytest.mark.parametrize("samples", [0, 1, 3])
def test_datasets_that_are_empty_or_smaller_than_a_batch(tmp_path, samples):
    path = write_jpeg(tmp_path / "few.beton", samples)
    with serving(path, CROP_PLAN) as server, reading(server.url) as reader:
        assert len(reader) == samples
        assert_same_epochs(bp.Loader(reader, BATCH), bp.Loader(path, BATCH, pipelines=CROP))


@pytest.mark.parametrize(("first", "then"), [("service", "local"), ("local", "service")])
def test_a_state_resumes_with_and_without_servers_and_on_other_ranks(photos, url, first, then):
    options = {"order": "random", "pipelines": CROP, "ids": True, "seed": 2}
    with reading(url) as reader:
        sources = {"service": reader, "local": photos}
        whole = [number for batch in bp.Loader(photos, 4, **options) for number in batch["ids"]]
        before = [bp.Loader(sources[first], 4, rank=rank, world_size=2, **options) for rank in (0, 1)]
        taken = []
        for _, batches in zip(range(3), zip(*before, strict=True), strict=False):
            taken += [number for batch in batches for number in batch["ids"]]
        after = bp.Loader(sources[then], 8, **options)
        after.load_state_dict(before[0].state_dict())
        assert [*taken, *(number for batch in after for number in batch["ids"])] == whole


def test_samples_that_cannot_be_used_are_reported_as_those_of_local_files(tmp_path):
    path = write_jpeg(tmp_path / "damaged.beton", 20, damaged=[5, 11])
    with serving(path, CROP_PLAN) as server, reading(server.url) as reader:
        skipping = [bp.Loader(source, 4, pipelines=CROP, on_error="skip") for source in (reader, path)]
        assert_same_epochs(*skipping, 1)
        assert [str(problem) for problem in skipping[0].skipped] == [
            str(problem) for problem in skipping[1].skipped
        ]
        errors = []
        for source in (reader, path):
            with pytest.raises(DecodeError) as raised:
                list(bp.Loader(source, 4, pipelines=CROP))
            errors.append(str(raised.value))
        assert errors[0] == errors[1]
        assert "sample 5" in errors[0]


def test_readers_and_loaders_of_servers_can_be_copied(photos, url):
    with reading(url) as reader:
        copy = pickle.loads(pickle.dumps(bp.Loader(reader, BATCH)))
        assert len(list(copy)) == len(copy)
        copy.reader.close()
        assert len(bp.Loader(reader, BATCH).filter("label", lambda label: label < 20).indices) == 20
        assert reader.filter("label < 3").read([0, 2])["label"].tolist() == [0, 2]
        assert bp.Loader(reader, 4).replay(0).samples.tolist() == [0, 1, 2, 3]


# -- plans -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[pipelines]\nimage = [{op = 'Function', function = 'os:system'}]", "calls a function"),
        ("[pipelines]\nimage = [{op = 'Tokenize', tokenizer = '/etc/passwd'}]", "reads a file"),
        ("[pipelines]\nimage = ['RandomResizedCorp']", "did you mean RandomResizedCrop"),
        ("[pipelines]\nimage = [{op = 'Resize', sise = 4}]", "sise"),
        ("[pipelines]\nimage = [{op = 'Resize', size = 99999999}]", "no argument"),
        ("[pipelines]\nimage = 'Resize'", "list of ops"),
        ("[pipeline]\nimage = []", "did you mean pipelines"),
        ("joint = ['Invert']", "goes into pipelines"),
    ],
)
def test_a_plan_names_ops_and_no_code(tmp_path, text, reason):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(OptionError, match=reason) as raised:
        plans.read(path)
    assert str(path) in str(raised.value)


CODE = """
import numpy as np
from batchplant.ops import Op


class Darker(Op):
    def __init__(self, by=2):
        self.by = by

    def infer(self, spec):
        return spec

    def run(self, batch, ids, draws):
        return batch // self.by


def jitter(batch, rng):
    return batch ^ rng.integers({}).astype(np.uint8)[:, None, None, None]


constant = 3
"""
CODE_PLAN = {
    "pipelines": {
        "image": [*CROP_PLAN["pipelines"]["image"], {"op": "my_steps:Darker", "by": 3}, "my_steps:jitter"]
    }
}


@pytest.fixture
def my_steps(tmp_path, monkeypatch):
    (tmp_path / "my_steps.py").write_text(CODE.format(64))
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("my_steps")
    del sys.modules["my_steps"]


@pytest.mark.parametrize("is_allowed", [False, True])
def test_code_of_a_plan_runs_where_it_is_allowed(photos, my_steps, is_allowed):
    pipelines = {"image": [*CROP["image"], my_steps.Darker(3), my_steps.jitter]}
    with (
        serving(photos, CODE_PLAN, allow_code=True) as server,
        reading(server.url, allow_code=is_allowed) as reader,
    ):
        given = [bp.Loader(reader, BATCH, order="random", pipelines=pipelines)]
        if is_allowed:
            given.append(bp.Loader(reader, BATCH, order="random"))
        else:
            with pytest.raises(OptionError, match=r"my_steps:Darker is code.*allow_code=True") as raised:
                bp.Loader(reader, BATCH)
            assert server.url in str(raised.value)
        for service in given:
            local = bp.Loader(photos, BATCH, order="random", pipelines=pipelines)
            assert_same_epochs(service, local)
            stats = service.stats()["service"]
            assert stats["ship"] == ("decoded" if is_allowed else "encoded")
            assert ("is code" in stats["why encoded"]) is not is_allowed
        assert given[0].stats()["service"]["alone"] == 0


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        ("my_steps:Lighter", "my_steps:Lighter cannot be imported.*Lighter"),
        ("no_such_module:f", "cannot be imported"),
        ("my_steps:constant", "neither a function nor a class that is an Op"),
        ("subprocess:Popen", "neither a function nor a class that is an Op"),
        ({"op": "my_steps:jitter", "by": 2}, "takes a batch and no arguments"),
        ({"op": "my_steps:Darker", "how": 2}, "cannot be made"),
    ],
)
def test_code_that_is_no_step_is_refused_and_none_is_imported_unless_allowed(my_steps, op, reason):
    plan = {"pipelines": {"image": [op]}}
    with pytest.raises(OptionError, match="is code, and a plan is data"):
        plans.build(plan)
    with pytest.raises(OptionError, match=reason):
        plans.build(plan, allow_code=True)


def test_a_url_cannot_allow_code(url):
    with pytest.raises(OptionError, match="no option 'allow_code'"):
        bp.open(f"{url}?allow_code=1")


def test_servers_whose_code_differs_are_refused(photos, my_steps, tmp_path):
    with contextlib.ExitStack() as stack:
        hosts = []
        for number in (64, 32):
            (tmp_path / "my_steps.py").write_text(CODE.format(number))
            server = stack.enter_context(serving(photos, CODE_PLAN, allow_code=True))
            hosts.append(server.url.removeprefix("batchplant://"))
        with pytest.raises(OptionError, match="another plan than the others"):
            bp.open(f"batchplant://{','.join(hosts)}")


def test_the_command_allows_code_only_if_told(photos, my_steps, tmp_path, capsys, monkeypatch):
    path = tmp_path / "plan.toml"
    path.write_text('[pipelines]\nimage = [{ op = "RandomResizedCrop", size = 40 }, "my_steps:jitter"]\n')
    assert main(["serve", photos, "--plan", str(path), "--listen", "127.0.0.1:0"]) != 0
    assert "my_steps:jitter is code" in capsys.readouterr().err
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with server_process(photos, path, "127.0.0.1:0", "--allow-code") as (_, lines):
        assert "serving image, label" in lines[0]


def test_a_loader_that_needs_another_plan_says_so(url):
    with reading(url, ship="decoded") as reader, pytest.raises(OptionError, match="begins 'image' otherwise"):
        bp.Loader(reader, BATCH, pipelines={"image": [bp.ops.CenterCrop(40)]})


# -- several servers ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def server_process(path: str, plan: Path, address: str = "127.0.0.1:0", *options: str):
    command = [sys.executable, "-m", "batchplant", "serve", path, "--plan", str(plan), "--listen", address]
    with processes.start(
        [*command, "--workers", "1", *options], stdout=subprocess.PIPE, stderr=-1, text=True
    ) as process:
        lines = [process.stdout.readline(), process.stdout.readline()]
        yield process, lines


@pytest.fixture
def plan_file(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(
        '[pipelines]\nimage = [{ op = "RandomResizedCrop", size = 40 }, "RandomHorizontalFlip"]\n'
    )
    return path


def test_a_killed_server_costs_no_sample_and_may_come_back(photos, plan_file, url):
    options = {"order": "random", "seed": 1, "ids": True}
    with contextlib.ExitStack() as stack:
        process, lines = stack.enter_context(server_process(photos, plan_file))
        address = lines[1].split()[0].removeprefix("batchplant://")
        reader = stack.enter_context(reading(f"{url},{address}"))
        service, local = bp.Loader(reader, 2, **options), bp.Loader(photos, 2, pipelines=CROP, **options)
        assert len(reader.pool.servers) == 3
        server = reader.pool.servers["127.0.0.1", int(address.rpartition(":")[2])]
        killed = 0
        for batch, other in zip(
            itertools.chain(service, service), itertools.chain(local, local), strict=True
        ):
            assert_same(batch, other)
            if server.answers and not killed:
                process.send_signal(signal.SIGKILL)
                process.wait()
                killed = server.answers
        assert killed
        # Another one at the same address takes part again.
        process, lines = stack.enter_context(server_process(photos, plan_file, address))
        for _ in range(1000):
            if server.answers > killed:
                break
            assert_same_epochs(service, local, 1)
        assert server.answers > killed
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=processes.PATIENCE)
        assert (process.returncode, err) == (0, "")


def test_requests_of_a_server_that_hangs_are_taken_over(photos, url):
    with contextlib.ExitStack() as stack:
        # It greets, describes nothing, and never answers.
        listener = stack.enter_context(listen("127.0.0.1:0", Security()))
        ended = threading.Event()

        def greet_all() -> None:
            with contextlib.suppress(OSError):
                while not ended.is_set():
                    channel = Channel(listener.accept()[0])
                    stack.callback(channel.close)
                    with contextlib.suppress(OSError, EOFError):
                        greet(channel, Security(), identity)

        with reading(url) as reader:
            identity = reader.pool.identity
        thread = threading.Thread(target=greet_all)
        thread.start()
        stack.callback(thread.join)
        stack.callback(listener.shutdown, socket.SHUT_RDWR)
        stack.callback(ended.set)
        reader = stack.enter_context(reading(f"{url},127.0.0.1:{listener.getsockname()[1]}"))
        service = bp.Loader(reader, BATCH, order="random")
        local = bp.Loader(photos, BATCH, order="random", pipelines=CROP)
        hanging = reader.pool.servers["127.0.0.1", listener.getsockname()[1]]
        for _ in range(1000):
            assert_same_epochs(service, local, 1)
            if hanging.taken_over:
                break
        assert hanging.taken_over > 0
        assert hanging.answers == 0


def test_without_any_server_the_error_names_all(photos):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(AccessError, match=f"{address}: Connection refused"):
        bp.open(f"batchplant://{address}", patience_seconds=0)
    with serving(photos, CROP_PLAN) as server, reading(server.url, patience_seconds=0.2) as reader:
        service = bp.Loader(reader, 2)
        batches = iter(service)
        next(batches)
        server.stop()
        with pytest.raises(AccessError, match=r"no server has answered for 0\.2 s"):
            list(itertools.chain(batches, *itertools.repeat(service, 100)))


def test_servers_of_another_dataset_or_plan_are_refused(photos, url, tmp_path):
    other = write_jpeg(tmp_path / "other.beton", SAMPLES + 1)
    for path, plan, what in ((other, CROP_PLAN, "dataset"), (photos, None, "plan")):
        with serving(path, plan) as server:
            both = f"{url},{server.url.removeprefix('batchplant://')}"
            with pytest.raises(OptionError, match=f"another {what} than the others"):
                bp.open(both)


def test_a_server_that_ends_answers_what_it_was_asked(photos):
    with serving(photos, CROP_PLAN) as server, reading(server.url) as reader:
        answer = reader.request_cells(["image"], np.arange(SAMPLES))
        answer.result()
        answers = [reader.request_cells(["image"], np.arange(SAMPLES)) for _ in range(3)]
        while server.counts.samples + server.counts.waiting <= SAMPLES and not answers[0].done():
            time.sleep(0.001)
        server.stop()
        assert answers[0].result()["image"].offsets[-1] > 0


# -- recipes of the guide ----------------------------------------------------------------------------------


def test_the_manifest_for_kubernetes_fits_together():
    yaml = pytest.importorskip("yaml")
    guide = (repository.ROOT / "docs" / "guides" / "service.md").read_text()
    manifest = guide[guide.index("apiVersion: v1") :].partition("```")[0]
    service, deployment = yaml.safe_load_all(manifest)
    pod = deployment["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert deployment["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    container = pod["spec"]["containers"][0]
    args = build_parser("serve").parse_args(container["args"][1:])
    port = service["spec"]["ports"][0]["port"]
    assert args.listen == f"0.0.0.0:{port}"
    assert container["readinessProbe"]["tcpSocket"]["port"] == port
    assert args.metrics.endswith(":" + pod["metadata"]["annotations"]["prometheus.io/port"])
    assert container["env"][0]["name"] == channels.TOKEN
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        v["name"] for v in pod["spec"]["volumes"]
    }


RAY = """
import subprocess, sys, ray, batchplant as bp
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
serve = [sys.executable, "-m", "batchplant", "serve", *sys.argv[2:]]
task = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(subprocess.run)
servers = [task.remote(serve) for _ in range(1)]
print(sum(len(batch["label"]) for batch in bp.Loader(sys.argv[1], 8)))
"""


@pytest.mark.exhaustive
def test_tasks_of_ray_serve_until_the_driver_ends(photos, plan_file):
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-c", RAY, f"batchplant://{address}", photos, "--plan", str(plan_file)]
    with processes.start([*command, "--listen", address], stdout=-1, stderr=-1, text=True) as process:
        out, err = process.communicate(timeout=processes.PATIENCE)
        assert out.split()[-1:] == [str(SAMPLES)], err
        deadline = time.monotonic() + processes.PATIENCE
        with contextlib.suppress(OSError):
            while time.monotonic() < deadline:
                socket.create_connection(split_address(address)).close()
                time.sleep(0.05)
        assert time.monotonic() < deadline


# -- who may connect ---------------------------------------------------------------------------------------


def test_a_token_is_needed_on_both_sides(photos, monkeypatch, tmp_path):
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    other = tmp_path / "other"
    other.write_text("0123456789abcdeX\n")
    with serving(photos, CROP_PLAN, Security(b"0123456789abcdef")) as server, serving(photos) as open_server:
        with reading(server.url, token_file=str(token)) as reader:
            assert reader[3]["label"] == 3
        monkeypatch.setenv(channels.TOKEN, "0123456789abcdef")
        with reading(server.url) as reader:
            assert reader[3]["label"] == 3
        monkeypatch.delenv(channels.TOKEN)
        for url, options, reason in (
            (server.url, {}, "needs a token: set BATCHPLANT_TOKEN"),
            (server.url, {"token_file": str(other)}, "needs a token, and this is another"),
            (open_server.url, {"token_file": str(token)}, "has no token, and one was sent"),
        ):
            with pytest.raises(OptionError, match=reason):
                bp.open(url, **options)
        other.write_text("short")
        with pytest.raises(OptionError, match="16 bytes or more"):
            bp.open(server.url, token_file=str(other))


def test_other_machines_are_served_only_with_a_token_or_tls():
    with pytest.raises(OptionError, match=r"other machines reach 0\.0\.0\.0:0: give a token"):
        listen("0.0.0.0:0", Security())
    listen("127.0.0.1:0", Security()).close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Files of a CA, and of a server and a client whose certificates it signed."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        processes.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    try:
        openssl(
            "req",
            "-x509",
            *curve,
            "-keyout",
            "ca.key",
            "-out",
            "ca.pem",
            "-subj",
            "/CN=CA",
            "-addext",
            "basicConstraints=critical,CA:TRUE",
        )
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    for name in ("server", "client"):
        openssl(
            "req", "-x509", *curve, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}",
            "-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "subjectAltName=IP:127.0.0.1",
            "-addext", "basicConstraints=critical,CA:FALSE",
        )  # fmt: skip
    return folder


def test_tls_is_mutual(photos, certificates):
    files = {
        name: str(certificates / name)
        for name in ("ca.pem", "server.pem", "server.key", "client.pem", "client.key")
    }
    security = Security(b"", files["server.pem"], files["server.key"], files["ca.pem"])
    with serving(photos, CROP_PLAN, security) as server:
        client = {"cert": files["client.pem"], "key": files["client.key"], "ca": files["ca.pem"]}
        with reading(server.url, **client) as reader:
            assert_same_epochs(bp.Loader(reader, BATCH), bp.Loader(photos, BATCH, pipelines=CROP), 1)
        for options in ({}, {"ca": files["ca.pem"]}):
            with pytest.raises((AccessError, OptionError), match="no server has answered"):
                bp.open(server.url, patience_seconds=0, **options)
    with pytest.raises(OptionError, match="TLS is mutual"):
        Security(b"", files["server.pem"], files["server.key"]).context(server=True)


# -- hostile peers -----------------------------------------------------------------------------------------


def frame(text: bytes, data: bytes = b"") -> bytes:
    return HEADER.pack(MAGIC, len(text), len(data)) + text + data


def hostile_messages() -> list[bytes]:
    rng = random.Random(1)
    whole_request = (
        b'["dict",[["kind","cells"],["fields",["list",["image"]]],["ids",["array",0,16,"<i8",[2]]]]]'
    )
    whole = frame(whole_request, np.array([0, 1]).tobytes())
    cases = [rng.randbytes(rng.randrange(200)) for _ in range(20)]
    cases += [whole[: rng.randrange(len(whole))] for _ in range(10)]
    cases += [bytes(byte ^ (rng.random() < 0.03) * rng.randrange(256) for byte in whole) for _ in range(30)]
    cases += [
        frame(b"[" + b"[]," * 200_000 + b"0]"),
        HEADER.pack(MAGIC, 2**32 - 1, 2**63), HEADER.pack(MAGIC, 10, 2**40), frame(b"[" * 5000), frame(b"1"),
        frame(b'["object","os:system",[]]'), frame(b'["dict",[["kind","batch"]]]'),
        frame(b'["dict",[["kind","facts"],["name","cell sizes"],["field","nothing"]]]'),
        frame(whole_request.replace(b"16", b"8").replace(b"[2]", b"[1]"), b"\xff" * 8),
        frame(b'["dict",[["kind","cells"],["fields",5],["ids",["array",0,8,"<f8",[1]]]]]', b"\xff" * 8),
        frame(b'["dict",[["kind","x"],["ids",["array",0,1099511627776,"<i8",[137438953472]]]]]'),
    ]  # fmt: skip
    return cases


@pytest.mark.parametrize("greeted", [False, True])
def test_a_hostile_client_is_dropped_and_others_go_on(photos, greeted):
    with serving(photos, CROP_PLAN) as server, reading(server.url) as reader:
        service = bp.Loader(reader, BATCH)
        batches = iter(service)
        next(batches)
        for message in hostile_messages():
            with socket.create_connection(server._listener.getsockname(), processes.PATIENCE) as connection:
                if greeted:
                    channels.introduce(Channel(connection), Security())
                # It may be gone already.
                with contextlib.suppress(OSError):
                    connection.sendall(message)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(1 << 16):
                        pass
        assert len(list(batches)) == len(service) - 1
        assert service.stats()["service"]["alone"] == 0


def test_a_server_makes_no_answer_without_bound(photos):
    with serving(photos, CROP_PLAN, max_answer_bytes=1000) as server, reading(server.url) as reader:
        with pytest.raises(OptionError, match="an answer has at most 1,000"):
            reader.read(np.arange(20), ["image"])
        with pytest.raises(OptionError, match="use smaller batches"):
            list(bp.Loader(reader, BATCH))


OTHER_SHAPE = b'["dict",[["image",["array",0,4,"|u1",[4]]],["label",["array",4,8,"<i8",[1]]]]]'
LIES = {
    "huge": HEADER.pack(MAGIC, 20, 2**40),
    "large": HEADER.pack(MAGIC, 20, 1 << 29),
    "noise": os.urandom(64),
    "other values": frame(b'["dict",[["values",["dict",[["image",5],["label",6]]]]]]'),
    "another shape": frame(b'["dict",[["values",' + OTHER_SHAPE + b"]]]", b"\0" * 12),
    "an error": frame(b'["dict",[["error",["list",["SystemExit","gone",null,null,null,null]]]]]'),
    "no error": frame(b'["dict",[["error",5]]]'),
    "no values": frame(b"[]"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_hostile_server_makes_a_client_allocate_nothing_and_raises_errors_of_ours(photos, lie):
    """The server is a proxy that lies in place of batches."""
    with serving(photos, CROP_PLAN) as server, contextlib.ExitStack() as stack:
        listener = stack.enter_context(listen("127.0.0.1:0", Security()))

        def lie_to(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError, EOFError, DamagedError):
                channel = Channel(connection)
                greet(channel, Security(), server.identity)
                while True:
                    request = channel.receive(1 << 20)
                    if request["kind"] == "batch":
                        connection.sendall(LIES[lie])
                    else:
                        channel.send_packed(server._answer(channel, request))

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=lie_to, args=(listener.accept()[0],), daemon=True).start()

        thread = threading.Thread(target=accept)
        thread.start()
        stack.callback(thread.join)
        stack.callback(listener.shutdown, socket.SHUT_RDWR)
        url = f"batchplant://127.0.0.1:{listener.getsockname()[1]}"
        reader = stack.enter_context(reading(url, patience_seconds=2, streams=1))
        with pytest.raises((DamagedError, AccessError)):
            next(iter(bp.Loader(reader, BATCH)))


# -- figures, addresses ------------------------------------------------------------------------------------


def test_figures_say_what_was_shipped_and_how_many_servers_are_needed(photos):
    with serving(photos, CROP_PLAN) as server, reading(server.url) as reader:
        service = bp.Loader(reader, BATCH)
        list(service)
        stats = service.stats()
        assert stats["to keep up"]["servers"] == math.ceil(stats["service"]["load"] - 1e-9)
        assert stats["servers"] > 0
        # This machine itself has nothing to decode.
        assert stats["to keep up"]["machines like this"] == 0
        http = serve_metrics("127.0.0.1:0", server.metrics)
        with urllib.request.urlopen(f"http://127.0.0.1:{http.server_address[1]}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        http.shutdown()
        http.server_close()
        figures = dict(line.split() for line in lines if not line.startswith("#"))
        # A request that takes long may be sent again.
        assert int(figures["batchplant_serve_batches_total"]) >= len(service)
        assert int(figures["batchplant_serve_samples_total"]) >= SAMPLES
        assert float(figures["batchplant_serve_load"]) >= 0


def test_an_address_that_is_taken_is_named(photos):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for serve in (lambda: listen(address, Security()), lambda: serve_metrics(address, str)):
            with pytest.raises(AccessError, match=f"cannot listen at {address}"):
                serve()


def test_commands_and_jobs_take_servers_for_a_dataset(photos, url, tmp_path, capsys):
    assert main(["info", url]) == 0
    assert f"samples        {SAMPLES}" in capsys.readouterr().out
    assert bp.verify(url).samples == SAMPLES
    bp.convert(url, tmp_path / "copy.beton")
    assert bp.verify(tmp_path / "copy.beton", against=photos).ok


@pytest.mark.parametrize(
    ("location", "hosts"),
    [
        ("a:1,b:2", ["a:1", "b:2"]),
        ("node[08-10,3]:7001,x", ["node08:7001", "node09:7001", "node10:7001", "node3:7001", "x"]),
        ("[::1]:7001", ["[::1]:7001"]),
    ],
)
def test_addresses_are_lists_and_ranges_of_hosts(location, hosts):
    assert hosts_of(location) == hosts


@pytest.mark.parametrize(
    ("url", "options", "reason"),
    [
        ("batchplant://a:b", {}, "HOST:PORT"),
        ("batchplant://127.0.0.1:1", {"shipp": "encoded"}, "did you mean ship"),
        ("batchplant://127.0.0.1:1?ship=raw", {}, "ship is auto"),
        ("batchplant://n[3-1]", {}, "no range of hosts"),
        ("batchplant://127.0.0.1:1", {"streams": 0}, "at least 1"),
    ],
)
def test_wrong_addresses_and_options_are_refused(url, options, reason):
    with pytest.raises(OptionError, match=reason):
        bp.open(url, **options)
