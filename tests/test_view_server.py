"""The viewer's server: who may ask, what a browser is told it may do, and the command that starts it."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import pytest

import batchplant as bp
import processes
from batchplant.cli import main

pytest.importorskip("starlette", reason="pip install 'batchplant[view]'")
pytest.importorskip("uvicorn", reason="pip install 'batchplant[view]'")

from batchplant.viewer.security import LONGEST_QUERY
from batchplant.viewer.serve import serving
from batchplant.viewer.session import Session


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


def test_this_machine_has_two_names(url: SplitResult) -> None:
    for name in (f"localhost:{url.port}", f"127.0.0.1:{url.port}"):
        assert ask(url, f"{url.path}api/dataset", headers={"Host": name})[0] == 200


def test_requests_only_read_and_are_short(url: SplitResult) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(url, f"{url.path}api/dataset", method)[0] == 405
    assert ask(url, f"{url.path}api/rows?search={'x' * LONGEST_QUERY}")[0] == 414


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
        said = json.loads("".join(process.stdout.readline() for _ in range(4)))
        assert said["samples"] == 1
        where = urlsplit(said["url"])
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
