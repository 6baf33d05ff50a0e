"""Data on servers: exact bytes whatever the network does, and errors that say what is wrong but no secret."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import traceback
from concurrent.futures import Future

import numpy as np
import pytest

pytest.importorskip("obstore")

from hypothesis import given, settings
from hypothesis import strategies as st

import batchplant as bp
import processes
from batchplant.storage import StorageOptions, Url, open_source
from batchplant.storage.remote import fetch
from batchplant.storage.settings import FetchTuning
from proxy import (
    Fault,
    Proxy,
    answers,
    changed_etag,
    ignored_range,
    reset,
    stalled,
    truncated,
    wrong_content_range,
)
from servers import KEY, SECRET, s3_server

# Larger than what opening an object brings along.
DATA = np.random.default_rng(7).integers(0, 256, 300_000, dtype=np.uint8).tobytes()
AT = 200_000
TRANSIENT = [
    answers(429, retry_after=0),
    answers(500),
    answers(503),
    truncated(0),
    truncated(777),
    reset(),
    reset(777),
    Fault(then="close", after=-1),
]


# A proxy of the environment, even one that is not for this host, sends ranges through obstore, as TLS does.
THROUGH_OBSTORE = {"http_proxy": "http://127.0.0.1:9", "no_proxy": "127.0.0.1"}


@pytest.fixture(params=["sockets", "obstore"])
def served(request, proxy, monkeypatch):
    """The proxy before a server that answers ranges with 200, as rclone does, or with 206, as S3 does."""
    if request.param == "obstore":
        proxy.mend = True
        for name, value in THROUGH_OBSTORE.items():
            monkeypatch.setenv(name, value)
    return proxy


def at(url: str, proxy: Proxy | None, **options) -> Url:
    """The URL as ``open`` would have it."""
    endpoint = {} if proxy is None else {"endpoint": proxy.endpoint}
    return Url(url, StorageOptions(**endpoint, **options))


@pytest.fixture
def url(bucket, served):
    return at(bucket.put("deep/a.bin", DATA), served)


def read(source, start=AT, size=1000):
    return source.view(start, size).tobytes()


# --- bytes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "size"), [(0, 10), (0, 0), (299_999, 1), (300_000, 0), (AT, 1), (0, 300_000)]
)
def test_single_ranges(url, start, size):
    with contextlib.closing(open_source(url)) as source:
        assert source.size == len(DATA)
        assert read(source, start, size) == DATA[start : start + size]


@settings(max_examples=25)
@given(st.data())
def test_many_ranges(any_source, data):
    ends = st.integers(0, len(DATA))
    runs = data.draw(st.lists(st.tuples(ends, ends), max_size=20))
    starts = np.array([min(run) for run in runs], dtype=np.int64)
    sizes = np.array([max(run) - min(run) for run in runs], dtype=np.int64)
    result = any_source.gather(starts, sizes)
    for number, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        assert result[number].tobytes() == DATA[start : start + size]
    for start, size in zip(starts, sizes, strict=True):
        assert read(any_source, start, size) == DATA[start : start + size]


@pytest.fixture(scope="module", params=["sockets", "obstore"])
def any_source(request, tmp_path_factory):
    """One for all examples, and its own server, for it asks for more than one test."""
    root = tmp_path_factory.mktemp("buckets")
    variables = THROUGH_OBSTORE if request.param == "obstore" else {}
    (root / "free").mkdir()
    (root / "free" / "a.bin").write_bytes(DATA)
    with (
        s3_server(str(root), anonymous=True) as endpoint,
        Proxy(endpoint, mend=request.param == "obstore") as proxy,
    ):
        # Less than the object, so that blocks come and go.
        options = StorageOptions(endpoint=proxy.endpoint, anonymous=True, fetch_bytes=200_000)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            source = open_source(Url("s3://free/a.bin", options))
        with contextlib.closing(source):
            yield source


def test_names_that_need_quoting(bucket, served):
    for name in ("a b.bin", "ä/ö.bin", "100%.bin", "a+b&c=d.bin", "#1.bin", "%41.bin"):
        url = at(bucket.put(name, DATA), served)
        with contextlib.closing(open_source(url)) as source:
            assert read(source) == DATA[AT : AT + 1000], name


@pytest.mark.parametrize("has_206", [True, False])
@pytest.mark.parametrize("name", ["a%20b/100%25.bin", "a%20b/100%25.bin?key=a%2Fb&x"])
def test_names_that_need_quoting_in_a_web_address(web, has_206, name):
    web.proxy.has_206 = has_206
    web.put("a b/100%.bin", DATA)
    with contextlib.closing(open_source(f"{web.endpoint}/{name}")) as source:
        assert read(source) == DATA[AT : AT + 1000]
    assert all(request.path.partition("?")[2] == name.partition("?")[2] for request in web.proxy.requests)


def test_redirects_are_followed(web):
    web.put("a.bin", DATA)
    with Proxy(web.endpoint) as front:
        front.fail(Fault(302, {"Location": f"{web.endpoint}/a.bin"}), times=None)
        with contextlib.closing(open_source(f"{front.endpoint}/a.bin")) as source:
            assert read(source) == DATA[AT : AT + 1000]


def test_an_empty_object(bucket, served):
    with contextlib.closing(open_source(at(bucket.put("a.bin", b""), served))) as source:
        assert (source.size, source.view(0, 0).size) == (0, 0)


def test_opening_is_one_request_and_small_reads_ask_for_little(url, served):
    """The bytes that open() looks at first come with it."""
    # The first request finds out how the server answers.
    open_source(url).close()
    served.reset()
    with contextlib.closing(open_source(url)) as source:
        assert read(source, 0, 1000) == DATA[:1000]
        assert [request.method for request in served.requests] == ["GET"]
        assert read(source) == DATA[AT : AT + 1000]
        assert len(served.requests) == 2
        assert served.requests[1].range[0] == AT
        assert served.requests[1].sent < 100_000


def test_bytes_that_are_there_are_not_asked_for_again(url, served):
    with contextlib.closing(open_source(url)) as source:
        read(source)
        count = served.count()
        assert read(source, AT + 10, 500) == DATA[AT + 10 : AT + 510]
        assert source.gather(np.array([AT + 1, AT + 100]), np.array([5, 50])).data.tobytes() == (
            DATA[AT + 1 : AT + 6] + DATA[AT + 100 : AT + 150]
        )
        assert served.count() == count


def test_web_servers(web):
    with contextlib.closing(open_source(web.put("a.bin", DATA))) as source:
        assert read(source) == DATA[AT : AT + 1000]


def test_a_web_server_without_head_and_etag(web):
    web.proxy.has_head = web.proxy.has_etag = False
    with contextlib.closing(open_source(web.put("a.bin", DATA))) as source:
        assert read(source) == DATA[AT : AT + 1000]


def test_a_web_server_without_ranges(web):
    web.proxy.has_ranges = False
    url = web.put("a.bin", DATA)
    with pytest.raises(bp.AccessError, match="gives no ranges") as caught:
        read(open_source(url))
    assert caught.value.path == url


# --- faults that pass ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", TRANSIENT, ids=str)
def test_what_fails_once_is_asked_for_again(url, served, fault):
    with contextlib.closing(open_source(url)) as source:
        served.reset()
        served.fail(fault, times=2)
        before = fetch.fetcher().counts.retries
        assert read(source) == DATA[AT : AT + 1000]
        assert served.count() >= 3
        assert fetch.fetcher().counts.retries >= before + 1


@pytest.mark.parametrize("fault", TRANSIENT[::3], ids=str)
def test_opening_is_tried_again(url, served, fault):
    served.fail(fault, times=2)
    with contextlib.closing(open_source(url)) as source:
        assert read(source) == DATA[AT : AT + 1000]


def test_one_of_many_ranges_fails(url, served):
    with contextlib.closing(open_source(url)) as source:
        served.fail(
            lambda request: answers(503) if request.range and request.range[0] >= AT else None, times=2
        )
        starts = np.array([AT, 70_000, 250_000, 10], dtype=np.int64)
        result = source.gather(starts, np.full(4, 100))
        assert [result[row].tobytes() for row in range(4)] == [DATA[start : start + 100] for start in starts]


def test_a_request_that_stalls_is_made_twice(url, served):
    # Not before: on a busy machine the request that opened it would be made twice, and be counted here.
    with contextlib.closing(open_source(url)) as source, fetch.tuned(min_stall_seconds=0.05):
        served.reset()
        served.fail(stalled(500))
        before = fetch.fetcher().counts.hedges
        # The first one is never answered; the second one is.
        assert read(source) == DATA[AT : AT + 1000]
        assert served.count("GET") == 2
        assert fetch.fetcher().counts.hedges == before + 1
        served.release()


def test_requests_are_watched_after_a_while_without_any(url, served):
    """The thread that watches ends before those that fetch."""
    # Fetchers of other tests may still have requests under way.
    earlier = {*threading.enumerate()}
    quick = fetch.tuned(min_stall_seconds=0.05, window_seconds=0.01)
    with quick, contextlib.closing(open_source(url)) as source:
        while any(thread.name == "batchplant-watch" for thread in {*threading.enumerate()} - earlier):
            threading.Event().wait(0.01)
        served.fail(stalled(500))
        assert read(source) == DATA[AT : AT + 1000]
        served.release()


def busy_fetcher():
    """A Fetcher whose one thread runs until the event is set."""
    tuning = FetchTuning(window_seconds=0.01, min_stall_seconds=processes.PATIENCE)
    result, going = fetch.Fetcher(tuning), threading.Event()
    result._controller.limit = 1
    result.submit(lambda: going.wait(processes.PATIENCE), fetch.FULL_WEIGHT_BYTES)
    return result, going


def test_a_request_that_is_hurried_and_cancelled_stops_no_thread():
    result, going = busy_fetcher()
    # It stands in the queue twice.
    cancelled = result.submit(lambda: pytest.fail("it was cancelled"), 1, urgency=5)
    result.hurry(cancelled, 1)
    assert cancelled.future.cancel()
    wanted = result.submit(lambda: "it", 1, urgency=9)
    going.set()
    assert wanted.future.result(processes.PATIENCE) == "it"
    # Nor is anybody taken for idle who is not there.
    result.tuning = dataclasses.replace(result.tuning, idle_thread_seconds=0.0)
    assert result.submit(lambda: "more", 1).future.result(processes.PATIENCE) == "more"


@pytest.mark.parametrize("begun", [False, True])
def test_ctrl_c_as_a_thread_starts(begun, monkeypatch):
    result, start = fetch.Fetcher(FetchTuning(window_seconds=0.01)), threading.Thread.start

    def interrupted(self):
        if self.name == "batchplant-fetch":
            monkeypatch.setattr(threading.Thread, "start", start)
            if begun:
                start(self)
            raise KeyboardInterrupt
        start(self)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        result.submit(lambda: None, 1)
    monkeypatch.setattr(threading.Thread, "start", start)
    for n in range(3):
        assert result.submit(lambda n=n: n, 1).future.result(processes.PATIENCE) == n


def test_no_thread_can_be_started(monkeypatch):
    result, start = fetch.Fetcher(), threading.Thread.start

    def refused(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(RuntimeError, match="can't start"):
        result.submit(lambda: None, 1)
    monkeypatch.setattr(threading.Thread, "start", start)
    assert result.submit(lambda: "it", 1).future.result(processes.PATIENCE) == "it"


def test_a_range_that_is_ignored_once(url, served):
    """One such answer makes no server without ranges, and its bytes are never taken for others."""
    with contextlib.closing(open_source(url)) as source:
        served.fail(ignored_range())
        with contextlib.suppress(bp.AccessError):
            assert read(source) == DATA[AT : AT + 1000]
        assert read(source) == DATA[AT : AT + 1000]


def test_wrong_content_range(url, served):
    with contextlib.closing(open_source(url)) as source:
        served.reset()
        served.fail(wrong_content_range(f"bytes 5-1004/{len(DATA)}"))
        # Such bytes are not taken; the next ones are.
        with contextlib.suppress(bp.AccessError):
            assert read(source) == DATA[AT : AT + 1000]
            assert served.count() == 2
        assert read(source) == DATA[AT : AT + 1000]


# --- faults that stay ---------------------------------------------------------------------------------


def test_connections_of_failed_requests_are_closed(url, served):
    with contextlib.closing(open_source(url)) as source:
        served.fail(Fault(403, {"Connection": "close"}))
        with pytest.raises(bp.AccessError):
            read(source)
    # A socket that nobody closed is warned of when it goes.
    gc.collect()


@pytest.mark.parametrize("fault", [*TRANSIENT[::3], answers(403), answers(400)], ids=str)
def test_what_fails_for_good_is_one_error_with_its_place(url, served, fault):
    with contextlib.closing(open_source(url)) as source:
        served.fail(fault, times=None)
        for call in (lambda: read(source), lambda: source.gather(np.array([AT]), np.array([1000]))):
            with pytest.raises(bp.AccessError) as caught:
                call()
            assert type(caught.value).__mro__.index(bp.AccessError) <= 1
            assert (caught.value.path, caught.value.offset) == (url, AT)
            assert str(caught.value).startswith(f"{url}, byte {AT}: ")
            if fault.status:
                assert str(fault.status) in caught.value.message
        # And it is not remembered.
        served.reset()
        assert read(source) == DATA[AT : AT + 1000]


def test_tries_are_counted_and_what_no_retry_helps_is_tried_once(url, served):
    with contextlib.closing(open_source(url)) as source:
        served.reset()
        served.fail(answers(503), times=None)
        with pytest.raises(bp.AccessError, match=r"503.* tries in 0\.\d s\)") as caught:
            read(source)
        assert f"({served.count()} tries" in str(caught.value)
        assert served.count() >= 3
        served.reset()
        served.fail(answers(403), times=None)
        with pytest.raises(bp.AccessError, match="403"):
            read(source)
        assert served.count() == 1


def test_a_server_that_stalls_for_good(url, served):
    impatient = fetch.tuned(max_silent_seconds=0.25, min_stall_seconds=processes.PATIENCE)
    with impatient, contextlib.closing(open_source(at(str(url), served, retry_seconds=0))) as source:
        for after in (500, -1):
            served.reset()
            served.fail(stalled(after), times=None)
            with pytest.raises(bp.AccessError, match="did not answer in time") as caught:
                read(source)
            assert (caught.value.path, caught.value.offset) == (url, AT)
            assert served.count() == 1
            served.release()


def test_ranges_that_are_always_ignored(url, served):
    with contextlib.closing(open_source(url)) as source:
        served.fail(ignored_range(), times=None)
        with pytest.raises(bp.AccessError, match="gives no ranges") as caught:
            read(source)
        assert (caught.value.path, caught.value.offset) == (url, AT)


def test_a_server_that_is_gone(url, served):
    with contextlib.closing(open_source(url)) as source, served.down():
        with pytest.raises(bp.AccessError, match="cannot be reached") as caught:
            read(source)
        assert (caught.value.path, caught.value.offset) == (url, AT)
        with pytest.raises(bp.AccessError, match="cannot be reached"):
            open_source(url)
    with contextlib.closing(open_source(url)) as source:
        assert read(source) == DATA[AT : AT + 1000]


# --- objects that change ------------------------------------------------------------------------------


CHANGED = "it changed since it was opened"


@pytest.mark.parametrize(
    "other", [DATA[::-1], DATA[:-1], DATA + b"!", DATA[:10]], ids=["same size", "-1", "+1", "10"]
)
def test_an_object_that_changed(bucket, url, served, other):
    with contextlib.closing(open_source(url)) as source:
        read(source)
        bucket.put("deep/a.bin", other)
        for call in (
            lambda: read(source, 100_000),
            lambda: source.gather(np.array([100_000]), np.array([10])),
        ):
            with pytest.raises(bp.AccessError, match=CHANGED) as caught:
                call()
            assert (caught.value.path, caught.value.offset) == (url, 100_000)
    with contextlib.closing(open_source(url)) as source:
        assert source.view(0, source.size).tobytes() == other


def test_an_etag_that_changed(url, served):
    with contextlib.closing(open_source(url)) as source:
        served.fail(changed_etag(), times=None)
        with pytest.raises(bp.AccessError, match=CHANGED):
            read(source)


def test_an_object_that_changes_while_it_is_read(bucket, url, served):
    """Whatever comes is of one version, or an error."""
    other = DATA[::-1]
    with contextlib.closing(open_source(url)) as source:
        served.fail(lambda request: bucket.put("deep/a.bin", other) and None)
        starts = np.arange(0, len(DATA), 30_000)
        with pytest.raises(bp.AccessError, match=CHANGED):
            source.gather(starts + 100, np.full(len(starts), 200))


def test_an_object_that_is_gone(bucket, url):
    with contextlib.closing(open_source(url)) as source:
        os.unlink(os.path.join(bucket.root, "deep", "a.bin"))
        with pytest.raises(bp.AccessError) as caught:
            read(source)
        assert (caught.value.path, caught.value.offset) == (url, AT)


# --- what is not there, and secrets ---------------------------------------------------------------------


def test_what_is_not_there(bucket, served):
    for url in (f"{bucket.url}/nothing.bin", f"{bucket.url}-not/a.bin", f"{bucket.url}/deep"):
        with pytest.raises(bp.NotFoundError) as caught:
            open_source(at(url, served))
        assert caught.value.path == url


@pytest.mark.parametrize("endpoint", ["minio.example:9000", "x", "http://", "ftp://minio.example"])
def test_an_endpoint_that_is_no_url(bucket, endpoint):
    with pytest.raises(bp.OptionError, match="the endpoint is a URL, such as http://"):
        bp.open(f"{bucket.url}/x.tar", endpoint=endpoint)


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_bucket_is_a_folder(bucket, served, slash):
    bucket.put("a.csv", b"x\n1\n")
    with bp.open(bucket.url + slash, endpoint=served.endpoint) as reader:
        assert reader[0] == {"x": 1}


def test_options_of_storage_are_known_where_they_do_not_belong(bucket, served):
    url = bucket.put("a.csv", b"x\n1\n")
    with pytest.raises(bp.OptionError, match="did you mean cache_bytes"):
        bp.open(url, endpoint=served.endpoint, cash_bytes=1)
    with pytest.raises(bp.OptionError, match=r"bp.open\(…, cache="):
        bp.Loader(url, 1, cache="folder")


def test_a_web_server_that_does_not_have_it(web):
    with pytest.raises(bp.NotFoundError) as caught:
        open_source(f"{web.endpoint}/a.bin")
    assert caught.value.path == f"{web.endpoint}/a.bin"


OTHER = "an-other-secret"


def told(error: BaseException) -> str:
    """All that anybody could see of an exception, the variables of its frames included."""
    shown = traceback.TracebackException.from_exception(error, capture_locals=True)
    return "\n".join([str(error), repr(error), "".join(shown.format()), repr(pickle.dumps(error))])


@pytest.mark.parametrize("wrong", ["secret", "key"])
def test_a_wrong_key_is_told_without_it(bucket, served, monkeypatch, caplog, wrong):
    url = at(bucket.put("a.bin", DATA), served)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", OTHER)
    if wrong == "key":
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ANOTHERKEYID")
    with (
        caplog.at_level(logging.DEBUG),
        pytest.raises(bp.AccessError, match="check the credentials") as caught,
    ):
        open_source(url)
    assert caught.value.path == url
    seen = told(caught.value) + caplog.text
    for secret in (OTHER, SECRET, "ANOTHERKEYID", "X-Amz-Signature", "Signature="):
        assert secret not in seen


@pytest.mark.parametrize(
    "fault", [answers(503), answers(403), reset(), truncated(5), ignored_range()], ids=str
)
def test_faults_are_told_without_secrets(url, served, caplog, fault):
    with contextlib.closing(open_source(url)) as source:
        served.fail(fault, times=None)
        with caplog.at_level(logging.DEBUG), pytest.raises(bp.AccessError) as caught:
            read(source)
    seen = told(caught.value) + caplog.text
    for secret in (SECRET, KEY, "X-Amz-Signature"):
        assert secret not in seen


def test_secrets_stay_where_they_are(bucket, served, tmp_path):
    """A reader that is pickled, printed or indexed holds none; whoever loads it brings its own."""
    np.save(tmp_path / "a.npy", np.arange(100_000))
    url = bucket.put("a.npy", (tmp_path / "a.npy").read_bytes())
    with bp.open(url, endpoint=served.endpoint) as reader:
        assert reader[77_777]["data"] == 77_777
        stored = pickle.dumps(reader)
        for seen in (repr(reader), repr(stored), repr(reader.path), repr(pickle.dumps(at(url, served)))):
            assert SECRET not in seen
            assert KEY not in seen
        with pickle.loads(stored) as again:
            assert again[77_777]["data"] == 77_777


@pytest.mark.usefixtures("_no_settings")
def test_anonymous_access(tmp_path):
    """Without any credentials, and nothing signed."""
    (tmp_path / "free").mkdir()
    (tmp_path / "free" / "a.bin").write_bytes(DATA)
    with s3_server(str(tmp_path), anonymous=True) as endpoint, Proxy(endpoint) as proxy:
        for proxy.mend in (False, True):
            with contextlib.closing(open_source(at("s3://free/a.bin", proxy, anonymous=True))) as source:
                assert read(source) == DATA[AT : AT + 1000]
        assert not any(
            "authorization" in request.headers or "X-Amz" in request.path for request in proxy.requests
        )


# --- processes, threads, memory -------------------------------------------------------------------------


def test_a_fork_after_use(url):
    with contextlib.closing(open_source(url)) as source:
        assert read(source) == DATA[AT : AT + 1000]
        assert processes.in_fork(lambda: read(source, 100_000) == DATA[100_000:101_000])
        assert processes.in_fork(lambda: read(open_source(url), 90_000) == DATA[90_000:91_000])
        # The parent goes on.
        assert read(source, 120_000) == DATA[120_000:121_000]


def test_a_fork_while_requests_are_under_way(url, served):
    """Locks that threads of the parent hold, and bytes on their way to it, do not concern the child."""
    with contextlib.closing(open_source(url)) as source:
        served.fail(stalled(500), times=1)
        waiting = threading.Thread(target=lambda: read(source))
        waiting.start()
        served.wait_for(lambda: any(request.sent == 500 for request in served.requests))
        good = processes.in_fork(lambda: read(source) == DATA[AT : AT + 1000])
        served.release()
        waiting.join()
        assert good


def test_a_spawned_process(url):
    script = """
        import pickle, sys
        source = pickle.loads(bytes.fromhex(sys.argv[1]))
        from batchplant.storage import open_source
        sys.stdout.buffer.write(open_source(source).view(200_000, 1000).tobytes())
    """
    open_source(url).close()
    done = processes.run(
        [sys.executable, "-c", textwrap.dedent(script), pickle.dumps(url).hex()],
        capture_output=True,
        check=True,
    )
    assert done.stdout == DATA[AT : AT + 1000]


def test_a_process_ends_without_a_word(url):
    """Connections that are kept are closed in the end."""
    script = """
        import pickle, sys
        from batchplant.storage import open_source
        open_source(pickle.loads(bytes.fromhex(sys.argv[1]))).view(200_000, 1000)
    """
    command = [
        sys.executable,
        "-X",
        "dev",
        "-W",
        "error",
        "-c",
        textwrap.dedent(script),
        pickle.dumps(url).hex(),
    ]
    done = processes.run(command, capture_output=True, check=True)
    assert done.stdout + done.stderr == b""


def test_many_threads_at_once(bucket, served):
    sources = [
        open_source(at(bucket.put(f"{number}.bin", DATA), served, fetch_bytes=400_000)) for number in range(3)
    ]
    served.fail(lambda request: answers(503), skip=10, times=5)
    wrong: list[object] = []

    def work(seed):
        rng = np.random.default_rng(seed)
        try:
            for _ in range(30):
                source = sources[rng.integers(3)]
                starts = rng.integers(0, len(DATA) - 500, 6)
                result = source.gather(starts, np.full(6, 500))
                wrong.extend(
                    start
                    for row, start in enumerate(starts)
                    if result[row].tobytes() != DATA[start : start + 500]
                )
                start = int(starts[0])
                if read(source, start, 300) != DATA[start : start + 300]:
                    wrong.append(start)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(processes.PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    for source in sources:
        source.close()


@pytest.fixture
def six_in_flight():
    with fetch.tuned(max_in_flight=6, initial_in_flight=6, min_stall_seconds=processes.PATIENCE):
        yield


def test_requests_in_flight_stay_within_their_bound(bucket, served, six_in_flight):
    sources = [open_source(at(bucket.put(f"{number}.bin", DATA), served)) for number in range(24)]
    served.reset()
    # All that is in flight at once waits until no more comes.
    served.fail(stalled(0), times=None)
    threads = [threading.Thread(target=read, args=(source,)) for source in sources]
    for thread in threads:
        thread.start()
    served.wait_for(lambda: served.count() >= 6)
    assert served.most_in_flight <= 6
    served.release()
    for thread in threads:
        thread.join()
    # Only the client knows from here on: the server ends with an answer later than who has read it.
    assert fetch.fetcher().most_in_flight <= 6
    assert served.count() == 24


def test_memory_stays_within_its_bound(bucket, served):
    url = at(bucket.put("a.bin", DATA * 10), served, fetch_bytes=500_000)
    with contextlib.closing(open_source(url)) as source:
        pool = source.blocks[0]
        for start in range(0, source.size - 1000, 777):
            assert read(source, start)[:9] == (DATA * 2)[start % len(DATA) :][:9]
        assert pool.peak <= 500_000
        assert pool.bytes <= 500_000


def test_a_closed_source_holds_no_memory(url):
    source = open_source(url)
    read(source)
    pool = source.blocks[0]
    held = pool.bytes
    source.close()
    assert pool.bytes < held
    with pytest.raises(bp.OptionError, match="closed"):
        read(source)


def test_ctrl_c_ends_the_wait_for_a_server_that_stalls(url, served):
    script = """
        import pickle, signal, sys
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from batchplant.storage import open_source
        source = open_source(pickle.loads(bytes.fromhex(sys.argv[1])))
        try:
            source.view(200_000, 1000)
        except KeyboardInterrupt:
            print("interrupted")
    """
    served.fail(lambda request: stalled(10) if request.range and request.range[0] == AT else None, times=None)
    with processes.start(
        [sys.executable, "-c", textwrap.dedent(script), pickle.dumps(url).hex()], stdout=subprocess.PIPE
    ) as process:
        served.wait_for(lambda: any(request.sent == 10 for request in served.requests))
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=processes.PATIENCE)[0] == b"interrupted\n"
        assert process.returncode == 0
        # It did not wait for the server.
        assert not any(
            request.sent > 1000 for request in served.requests if request.range and request.range[0] == AT
        )


def test_no_wait_is_endless(monkeypatch):
    """A Ctrl-C that comes between the last look for one and the wait would be seen when that ends."""
    waits = []
    monkeypatch.setattr(Future, "result", lambda self, timeout=None: waits.append(timeout))
    assert isinstance(fetch.Task(lambda: None, 0, 0.0).future, fetch.Answer)
    fetch.Answer().result()
    assert waits == [fetch.INTERRUPT_SECONDS]
