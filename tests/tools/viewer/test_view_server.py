"""The viewer's server: who may ask, what a browser is told it may do, and the command that starts it."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import numpy as np
import pytest

import batchplant as bp
import processes
from batchplant.cli import main

pytest.importorskip("starlette", reason="pip install 'batchplant[view]'")
pytest.importorskip("uvicorn", reason="pip install 'batchplant[view]'")

from batchplant.tools.viewer.serve import MAX_QUERY_LETTERS, serving
from batchplant.tools.viewer.session import Session
from viewing import working


@pytest.fixture(scope="module")
def url() -> Iterator[SplitResult]:
    with serving(Session(bp.open({"x": [1, 2]}))) as server:
        yield urlsplit(server.url)


def ask(
    url: SplitResult, path: str, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[int, Any, bytes]:
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=processes.PATIENCE)
    try:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def test_the_page_may_run_its_own_script_and_nothing_else(url: SplitResult) -> None:
    status, headers, body = ask(url, url.path)
    assert status == 200
    policy = headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
    assert b"http:" not in body.replace(b"http://www.w3.org", b"")
    assert b"https:" not in body
    assert ask(url, f"{url.path}page/main.js")[0] == 200


@pytest.mark.parametrize("token", ["", "x", "x" * 32, "%00", "..", "é".encode().hex()])
def test_nothing_is_answered_without_the_token(url: SplitResult, token: str) -> None:
    for path in (f"/{token}", f"/{token}/", f"/{token}/api/dataset", f"/{token}/page/main.js"):
        status, headers, body = ask(url, path)
        assert status == 403
        assert b"token" in body
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example:{port}", ""])
def test_another_host_name_is_refused(url: SplitResult, host: str) -> None:
    """A page elsewhere whose name was made to lead to this machine cannot read anything."""
    name = host.format(port=url.port)
    assert ask(url, f"{url.path}api/dataset", headers={"Host": name})[0] == 421


@pytest.mark.parametrize(
    "header",
    [
        "Host: 127.0.0.1:{port}@evil.example", "Host: evil.example@127.0.0.1:{port}",
        "Host: user:127.0.0.1@evil.example:80", "Host: 127.0.0.1.:{port}", "Host: localhost.:{port}",
        "Host: localhost:", "Host: localhost:99999", "Host: localhost:0", "Host: localhost:{port}x",
        "Host: [::1", "Host: ::1", "Host: [127.0.0.1]:{port}", "Host: [::1]:{port}@evil.example",
        "Host: 127.0.0.1\t.evil.example:{port}", "Host: 127.0.0.1:{port}/evil.example", "Host: 127.1:{port}",
        "Host: evil.example\r\nHost: 127.0.0.1:{port}", "Host: 127.0.0.1:{port}\r\nHost: 127.0.0.1:{port}",
        "Host:", "Host: 127.0.0.1:{port}, evil.example", "Host: \u0661\u0662\u0667.0.0.1:{port}",
    ],
)  # fmt: skip
def test_odd_hosts_are_refused(url: SplitResult, header: str) -> None:
    """uvicorn refuses some of them itself (400); no request gets any further than that or the guard."""
    status, body = raw(url, header.format(port=url.port))
    assert status in (400, 421), body[:200]
    assert b"samples" not in body


@pytest.mark.parametrize("host", ["LOCALHOST:{port}", "[::1]:{port}", "localhost", "127.0.0.1:9"])
def test_own_hosts_are_accepted_whatever_the_port(url: SplitResult, host: str) -> None:
    """A port of a tunnel (ssh -L) is not the server's."""
    assert raw(url, f"Host: {host.format(port=url.port)}")[0] == 200


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:{port}", 200), ("http://evil.example", 403), ("null", 403), ("", 403),
        ("http://localhost:{port}@evil.example", 403), ("http://localhost:{port}.evil.example", 403),
        ("http://localhost:1", 403), ("file://", 403),
        ("http://localhost:{port}\r\nOrigin: http://evil.example", 403),
    ],
)  # fmt: skip
def test_only_the_page_itself_may_ask(url: SplitResult, origin: str, status: int) -> None:
    headers = f"Host: localhost:{url.port}\r\nOrigin: {origin.format(port=url.port)}"
    assert raw(url, headers)[0] == status


def raw(url: SplitResult, headers: str) -> tuple[int, bytes]:
    """The answer to a request whose headers no library has looked at."""
    with socket.create_connection((url.hostname, url.port), timeout=processes.PATIENCE) as connection:
        request = f"GET {url.path}api/dataset HTTP/1.1\r\n{headers}\r\nConnection: close\r\n\r\n"
        connection.sendall(request.encode())
        answer = connection.makefile("rb").read()
    return int(answer.split()[1]), answer


def test_this_machine_has_two_names(url: SplitResult) -> None:
    for name in (f"localhost:{url.port}", f"127.0.0.1:{url.port}"):
        assert ask(url, f"{url.path}api/dataset", headers={"Host": name})[0] == 200


def test_requests_only_read_and_are_short(url: SplitResult) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(url, f"{url.path}api/dataset", method)[0] == 405
    assert ask(url, f"{url.path}api/rows?search={'x' * MAX_QUERY_LETTERS}")[0] == 414


ODD_NUMBERS = (
    "9" * 4301, "-" + "9" * 4301, "-1", "--1", "-", "1.5", "1e3", "nan", "inf", "", " 1", "1_0", "0x1",
    "\u0663", "\u00b2", "\uff11", "99999999999999999999", "-99999999999999999999", "\x00",
)  # fmt: skip
NUMBERED_ROUTES = {
    "samples": ("start", "count"), "sheet": ("size", "start", "count"), "find": ("sample",),
    "sample/0": ("row",), "image/0/image": ("max",), "drawn": ("samples",), "live": ("loader", "since"),
    "slice/0/x": ("axes", "at"), "tree/0/j": ("start", "path"), "tensors": ("start", "count"),
    "epoch": ("seed", "epoch", "batch_size", "world_size", "window", "lanes"), "step": ("step", "rank"),
    "augment/0": ("seed", "epoch", "count"), "verify": ("sample",), "doctor": ("world_size",),
    "sound/0/x": ("start",), "wave/0/x": ("start", "width", "height"),
    "frame/0/x": ("at", "max"), "strip/0/x": ("count", "height"), "mask/0/image": ("max",),
}  # fmt: skip
NUMBERED_PATHS = (
    "sample/{}", "check/{}", "image/{}/image", "bytes/{}/x", "augment/{}", "when/{}", "slice/{}/x",
    "statistics/{}/x", "sound/{}/x", "video/{}/x", "frame/{}/x", "mask/{}/image", "tree/{}/j",
)  # fmt: skip


def test_odd_numbers_are_refused_with_a_message() -> None:
    """Whatever stands where a number should: an answer in JSON, never a failure of the server."""
    data = {"image": np.zeros((2, 8, 8, 3), np.uint8), "x": np.zeros((2, 4)), "j": [{"a": 1}, {"a": 2}]}
    kinds = {"image": bp.Image(encoding="raw"), "x": bp.Tensor("float64", (4,)), "j": bp.Json()}
    reader = bp.open(data, schema=bp.Schema(kinds))
    with working(reader) as client:
        for number in ODD_NUMBERS:
            for path in NUMBERED_PATHS:
                # A path cannot be empty, nor does "." stay in it.
                answer = client.get(f"/api/{path.format(urllib.parse.quote(number, safe='') or '-')}")
                assert answer.status_code == 404, (path, number[:30], answer.text[:200])
                assert answer.json()["error"]["message"]
            for path, names in NUMBERED_ROUTES.items():
                for name in names:
                    answer = client.get(f"/api/{path}", params={name: number})
                    assert answer.status_code < 500 or answer.status_code == 501, (path, name, number[:30])
                    assert "ValueError" not in answer.text, (path, name, number[:30])
        for value in ("1" + "0" * 400, "-1", "1e999", "NaN", '"1"', "true", "null", "1e300"):
            ops = f'[["CenterCrop",{{"size":{value}}}],["ColorJitter",{{"hue":{value}}}]]'
            answer = client.get("/api/augment/0", params={"ops": ops})
            while answer.json().get("state") == "working":
                answer = client.get("/api/augment/0", params={"ops": ops})
            assert answer.json()["error"]["type"] == "OptionError", (value, answer.text[:200])


@pytest.mark.parametrize(
    "path",
    [
        "page/../../session.py",
        "page/..%2f..%2fsession.py",
        "page/%2e%2e/session.py",
        "page//etc/passwd",
        "page/",
    ],
)
def test_only_files_of_the_page_are_given(url: SplitResult, path: str) -> None:
    status, _, body = ask(url, url.path + path)
    assert status == 404, body[:100]


def test_the_command_serves_until_it_is_stopped(tmp_path: Path) -> None:
    with bp.create(tmp_path / "x.npz", schema={"x": bp.Int()}) as writer:
        writer.append({"x": 3})
    command = [sys.executable, "-m", "batchplant", "view", str(tmp_path / "x.npz"), "--json"]
    with processes.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        answer = json.loads("".join(process.stdout.readline() for _ in range(4)))
        assert answer["samples"] == 1
        where = urlsplit(answer["url"])
        assert json.loads(ask(where, f"{where.path}api/sample/0")[2])["cells"][0]["value"] == 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(processes.PATIENCE) == 0
        assert process.stderr.read() == ""


def test_a_port_that_is_taken_is_said(
    url: SplitResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with bp.create(tmp_path / "x.npz", schema={"x": bp.Int()}) as writer:
        writer.append({"x": 3})
    assert main(["view", str(tmp_path / "x.npz"), "--port", str(url.port), "--no-browser"]) == 2
    assert f"cannot listen on 127.0.0.1:{url.port}" in capsys.readouterr().err
    assert main(["view", str(tmp_path / "x.npz"), "--port", "70000"]) == 2
    assert main(["view", str(tmp_path / "none.npz")]) == 2
