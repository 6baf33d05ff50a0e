"""Tokenizers of users: files and objects of libraries, functions."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from typing import Any, Protocol

from ..errors import OptionError, needs
from ..order import default_threads
from ..storage import join, read_whole, tree

FILE = "tokenizer.json"
# Usual names of the token at the end of a document.
END_TOKENS = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "<|eos|>", "[EOS]")


class Library(Protocol):
    """The interface of a tokenizer of any library."""

    def batch(self, texts: list[str]) -> list[Any]: ...
    def id_of(self, token: str) -> int | None: ...
    def end(self) -> int | None: ...
    def vocabulary(self) -> int | None: ...
    def digest(self) -> str: ...


def file_of(path: str) -> str:
    """Return the file of a tokenizer; for a folder, the one in it."""
    return join(path, FILE) if tree.is_folder(path) else path


def load(path: str | os.PathLike[str]) -> Any:
    """Load a ``tokenizer.json`` as the library's own object."""
    with needs("tokenizers need a library", "text"):
        import tokenizers
    path = file_of(os.fspath(path))
    data = read_whole(path)
    try:
        return tokenizers.Tokenizer.from_buffer(data)
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    # It raises bare Exceptions, and panics.
    except BaseException as error:
        raise OptionError(f"no file of the tokenizers library (tokenizer.json): {error}", path=path) from None


class HuggingFace:
    """The library tokenizers: its threads work without the GIL."""

    def __init__(
        self,
        tokenizer: Any,
        path: str | None,
        *,
        max_length: int | None,
        truncate: str,
        add_special_tokens: bool,
    ) -> None:
        self._tokenizer, self._special = tokenizer, add_special_tokens
        # Padding would make ids depend on the rest of the batch.
        tokenizer.no_padding()
        if max_length is not None:
            added = tokenizer.num_special_tokens_to_add(False) if self._special else 0
            if max_length <= added:
                raise OptionError(
                    f"max_length is at least {added + 1}: the tokenizer adds {added} tokens", path=path
                )
            tokenizer.enable_truncation(max_length, direction=truncate)
        self._encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
        self._digest_text: str | None = None

    def batch(self, texts: list[str]) -> list[Any]:
        _bounded(self._encode)
        return list(self._encode(texts, add_special_tokens=self._special))

    def id_of(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)

    def end(self) -> int | None:
        return next((token_id for name in END_TOKENS if (token_id := self.id_of(name)) is not None), None)

    def vocabulary(self) -> int | None:
        """Return one more than the largest id; None if that is not known."""
        return max(self._tokenizer.get_vocab().values(), default=-1) + 1

    def digest(self) -> str:
        if self._digest_text is None:
            self._digest_text = _digest(self._tokenizer.to_str().encode())
        return self._digest_text


class Tiktoken:
    """Tiktoken's Encoding. What looks like a special token in a text is text."""

    def __init__(self, encoding: Any) -> None:
        self._tokenizer = encoding

    def batch(self, texts: list[str]) -> list[Any]:
        return list(self._tokenizer.encode_ordinary_batch(texts, num_threads=_threads()))

    def id_of(self, token: str) -> int | None:
        try:
            return int(self._tokenizer.encode_single_token(token))
        except KeyError:
            return None

    def end(self) -> int | None:
        try:
            return int(self._tokenizer.eot_token)
        except (AttributeError, KeyError):
            return None

    def vocabulary(self) -> int | None:
        return int(self._tokenizer.n_vocab)

    def digest(self) -> str:
        return _digest(f"{self._tokenizer.name} {self._tokenizer.n_vocab}".encode())


class Function:
    """A function of one text."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def batch(self, texts: list[str]) -> list[Any]:
        return [self._function(text) for text in texts]

    def id_of(self, token: str) -> int | None:
        named = getattr(self._function, "token_to_id", None)
        return named(token) if callable(named) else None

    def end(self) -> int | None:
        return None

    def vocabulary(self) -> int | None:
        return None

    def digest(self) -> str:
        kind = type(self._function)
        module = getattr(self._function, "__module__", None) or kind.__module__
        return f"{module}.{getattr(self._function, '__qualname__', kind.__qualname__)}"


class Batches(Function):
    """Anything else with ``encode_batch``."""

    def batch(self, texts: list[str]) -> list[Any]:
        return list(self._function.encode_batch(texts))


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


# -- threads ------------------------------------------------------------------------------------------------

_thread_limit: int | None = None
# The processes whose threads were started.
_started: set[int] = set()
_starting = threading.Lock()


def limit_threads(count: int) -> None:
    """Limit the threads of tokenizers in this process, because others share its cores."""
    global _thread_limit
    _thread_limit = count


def _threads() -> int:
    return _thread_limit or default_threads()


def _bounded(encode: Callable[..., Any]) -> None:
    """Make the library start as many threads as this process may have; by default it takes all cores."""
    if os.getpid() in _started:
        return
    with _starting:
        name = "RAYON_NUM_THREADS"
        if os.getpid() not in _started and name not in os.environ and _threads() < (os.cpu_count() or 1):
            os.environ[name] = str(_threads())
            try:
                encode(["", ""])
            finally:
                del os.environ[name]
        _started.add(os.getpid())
