"""S3, GCS, Azure and HTTP through obstore.

obstore's threads do not survive a fork: a child that calls it after its parent did waits for ever. They
belong to the loaded library, not to a store. So such a child loads the library once more, from a copy of the
file: a library that is loaded from another file is another library, with threads of its own.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.machinery
import importlib.util
import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any
from urllib.parse import quote, urlsplit

from ...errors import AccessError, BatchplantError, MissingLibraryError, NotFoundError, OptionError, needs
from ...schema.columns import U8
from ..platform import private_copy
from ..settings import StorageOptions, settings_for
from ..urls import Place, is_remote, options_at, place_of
from . import client, ranges
from .client import (
    FIRST_PAUSE,
    GONE,
    MAX_PAUSE,
    NO_SIZE,
    PAUSE_GROWTH,
    REFUSED,
    Client,
    Data,
    Entry,
    Got,
    NoServerError,
    RefusedError,
    TransientError,
    checked_size,
    failure_of,
)
from .fetch import fetcher
from .ranges import RangeRequests, RedirectedError, is_proxied

# Limits of one request: it may be a large part over a slow link.
REQUEST_TIMEOUT = f"{client.MAX_REQUEST_SECONDS:.0f}s"
CONNECT_TIMEOUT = "10s"
# Bytes of a part of an upload, and the number of parts in flight.
PART_BYTES = 16 << 20
PARTS_IN_FLIGHT = 4
MAX_PARTS = 9000
MAX_COPY_BYTES = 5 << 30
WRITE_ADVICE = "check that the credentials (environment, profile or role) may write there"
# Tries of a part of an upload: as many as its time allows.
MAX_PART_TRIES = 10_000
# Messages of obstore if a range comes with another status than 206, or the whole object does.
NO_PARTIAL_CONTENT = ("non-partial response", "Range request not supported")
# Messages of obstore about headers that make no sense; the server would send them again.
INVALID_HEADERS = (
    "CONTENT_RANGE header",
    "Content-Range header",
    "Invalid last modified",
    "Invalid content length",
    "non-ASCII data",
)
# Messages of resolvers for a name that does not exist; without an answer they have another one.
NO_SUCH_NAME = ("Name or service not known", "nodename nor servname", "No address associated with hostname")
NO_SUCH_SERVER = "there is no server of this name"
# Validity of a signed URL.
SIGNED_URL_LIFETIME = datetime.timedelta(hours=1)

PACKAGE, LIBRARY = "obstore", "obstore._obstore"

_LOCK = threading.Lock()
_PACKAGE: Any = None
# Packages that parent processes loaded: not even destroyed here.
_ORPHANS: list[Any] = []

Meta = dict[str, Any]


class WholeObjectError(AccessError):
    """The server answers a range in a way that obstore refuses."""


class ObstoreClient(Client):
    """Client of a bucket, a container or a host through obstore."""

    def __init__(self, url: str, place: Place, options: StorageOptions) -> None:
        super().__init__(place.root, options)
        self._obstore = obstore(place.scheme)
        self._http = place.scheme in ("http", "https")
        try:
            self._store = _store(url, place, options)
        except BatchplantError:
            raise
        # obstore's message names options, and could contain their values.
        except Exception as error:
            message = str(error).partition("\n")[0][:200]
            raise OptionError(f"the store cannot be set up: {message}", path=place.root) from None
        self._init_args = url, place, options
        self._upload_store: Any = None
        self._ranges = RangeRequests()
        # Whether ranges go over sockets of our own: always, since obstore refuses the answers of this server;
        # or while that works, since the endpoint is plain HTTP.
        self._refused = False
        self._is_direct = _is_direct(url, place, options)

    def head(self, name: str) -> Entry:
        try:
            with self._asking(name):
                return self._entry(self._store.head(name))._replace(name=name)
        except NotFoundError:
            raise
        except BatchplantError as error:
            failure = error
        # Some servers, and URLs signed for reading only, do not answer HEAD.
        try:
            got = self.get(name, 0, 1)
        except BatchplantError:
            raise failure from None
        return Entry(name, got.size, got.tag)

    def get(self, name: str, start: int, end: int) -> Got:
        # For an empty name the server would answer with a listing.
        if not name and not self._http:
            raise NotFoundError("a bucket is no file", path=self.url)
        if self._is_direct or self._refused:
            try:
                with self._asking(name, start):
                    return self.count(self._ranges.get(self._signed(name), self._shown(name), start, end))
            except BatchplantError as error:
                # The frames below hold a signed URL, which no report shall show.
                failure = error.with_traceback(None)
                failure.__context__ = None
            if isinstance(failure, RefusedError):
                failure.message += f": {self._advice()}"
            if self._refused or not isinstance(failure, RedirectedError):
                raise failure
            # obstore follows redirects.
            self._is_direct = False
        try:
            with self._asking(name, start):
                return self._got(self._store.get(name, options={"range": (start, end)}), name)
        except WholeObjectError:
            self._refused = True
        return self.get(name, start, end)

    def _got(self, answer: Any, name: str) -> Got:
        size = checked_size(answer.meta["size"], self._shown(name))
        return self.count(Got(self._data(answer, name), size, tag_of(answer.meta)))

    def _data(self, answer: Any, name: str) -> U8:
        """Return the bytes of an answer, checked as they come: ``bytes()`` would collect an endless body."""
        start, end = answer.range
        chunks = answer.stream(min_chunk_size=max(1, min(ranges.READ_BYTES, end - start)))
        return ranges.fill(end - start, chunks, self._shown(name), start)

    def get_whole(self, name: str) -> Got:
        with self._asking(name):
            return self._got(self._store.get(name), name)

    def _signed(self, name: str) -> str:
        """Return a URL by which anybody can read this object for an hour."""
        if self._http:
            return f"{self._store.url.rstrip('/')}/{quote(name)}" if name else str(self._store.url)
        if self.options.anonymous and (endpoint := _s3_endpoint(self.options)):
            return "/".join([endpoint.rstrip("/"), self.url.partition("://")[2], quote(name)])
        try:
            return str(self._obstore.sign(self._store, "GET", name, SIGNED_URL_LIFETIME))
        except Exception as error:
            raise self._translate(error, name, None) from None

    def _level(self, folder: str) -> tuple[list[Entry], list[str]]:
        with self._asking(folder, listing=True):
            listing = self._store.list_with_delimiter(folder or None)
            entries = [self._entry(meta) for meta in listing["objects"]]
        return entries, sorted(str(prefix) for prefix in listing["common_prefixes"])

    def _walk(self, folder: str, after: str | None) -> Iterator[Entry]:
        with self._asking(folder, listing=True):
            # Some servers answer out of order, but not within a page.
            names: list[str] = []
            for page in self._store.list(folder or None, offset=after, chunk_size=1000):
                before, names = names, [str(meta["path"]) for meta in page]
                # A broken server repeats the same page for ever.
                if names and names == before:
                    raise AccessError(
                        "the server lists the same objects over and over", path=self._shown(folder)
                    )
                yield from map(self._entry, page)

    def put(self, name: str, data: Data, size: int | None = None) -> str:
        # S3 allows 10,000 parts.
        part = max(PART_BYTES, -(-(size or 0) // MAX_PARTS))
        store = self._store if isinstance(data, bytes) else self._retrying_store()
        with self._asking(name, writing=True):
            result = store.put(name, data, chunk_size=part, max_concurrency=PARTS_IN_FLIGHT)
        return tag_of({"e_tag": result.get("e_tag")})

    def _retrying_store(self) -> Any:
        """Return a store that retries single parts: otherwise all parts would be sent again."""
        if self._upload_store is None:
            self._upload_store = _store(*self._init_args, retry_seconds=self.outage.window)
        return self._upload_store

    def copy(self, name: str, to: str) -> None:
        try:
            with self._asking(name, writing=True):
                self._store.copy(name, to)
            return
        except BatchplantError as error:
            failure = error
        # S3 copies objects of up to 5 GB in one request.
        size = 0 if isinstance(failure, NotFoundError | TransientError) else self.head(name).size
        if size <= MAX_COPY_BYTES:
            raise failure from None
        starts = range(0, size, PART_BYTES)
        self.put(to, (self.get(name, start, min(start + PART_BYTES, size)).data for start in starts), size)

    def delete(self, names: list[str]) -> None:
        if len(names) > 1 and self.url.startswith(("s3://", "s3a://")):
            self.requests += -(-len(names) // 1000)
            # Not every server supports deleting many objects in one request.
            with contextlib.suppress(Exception):
                self._store.delete(names)
                return
        for name in names:
            with contextlib.suppress(NotFoundError), self._asking(name, writing=True):
                self._store.delete(name)

    def _entry(self, meta: Meta) -> Entry:
        return Entry(meta["path"], checked_size(meta["size"], self._shown(meta["path"])), tag_of(meta))

    def _translate(self, error: Exception, name: str, start: int | None, **doing: bool) -> BatchplantError:
        """Translate an exception of obstore; use little of its text, which may hold a signature or a key."""
        if isinstance(error, BatchplantError):
            return error
        path, text = self._shown(name), str(error)
        status = re.search(r"status code: (\d{3})([^:\n]*)", text)
        code = int(status[1]) if status else None
        if any(words in text for words in NO_PARTIAL_CONTENT):
            return WholeObjectError("the server gives no ranges; copy it to a disk", path=path, offset=start)
        if (isinstance(error, FileNotFoundError) or code in GONE) and not doing.get("listing"):
            return NotFoundError("no such file", path=path)
        if code in GONE:
            return NotFoundError("no such bucket", path=self.url)
        kind = type(error).__name__
        if code in REFUSED or kind in ("PermissionDeniedError", "UnauthenticatedError"):
            reason = (status[2].strip() if status else "") or "refused"
            advice = WRITE_ADVICE if doing.get("writing") and not self.options.anonymous else self._advice()
            return RefusedError(
                f"the server answered {code or 403} ({reason}): {advice}", path=path, offset=start
            )
        if status is not None and code is not None:
            hint = "; the bucket may lie in another region (region=…)" if code in (301, 307, 400) else ""
            return failure_of(code, f"the server answered {code}{status[2].rstrip()}{hint}", path, start)
        if "Content-Length Header missing" in text:
            return AccessError(NO_SIZE, path=path, offset=start)
        if isinstance(error, ValueError | OverflowError) or any(words in text for words in INVALID_HEADERS):
            why = text.partition("\n")[0].partition(" error: ")[2] or text
            return AccessError(
                f"the answer of the server makes no sense: {why[:100]}", path=path, offset=start
            )
        if kind in ("NotSupportedError", "NotImplementedError", "InvalidPathError", "PreconditionError"):
            first_line = text.partition("\n")[0][:200]
            return AccessError(
                first_line if first_line.isprintable() else ascii(first_line), path=path, offset=start
            )
        if "imdsv2" in text.lower() or "169.254." in text or "credential" in text.lower():
            return RefusedError(f"there are no credentials: {self._advice()}", path=path, offset=start)
        why = _why(text)
        # A name that resolved a moment ago will resolve again.
        missing = why == NO_SUCH_SERVER and not self.outage.answered
        return (NoServerError if missing else TransientError)(why, path=path, offset=start)

    def _advice(self) -> str:
        if self._http:
            return "the URL may have expired, or want a login"
        if self.options.anonymous:
            return "it is not public; leave anonymous out"
        return "check the credentials (environment, profile or role); a public bucket needs anonymous=True"


def _why(text: str) -> str:
    """Return in a few words why there was no answer."""
    for fragment, why in (
        *((words, NO_SUCH_SERVER) for words in NO_SUCH_NAME),
        ("kind: Connect", "the server cannot be reached"),
        ("TimedOut", "the server did not answer in time"),
        ("timed out", "the server did not answer in time"),
        ("kind: Timeout", "the server did not answer in time"),
    ):
        if fragment in text:
            return why
    return "the connection broke before all bytes came"


def tag_of(meta: Meta) -> str:
    """Return a tag that changes with the object: its ETag, else the date of its last change."""
    tag = str(meta.get("e_tag") or "").removeprefix("W/").strip('"')
    if tag:
        return tag
    date = meta.get("last_modified")
    # obstore reports the epoch if the server reports no date.
    return "" if date is None or date.timestamp() <= 0 else f"{date.timestamp():.0f}"


def _s3_endpoint(options: StorageOptions) -> str | None:
    variables = (os.environ.get(name) for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"))
    return options.endpoint or next(filter(None, variables), None)


def _s3_settings(options: StorageOptions) -> tuple[str | None, dict[str, Any]]:
    """Return the endpoint, and the region with keys or a provider of credentials, as S3Store takes them."""
    settings = {} if options.anonymous else _aws_profile(options.profile)
    of_profile = settings.pop("endpoint", None)
    variable = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    settings["region"] = options.region or variable or settings.get("region") or "us-east-1"
    return _s3_endpoint(options) or of_profile, settings


def _is_plain_http(endpoint: str) -> bool:
    """Return whether an endpoint has no TLS; OptionError for what is no URL, which makes obstore panic."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(endpoint)
        if parts.scheme in ("http", "https") and parts.hostname:
            return parts.scheme == "http"
    without_login = endpoint.rpartition("@")[2]
    raise OptionError(f"the endpoint is a URL, such as http://minio.example:9000, and not {without_login!r}")


def _is_direct(url: str, place: Place, options: StorageOptions) -> bool:
    """Return whether ranges of this place come over plain HTTP without a proxy in between."""
    if place.scheme in ("s3", "s3a"):
        endpoint = _s3_endpoint(options)
        return endpoint is not None and _is_plain_http(endpoint) and not is_proxied()
    return place.scheme == "http" and "@" not in urlsplit(url).netloc and not is_proxied()


def _store(url: str, place: Place, options: StorageOptions, retry_seconds: float = 0.0) -> Any:
    store = obstore(place.scheme).store
    endpoint = options.endpoint
    shared: dict[str, Any] = {
        "client_options": {
            "timeout": REQUEST_TIMEOUT,
            "connect_timeout": CONNECT_TIMEOUT,
            "read_timeout": datetime.timedelta(seconds=fetcher().tuning.max_silent_seconds),
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
        endpoint, credentials = _s3_settings(options)
        if endpoint:
            credentials["endpoint"] = endpoint
            shared["client_options"]["allow_http"] = _is_plain_http(endpoint)
        if options.anonymous:
            credentials["skip_signature"] = True
        return store.S3Store(bucket, **credentials, **shared)
    if endpoint:
        shared["client_options"]["allow_http"] = _is_plain_http(endpoint)
    if place.scheme in ("gs", "gcs"):
        credentials = {"skip_signature": True} if options.anonymous else {}
        if endpoint:
            key = {"gcs_base_url": endpoint, "disable_oauth": True, "client_email": "", "private_key": ""}
            credentials = {"service_account_key": json.dumps(key)}
        return store.GCSStore(bucket, **credentials, **shared)
    credentials = {"skip_signature": True} if options.anonymous else {}
    if endpoint:
        credentials["endpoint"] = endpoint
    container, _, account = bucket.partition("@")
    if account:
        credentials["account_name"] = account.partition(".")[0]
    return store.AzureStore(container, **credentials, **shared)


def _after_fork() -> None:
    global _LOCK, _PACKAGE
    _LOCK = threading.Lock()
    if _PACKAGE is not None:
        _ORPHANS.append(_PACKAGE)
        _PACKAGE = None


os.register_at_fork(after_in_child=_after_fork)


def obstore(scheme: str) -> Any:
    """Return the package for this process; ``scheme``: what it is needed for, for the error message."""
    global _PACKAGE
    with _LOCK:
        if _PACKAGE is None:
            _PACKAGE = _load_copy() if _ORPHANS else _load(scheme)
        return _PACKAGE


def _load(scheme: str) -> Any:
    with needs(f"{scheme}:// needs obstore", "remote"):
        import obstore.store
    return obstore


def _load_copy() -> Any:
    """Load the package with a separate copy of its library; other importers keep their modules."""
    originals = {name: module for name, module in sys.modules.items() if _is_part(name)}
    for name in originals:
        del sys.modules[name]
    try:
        sys.modules[LIBRARY] = _library(originals[LIBRARY].__file__)
        return _load(PACKAGE)
    except (ImportError, OSError, MissingLibraryError) as error:
        message = f"remote data cannot be read in a forked process here ({error}); start processes by spawn"
        raise AccessError(message) from None
    finally:
        for name in list(filter(_is_part, sys.modules)):
            del sys.modules[name]
        sys.modules.update(originals)


def _is_part(name: str) -> bool:
    return name.partition(".")[0] == PACKAGE


def _library(file: str | None) -> ModuleType:
    assert file is not None
    # The library stays mapped when the copy goes.
    with private_copy(file) as path:
        loader = importlib.machinery.ExtensionFileLoader(LIBRARY, path)
        spec = importlib.util.spec_from_file_location(LIBRARY, path, loader=loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        return module


# A profile with one of these has no static keys; boto3 can get some.
CREDENTIAL_SOURCES = (
    "role_arn",
    "sso_start_url",
    "sso_session",
    "credential_process",
    "web_identity_token_file",
)
KEYS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}


def _aws_profile(profile: str | None) -> dict[str, Any]:
    """Return options of S3Store for a profile: keys, region, endpoint, or a provider of credentials.

    A named profile takes precedence over key variables; that of AWS_PROFILE and the default profile do not.
    """
    if profile is None and os.environ.get("AWS_ACCESS_KEY_ID"):
        return {}
    named = profile or os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE")
    section = _read(named or "default")
    if section is None:
        if named is None:
            return {}
        raise OptionError(f"there is no profile {named!r} in {_file('CONFIG')} or {_file('CREDENTIALS')}")
    options = {name: section[key] for key, name in KEYS.items() if key in section}
    if "aws_access_key_id" not in section and any(name in section for name in CREDENTIAL_SOURCES):
        options["credential_provider"] = _provider(named or "default")
    for key, name in (("region", "region"), ("endpoint_url", "endpoint")):
        if section.get(key):
            options[name] = section[key]
    return options


def _file(kind: str) -> str:
    variable, name = {
        "CREDENTIALS": ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
        "CONFIG": ("AWS_CONFIG_FILE", "~/.aws/config"),
    }[kind]
    return os.path.expanduser(os.environ.get(variable) or name)


def _read(profile: str) -> dict[str, str] | None:
    # Imported here: few datasets need a profile.
    import configparser

    merged: dict[str, str] | None = None
    for kind, section in (("CONFIG", f"profile {profile}"), ("CREDENTIALS", profile)):
        parser = configparser.RawConfigParser()
        try:
            parser.read(_file(kind), encoding="utf-8")
        # The file may hold keys: none of it goes into a message.
        except (OSError, ValueError, configparser.Error):
            raise OptionError("it cannot be read as a file of profiles", path=_file(kind)) from None
        for name in (section, *(["default"] if profile == "default" else [])):
            if parser.has_section(name):
                merged = {**(merged or {}), **dict(parser.items(name))}
    return merged


def _provider(profile: str) -> Any:
    try:
        import boto3  # type: ignore[import-not-found, unused-ignore]
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise OptionError(
            f"the profile {profile!r} gets its credentials from elsewhere (a role, SSO or a command), "
            "and that needs boto3: pip install boto3"
        ) from None
    return Boto3CredentialProvider(boto3.Session(profile_name=profile))


def options_for(url: str) -> dict[str, str]:
    """Return options by the names that object_store gives them, on which delta-rs is built.

    Keys in the environment are not among them: the library reads them itself.
    """
    if not is_remote(url):
        return {}
    scheme, options = place_of(url).scheme, settings_for(str(url), options_at(url))
    options_by_name: dict[str, str] = {}
    endpoint = options.endpoint
    if scheme in ("s3", "s3a"):
        endpoint, settings = _s3_settings(options)
        settings.pop("credential_provider", None)
        options_by_name = {f"aws_{name}": str(value) for name, value in settings.items()}
        if endpoint:
            options_by_name["aws_endpoint"] = endpoint
        if options.anonymous:
            options_by_name["aws_skip_signature"] = "true"
    elif scheme in ("gs", "gcs"):
        options_by_name |= {"google_base_url": endpoint} if endpoint else {}
        options_by_name |= {"google_skip_signature": "true"} if options.anonymous else {}
    elif scheme not in ("http", "https"):
        options_by_name |= {"azure_endpoint": endpoint} if endpoint else {}
        options_by_name |= {"azure_skip_signature": "true"} if options.anonymous else {}
    if endpoint and endpoint.startswith("http://"):
        options_by_name["allow_http"] = "true"
    return options_by_name
