"""Connections between a client and its servers: messages, the proof of a token, TLS, addresses.

A message is a header, JSON, and the bytes of its arrays, which are received where they stay: in the memory of
the batch. Every size is checked against what the receiver expects before memory is taken for it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hmac
import ipaddress
import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from ..._version import __version__
from ...errors import AccessError, DamagedError, NotFoundError, OptionError, exceptions_as, printable
from ...schema.columns import U8, AnyArray, AnyDType, Ragged, as_bytes
from ..node.wire import WRONG, Buffer, Decoder, Encoder, checked_dtype

if TYPE_CHECKING:
    # It takes long to import, and most services have no TLS.
    import ssl

HEADER = struct.Struct("<4sIQ")
MAGIC = b"bp1\n"
# Of a message before its sender proved that it may send any, and of a request.
MAX_GREETING_BYTES, MAX_REQUEST_BYTES = 4 << 10, 16 << 20
# Of JSON, which takes much more memory once it is values: in any message, and in a request.
MAX_TEXT_BYTES, MAX_REQUEST_TEXT = 64 << 20, 256 << 10
# Arrays that one system call sends.
MAX_VECTOR = 512
# A peer that is silent so long amid a message, or before it proved itself, is given up.
# A long message may take more time, at so many bytes a second.
MESSAGE_SECONDS, GREETING_SECONDS, MIN_BYTES_PER_SECOND = 60.0, 5.0, 1e6
# How long TCP waits for a host that has gone without a word.
IDLE_SECONDS, PROBE_SECONDS, PROBES = 10, 5, 3
MIN_TOKEN_BYTES = 16
# Environment variables of the client, and of servers.
TOKEN, TOKEN_FILE = "BATCHPLANT_TOKEN", "BATCHPLANT_TOKEN_FILE"

Allocate = Callable[[tuple[int, ...], AnyDType], AnyArray]


class RefusedError(OptionError):
    """Raised where the other side does not take this one, or is not what it should be."""


@dataclasses.dataclass(frozen=True)
class Security:
    """The secrets of one side. token: the same on both. cert, key, ca: files of PEM; with ca, the peer's
    certificate is checked.
    """

    token: bytes = dataclasses.field(default=b"", repr=False)
    cert: str | None = None
    key: str | None = None
    ca: str | None = None

    @classmethod
    def of(cls, token_file: str | None, cert: str | None, key: str | None, ca: str | None) -> Self:
        """Return the secrets in these files; the token may be in the environment."""
        path = token_file or os.environ.get(TOKEN_FILE)
        if path:
            try:
                with open(path, "rb") as file:
                    token = file.read(MAX_GREETING_BYTES).strip()
            except FileNotFoundError:
                raise NotFoundError("there is no such token file", path=path) from None
            except OSError as error:
                raise AccessError(error.strerror or str(error), path=path) from None
        else:
            token = os.environ.get(TOKEN, "").encode()
        if (path or token) and len(token) < MIN_TOKEN_BYTES:
            raise OptionError(f"a token has {MIN_TOKEN_BYTES} bytes or more: openssl rand -hex 32", path=path)
        if (cert is None) != (key is None):
            raise OptionError("a certificate needs its key: give both files")
        return cls(token, cert, key, ca)

    def context(self, *, server: bool) -> ssl.SSLContext | None:
        """Return what TLS needs; None without it."""
        if self.cert is None and self.ca is None:
            return None
        import ssl

        if server and (self.cert is None or self.ca is None):
            raise OptionError("TLS is mutual: a server needs its certificate, its key and the CA of clients")
        protocol = ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        with exceptions_as(OptionError, "TLS cannot use these files", OSError, path=self.cert or self.ca):
            context.load_verify_locations(self.ca)
            context.verify_mode = ssl.CERT_REQUIRED
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        return context

    def proof(self, purpose: bytes, nonces: bytes) -> bytes:
        """Return what only the holder of the token can say of these nonces."""
        return hmac.digest(self.token, purpose + nonces, "sha256")


class Rows(NamedTuple):
    """An array of bytes whose rows lie apart, and the shape of each."""

    rows: list[U8]
    shape: tuple[int, ...]


class MessageEncoder(Encoder):
    """Encodes values, and cells of varying sizes."""

    def custom(self, value: Any) -> Any:
        if isinstance(value, Rows):
            start = self._size
            for row in value.rows:
                self._append(row.data)
            return ["array", start, self._size - start, "|u1", [len(value.rows), *value.shape]]
        if isinstance(value, Ragged):
            start, end = value.offsets[0], value.offsets[-1]
            parts = [value.data[start:end], value.offsets - start, value.shape, value.valid]
            return ["ragged", *map(self.tree, parts)]
        return super().custom(value)


class MessageDecoder(Decoder):
    """Decodes a message whose arrays are still to be received, in order."""

    def __init__(self, fill: Callable[[memoryview], None], size: int, allocate: Allocate) -> None:
        super().__init__()
        self._fill, self._size, self._allocate, self._position = fill, size, allocate, 0

    def make_bytes(self, start: int, size: int) -> bytes:
        return self.make_array(start, size, "|u1", [size]).tobytes()

    def make_array(self, start: int, size: int, text: str, shape: list[int]) -> AnyArray:
        dtype = checked_dtype(text, shape, size)
        if start != self._position or start + size > self._size:
            raise ValueError("an array lies elsewhere")
        self._position += size
        array = self._allocate(tuple(shape), dtype)
        if size:
            self._fill(as_bytes(array).data)
        return array

    def make_ragged(self, data: Any, offsets: Any, shape: Any, valid: Any) -> Ragged:
        return Ragged(*map(self.value, (data, offsets, shape, valid)))


def pack(value: object) -> list[Buffer]:
    """Return the buffers of a message; raise OptionError if it is too long."""
    text, parts = MessageEncoder().parts(value)
    if len(text) > MAX_TEXT_BYTES:
        raise OptionError(
            f"a message has {len(text):,} bytes of text, which are too many: use smaller batches"
        )
    return [HEADER.pack(MAGIC, len(text), sum(map(len, parts))), text, *parts]


def _deadline(size: int) -> float:
    """Return when a message must be through: a peer that drips bytes holds no thread for ever."""
    return time.monotonic() + MESSAGE_SECONDS + size / MIN_BYTES_PER_SECOND


class Channel:
    """A connection that carries messages. It belongs to one thread at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", IDLE_SECONDS), ("TCP_KEEPINTVL", PROBE_SECONDS), ("TCP_KEEPCNT", PROBES),
        ):  # fmt: skip
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        # sendmsg takes many arrays at once; TLS has no such call.
        self._vectored = type(connection) is socket.socket
        self.sent = self.received = 0

    def secure(self, context: ssl.SSLContext, *, server: bool, host: str | None = None) -> None:
        """Begin TLS; raise OSError where the peer's certificate is none that is trusted."""
        self._socket.settimeout(GREETING_SECONDS)
        name = None if server else host
        self._socket = context.wrap_socket(self._socket, server_side=server, server_hostname=name)
        self._vectored = False

    def send(self, value: object) -> None:
        """Send a value; raise OSError where the peer does not take it."""
        self.send_packed(pack(value))

    def send_packed(self, buffers: list[Buffer]) -> None:
        """Send a message that ``pack`` made."""
        size = sum(map(len, buffers))
        deadline = _deadline(size)
        self._socket.settimeout(MESSAGE_SECONDS)
        self.sent += size
        if not self._vectored:
            for buffer in buffers:
                self._socket.sendall(buffer)
            return
        first = 0
        while first < len(buffers):
            count = self._socket.sendmsg(buffers[first : first + MAX_VECTOR])
            while first < len(buffers) and count >= len(buffers[first]):
                count -= len(buffers[first])
                first += 1
            if count:
                buffers[first] = memoryview(buffers[first])[count:]
            if time.monotonic() > deadline:
                raise TimeoutError

    def receive(
        self,
        max_bytes: int,
        *,
        max_text: int = MAX_TEXT_BYTES,
        patience: float | None = None,
        allocate: Allocate = np.empty,
    ) -> Any:
        """Return the next value; raise EOFError at the end, and DamagedError if it is none, or too long.

        max_bytes: of the whole message; max_text: of JSON in it. patience: seconds to wait for its beginning;
        None: for ever. allocate: gives memory for an array.
        """
        header = bytearray(HEADER.size)
        self._fill(memoryview(header), patience, at_start=True)
        magic, text_size, size = HEADER.unpack(header)
        if magic != MAGIC:
            raise DamagedError("not a message of batchplant")
        if text_size + size > max_bytes or text_size > max_text:
            raise DamagedError(f"a message of {text_size + size:,} bytes, where {max_bytes:,} are allowed")
        text = bytearray(text_size)
        self._fill(memoryview(text))
        decoder = MessageDecoder(self._fill, size, allocate)
        with exceptions_as(DamagedError, "not a message of batchplant", *WRONG):
            value = decoder.value(json.loads(text))
            if decoder._position != size:
                raise ValueError("it has bytes that belong to nothing")
            return value

    def _fill(
        self, buffer: memoryview, patience: float | None = MESSAGE_SECONDS, *, at_start: bool = False
    ) -> None:
        """Receive as many bytes as the buffer has; ``patience``: seconds to wait for the first of them."""
        size, count, deadline = len(buffer), 0, 0.0
        self._socket.settimeout(patience)
        while count < size:
            received = self._socket.recv_into(buffer[count:])
            if not received:
                if at_start and not count:
                    raise EOFError("the connection has ended")
                raise ConnectionResetError("the connection ended amid a message")
            if not count:
                deadline = _deadline(size)
                self._socket.settimeout(MESSAGE_SECONDS)
            elif time.monotonic() > deadline:
                raise TimeoutError
            count += received
        self.received += size

    def interrupt(self) -> None:
        """End what this side waits for; what it sends still arrives."""
        with contextlib.suppress(OSError):
            # That of an SSLSocket would end its encryption.
            socket.socket.shutdown(self._socket, socket.SHUT_RD)

    def close(self) -> None:
        """End the connection."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        self._socket.close()


# -- greetings ---------------------------------------------------------------------------------------------


def as_secret(value: Any) -> bytes:
    if type(value) is not bytes:
        raise ValueError("this is no secret")
    return value


def greet(channel: Channel, security: Security, identity: dict[str, str]) -> None:
    """Let a client prove that it has the token, and prove it to the client: the server's part.

    Raises: RefusedError where the client does not have it, after telling it so.
    """
    nonce = secrets.token_bytes(16)
    channel.send({"batchplant": __version__, "nonce": nonce, "token": bool(security.token)})
    answer = channel.receive(MAX_GREETING_BYTES, patience=GREETING_SECONDS)
    with exceptions_as(DamagedError, "not a greeting of batchplant", *WRONG):
        nonces, proof = nonce + as_secret(answer["nonce"]), as_secret(answer["proof"])
    if not hmac.compare_digest(proof, security.proof(b"client", nonces)):
        why = "needs a token, and this is another" if security.token else "has no token, and one was sent"
        channel.send({"refused": why})
        raise RefusedError(why)
    channel.send({"proof": security.proof(b"server", nonces), "identity": identity})


def introduce(channel: Channel, security: Security) -> dict[str, str]:
    """Greet a server, and return its identity: the client's part.

    Raises: RefusedError where it does not take this client, does not have the token, or has another version.
    """
    hello = channel.receive(MAX_GREETING_BYTES, patience=GREETING_SECONDS)
    with exceptions_as(DamagedError, "not a greeting of batchplant", *WRONG):
        version, server_nonce = str(hello["batchplant"]), as_secret(hello["nonce"])
        needs_token = hello["token"]
    if version != __version__:
        raise RefusedError(f"the server is of batchplant {version}, and this is {__version__}")
    if needs_token and not security.token:
        raise RefusedError(f"the server needs a token: set {TOKEN} or {TOKEN_FILE}, or token_file=")
    nonce = secrets.token_bytes(16)
    nonces = server_nonce + nonce
    channel.send({"nonce": nonce, "proof": security.proof(b"client", nonces)})
    answer = channel.receive(MAX_GREETING_BYTES, patience=GREETING_SECONDS)
    with exceptions_as(DamagedError, "not a greeting of batchplant", *WRONG):
        refused = answer.get("refused")
        proof = as_secret(answer.get("proof", b""))
        identity = {str(name): str(value) for name, value in answer.get("identity", {}).items()}
    if refused is not None:
        raise RefusedError(f"the server {printable(str(refused))}")
    if not hmac.compare_digest(proof, security.proof(b"server", nonces)):
        raise RefusedError("the server does not have the token")
    return identity


# -- addresses ---------------------------------------------------------------------------------------------


def split_address(text: str, default: int | None = None) -> tuple[str, int]:
    """Return host and port of ``host:port``; an IPv6 address stands in brackets."""
    host, separator, port = text.rpartition(":")
    if text.endswith("]") or not separator:
        host, port = text, "" if default is None else str(default)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise OptionError(f"an address is HOST:PORT, as in 127.0.0.1:7001, not {text!r}")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches a host: all its addresses are of the loopback."""
    try:
        addresses = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise NotFoundError(f"there is no host {host!r}: {error.strerror}") from None
    return all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in addresses)


def listen(address: str, security: Security) -> socket.socket:
    """Listen at ``host:port``; refuse an address that others reach where nothing protects it."""
    host, _ = split_address(address)
    if not is_loopback(host) and not security.token and security.ca is None:
        raise OptionError(
            f"other machines reach {address}: give a token (--token-file, or {TOKEN} in the environment) or "
            "mutual TLS (--tls-cert, --tls-key, --tls-ca); 127.0.0.1 needs none"
        )
    return bind(address)


def bind(address: str) -> socket.socket:
    """Listen at ``host:port``."""
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with exceptions_as(AccessError, f"cannot listen at {address}", OSError):
        return socket.create_server((host, port), family=family, backlog=128)
