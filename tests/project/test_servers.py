"""The servers that tests talk to, and the proxy that makes faults: what the tests of remote data stand on."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import repository
from http_messages import address
from processes import PATIENCE, start
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
from servers import KEY, SECRET, Bucket, Web, s3_server

DATA = bytes(range(256)) * 40


@pytest.fixture
def client(web: Web) -> Iterator[http.client.HTTPConnection]:
    web.put("a.bin", DATA)
    with contextlib.closing(http.client.HTTPConnection(*address(web.endpoint), timeout=PATIENCE)) as result:
        yield result


def ask(
    client: http.client.HTTPConnection, method: str = "GET", path: str = "/a.bin", **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    client.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = client.getresponse()
    return answer, answer.read()


def store(bucket: Bucket, endpoint: str, **options: Any) -> Any:
    from obstore.store import S3Store

    return S3Store(
        bucket.name,
        **{
            "endpoint": endpoint,
            "access_key_id": KEY,
            "secret_access_key": SECRET,
            "region": "us-east-1",
            "client_options": {"allow_http": True},
            "retry_config": {"max_retries": 0},
            **options,
        },
    )


# The web server.


def test_web_server_gives_ranges_and_etags(web: Web, client: http.client.HTTPConnection) -> None:
    whole, data = ask(client)
    assert (whole.status, data, whole.getheader("Accept-Ranges")) == (200, DATA, "bytes")
    part, data = ask(client, Range="bytes=5-9")
    assert (part.status, data, part.getheader("Content-Range")) == (206, DATA[5:10], f"bytes 5-9/{len(DATA)}")
    assert ask(client, Range="bytes=-7")[1] == DATA[-7:]
    assert ask(client, Range=f"bytes={len(DATA) - 3}-")[1] == DATA[-3:]
    assert ask(client, Range=f"bytes={len(DATA)}-")[0].status == 416
    etag = whole.getheader("ETag")
    assert etag == part.getheader("ETag")
    assert ask(client, If_Match=etag)[0].status == 200
    web.put("a.bin", DATA[1:])
    assert ask(client, If_Match=etag)[0].status == 412
    assert ask(client, path="/b.bin")[0].status == 404
    head, data = ask(client, "HEAD")
    assert (head.getheader("Content-Length"), data) == (str(len(DATA) - 1), b"")


@pytest.mark.parametrize("lacks", ["has_head", "has_etag", "has_ranges"])
def test_proxy_takes_away_what_poor_servers_lack(
    web: Web, client: http.client.HTTPConnection, lacks: str
) -> None:
    setattr(web.proxy, lacks, False)
    assert ask(client, "HEAD")[0].status == (405 if lacks == "has_head" else 200)
    answer, data = ask(client, Range="bytes=1-2")
    assert (answer.status, len(data)) == ((200, len(DATA)) if lacks == "has_ranges" else (206, 2))
    assert (answer.getheader("ETag") is None) == (lacks == "has_etag")
    assert (answer.getheader("Accept-Ranges") is None) == (lacks == "has_ranges")


def test_ranges_may_come_with_200(web: Web, client: http.client.HTTPConnection) -> None:
    web.proxy.has_206 = False
    answer, data = ask(client, Range="bytes=1-2")
    assert (answer.status, data, answer.getheader("Content-Range")) == (
        200,
        DATA[1:3],
        f"bytes 1-2/{len(DATA)}",
    )


# The proxy.


def test_requests_are_remembered_and_a_connection_is_kept(
    web: Web, client: http.client.HTTPConnection
) -> None:
    client.connect()
    kept = client.sock
    ask(client, "HEAD")
    ask(client, Range="bytes=10-29")
    ask(client, path="/?list-type=2&prefix=a")
    assert client.sock is kept
    proxy = web.proxy
    proxy.wait_for(lambda: all(request.done for request in proxy.requests))
    assert [(request.kind, request.range, request.status) for request in proxy.requests] == [
        ("HEAD", None, 200),
        ("GET", (10, 30), 206),
        ("LIST", None, 200),
    ]
    assert [request.sent for request in proxy.requests[:2]] == [0, 20]
    assert (proxy.count(), proxy.count("GET"), proxy.count("GET", "b.bin")) == (3, 1, 0)
    assert proxy.bytes_sent >= 20
    assert proxy.most_in_flight == 1
    proxy.reset()
    assert (proxy.count(), proxy.bytes_sent) == (0, 0)


def test_status_comes_in_place_of_an_answer(web: Web, client: http.client.HTTPConnection) -> None:
    web.proxy.fail(answers(503, retry_after=2), method="GET", path="a.bin", skip=1, times=2)
    told = [ask(client) for _ in range(4)]
    assert [answer.status for answer, _ in told] == [200, 503, 503, 200]
    assert told[1][0].getheader("Retry-After") == "2"
    web.proxy.fail(answers(429), times=None)
    assert [ask(client, method)[0].status for method in ("HEAD", "GET", "PUT")] == [429] * 3


def test_rules_can_look_at_the_request(web: Web, client: http.client.HTTPConnection) -> None:
    web.proxy.fail(lambda request: answers(500) if request.range == (3, 5) else None)
    assert [ask(client, Range=f"bytes={wanted}")[0].status for wanted in ("0-1", "3-4", "3-4")] == [
        206,
        500,
        206,
    ]


@pytest.mark.parametrize("after", [0, 1, 5000])
def test_body_ends_early(web: Web, client: http.client.HTTPConnection, after: int) -> None:
    web.proxy.fail(truncated(after))
    with pytest.raises(http.client.IncompleteRead) as error:
        ask(client)
    assert (error.value.partial, error.value.expected) == (DATA[:after], len(DATA) - after)
    client.close()
    assert ask(client)[1] == DATA


def test_answer_does_not_begin(web: Web, client: http.client.HTTPConnection) -> None:
    web.proxy.fail(Fault(then="close", after=-1))
    with pytest.raises(http.client.RemoteDisconnected):
        ask(client)


def test_connection_is_reset(web: Web, client: http.client.HTTPConnection) -> None:
    web.proxy.fail(reset())
    web.proxy.fail(reset(9))
    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            ask(client)
        client.close()
    assert ask(client)[1] == DATA


def test_stalled_body_goes_on_when_it_is_let_go(web: Web, client: http.client.HTTPConnection) -> None:
    web.proxy.fail(stalled(1000))
    client.request("GET", "/a.bin")
    answer = client.getresponse()
    assert answer.read(1000) == DATA[:1000]
    client.sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        client.sock.recv(1)
    client.sock.setblocking(True)
    web.proxy.wait_for(lambda: web.proxy.bytes_sent == 1000)
    web.proxy.release()
    assert answer.read() == DATA[1000:]


def test_stalled_connection_does_not_hold_up_the_end(web: Web, client: http.client.HTTPConnection) -> None:
    with Proxy(web.endpoint) as other:
        other.fail(stalled(10))
        with contextlib.closing(http.client.HTTPConnection(*address(other.endpoint))) as waiting:
            waiting.request("GET", "/a.bin")
            other.wait_for(lambda: other.bytes_sent == 10)
            other.__exit__()
            with pytest.raises(http.client.IncompleteRead):
                waiting.getresponse().read()


def test_headers_lie(web: Web, client: http.client.HTTPConnection) -> None:
    for fault in (ignored_range(), changed_etag('"other"'), wrong_content_range("bytes 0-1/2")):
        web.proxy.fail(fault)
    answer, data = ask(client, Range="bytes=5-9")
    assert (answer.status, data, answer.getheader("Content-Range")) == (200, DATA, None)
    answer, data = ask(client, Range="bytes=5-9")
    assert (answer.status, data, answer.getheader("ETag")) == (206, DATA[5:10], '"other"')
    answer, data = ask(client, Range="bytes=5-9")
    assert (data, answer.getheader("Content-Range")) == (DATA[5:10], "bytes 0-1/2")


def test_server_that_is_down_refuses(web: Web, client: http.client.HTTPConnection) -> None:
    ask(client)
    with web.proxy.down():
        # The old connection ended, and no new one is to be had.
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            ask(client)
        client.close()
        with pytest.raises(ConnectionRefusedError):
            ask(client)
    client.close()
    assert ask(client)[1] == DATA


def test_delay_and_bandwidth_are_waited_for(
    web: Web, client: http.client.HTTPConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(web.proxy._closed, "wait", lambda seconds: waited.append(seconds))
    web.proxy.delay, web.proxy.bandwidth = 0.25, len(DATA) / 1000
    ask(client)
    web.proxy.wait_for(lambda: web.proxy.requests[0].done)
    assert waited[0] == 0.25
    # The clock here stands still, so that what is waited for last is due after all bytes.
    assert 990 < waited[-1] <= 1000


def test_requests_in_flight_are_counted(web: Web, client: http.client.HTTPConnection) -> None:
    web.proxy.fail(stalled(), times=3)
    threads = []
    for _ in range(3):
        one = http.client.HTTPConnection(*address(web.endpoint), timeout=PATIENCE)
        threads.append(threading.Thread(target=lambda item=one: (ask(item), item.close())))
        threads[-1].start()
    web.proxy.wait_for(lambda: web.proxy.most_in_flight == 3)
    web.proxy.release()
    for thread in threads:
        thread.join()
    ask(client)
    assert web.proxy.most_in_flight == 3


def test_chunked_bodies_pass_both_ways() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        Proxy(f"http://127.0.0.1:{listener.getsockname()[1]}") as proxy,
    ):
        seen = []

        def serve() -> None:
            one = listener.accept()[0]
            with one, one.makefile("rb") as lines:
                while (line := lines.readline()) != b"0\r\n":
                    seen.append(line)
                lines.readline()
                one.sendall(
                    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                )
                one.sendall(b"5\r\nhello\r\n0\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=PATIENCE)
        ) as client:
            client.request(
                "PUT",
                "/x",
                body=iter([b"one", b"three"]),
                encode_chunked=True,
                headers={"Transfer-Encoding": "chunked", "Expect": "100-continue"},
            )
            assert client.getresponse().read() == b"hello"
        thread.join(PATIENCE)
        assert proxy.requests[0].status == 200
        assert seen[-4:] == [b"3\r\n", b"one\r\n", b"5\r\n", b"three\r\n"]


# The S3 server.


def test_files_are_objects_at_once(bucket: Bucket) -> None:
    s3 = store(bucket, bucket.endpoint)
    for data in (b"one", b"two", b"three"):
        assert bucket.put("deep/a.bin", data) == f"{bucket.url}/deep/a.bin"
        assert s3.head("deep/a.bin")["e_tag"].strip('"') == hashlib.md5(data).hexdigest()
        assert bytes(s3.get("deep/a.bin").bytes()) == data
    bucket.put("deep/b.bin", b"four")
    assert s3.head("deep/b.bin")["size"] == 4
    assert [row["path"] for page in s3.list() for row in page] == ["deep/a.bin", "deep/b.bin"]
    os.unlink(os.path.join(bucket.root, "deep", "a.bin"))
    with pytest.raises(FileNotFoundError):
        s3.head("deep/a.bin")


def test_uploads_through_the_proxy_are_files(bucket: Bucket, proxy: Proxy) -> None:
    s3 = store(bucket, proxy.endpoint)
    parts = DATA * 1024
    s3.put("a/one.bin", DATA, use_multipart=False)
    s3.put("a/parts.bin", parts, use_multipart=True, chunk_size=5 << 20)
    for name, data in (("one.bin", DATA), ("parts.bin", parts)):
        with open(os.path.join(bucket.root, "a", name), "rb") as file:
            assert file.read() == data
        assert bytes(s3.get(f"a/{name}").bytes()) == data
    assert sorted(os.listdir(os.path.join(bucket.root, "a"))) == ["one.bin", "parts.bin"]
    assert sorted(row["path"] for page in s3.list() for row in page) == ["a/one.bin", "a/parts.bin"]
    assert (proxy.count("PUT"), proxy.count("POST"), proxy.count("LIST")) == (1 + 2, 2, 1)
    assert sum(request.received for request in proxy.requests if request.kind == "PUT") == len(DATA) + len(
        parts
    )


def test_mended_server_answers_ranges_as_s3_does(bucket: Bucket, proxy: Proxy) -> None:
    bucket.put("a.bin", DATA)
    s3 = store(bucket, proxy.endpoint)
    with pytest.raises(Exception, match="non-partial"):
        s3.get_range("a.bin", start=5, end=10)
    proxy.mend = True
    assert bytes(s3.get_range("a.bin", start=5, end=10)) == DATA[5:10]
    etag = s3.head("a.bin")["e_tag"]
    good = s3.get("a.bin", options={"range": (5, 10), "if_match": etag})
    assert bytes(good.bytes()) == DATA[5:10]
    bucket.put("a.bin", DATA[::-1])
    with pytest.raises(Exception, match="412"):
        s3.get("a.bin", options={"range": (5, 10), "if_match": etag})


def test_signed_range_is_ignored(bucket: Bucket, proxy: Proxy) -> None:
    bucket.put("a b/ä.bin", DATA)
    proxy.fail(ignored_range())
    proxy.mend = True
    s3 = store(bucket, proxy.endpoint)
    with pytest.raises(Exception, match="non-partial"):
        s3.get_range("a b/ä.bin", start=5, end=10)
    assert (proxy.requests[0].status, proxy.requests[0].range) == (200, (5, 10))
    assert bytes(s3.get_range("a b/ä.bin", start=5, end=10)) == DATA[5:10]


def test_server_refuses_a_wrong_key(bucket: Bucket, proxy: Proxy) -> None:
    bucket.put("a.bin", DATA)
    with pytest.raises(Exception, match="403"):
        store(bucket, proxy.endpoint, secret_access_key="another secret").head("a.bin")
    assert proxy.requests[0].status == 403


def test_anonymous_server_asks_for_no_key(tmp_path: Any, bucket: Bucket) -> None:
    Bucket("free", str(tmp_path / "free"), "").put("a.bin", DATA)
    bucket.put("a.bin", DATA)
    with s3_server(str(tmp_path), anonymous=True) as free:
        # S3 would answer 403.
        for place, name, good in ((free, "free", (200, DATA)), (bucket.endpoint, bucket.name, (400, None))):
            with contextlib.closing(http.client.HTTPConnection(*address(place), timeout=PATIENCE)) as client:
                answer, data = ask(client, path=f"/{name}/a.bin")
                assert (answer.status, data if answer.status == 200 else None) == good


def test_server_dies_with_the_tests(tmp_path: Any) -> None:
    script = (
        "import sys, servers; s = servers.s3_server(sys.argv[1]); print(s.__enter__(), flush=True); input()"
    )
    with start(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(repository.SUPPORT)},
    ) as tests:
        place = address(tests.stdout.readline().decode().strip())
        with socket.create_connection(place) as connection:
            tests.send_signal(signal.SIGKILL)
            # The end of the connection is the end of the server.
            connection.settimeout(PATIENCE)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""
