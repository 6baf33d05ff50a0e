"""Ranges over sockets of our own: what servers may answer, and what they may not."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

import batchplant as bp
from batchplant.storage.remote.client import BeyondError, TransientError
from batchplant.storage.remote.ranges import RangeRequests, RedirectedError

BODY = bytes(range(200)) * 10
RANGE = f"Content-Range: bytes 0-{len(BODY) - 1}/5000\r\n"
LENGTH = f"Content-Length: {len(BODY)}\r\n"


@contextlib.contextmanager
def server(*answers: bytes) -> Iterator[tuple[str, list[int]]]:
    """A server that sends these answers in turn, whatever is asked; its URL, and the connections it took.

    A connection ends after an answer that says so; the last answer is repeated.
    """
    connections: list[int] = []
    rest = list(answers)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client = listener.accept()[0]
                    connections.append(len(connections))
                    threading.Thread(target=talk, args=(client,), daemon=True).start()

        def talk(client: socket.socket) -> None:
            with client, contextlib.suppress(OSError):
                while client.recv(1 << 16):
                    answer = rest.pop(0) if len(rest) > 1 else rest[0]
                    client.sendall(answer)
                    if b"close" in answer:
                        return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/a.bin", connections
        # close() alone does not wake a thread that accepts.
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def ask(*answers: bytes, times: int = 1) -> tuple[list[bytes], int]:
    requests = RangeRequests()
    with server(*answers) as (url, connections):
        data = [requests.get(url, "x", 0, len(BODY)).data.tobytes() for _ in range(times)]
        return data, len(connections)


def head(status: str = "206 Partial Content", headers: str = RANGE + LENGTH) -> bytes:
    return f"HTTP/1.1 {status}\r\n{headers}\r\n".encode()


def chunked(*sizes: int) -> bytes:
    out, at = b"", 0
    for size in sizes:
        out, at = out + f"{size:x};name=value\r\n".encode() + BODY[at : at + size] + b"\r\n", at + size
    return out + b"0\r\n\r\n"


GOOD = {
    "plain": (head() + BODY, 1),
    "status 200": (head("200 OK") + BODY, 1),
    "no reason": (head("206") + BODY, 1),
    "interim answers": (b"HTTP/1.1 102 Processing\r\n\r\n" * 3 + head() + BODY, 1),
    "names in any case": (head(headers=(RANGE + LENGTH).upper().replace("BYTES", "bytes")) + BODY, 1),
    "in chunks": (head(headers=RANGE + "Transfer-Encoding: chunked\r\n") + chunked(1, 999, 1000), 3),
    "no length": (head(headers=RANGE) + BODY, 3),
    "closed by the server": (head(headers=RANGE + LENGTH + "Connection: close\r\n") + BODY, 3),
    "an older version": (head().replace(b"1.1", b"1.0") + BODY, 3),
}


@pytest.mark.parametrize("name", GOOD)
def test_answers_of_many_kinds(name: str) -> None:
    """A connection is used again only where the end of the body is certain."""
    answer, connections = GOOD[name]
    assert ask(answer, times=3) == ([BODY] * 3, connections)


def test_a_connection_that_the_server_closed_meanwhile() -> None:
    # The first connection ends at the second request, without an answer.
    requests = RangeRequests()
    with server(head() + BODY, b"close", head() + BODY) as (url, connections):
        for _ in range(2):
            assert requests.get(url, "x", 0, len(BODY)).data.tobytes() == BODY
        assert len(connections) == 2


BAD = {
    "nonsense": (b"\x00" * 100 + b"\r\n\r\n", TransientError),
    "another protocol": (b"SSH-2.0-OpenSSH\r\n\r\n", TransientError),
    "an endless head": (b"HTTP/1.1 206 OK\r\n" + b"a: b\r\n" * 20_000, TransientError),
    "endless interim answers": (b"HTTP/1.1 100 Continue\r\n\r\n" * 9, bp.AccessError),
    "lengths that differ": (head(headers=RANGE + LENGTH + "Content-Length: 7\r\n") + BODY, TransientError),
    "another length": (head(headers=RANGE + "Content-Length: 7\r\n") + BODY, TransientError),
    "another range": (head(headers=RANGE.replace(" 0-", " 5-") + LENGTH) + BODY, TransientError),
    "no range": (head(headers=LENGTH) + BODY, bp.AccessError),
    "a range of nothing": (head(headers="Content-Range: bytes 0-9/*\r\n") + BODY, bp.AccessError),
    "an impossible size": (head(headers=RANGE.replace("5000", "9" * 20) + LENGTH) + BODY, bp.AccessError),
    "a body cut short": (head(headers=RANGE + LENGTH + "Connection: close\r\n") + BODY[:-1], TransientError),
    "chunks cut short": (
        head(headers=RANGE + "Transfer-Encoding: chunked\r\n") + chunked(5), TransientError
    ),
    "a lying chunk": (
        head(headers=RANGE + "Transfer-Encoding: chunked\r\n") + b"zz\r\n" + BODY, TransientError
    ),
    "a redirect": (head("302 Found", "Location: http://127.0.0.1/x\r\n"), RedirectedError),
    "behind the end": (head("416 Range Not Satisfiable", ""), BeyondError),
    "gone": (head("404 Not Found", ""), bp.NotFoundError),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_answers_that_are_refused(name: str) -> None:
    answer, error = BAD[name]
    with pytest.raises(error) as caught:
        ask(answer)
    assert caught.value.path == "x"


def test_a_busy_server_says_when_to_come_again() -> None:
    with pytest.raises(TransientError, match="503") as caught:
        ask(head("503 Slow Down", "Retry-After: 7\r\n"))
    assert (caught.value.after, caught.value.answered) == (7.0, True)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(TransientError, match="cannot be reached"):
        RangeRequests().get(f"http://127.0.0.1:{port}/", "x", 0, 10)
