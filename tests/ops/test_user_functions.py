"""Functions of users, of batches and of samples, in threads and in processes: exact, and none left over."""

import gc
import itertools
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time

import numpy as np
import pytest

import batchplant as bp
import processes
from batchplant import ops
from batchplant.ops import Function
from batchplant.ops.base import Spec
from loaders import checksum, leaves_nothing, write_raw
from processes import PATIENCE
from user_functions import (
    cumulated,
    dies,
    dies_once,
    divides,
    double,
    drawn,
    growing,
    leaves,
    letters,
    mean,
    odd,
    plus,
    plus_batch,
    refuses,
    uneven,
    upper,
    waits,
    worker_of,
)

_leaves_nothing = pytest.fixture(autouse=True)(leaves_nothing)

WAYS = [None, "threads", "processes"]


def is_there(pid):
    """Whether a process runs; one that ended and that nobody asked about does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it hangs"
        os.sched_yield()


def pid_in(path):
    wait_for(lambda: os.path.exists(path))
    with open(path) as file:
        return int(file.read())


@pytest.fixture
def load():
    """Loaders of ``{"x": values}`` through steps, closed in the end."""
    result = []

    def loader(values, *steps, size=8, **options):
        source = values if isinstance(values, str | bp.Reader) else bp.open({"x": values})
        result.append(bp.Loader(source, size, pipelines={"x": list(steps)}, **options))
        return result[-1]

    yield loader
    for item in result:
        item.close()


def values_of(loader):
    return np.concatenate([batch["x"] for batch in loader])


# -- exact --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parallel", WAYS)
def test_every_sample_in_order(load, parallel):
    loader = load(np.arange(50), Function(double, each=True, parallel=parallel), order="random", ids=True)
    for _ in range(2):
        batches = list(loader)
        assert all(batch["x"].tolist() == (2 * batch["ids"]).tolist() for batch in batches)
        assert sorted(number for batch in batches for number in batch["ids"].tolist()) == list(range(50))
        assert batches[0]["x"].dtype == np.int64


@pytest.mark.parametrize("parallel", WAYS)
def test_every_batch(load, parallel):
    loader = load(np.arange(50), Function(double, parallel=parallel))
    assert values_of(loader).tolist() == list(range(0, 100, 2))


@pytest.mark.parametrize("parallel", WAYS)
def test_random_numbers_belong_to_the_sample(load, parallel):
    """They are those of a function of the whole batch, whatever the batch."""
    wanted = values_of(load(np.arange(50.0), plus_batch))
    for size in (1, 7, 50):
        step = Function(plus, each=True, parallel=parallel)
        assert np.array_equal(values_of(load(np.arange(50.0), step, size=size)), wanted)
    assert not np.array_equal(wanted, np.arange(50.0))


def test_images(tmp_path, load):
    path = write_raw(tmp_path / "a.beton", 30)

    def images(function, parallel, **options):
        steps = [ops.Resize(10), Function(function, each=True, parallel=parallel, **options)]
        loader = bp.Loader(path, 8, order="random", pipelines={"image": steps})
        try:
            return [batch["image"] for _ in range(2) for batch in loader]
        finally:
            loader.close()

    for function, options in ((drawn, {}), (mean, {"dtype": "float32", "shape": (3,)})):
        wanted = images(function, None, **options)
        for parallel in WAYS[1:]:
            result = images(function, parallel, **options)
            assert all(np.array_equal(*pair) for pair in zip(result, wanted, strict=True))
            assert result[0].dtype == wanted[0].dtype
    assert wanted[0].shape == (8, 3)


@pytest.mark.parametrize("parallel", WAYS)
def test_texts_and_values_of_varying_length(load, parallel):
    texts = [chr(97 + n % 26) * (n % 4) for n in range(20)]
    how = {"each": True, "parallel": parallel}
    actual = [item for batch in load(texts, Function(upper, **how)) for item in batch["x"]]
    assert actual == [text.upper() for text in texts]

    ragged = Function(letters, dtype="uint8", shape=(None,), **how)
    cells = [values[a:b].tobytes().decode()
             for values, offsets in (batch["x"] for batch in load(texts, ragged))
             for a, b in itertools.pairwise(offsets)]  # fmt: skip
    assert cells == texts

    padded = values_of(load(texts, ragged, ops.Pad(3)))
    assert padded.shape == (20, 3)
    # What varies before does so behind.
    sums = values_of(load(texts, ragged, Function(cumulated, dtype="int64", **how), ops.Pad(3)))
    assert np.array_equal(sums[3], np.cumsum(padded[3]))


def test_results_that_grow(load):
    step = Function(growing, each=True, parallel="processes", workers=1, shape=(None,))
    for batch in load(np.arange(40), step, size=4):
        values, offsets = batch["x"]
        assert all((values[a:b] == (b - a) / 1000).all() for a, b in itertools.pairwise(offsets))


@pytest.mark.parametrize("parallel", WAYS)
def test_no_samples(load, parallel):
    """All that a batch has may be left out."""
    step = Function(mean, each=True, parallel=parallel, dtype="float32", shape=(3,)).for_loader()
    draws = ops.Draws(0, 0, np.empty(0, np.int64), "x")
    done = step.run(np.empty((0, 4, 4, 3), np.uint8), np.empty(0, np.int64), draws)
    assert done.shape == (0, 3)
    assert done.dtype == np.float32
    ragged = Function(letters, each=True, parallel=parallel, dtype="uint8", shape=(None,)).for_loader()
    values, offsets = ragged.run([], np.empty(0, np.int64), draws)
    assert (values.shape, offsets.tolist()) == ((0,), [0])
    for item in (step, ragged):
        item.close()


@pytest.mark.parametrize("parallel", WAYS[1:])
def test_resume_at_every_batch(load, parallel):
    options = {"order": "random", "seed": 4}
    plain = load(np.arange(40.0), Function(plus, each=True), **options)
    wanted = [checksum([batch]) for _ in range(2) for batch in plain]
    loader = load(np.arange(40.0), Function(plus, each=True, parallel=parallel), **options)
    for done in range(len(wanted)):
        loader.load_state_dict({**plain.state_dict(), "epoch": 0, "position": 0})
        actual = []
        while len(actual) < done:
            for batch in loader:
                actual.append(checksum([batch]))
                if len(actual) == done:
                    break
        loader.load_state_dict(pickle.loads(pickle.dumps(loader.state_dict())))
        while len(actual) < len(wanted):
            actual += [checksum([batch]) for batch in loader]
        assert actual == wanted


@pytest.mark.parametrize("parallel", WAYS)
def test_workers_are_other_processes_and_stay(load, parallel):
    loader = load(np.arange(64), Function(worker_of, each=True, parallel=parallel, workers=parallel and 2))
    actual = [set(values_of(loader).tolist()) for _ in range(3)]
    if parallel == "processes":
        assert os.getpid() not in set().union(*actual)
        assert len(set().union(*actual)) <= 2
    else:
        assert actual == 3 * [{os.getpid()}]


def test_several_samples_at_a_time_in_threads(load):
    together = threading.Barrier(4)

    def meets(value):
        together.wait(PATIENCE)
        return value

    loader = load(np.arange(8), Function(meets, each=True, parallel="threads", workers=4))
    assert values_of(loader).tolist() == list(range(8))


def test_several_batches_at_a_time(load):
    together = threading.Barrier(4)

    def meets(values):
        together.wait(PATIENCE)
        return values

    loader = load(np.arange(32), Function(meets, parallel="threads", workers=4), prefetch_batches=4)
    assert values_of(loader).tolist() == list(range(32))


def test_stats_tell_the_time_of_each(load):
    loader = load(np.arange(8), Function(double, each=True), double)
    assert "functions" not in loader.stats()
    list(loader)
    assert list(loader.stats()["functions"]) == ["x: double"]
    assert 0 < loader.stats()["functions"]["x: double"] <= loader.stats()["transforms"]


# -- errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parallel", WAYS)
def test_an_error_has_the_sample_and_the_path(load, tmp_path, parallel):
    parts = []
    for part in range(2):
        parts.append(str(tmp_path / f"{part}.parquet"))
        pytest.importorskip("pyarrow")
        with bp.create(parts[-1], {"x": bp.Int()}) as out:
            for n in range(10):
                out.append({"x": 10 * part + n})
    with pytest.raises(ZeroDivisionError) as result:
        list(load(bp.open(parts), Function(divides, each=True, parallel=parallel)))
    notes = "\n".join(result.value.__notes__)
    assert "sample 13" in notes
    assert "field 'x'" in notes
    assert parts[1] in notes
    assert "Function(divides, user_functions.py:" in notes
    assert ("in a worker process:" in notes and "return 1 // (int(value) - 13)" in notes) == (
        parallel == "processes"
    )


@pytest.mark.parametrize("parallel", WAYS)
def test_an_error_in_a_batch(load, parallel):
    with pytest.raises(TypeError) as result:
        list(load(np.arange(20), Function(len, parallel=parallel), Function(len, parallel=parallel)))
    assert result.value.__notes__[-1].endswith("samples 0, 1, 2, 3, 4, 5, 6, 7")


def test_an_error_that_cannot_be_unpickled(load):
    with pytest.raises(bp.WorkerError, match="OddError: oddly") as result:
        list(load(np.arange(20), Function(odd, each=True, parallel="processes")))
    assert (result.value.sample, result.value.field) == (0, "x")
    assert "raise OddError(1, 2)" in result.value.__notes__[0]


@pytest.mark.parametrize("parallel", WAYS)
def test_what_is_wrong_with_data_can_be_skipped(load, parallel):
    step = Function(refuses, each=True, parallel=parallel)
    loader = load(np.arange(20), step, on_error="skip")
    assert values_of(loader).tolist() == [n for n in range(20) if n not in (3, 13)]
    assert [(item.sample, item.field, item.message) for item in loader.skipped] == [
        (3, "x", "no good"),
        (13, "x", "no good"),
    ]
    with pytest.raises(bp.DecodeError) as result:
        list(load(np.arange(20), step))
    assert (result.value.sample, result.value.field) == (3, "x")


@pytest.mark.parametrize("parallel", WAYS)
def test_shapes_that_do_not_fit_together(load, parallel):
    with pytest.raises(bp.OptionError, match=r"gave the shape \(2,\) for it and \(3,\)") as result:
        list(load(np.arange(20), Function(uneven, each=True, parallel=parallel)))
    # In a part of its own it is the first.
    assert 12 <= result.value.sample <= 15


def test_the_exception_is_let_go(load):
    loader = load(np.arange(20), Function(divides, each=True, parallel="threads"))
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                list(loader)
        # isinstance would ask objects of torch that warn.
        assert not [item for item in gc.get_objects() if type(item) is ZeroDivisionError]
    finally:
        gc.enable()


# -- processes that end -------------------------------------------------------------------------------------


@pytest.mark.parametrize("each", [False, True])
def test_a_worker_that_dies_is_an_error_and_not_a_hang(load, each):
    if each:
        loader = load(np.arange(20), Function(dies, each=True, parallel="processes"))
        with pytest.raises(bp.WorkerError, match="signal 9") as result:
            list(loader)
        assert any("it was given samples" in note and "13" in note for note in result.value.__notes__)
    else:
        loader = load(np.arange(20), Function(leaves, parallel="processes"))
        with pytest.raises(bp.WorkerError, match="exit code 3") as result:
            list(loader)
    assert result.value.field == "x"


def test_the_next_epoch_has_another_worker(load, tmp_path):
    step = Function(dies_once, each=True, parallel="processes", workers=1)
    loader = load([str(tmp_path / "flag")] * 10, step, size=5)
    with pytest.raises(bp.WorkerError):
        list(loader)
    assert sum(len(batch["x"]) for batch in loader) == 10


def test_a_worker_that_is_killed_between_two_batches(load):
    loader = load(
        np.arange(64), Function(worker_of, each=True, parallel="processes", workers=1), prefetch_batches=1
    )
    pid = int(next(iter(loader))["x"][0])
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(bp.WorkerError):
        # A batch that is made already does not know.
        [list(loader) for _ in range(2)]
    assert pid not in values_of(loader)


def test_close_ends_a_function_that_does_not(load, tmp_path):
    path = str(tmp_path / "pid")
    loader = load([path] * 4, Function(waits, each=True, parallel="processes"), size=1)
    thread = threading.Thread(target=lambda: next(iter(loader), None))
    thread.start()
    pid = pid_in(path)
    loader.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    wait_for(lambda: not is_there(pid))


def test_a_loader_that_is_let_go_ends_its_workers():
    loader = bp.Loader(
        {"x": np.arange(8)}, 4, pipelines={"x": [Function(worker_of, each=True, parallel="processes")]}
    )
    pids = {int(item) for batch in loader for item in batch["x"]}
    assert all(map(is_there, pids))
    del loader
    gc.collect()
    wait_for(lambda: not any(map(is_there, pids)))


def test_loaders_do_not_share_workers(load):
    step = Function(worker_of, each=True, parallel="processes", workers=1)
    one, other = load(np.arange(8), step), load(np.arange(8), step)
    first, second = set(values_of(one).tolist()), set(values_of(other).tolist())
    assert not first & second
    one.close()
    assert set(values_of(other).tolist()) == second
    copy = pickle.loads(pickle.dumps(other))
    assert not set(values_of(copy).tolist()) & second
    copy.close()


SCRIPT = """
import os, signal, sys
import batchplant as bp
from batchplant.ops import Function

def works(value):
    return os.getpid()

def waits(path):
    with open(path + ".part", "w") as file:
        file.write(str(os.getpid()))
    os.rename(path + ".part", path)
    signal.pause()

if __name__ == "__main__":
    # As in a terminal, also where whoever started this ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    steps = [Function(waits, each=True, parallel="processes", workers=2)]
    loader = bp.Loader({"x": [sys.argv[1]]}, 1, pipelines={"x": steps})
    before = signal.getsignal(signal.SIGINT)
    try:
        list(loader)
    except KeyboardInterrupt:
        assert signal.getsignal(signal.SIGINT) is before
        loader.close()
        print("interrupted", flush=True)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return [sys.executable, str(path), str(tmp_path / "pid")]


def test_ctrl_c_ends_workers_quietly(script):
    with processes.start(script, stdout=-1, stderr=-1, text=True) as process:
        pid = pid_in(script[-1])
        # As a terminal does: everybody in the foreground gets it.
        os.killpg(process.pid, signal.SIGINT)
        out, error = process.communicate(timeout=PATIENCE)
        assert (out, error, process.returncode) == ("interrupted\n", "", 0)
        wait_for(lambda: not is_there(pid))


def test_no_worker_outlives_its_parent(script):
    with processes.start(script) as process:
        pid = pid_in(script[-1])
        process.kill()
        # Amid its function, which would go on for ever.
        wait_for(lambda: not is_there(pid))


def test_a_script_that_cannot_be_imported(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(
        "import batchplant as bp\n"
        "from batchplant.ops import Function\n"
        "def works(value):\n"
        "    return value\n"
        "steps = [Function(works, each=True, parallel='processes')]\n"
        "print(list(bp.Loader({'x': [1, 2]}, 1, pipelines={'x': steps})))\n"
    )
    done = processes.run([sys.executable, str(path)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "WorkerError" in done.stderr
    assert 'if __name__ == "__main__"' in done.stderr


# -- options ------------------------------------------------------------------------------------------------


def test_functions_that_have_no_name():
    def local(value):
        return value

    for function in (local, lambda value: value):
        with pytest.raises(bp.OptionError, match=r"finds functions by their name.*parallel=\"threads\""):
            Function(function, parallel="processes")
        Function(function, parallel="threads")


def test_functions_of_a_session():
    done = processes.run(
        [sys.executable, "-"],
        input="from batchplant.ops import Function\n"
        "def works(value): return value\n"
        "Function(works, parallel='processes')\n",
        capture_output=True,
        text=True,
    )
    assert "works is of a session that other processes cannot import" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parallel": "fork"}, "parallel is threads, processes or None, not 'fork'"),
        ({"parallel": "threads", "workers": 0}, "workers is a number from 1 on"),
        ({"workers": 2}, "goes with parallel"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(bp.OptionError, match=message):
        Function(double, **options)


def test_tensors_are_refused():
    spec = Spec(np.dtype(np.float32), (3,), torch=True)
    with pytest.raises(bp.OptionError, match="put it before the step that makes tensors"):
        Function(double, each=True).infer(spec)
    assert Function(double).infer(spec) == spec


def test_workers_have_no_workers(load, monkeypatch):
    daemon = type("Daemon", (), {"daemon": True})()
    monkeypatch.setattr(multiprocessing, "current_process", lambda: daemon)
    with pytest.raises(bp.OptionError, match='use parallel="threads" here, or num_workers=0 there'):
        list(load(np.arange(4), Function(double, parallel="processes")))


def test_what_it_says_of_itself():
    step = Function(double, each=True, parallel="processes", workers=2)
    assert repr(step).endswith(", each=True, parallel='processes', workers=2)")
