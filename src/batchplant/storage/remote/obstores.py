"""S3, GCS, Azure and HTTP through obstore."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from ...errors import AccessError, BatchplantError, NotFoundError, OptionError
from ...schema.columns import U8
from ..settings import StorageOptions
from ..urls import Place
from . import buffers, client, profiles
from .client import (
    BUSY,
    GONE,
    NO_SIZE,
    REFUSED,
    BeyondError,
    Client,
    Data,
    Entry,
    Got,
    NoServerError,
    RefusedError,
    TransientError,
    checked_size,
)
from .engine import obstore
from .outage import FIRST_PAUSE, MAX_PAUSE, PAUSE_GROWTH

# Of a request that goes on: a large part, a slow way.
TIMEOUT = f"{client.MAX_REQUEST_SECONDS:.0f}s"
CONNECT = "10s"
# How an upload is cut, and how many parts are under way.
PART = 16 << 20
PARTS = 4
MOST_PARTS = 9000
MOST_COPIED = 5 << 30
WRITE_ADVICE = "check that the credentials (environment, profile or role) may write there"
# Tries of a part of an upload: as many as its time allows.
MAX_PART_TRIES = 10_000
# What obstore says where a range comes with another status than 206, or the whole does.
NO_206 = ("non-partial response", "Range request not supported")
# What obstore says of headers that mean nothing; asked again, the server would send them again.
NO_MEANING = (
    "CONTENT_RANGE header",
    "Content-Range header",
    "Invalid last modified",
    "Invalid content length",
    "non-ASCII data",
)
# What resolvers say of a name that does not exist; for want of an answer they say something else.
NO_SUCH_NAME = ("Name or service not known", "nodename nor servname", "No address associated with hostname")
NO_SUCH_SERVER = "there is no server of this name"
# How long a signed URL is good for, and when it is renewed.
SIGNED = datetime.timedelta(hours=1)

Meta = dict[str, Any]


class ObstoreClient(Client):
    """A bucket, a container or a host."""

    def __init__(self, url: str, place: Place, options: StorageOptions) -> None:
        super().__init__(place.root, options)
        self._obstore = obstore(place.scheme)
        self._http = place.scheme in ("http", "https")
        try:
            self._store = _store(url, place, options)
        except BatchplantError:
            raise
        # What obstore says names the options, and could name their values.
        except Exception as error:
            said = str(error).partition("\n")[0][:200]
            raise OptionError(f"the store cannot be set up: {said}", path=place.root) from None
        self._made_of = url, place, options
        self._sends: Any = None
        # For servers whose answers to ranges obstore refuses.
        # HTTP and TLS in Python take long to import, and few need them.
        from .signed import Ranges

        self._ranges = Ranges(self.url)
        self._refused = False

    def head(self, name: str) -> Entry:
        self.requests += 1
        try:
            return self._entry(self._store.head(name), name)
        except Exception as error:
            found = self._named(error, name)
        if isinstance(found, NotFoundError):
            raise found from None
        # Some servers, and URLs signed for reading only, do not answer HEAD.
        try:
            got = self.get(name, 0, 1)
        except BatchplantError:
            raise found from None
        return Entry(name, got.size, got.tag)

    def get(self, name: str, start: int, end: int) -> Got:
        # A server would answer with a listing.
        if not name and not self._http:
            raise NotFoundError("a bucket is no file", path=self.url)
        if not self._refused:
            self.requests += 1
            try:
                return self._got(self._store.get(name, options={"range": (start, end)}), name)
            except Exception as error:
                if not any(words in str(error) for words in NO_206):
                    raise self._named(error, name, start) from None
            self._refused = True
        self.requests += 1
        return self.counted(self._ranges.get(self._signed(name), self._shown(name), start, end))

    def _got(self, found: Any, name: str) -> Got:
        size = checked_size(found.meta["size"], self._shown(name))
        return self.counted(Got(self._data(found, name), size, tag_of(found.meta)))

    def _data(self, found: Any, name: str) -> U8:
        """The bytes of an answer, checked as they come: ``bytes()`` would collect an endless body."""
        start, end = found.range
        chunks = found.stream(min_chunk_size=max(1, min(buffers.CHUNK, end - start)))
        return buffers.fill(end - start, chunks, self._shown(name), start)

    def get_whole(self, name: str) -> Got:
        self.requests += 1
        try:
            return self._got(self._store.get(name), name)
        except Exception as error:
            raise self._named(error, name) from None

    def _signed(self, name: str) -> str:
        """A URL that anybody may read this object by, for an hour."""
        if self._http:
            return f"{self._store.url.rstrip('/')}/{quote(name)}" if name else str(self._store.url)
        if self.options.anonymous and (endpoint := _s3_endpoint(self.options)):
            return "/".join([endpoint.rstrip("/"), self.url.partition("://")[2], quote(name)])
        try:
            return str(self._obstore.sign(self._store, "GET", name, SIGNED))
        except Exception as error:
            raise self._named(error, name) from None

    def level(self, folder: str) -> tuple[list[Entry], list[str]]:
        self.requests += 1
        try:
            found = self._store.list_with_delimiter(folder or None)
            entries = [self._entry(one, one["path"]) for one in found["objects"]]
        except Exception as error:
            raise self._named(error, folder, listing=True) from None
        return entries, sorted(str(one) for one in found["common_prefixes"])

    def walk(self, folder: str, after: str | None = None) -> Iterator[Entry]:
        self.requests += 1
        try:
            # Some servers answer out of order, but not within a page.
            names: list[str] = []
            for page in self._store.list(folder or None, offset=after, chunk_size=1000):
                before, names = names, [str(one["path"]) for one in page]
                # A server that always has one more page, and always the same, would never come to an end.
                if names and names == before:
                    raise AccessError(
                        "the server lists the same objects over and over", path=self._shown(folder)
                    )
                for one in page:
                    yield self._entry(one, one["path"])
        except Exception as error:
            raise self._named(error, folder, listing=True) from None

    def put(self, name: str, data: Data, size: int | None = None) -> str:
        self.requests += 1
        if isinstance(data, Path):
            size = os.path.getsize(data)
        # There may be 10,000 parts.
        part = max(PART, -(-(size or 0) // MOST_PARTS))
        store = self._store if isinstance(data, bytes) else self._uploads()
        try:
            found = store.put(name, data, chunk_size=part, max_concurrency=PARTS)
        except Exception as error:
            # A local file that cannot be read is no fault of the server.
            if isinstance(data, Path) and not os.path.exists(data):
                raise
            raise self._named(error, name, writing=True) from None
        return tag_of({"e_tag": found.get("e_tag")})

    def _uploads(self) -> Any:
        """A store that sends a part again that did not arrive: all others would have to be sent again too."""
        if self._sends is None:
            self._sends = _store(*self._made_of, retry_seconds=self.outage.window)
        return self._sends

    def copy(self, name: str, to: str) -> None:
        self.requests += 1
        try:
            self._store.copy(name, to)
        except Exception as error:
            found = self._named(error, name, writing=True)
        else:
            return
        # S3 copies up to 5 GB by itself.
        size = 0 if isinstance(found, NotFoundError | TransientError) else self.head(name).size
        if size <= MOST_COPIED:
            raise found from None
        self.put(to, (self.get(name, at, min(at + PART, size)).data for at in range(0, size, PART)), size)

    def delete(self, names: list[str]) -> None:
        if len(names) > 1 and self.url.startswith(("s3://", "s3a://")):
            self.requests += -(-len(names) // 1000)
            # Not every server knows the request for many.
            with contextlib.suppress(Exception):
                self._store.delete(names)
                return
        for name in names:
            self.requests += 1
            try:
                self._store.delete(name)
            except FileNotFoundError:
                continue
            except Exception as error:
                raise self._named(error, name, writing=True) from None

    def _entry(self, meta: Meta, name: str) -> Entry:
        return Entry(name, checked_size(meta["size"], self._shown(name)), tag_of(meta))

    def _shown(self, name: str) -> str:
        return f"{self.url}/{name}" if name else self.url

    def _named(
        self,
        error: Exception,
        name: str,
        start: int | None = None,
        *,
        listing: bool = False,
        writing: bool = False,
    ) -> BatchplantError:
        """What obstore raised as one of ours; of its text nothing that could hold a signature or a key."""
        if isinstance(error, BatchplantError):
            return error
        path, text = self._shown(name), str(error)
        status = re.search(r"status code: (\d{3})([^:\n]*)", text)
        code = int(status[1]) if status else None
        if (isinstance(error, FileNotFoundError) or code in GONE) and not listing:
            return NotFoundError("no such file", path=path)
        if code in GONE:
            return NotFoundError("no such bucket", path=self.url)
        kind = type(error).__name__
        if code in REFUSED or kind in ("PermissionDeniedError", "UnauthenticatedError"):
            answered = (
                f"the server answered {code or 403} ({(status[2].strip() if status else '') or 'refused'})"
            )
            advice = WRITE_ADVICE if writing and not self.options.anonymous else self._advice()
            return RefusedError(f"{answered}: {advice}", path=path, offset=start)
        if code == 416:
            return BeyondError("the range lies behind the end", path=path, offset=start)
        if code is not None and code not in BUSY:
            return AccessError(f"the server answered {code}{_hint(code, status)}", path=path, offset=start)
        if code is not None:
            busy = TransientError(
                f"the server answered {code}{status[2] if status else ''}", path=path, offset=start
            )
            busy.answered = True
            return busy
        if "Content-Length Header missing" in text:
            return AccessError(NO_SIZE, path=path, offset=start)
        if isinstance(error, ValueError | OverflowError) or any(words in text for words in NO_MEANING):
            why = text.partition("\n")[0].partition(" error: ")[2] or text
            return AccessError(
                f"the answer of the server makes no sense: {why[:100]}", path=path, offset=start
            )
        if kind in ("NotSupportedError", "NotImplementedError", "InvalidPathError", "PreconditionError"):
            said = text.partition("\n")[0][:200]
            return AccessError(said if said.isprintable() else ascii(said), path=path, offset=start)
        if "imdsv2" in text.lower() or "169.254." in text or "credential" in text.lower():
            return RefusedError(f"there are no credentials: {self._advice()}", path=path, offset=start)
        why = _why(text)
        # A name that was known a moment ago will be known again.
        missing = why == NO_SUCH_SERVER and not self.outage.answered
        return (NoServerError if missing else TransientError)(why, path=path, offset=start)

    def _advice(self) -> str:
        if self._http:
            return "the URL may have expired, or want a login"
        if self.options.anonymous:
            return "it is not public; leave anonymous out"
        return "check the credentials (environment, profile or role); a public bucket needs anonymous=True"


def _why(text: str) -> str:
    """Why there was no answer, in a few words."""
    for told, why in (
        *((words, NO_SUCH_SERVER) for words in NO_SUCH_NAME),
        ("kind: Connect", "the server cannot be reached"),
        ("TimedOut", "the server did not answer in time"),
        ("timed out", "the server did not answer in time"),
        ("kind: Timeout", "the server did not answer in time"),
    ):
        if told in text:
            return why
    return "the connection broke before all bytes came"


def _hint(code: int, status: re.Match[str] | None) -> str:
    said = status[2].rstrip() if status else ""
    return f"{said}; the bucket may lie in another region (region=…)" if code in (301, 307, 400) else said


def tag_of(meta: Meta) -> str:
    """What changes with the object."""
    tag = str(meta.get("e_tag") or "").removeprefix("W/").strip('"')
    if tag:
        return tag
    date = meta.get("last_modified")
    # What obstore says where the server does not.
    return "" if date is None or date.timestamp() <= 0 else f"{date.timestamp():.0f}"


def _s3_endpoint(options: StorageOptions) -> str | None:
    variables = (os.environ.get(name) for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"))
    return options.endpoint or next(filter(None, variables), None)


def _is_plain_http(endpoint: str) -> bool:
    """Whether an endpoint is asked without TLS; OptionError for what is no URL, where obstore panics."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(endpoint)
        if parts.scheme in ("http", "https") and parts.hostname:
            return parts.scheme == "http"
    said = endpoint.rpartition("@")[2]
    raise OptionError(f"the endpoint is a URL, such as http://minio.example:9000, and not {said!r}")


def _store(url: str, place: Place, options: StorageOptions, retry_seconds: float = 0.0) -> Any:
    store = obstore(place.scheme).store
    endpoint = options.endpoint
    shared: dict[str, Any] = {
        "client_options": {
            "timeout": TIMEOUT,
            "connect_timeout": CONNECT,
            "read_timeout": datetime.timedelta(seconds=client.SILENCE),
        },
        "retry_config": {
            "max_retries": MAX_PART_TRIES if retry_seconds else 0,
            "retry_timeout": datetime.timedelta(seconds=retry_seconds),
            "backoff": {
                "init_backoff": datetime.timedelta(seconds=FIRST_PAUSE),
                "max_backoff": datetime.timedelta(seconds=MAX_PAUSE),
                "base": PAUSE_GROWTH,
            },
        },
    }
    bucket = place.root.partition("://")[2]
    if place.scheme in ("http", "https"):
        shared["client_options"]["allow_http"] = True
        return store.HTTPStore.from_url(url if place.query else place.root, **shared)
    if not bucket:
        raise OptionError("this URL names no bucket", path=url)
    if place.scheme in ("s3", "s3a"):
        known = {} if options.anonymous else profiles.aws(options.profile)
        endpoint = _s3_endpoint(options) or known.pop("endpoint", None)
        variable = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        known["region"] = options.region or variable or known.get("region") or "us-east-1"
        if endpoint:
            known["endpoint"] = endpoint
            shared["client_options"]["allow_http"] = _is_plain_http(endpoint)
        if options.anonymous:
            known["skip_signature"] = True
        return store.S3Store(bucket, **known, **shared)
    if endpoint:
        shared["client_options"]["allow_http"] = _is_plain_http(endpoint)
    if place.scheme in ("gs", "gcs"):
        known = {"skip_signature": True} if options.anonymous else {}
        if endpoint:
            key = {"gcs_base_url": endpoint, "disable_oauth": True, "client_email": "", "private_key": ""}
            known = {"service_account_key": json.dumps(key)}
        return store.GCSStore(bucket, **known, **shared)
    known = {"skip_signature": True} if options.anonymous else {}
    if endpoint:
        known["endpoint"] = endpoint
    container, _, account = bucket.partition("@")
    if account:
        known["account_name"] = account.partition(".")[0]
    return store.AzureStore(container, **known, **shared)
