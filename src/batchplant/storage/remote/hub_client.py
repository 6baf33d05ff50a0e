"""Hugging Face Hub: ``hf://datasets/OWNER/NAME@REVISION/…``, also ``spaces``, ``buckets`` and models.

A revision is resolved to its commit once, so that a branch that moves changes nothing for this process; tags
are hashes of content. Each file is resolved once: the Hub redirects to a signed URL of another host, which
gets no token, serves the ranges, and is asked for anew when it refuses.
"""

from __future__ import annotations

import os
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from typing import Any, NamedTuple, NoReturn
from urllib.parse import quote, urljoin, urlsplit

from ...errors import AccessError, BatchplantError, NotFoundError, exceptions_as
from ...schema.columns import U8
from ..notes import NOTE_ERRORS, parse
from ..settings import StorageOptions
from ..urls import Place, hub_parts
from . import ranges
from .client import (
    Client,
    Data,
    Entry,
    Got,
    RefusedError,
    TransientError,
    as_array,
    checked_size,
    failure_of,
)
from .fetch import fetcher
from .ranges import RETRY_AFTER, RangeRequests

ENDPOINT = "https://huggingface.co"
MAX_ANSWER_BYTES = 64 << 20
# Redirects within the Hub before the one that leads out of it.
MAX_REDIRECTS = 5
# Seconds until the quota of requests is renewed, in the header RateLimit.
RESET = re.compile(r";\s*t=([0-9]{1,6})")
NEXT_PAGE = re.compile(r'<([^<>]+)>\s*;[^,]*rel="?next"?')
ADVICE = "for what is private or gated, set HF_TOKEN or run `hf auth login`"


class _Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


class _File(NamedTuple):
    """Location, size and tag of a file."""

    url: str
    size: int
    tag: str


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


class HubClient(Client):
    """Client of a repository or a bucket of the Hub."""

    def __init__(self, url: str, place: Place, options: StorageOptions) -> None:
        super().__init__(place.root, options)
        self._kind, self._repository, self._revision = hub_parts(place.root)
        self._endpoint = (options.endpoint or ENDPOINT).rstrip("/")
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._lock = threading.Lock()
        self._commit: str | None = None
        # By name; and by host, the connections for ranges.
        self._files: dict[str, _File] = {}
        self._hosts: dict[str, RangeRequests] = {}

    # -- requests to the Hub ---------------------------------------------------------------------------

    def _ask(self, url: str, name: str, method: str = "GET", **headers: str) -> _Answer:
        """Send one request; errors of the Hub become ours."""
        request = urllib.request.Request(
            url, method=method, headers={"Accept-Encoding": "identity", **headers}
        )
        token = None if self.options.anonymous else _token()
        # No other host gets the token.
        if token and _host(url) == _host(self._endpoint):
            request.add_header("Authorization", f"Bearer {token}")
        seconds = fetcher().tuning.max_silent_seconds
        with self._asking(name):
            try:
                with self._opener.open(request, timeout=seconds) as answer:
                    body = answer.read(MAX_ANSWER_BYTES + 1) if method == "GET" else b""
            except urllib.error.HTTPError as error:
                with error:
                    if not (300 <= error.code < 400 and error.headers.get("Location")):
                        self._fail(error.code, _lower(error.headers), name)
                    return _Answer(error.code, _lower(error.headers), b"")
            if len(body) > MAX_ANSWER_BYTES:
                raise AccessError("the answer of the server is too long", path=self._shown(name))
            return _Answer(answer.status, _lower(answer.headers), body)

    def _translate(self, error: Exception, name: str, start: int | None, **doing: bool) -> Exception:
        if isinstance(error, BatchplantError) or not isinstance(error, OSError | ValueError | HTTPException):
            return error
        message = "the connection broke before all bytes came"
        if isinstance(error, TimeoutError):
            message = "the server did not answer in time"
        elif isinstance(getattr(error, "reason", None), ConnectionRefusedError):
            message = "the server cannot be reached"
        return TransientError(message, path=self._shown(name))

    def _fail(self, code: int, headers: Mapping[str, str], name: str) -> NoReturn:
        path = self._shown(name)
        reason = headers.get("x-error-message", "")[:200]
        reason = f": {reason}" if reason and reason.isprintable() else ""
        wait = RETRY_AFTER.fullmatch(headers.get("retry-after", ""))
        reset = RESET.search(headers.get("ratelimit", ""))
        raise failure_of(
            code, f"the Hub answered {code}{reason}", path, None, advice=f"; {ADVICE}",
            missing=f"the Hub has no such file or revision{reason}",
            after=float(wait[0] if wait else reset[1] if reset else 0),
        )  # fmt: skip

    def _json(self, url: str, name: str) -> tuple[Any, str | None]:
        """Return an answer in JSON, and the URL of the page after it."""
        answer = self._ask(url, name)
        if answer.status >= 300:
            raise AccessError("the repository was renamed; use its new name", path=self.url)
        with exceptions_as(AccessError, "the answer of the Hub makes no sense", *NOTE_ERRORS, path=self.url):
            page = NEXT_PAGE.search(answer.headers.get("link", ""))
            return parse(answer.body), None if page is None else urljoin(url, page[1])

    @property
    def _api(self) -> str:
        return f"{self._endpoint}/api/{self._kind}/{self._repository}"

    @property
    def commit(self) -> str:
        """The commit that the revision names, as long as this process runs."""
        if self._commit is None:
            if re.fullmatch(r"[0-9a-f]{40}", self._revision):
                self._commit = self._revision
                return self._commit
            content, _ = self._json(f"{self._api}/revision/{quote(self._revision, safe='')}", "")
            commit = content.get("sha") if isinstance(content, dict) else None
            if not isinstance(commit, str) or not re.fullmatch(r"[0-9a-f]{6,64}", commit):
                raise AccessError("the Hub names no commit of this revision", path=self.url)
            with self._lock:
                self._commit = self._commit or commit
        return self._commit

    def revision(self) -> str | None:
        return None if self._kind == "buckets" else self.commit

    # -- files -----------------------------------------------------------------------------------------

    def _resolve_url(self, name: str) -> str:
        if self._kind == "buckets":
            return f"{self._endpoint}/buckets/{self._repository}/resolve/{quote(name, safe='')}"
        kind = "" if self._kind == "models" else f"/{self._kind}"
        return f"{self._endpoint}{kind}/{self._repository}/resolve/{self.commit}/{quote(name)}"

    def _file(self, name: str) -> _File:
        """Return where a file is; the Hub is asked for it once."""
        file = self._files.get(name)
        if file is not None:
            return file
        if not name:
            raise NotFoundError("a repository is no file", path=self.url)
        url, facts = self._resolve_url(name), dict[str, str]()
        for _ in range(MAX_REDIRECTS):
            answer = self._ask(url, name, "HEAD")
            facts = {**answer.headers, **{k: v for k, v in facts.items() if k.startswith("x-")}}
            if answer.status < 300:
                break
            url = urljoin(url, answer.headers["location"])
            if urlsplit(url).scheme not in ("http", "https") or not url.isascii():
                raise AccessError("the Hub redirects to what is no URL", path=self._shown(name))
            if _host(url) != _host(self._endpoint) or "x-linked-size" in answer.headers:
                break
        else:
            raise AccessError("the Hub redirects in a circle", path=self._shown(name))
        redirected = answer.status >= 300
        size = facts.get("x-linked-size") or (None if redirected else facts.get("content-length"))
        tag = facts.get("x-linked-etag") or facts.get("etag", "")
        file = _File(url, checked_size(size, self._shown(name)), tag.removeprefix("W/").strip('"'))
        self._files[name] = file
        return file

    def head(self, name: str) -> Entry:
        file = self._file(name)
        return Entry(name, file.size, file.tag)

    def get(self, name: str, start: int, end: int) -> Got:
        file = self._file(name)
        try:
            data = self._range(file, name, start, min(end, file.size))
        except (RefusedError, NotFoundError) as error:
            if _host(file.url) == _host(self._endpoint):
                raise
            # The signed URL has expired.
            self._files.pop(name, None)
            renewed = self._file(name)
            if renewed.tag != file.tag:
                raise AccessError("the file was replaced", path=self._shown(name)) from error
            data = self._range(renewed, name, start, min(end, file.size))
        return self.count(Got(data, file.size, file.tag))

    def _range(self, file: _File, name: str, start: int, end: int) -> U8:
        if end <= start:
            return as_array(b"")
        scheme, host = urlsplit(file.url).scheme, _host(file.url)
        if host != _host(self._endpoint) and scheme not in urllib.request.getproxies():
            with self._lock:
                ranges = self._hosts.setdefault(host, RangeRequests())
            with self._asking(name):
                return ranges.get(file.url, self._shown(name), start, end).data
        answer = self._ask(file.url, name, Range=f"bytes={start}-{end - 1}")
        data = as_array(answer.body)
        # Small files come whole.
        if answer.status == 200 and len(data) == file.size:
            data = data[start:end]
        if len(data) != end - start:
            message = f"{len(data)} of {end - start} bytes came"
            raise TransientError(message, path=self._shown(name), offset=start)
        return data

    def get_whole(self, name: str) -> Got:
        size = self._file(name).size
        parts = [
            self.get(name, start, start + MAX_ANSWER_BYTES) for start in range(0, size, MAX_ANSWER_BYTES)
        ]
        if len(parts) == 1:
            return parts[0]
        data = ranges.fill(size, (part.data.data for part in parts), self._shown(name), 0)
        return Got(data, size, self._file(name).tag)

    # -- listings --------------------------------------------------------------------------------------

    def _pages(self, folder: str, *, recursive: bool) -> Iterator[dict[str, Any]]:
        revision = "" if self._kind == "buckets" else f"/{self.commit}"
        safe = "" if self._kind == "buckets" else "/"
        inside = f"/{quote(folder, safe=safe)}" if folder else ""
        url: str | None = f"{self._api}/tree{revision}{inside}?recursive={recursive}&limit=1000"
        seen: set[str] = set()
        while url is not None:
            if url in seen or _host(url) != _host(self._endpoint):
                raise AccessError("the Hub lists the same objects over and over", path=self._shown(folder))
            seen.add(url)
            try:
                entries, url = self._json(url, folder)
            except NotFoundError:
                # A folder that is not there is empty; a repository that is not there has no commit.
                return
            with exceptions_as(
                AccessError, "the listing of the Hub makes no sense", *NOTE_ERRORS, path=self.url
            ):
                for entry in entries:
                    yield {**entry, "path": str(entry["path"])}

    def _entry(self, entry: Mapping[str, Any]) -> Entry:
        name, linked = entry["path"], entry.get("lfs") or {}
        tag = linked.get("oid") or entry.get("oid") or entry.get("xetHash") or ""
        return Entry(name, checked_size(linked.get("size", entry.get("size")), self._shown(name)), str(tag))

    def _level(self, folder: str) -> tuple[list[Entry], list[str]]:
        entries = list(self._pages(folder.rstrip("/"), recursive=False))
        folders = sorted(entry["path"] for entry in entries if entry.get("type") == "directory")
        return [self._entry(entry) for entry in entries if entry.get("type") == "file"], folders

    def _walk(self, folder: str, after: str | None) -> Iterator[Entry]:
        entries = self._pages(folder.rstrip("/"), recursive=True)
        files = sorted(self._entry(entry) for entry in entries if entry.get("type") == "file")
        yield from (entry for entry in files if after is None or entry.name > after)

    def put(self, name: str, data: Data, size: int | None = None) -> str:
        raise AccessError("the Hub is read only here; upload with `hf upload`", path=self._shown(name))

    def copy(self, name: str, to: str) -> None:
        raise AccessError("the Hub is read only here", path=self._shown(name))

    def delete(self, names: list[str]) -> None:
        raise AccessError("the Hub is read only here", path=self.url)


def _host(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2].lower()


def _lower(headers: Any) -> dict[str, str]:
    return {str(name).lower(): str(value).strip() for name, value in headers.items()}


def _token() -> str | None:
    """Return the token of this user: of the environment, or of the file that `hf auth login` writes."""
    token = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN")
    if not token:
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        home = os.environ.get("HF_HOME") or os.path.join(cache, "huggingface")
        path = os.environ.get("HF_TOKEN_PATH") or os.path.join(os.path.expanduser(home), "token")
        try:
            with open(path, encoding="utf-8") as file:
                token = file.read(4096)
        except (OSError, ValueError):
            return None
    token = token.strip()
    return token if token.isascii() and token.isprintable() else None
