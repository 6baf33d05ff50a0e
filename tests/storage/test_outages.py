"""Outages of servers: how long a request is tried again, what is said of it, and what ends it at once."""

from __future__ import annotations

import re
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("obstore")

import batchplant as bp
import processes
from batchplant.storage import StorageOptions
from proxy import Proxy, answers

SAMPLES = 40


@pytest.fixture
def url(bucket, proxy, tmp_path) -> str:
    with bp.create(tmp_path / "a.beton", {"data": bp.Bytes()}) as out:
        for number in range(SAMPLES):
            out.append({"data": bytes([number]) * 100_000})
    return bucket.put("a.beton", (tmp_path / "a.beton").read_bytes())


def loader(url: str, proxy: Proxy, **options: Any) -> bp.Loader:
    return bp.Loader(bp.open(url, endpoint=proxy.endpoint, **options), 4, order="random", ids=True)


def answer_after(failures: int, fault: Any) -> Callable[[Any], Any]:
    """A rule that lets every request fail so many times before it is answered."""
    counts: Counter[Any] = Counter()

    def rule(request: Any) -> Any:
        key = request.range
        counts[key] += 1
        return fault if counts[key] <= failures else None

    return rule


def test_an_epoch_outlasts_an_outage(url, proxy):
    """Every request fails six times, which ended it once, and then the server is back: nothing is lost."""
    ours = loader(url, proxy, retry_seconds=60)
    proxy.fail(answer_after(6, answers(503)), times=None)
    assert sum(len(batch["ids"]) for batch in ours) == SAMPLES
    assert ours.stats()["retries"] >= 6
    ours.close()


def test_an_outage_is_announced_once(url, proxy):
    ours = loader(url, proxy, retry_seconds=1)
    proxy.fail(answers(503), times=None)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with pytest.raises(bp.AccessError, match=r"503.* tries in "):
            for _ in ours:
                pass
        ours.close()
    # Threads of a loader that a test before closed may still speak of its server.
    output = [
        str(item.message) for item in seen if url.partition("//")[2].partition("/")[0] in str(item.message)
    ]
    assert len(output) == 1
    assert "503" in output[0]
    assert re.search(r"trying for another [012] s \(retry_seconds\)", output[0])
    assert "s3://" in output[0]


@pytest.mark.parametrize("code", [400, 401, 403, 404])
def test_what_no_retry_helps_is_asked_for_once(url, proxy, code):
    with bp.open(url, endpoint=proxy.endpoint, retry_seconds=600) as data:
        proxy.reset()
        proxy.fail(answers(code), times=None)
        with pytest.raises(bp.BatchplantError):
            data[SAMPLES - 1]
    # Each range once. The reader is closed: no request comes between the two counts.
    proxy.wait_for(lambda: all(request.done for request in proxy.requests))
    ranges = [request.range for request in list(proxy.requests) if request.method == "GET"]
    assert len(ranges) == len(set(ranges))


def test_a_window_of_no_seconds_is_one_try(url, proxy):
    with bp.open(url, endpoint=proxy.endpoint, retry_seconds=0) as data:
        proxy.reset()
        proxy.fail(answers(503), times=None)
        with pytest.raises(bp.AccessError, match=r"503.*\(1 try\)"):
            data[SAMPLES - 1]
        assert proxy.count("GET") == len(
            {request.range for request in proxy.requests if request.method == "GET"}
        )


def test_uploads_are_tried_again_too(bucket, proxy, monkeypatch, tmp_path):
    monkeypatch.setenv("BATCHPLANT_WORK", str(tmp_path / "work"))
    proxy.fail(answer_after(6, answers(503)), method="PUT", times=None)
    with bp.create(f"{bucket.url}/b.csv", {"x": bp.Int()}, endpoint=proxy.endpoint, retry_seconds=60) as out:
        out.append({"x": 5})
    proxy.reset()
    assert bp.open(f"{bucket.url}/b.csv", endpoint=proxy.endpoint)[0] == {"x": 5}


SCRIPT = """
import sys, warnings
import batchplant as bp
warnings.simplefilter("ignore")
what, url, endpoint = sys.argv[1:]
options = {"endpoint": endpoint, "retry_seconds": 3600}
if what == "write":
    with bp.create(url + ".csv", {"x": bp.Int()}, **options) as out:
        out.append({"x": 5})
        print("ready", flush=True)
        sys.stdin.readline()
else:
    loader = bp.Loader(bp.open(url, **options), 4, order="random")
    print("ready", flush=True)
    sys.stdin.readline()
    for batch in loader:
        pass
"""


@pytest.mark.parametrize("what", ["read", "write"])
def test_ctrl_c_ends_the_wait_for_a_server(url, proxy, what, monkeypatch, tmp_path):
    monkeypatch.setenv("BATCHPLANT_WORK", str(tmp_path / "work"))
    command = [sys.executable, "-c", SCRIPT, what, url, proxy.endpoint]
    with processes.start(command, stdin=-1, stdout=-1, stderr=-1) as run:
        assert run.stdout.readline() == b"ready\n"
        proxy.reset()
        proxy.fail(answers(503), times=None)
        run.stdin.write(b"\n")
        run.stdin.flush()
        # Pauses have grown to seconds by then, and the window is an hour.
        proxy.wait_for(lambda: proxy.count() >= 5)
        run.send_signal(signal.SIGINT)
        assert b"KeyboardInterrupt" in run.stderr.read()
        assert run.wait(processes.PATIENCE) != 0


def test_a_server_that_was_never_there_is_waited_for_shortly(url, monkeypatch):
    """A wrong endpoint is told in seconds, whatever the window of an epoch is."""
    options = StorageOptions(retry_seconds=3600)
    from batchplant.storage.remote.client import MAX_OPENING_SECONDS, Outage

    outage = Outage("s3://bucket", options.retry_seconds)
    assert outage.window == MAX_OPENING_SECONDS
    outage.end()
    assert outage.window == 3600


@pytest.mark.parametrize("given", ["soon", -1, float("nan"), 1e9, True, "9" * 5000, [1]])
def test_a_window_that_is_none_is_refused(given):
    with pytest.raises(bp.OptionError, match="retry_seconds is a number of seconds"):
        bp.open("s3://bucket/a.beton", retry_seconds=given)
