"""Loaders that share one decode: the same batches as alone, whoever is slow, late, hostile or killed."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import pickle
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant as bp
import processes
from batchplant.data.mix import Mix
from batchplant.errors import OptionError
from batchplant.loading.node import wire
from batchplant.loading.node.server import Server
from batchplant.storage import platform
from loaders import Memory, MixedWithPrevious, in_thread, numbers, write, write_jpeg

SAMPLES, BATCH = 61, 8
CROP = {"image": [bp.ops.RandomResizedCrop(160), bp.ops.RandomHorizontalFlip()]}
pytestmark = pytest.mark.skipif(not platform.LINUX, reason="sharing needs Linux")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_jpeg(tmp_path_factory.mktemp("node") / "photos.beton", SAMPLES)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    def sample(n: int) -> dict[str, Any]:
        tokens = np.arange(n % 7 + 1, dtype=np.int32)
        return {"text": f"é{n}", "tokens": tokens, "facts": {"n": [n, None]}, "maybe": None if n % 3 else n}

    schema = {
        "text": bp.Text(), "tokens": bp.Tensor("int32", (None,)), "facts": bp.Json(),
        "maybe": bp.Int(optional=True),
    }  # fmt: skip
    return write(tmp_path_factory.mktemp("node") / "texts.parquet", schema, map(sample, range(SAMPLES)))


@pytest.fixture
def folder(monkeypatch):
    """The folder of the socket; at the end, no server is left."""
    with tempfile.TemporaryDirectory() as runtime:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        yield Path(runtime, wire.FOLDER)
        if (process := server_process()) is not None:
            os.kill(process, signal.SIGTERM)
        wait_until(lambda: not Path(runtime, wire.FOLDER).exists())
    assert not [
        name for name in os.listdir("/dev/shm") if name.startswith(("batchplant-batch", "batchplant-message"))
    ]


@pytest.fixture
def server(folder):
    """A server in a thread of this process."""
    with serving() as running:
        yield running


@contextlib.contextmanager
def serving(**options: Any):
    with wire.listening() as listener:
        server = Server(listener, workers=2, **options)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            yield server
        finally:
            server.stop()
            thread.join(processes.PATIENCE)


def server_process() -> int | None:
    connection = wire.dial() if Path(os.environ["XDG_RUNTIME_DIR"], wire.FOLDER).exists() else None
    if connection is None:
        return None
    with connection:
        return platform.peer_of(connection)[0]


def wait_until(is_so: Any) -> None:
    deadline = time.monotonic() + processes.PATIENCE
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def assert_same(first: Any, second: Any) -> None:
    assert type(first) is type(second)
    if isinstance(first, dict):
        assert list(first) == list(second)
        first, second = list(first.values()), list(second.values())
    if isinstance(first, np.ndarray):
        assert (first.dtype, first.shape, first.strides) == (second.dtype, second.shape, second.strides)
        assert first.tobytes() == second.tobytes()
        assert first.flags.writeable or not second.flags.writeable
    elif isinstance(first, list | tuple):
        for item, other in zip(first, second, strict=True):
            assert_same(item, other)
    else:
        assert first == second


def negative(batch):
    batch[:] = 255 - batch
    return batch


# -- the same batches --------------------------------------------------------------------------------------

IMAGE_CASES = {
    "random": {"order": "random", "pipelines": CROP, "ids": True},
    "quasi-random": {"order": bp.order.QuasiRandom(window=4), "pipelines": CROP, "drop_last": True},
    "a function": {"order": lambda n, rng: rng.permutation(n), "pipelines": CROP},
    "some": {"indices": np.arange(3, 40), "pipelines": CROP, "rank": 1, "world_size": 2},
    "padded": {"pipelines": {"image": [bp.ops.Collate("pad")]}},
    "a list": {"pipelines": {"image": [bp.ops.Collate("list")]}},
    "normalised": {
        "pipelines": {
            "image": [bp.ops.CenterCrop(160), bp.ops.Normalize([120] * 3, [60] * 3), bp.ops.ChannelsFirst()]
        }
    },
    "colours and MixUp": {
        "order": "random",
        "pipelines": {"image": [*CROP["image"], bp.ops.ColorJitter(0.4), bp.ops.RandomErasing(1.0)]},
    },
    "a function behind": {"pipelines": {"image": [*CROP["image"], negative, bp.ops.RandomErasing(1.0)]}},
    "an op of a user": {"pipelines": {"image": [*CROP["image"], MixedWithPrevious()]}},
    "joint": {
        "pipelines": [
            CROP, bp.ops.Map(lambda image, label: image[..., 0] + label, ["image", "label"], "x"),
        ],
    },
    "cached": {"order": "random", "pipelines": CROP, "cache": "decoded"},
}  # fmt: skip


@pytest.mark.parametrize("case", IMAGE_CASES)
def test_a_sharing_loader_gives_the_batches_of_one_that_does_not(photos, server, case):
    options = {"seed": 5, **IMAGE_CASES[case]}
    shared, alone = bp.Loader(photos, BATCH, share="node", **options), bp.Loader(photos, BATCH, **options)
    for _ in range(2):
        for item, other in zip(shared, alone, strict=True):
            assert_same(item, other)
    stats = shared.stats()["node"]
    assert (stats["shared"], stats["alone"]) == (2 * len(alone), 0), stats["why alone"]


@pytest.mark.parametrize("order", ["sequential", "random", bp.order.ByLength("tokens")])
def test_text_json_and_missing_values_are_shared(texts, server, order):
    options = {"order": order, "pipelines": {"tokens": [bp.ops.Pad(multiple_of=2, mask=True)]}}
    shared, alone = bp.Loader(texts, BATCH, share="node", **options), bp.Loader(texts, BATCH, **options)
    for item, other in zip(shared, alone, strict=True):
        assert_same(item, other)
    assert shared.stats()["node"]["alone"] == 0


PADDED = {
    "padded by the server": [bp.ops.Pad(8, mask=True), lambda tokens: tokens + 1],
    "padded by the reader": [lambda tokens: tokens, bp.ops.Pad(8, mask=True)],
}


@pytest.mark.parametrize("case", PADDED)
def test_masks_of_padded_values_come_from_where_they_are_padded(texts, server, case):
    options = {"pipelines": {"tokens": PADDED[case], "facts": None}}
    shared, alone = bp.Loader(texts, BATCH, share="node", **options), bp.Loader(texts, BATCH, **options)
    for item, other in zip(shared, alone, strict=True):
        assert_same(item, other)
    assert shared.stats()["node"]["alone"] == 0


def test_mixtures_and_packed_rows(texts, server):
    def mixture() -> Mix:
        return Mix([(texts, 0.7), (bp.open(texts).subset(range(9)), 0.3)], stop="all")

    packed = {"pipelines": {"facts": None, "maybe": None, "text": None}, "pack": bp.Pack(16, "tokens")}
    for options in ({"pipelines": {"facts": None}}, packed):
        shared = bp.Loader(mixture(), BATCH, order="random", share="node", **options)
        alone = bp.Loader(mixture(), BATCH, order="random", **options)
        for item, other in zip(shared, alone, strict=True):
            assert_same(item, other)
        assert shared.stats()["node"]["why alone"] == ""


def test_damaged_samples_are_skipped_or_named_as_alone(tmp_path, server):
    path = write_jpeg(tmp_path / "damaged.beton", 20, damaged=[7])
    shared = bp.Loader(path, BATCH, pipelines=CROP, share="node")
    alone = bp.Loader(path, BATCH, pipelines=CROP)
    errors = []
    for loader in (shared, alone):
        with pytest.raises(bp.DecodeError) as caught:
            list(loader)
        errors.append((str(caught.value), caught.value.sample))
    assert errors[0] == errors[1]
    skipping = [
        bp.Loader(path, BATCH, pipelines=CROP, on_error="skip", share=share) for share in ("node", None)
    ]
    for item, other in zip(*skipping, strict=True):
        assert_same(item, other)
    assert [problem.sample for problem in skipping[0].skipped] == [7]
    assert skipping[0].stats()["node"]["alone"] == 1


def test_what_a_reader_writes_no_other_sees(photos, server):
    loaders = [bp.Loader(photos, BATCH, pipelines=CROP, share="node") for _ in range(2)]
    for row, other in zip(*loaders, strict=True):
        row["image"][:] = 0
        assert other["image"].any()


def test_batches_that_are_kept_stay_as_they_are(photos, server):
    kept = list(bp.Loader(photos, 2, pipelines=CROP, share="node"))
    again = bp.Loader(photos, 2, pipelines=CROP, share="node")
    for item, other in zip(kept, again, strict=True):
        assert_same(item, other)


# -- one decode --------------------------------------------------------------------------------------------


def test_four_readers_cost_one_decode(photos, server):
    loaders = [bp.Loader(photos, BATCH, order="random", pipelines=CROP, share="node") for _ in range(4)]
    for batches in zip(*loaders, strict=True):
        for batch in batches[1:]:
            assert_same(batches[0], batch)
    stats = [loader.stats()["node"] for loader in loaders]
    assert max(entry["server decoded"] for entry in stats) == len(loaders[0])
    assert max(entry["server delivered"] for entry in stats) == 4 * len(loaders[0])


def test_ranks_that_get_different_samples_share_nothing_but_the_server(photos, server):
    loaders = [
        bp.Loader(photos, 4, ids=True, pipelines=CROP, share="node", rank=rank, world_size=2)
        for rank in (0, 1)
    ]
    ids = [number for loader in loaders for batch in loader for number in batch["ids"]]
    assert sorted(ids) == list(range(SAMPLES))


def test_a_late_reader_starts_at_its_own_position(photos, server):
    options = {"order": "random", "pipelines": CROP, "ids": True}
    first, late = (bp.Loader(photos, 2, share="node", **options) for _ in range(2))
    taking = iter(first)
    for _ in range(20):
        next(taking)
    for item, other in zip(late, bp.Loader(photos, 2, **options), strict=True):
        assert_same(item, other)
    assert len(list(taking)) == len(first) - 20


def test_a_slow_reader_holds_up_others_only_for_a_while(photos, server):
    slow, fast = (bp.Loader(photos, 1, order="random", pipelines=CROP, share="node") for _ in range(2))
    waiting = iter(slow)
    first = next(waiting)
    # Many more than the window.
    batches = in_thread(lambda: [batch["label"] for batch in fast])
    assert len(batches) == SAMPLES
    assert [int(batch["label"][0]) for batch in [first, *waiting]] == [int(label[0]) for label in batches]


def test_one_reader_takes_no_more_memory_than_its_batches_in_flight(photos, server):
    loader = bp.Loader(photos, 4, pipelines=CROP, share="node")
    gc.disable()
    try:
        largest = 0
        for _ in itertools.chain(loader, loader):
            largest = max(largest, loader.stats()["node"]["server bytes"])
    finally:
        gc.enable()
    # Batches in advance, the one that the loop has, the one before it, and those whose release is on its way.
    assert largest <= 9 * 1.2 * 4 * 160 * 160 * 3


def test_memory_is_bounded_by_the_window_and_what_readers_hold(photos, folder):
    with serving(memory=0):
        slow, fast = (bp.Loader(photos, 4, pipelines=CROP, share="node") for _ in range(2))
        waiting = iter(slow)
        next(waiting)
        largest = 0
        for _ in fast:
            largest = max(largest, fast.stats()["node"]["server bytes"])
        batch_bytes = 4 * 160 * 160 * 3
        # Two loaders with what they hold and are sent, the window, and memory for the next batches.
        assert largest <= 24 * batch_bytes * 1.2


# -- state -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "then"), [("node", None), (None, "node")])
def test_a_state_resumes_with_and_without_sharing_and_on_other_ranks(photos, server, first, then):
    options = {"order": "random", "pipelines": CROP, "ids": True, "seed": 2}
    whole = [number for batch in bp.Loader(photos, 4, **options) for number in batch["ids"]]
    before = [bp.Loader(photos, 4, share=first, rank=rank, world_size=2, **options) for rank in (0, 1)]
    taken = []
    for _, batches in zip(range(3), zip(*before, strict=True), strict=False):
        taken += [number for batch in batches for number in batch["ids"]]
    after = bp.Loader(photos, 8, share=then, **options)
    after.load_state_dict(before[0].state_dict())
    assert [*taken, *(number for batch in after for number in batch["ids"])] == whole


def test_copies_and_pickles_share_too(photos, server):
    loader = bp.Loader(photos, BATCH, pipelines=CROP, share="node")
    copies = [pickle.loads(pickle.dumps(loader)), loader.filter("label", lambda label: label < 20)]
    assert [sum(len(batch["label"]) for batch in copy) for copy in copies] == [SAMPLES, 20]
    assert [copy.stats()["node"]["alone"] for copy in copies] == [0, 0]


# -- devices -----------------------------------------------------------------------------------------------

# A server in this process cannot share memory of a GPU with it: one is started there.
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DEVICE_CASES = {
    "pixels": {"pipelines": CROP, "order": "random", "ids": True},
    "normalised": {
        "pipelines": {"image": [*CROP["image"], bp.ops.ColorJitter(0.4), bp.ops.Normalize([9] * 3, [60] * 3)]}
    },
    "padded": {"pipelines": {"image": [bp.ops.Resize(shorter=90), bp.ops.Collate("pad")]}},
    "MixUp": {"pipelines": [CROP, bp.ops.MixUp(0.8, labels="label", num_classes=SAMPLES)]},
    "a module": {"pipelines": {"image": [*CROP["image"], bp.ops.ChannelsFirst(), "module"]}},
    "a function": {"pipelines": {"image": [*CROP["image"], negative]}},
    "a function of tensors": {"pipelines": {"image": [*CROP["image"], "to_tensor", negative]}},
    "joint code": {
        "pipelines": [
            {"image": [*CROP["image"], bp.ops.ChannelsFirst()]},
            bp.ops.MixUp(0.8, labels="label", num_classes=SAMPLES),
            bp.ops.Map(lambda image, label: image[0] + label[:1], ["image", "label"], "x"),
        ],
    },
}  # fmt: skip


@contextlib.contextmanager
def serving_device(device: str):
    """Serve in this process, or let loaders start a server."""
    torch = pytest.importorskip("torch")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    with contextlib.nullcontext() if device == "cuda" else serving():
        yield torch


def of_device(torch: Any, case: str) -> dict[str, Any]:
    """The options of a case, with the steps that are torch's."""
    from batchplant.interop import torch as interop

    options = dict(DEVICE_CASES[case])
    steps = {"module": torch.nn.Threshold(100, 0), "to_tensor": interop.ToTensor()}
    pipelines = options["pipelines"]
    fields, *behind = pipelines if isinstance(pipelines, list) else [pipelines]
    fields = {
        name: [steps.get(step, step) if isinstance(step, str) else step for step in pipeline]
        for name, pipeline in fields.items()
    }
    return {**options, "pipelines": [fields, *behind]}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", DEVICE_CASES)
def test_images_of_a_device_are_shared(photos, folder, case, device):
    with serving_device(device) as torch:
        options = {"device": device, "decode": "gpu" if device == "cuda" else "cpu", "seed": 5}
        options |= of_device(torch, case)
        shared, alone = bp.Loader(photos, BATCH, share="node", **options), bp.Loader(photos, BATCH, **options)
        for item, other in zip(shared, alone, strict=True):
            assert item.keys() == other.keys()
            for name, value in item.items():
                assert value.device == other[name].device
                assert torch.equal(value, other[name]), name
        stats = shared.stats()["node"]
        assert (stats["shared"], stats["alone"]) == (len(alone), 0), stats["why alone"]
        shared.close()
        alone.close()


DEVICE_READER = """
import sys
import batchplant as bp
crop = {"image": [bp.ops.RandomResizedCrop(160)]}
loader = bp.Loader(sys.argv[1], 4, share="node", device="cuda", decode="gpu", pipelines=crop)
kept = [next(iter(loader))]
print(loader.stats()["node"]["shared"], flush=True)
sys.stdin.read()
"""


@pytest.mark.gpu
@pytest.mark.parametrize("killed", ["reader", "server"])
def test_a_killed_process_of_a_device_costs_the_others_no_batch(photos, folder, killed):
    options = {"pipelines": {"image": [bp.ops.RandomResizedCrop(160)]}, "device": "cuda", "decode": "gpu"}
    command = [sys.executable, "-c", DEVICE_READER, photos]
    with serving_device("cuda") as torch, processes.start(command, stdin=-1, stdout=-1, text=True) as reader:
        assert int(reader.stdout.readline()) > 0
        shared, alone = bp.Loader(photos, 4, share="node", **options), bp.Loader(photos, 4, **options)
        for number, (batch, other) in enumerate(zip(shared, alone, strict=True)):
            assert torch.equal(batch["image"], other["image"])
            if number == 4:
                os.kill(reader.pid if killed == "reader" else server_process(), signal.SIGKILL)
        reader.kill()
        stats = shared.stats()["node"]
        assert stats["shared"] > 5
        assert killed == "server" or stats["alone"] == 0
        shared.close()
        alone.close()


# -- processes that die ------------------------------------------------------------------------------------


def test_a_killed_server_is_replaced_and_no_batch_is_lost(photos, folder):
    options = {"order": "random", "pipelines": CROP, "seed": 1}
    shared = bp.Loader(photos, 4, share="node", **options)
    servers = set()
    for number, (item, other) in enumerate(zip(shared, bp.Loader(photos, 4, **options), strict=True)):
        assert_same(item, other)
        if number == 4:
            servers.add(server_process())
            os.kill(max(servers), signal.SIGKILL)
    servers.add(server_process())
    assert len(servers) == 2
    assert None not in servers
    stats = shared.stats()["node"]
    assert stats["shared"] + stats["alone"] == len(shared)
    assert stats["shared"] > 5
    shared.close()


READER = """
import sys
import batchplant as bp
loader = bp.Loader(sys.argv[1], 4, share="node", pipelines={"image": [bp.ops.RandomResizedCrop(160)]})
batches = iter(loader)
kept = [next(batches)]
print("has one", flush=True)
sys.stdin.read()
"""


def test_a_killed_reader_costs_the_others_nothing(photos, server):
    options = {"pipelines": {"image": [bp.ops.RandomResizedCrop(160)]}}
    command = [sys.executable, "-c", READER, photos]
    with processes.start(command, stdin=-1, stdout=-1, text=True) as reader:
        assert reader.stdout.readline() == "has one\n"
        shared = bp.Loader(photos, 4, share="node", **options)
        taking = iter(shared)
        batches = [next(taking)]
        reader.kill()
        reader.wait()
        batches += taking
    for batch, other in zip(batches, bp.Loader(photos, 4, **options), strict=True):
        assert_same(batch, other)
    assert shared.stats()["node"]["alone"] == 0


def test_the_command_serves_until_it_is_stopped(photos, folder):
    command = [sys.executable, "-m", "batchplant", "serve-node", "--workers", "1", "--memory", "1GB"]
    with processes.start(command, stdout=-1, stderr=-1, text=True) as serving_command:
        assert serving_command.stdout.readline() == "serving on 1 threads; Ctrl-C ends it\n"
        second = processes.run(command, capture_output=True, text=True)
        assert second.returncode == 2
        assert "a server runs already" in second.stderr
        loader = bp.Loader(photos, BATCH, pipelines=CROP, share="node")
        assert len(list(loader)) == loader.stats()["node"]["shared"]
        loader.close()
        serving_command.send_signal(signal.SIGTERM)
        out, err = serving_command.communicate(timeout=processes.PATIENCE)
    assert (serving_command.returncode, err) == (0, "")
    assert out.splitlines()[0] == f"{photos}: opened for image, label"
    assert not folder.exists()


# -- hostile readers ---------------------------------------------------------------------------------------


def message(value: Any) -> bytes:
    return wire.INLINE + wire.Encoder().dump(value)


HOSTILE = {
    "noise": os.urandom(100),
    "nothing": b"i",
    "huge": b"i" + b"\xff" * 8,
    "no file": wire.IN_FILE,
    "a list": message([1, 2]),
    "no kind": message({}),
    "no recipe": message({"kind": "batch", "number": 0, "epoch": 0, "ids": np.arange(4)}),
    "odd number": message({"kind": "release", "number": {"a": []}}),
    "deep": b"i" + (4000).to_bytes(4, "little") + b"[" * 4000,
    "no class": message(
        {"kind": "recipe", "recipe": b"\x20\x00\x00\x00" + b'["object","os:system",["dict",[]'}
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_reader_is_dropped_and_others_go_on(photos, server, case):
    loader = bp.Loader(photos, BATCH, pipelines=CROP, share="node")
    batches = iter(loader)
    next(batches)
    with wire.dial() as connection:
        connection.settimeout(processes.PATIENCE)
        connection.send(HOSTILE[case])
        connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while connection.recv(1 << 16):
                pass
    assert len(list(batches)) == len(loader) - 1
    assert loader.stats()["node"]["alone"] == 0


@pytest.mark.parametrize(
    "name", ["os:system", "batchplant.cli:main", "batchplant.ops:Function.run", "subprocess:Popen"]
)
def test_a_recipe_names_only_classes_of_data(server, name):
    body = wire.Encoder().dump(None)
    tree = f'["object","{name}",["dict",[]]]'.encode()
    body = len(tree).to_bytes(4, "little") + tree
    with wire.dial() as connection:
        connection.settimeout(processes.PATIENCE)
        connection.send(message({"kind": "recipe", "recipe": body}))
        kinds = [wire.Decoder().load(wire.receive(connection)[0])["kind"] for _ in range(2)]
        assert kinds == ["expected", "refused"]


def test_a_reader_that_asks_for_samples_that_are_not_there_gets_none(photos, server):
    loader = bp.Loader(photos, BATCH, pipelines=CROP, share="node")
    answer = loader._remote._linked().ask(0, np.array([0, SAMPLES]))
    assert answer.result() is None
    assert len(list(loader)) == loader.stats()["node"]["shared"]


def test_a_reader_that_takes_no_answers_is_dropped(photos, server):
    loader = bp.Loader(photos, BATCH, pipelines=CROP, share="node")
    with wire.dial() as connection:
        connection.settimeout(0.5)
        with contextlib.suppress(OSError):
            for _ in itertools.repeat(None, 100_000):
                connection.send(message({"kind": "ping"}))
        assert len(list(loader)) == loader.stats()["node"]["shared"]


# -- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"share": "rack"}, 'share is "node" or None'),
    ],
)
def test_what_cannot_be_shared_is_refused(photos, options, reason):
    with pytest.raises(OptionError, match=reason):
        bp.Loader(photos, BATCH, **options)


def test_data_in_memory_of_a_user_is_refused(folder):
    reader = Memory({"value": bp.Int()}, [{"value": 1}])
    with pytest.raises(OptionError, match="needs a dataset that another process can open"):
        bp.Loader(reader, 1, share="node")


def test_a_folder_that_others_can_use_is_not_trusted(photos, folder):
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    loader = bp.Loader(photos, BATCH, pipelines=CROP, share="node")
    assert len(list(loader)) == loader.stats()["node"]["alone"]
    assert "others cannot use" in loader.stats()["node"]["why alone"]
    shutil.rmtree(folder)


def test_a_dataset_that_changed_is_not_shared(tmp_path, server):
    path = numbers(tmp_path / "numbers.npz", 20)
    old = bp.open(path)
    os.utime(path, ns=(0, 0))
    loader = bp.Loader(old, 5, share="node")
    assert [int(value) for batch in loader for value in batch["value"]] == list(range(20))
    stats = loader.stats()["node"]
    assert (stats["shared"], stats["alone"]) == (0, 4)
    assert "has changed" in stats["why alone"]


def test_a_system_without_memory_files_is_told_so(photos):
    code = f"import batchplant as bp; bp.Loader({photos!r}, 4, share='node')"
    done = processes.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "BATCHPLANT_PORTABLE": "1"},
    )
    assert 'share="node" needs memory files and sockets of Linux' in done.stderr


def test_sockets_have_no_limit_of_path_length(photos, monkeypatch, tmp_path):
    runtime = tmp_path / ("x" * 120)
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    with serving():
        connection = wire.dial()
        assert connection is not None
        connection.close()
