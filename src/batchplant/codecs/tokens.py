"""Text to token ids, by a tokenizer that the user provides: a file or an object of a library, or a function.

A tokenizer's file is data: the library ``tokenizers`` parses it, and nothing in it is executed.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..errors import BatchplantError, DecodeError, OptionError, needs
from ..order import default_threads
from ..schema.columns import I64, AnyArray, Ragged, starts_of
from ..storage import NOTE_ERRORS, absolute, beside, join, parse_object, read_whole, tree

CONFIG = "tokenizer_config.json"
SIDES = ("right", "left")


class Tokens(NamedTuple):
    """The ids of some texts, one after another, and errors by row."""

    values: AnyArray
    offsets: I64
    failures: dict[int, Exception]


class Tokenizer:
    """A tokenizer and how it is used; see :class:`batchplant.ops.Tokenize` for the arguments."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        max_length: int | None = None,
        truncate: str = "right",
        add_special_tokens: bool = True,
        bos: int | str | None = None,
        eos: int | str | bool | None = None,
        dtype: Any = "int32",
    ) -> None:
        if truncate not in SIDES:
            raise OptionError(f"truncate is right or left, the side that is cut off, not {truncate!r}")
        self.tokenizer = os.fspath(tokenizer) if isinstance(tokenizer, str | os.PathLike) else tokenizer
        self.max_length, self.truncate = max_length, truncate
        self.add_special_tokens, self.bos, self.eos = bool(add_special_tokens), bos, eos
        self.dtype = np.dtype(dtype)
        if self.dtype.kind not in "iu":
            raise OptionError(f"ids are whole numbers: dtype is int32, int64, uint16 …, not {self.dtype}")
        self._library = self._make_library()
        self._begin, self._end = self._special("bos", bos), self._special("eos", eos)
        self._check_fit()
        added = (self._begin is not None) + (self._end is not None)
        if max_length is not None and max_length <= added:
            raise OptionError(f"max_length is at least {added + 1}, not {max_length}")

    # -- the library -----------------------------------------------------------------------------------

    def _make_library(self) -> Library:
        tokenizer = self.tokenizer
        options = {name: getattr(self, name) for name in ("max_length", "truncate", "add_special_tokens")}
        if isinstance(tokenizer, str):
            return HuggingFace(load(tokenizer), file_of(tokenizer), **options)
        # Transformers' tokenizers hold one of the library.
        tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)
        if hasattr(tokenizer, "encode_ordinary_batch"):
            return Tiktoken(tokenizer)
        if hasattr(tokenizer, "encode_batch"):
            is_tokenizers = hasattr(tokenizer, "to_str") and hasattr(type(tokenizer), "from_str")
            if is_tokenizers:
                # A copy: other users may set truncation or padding on theirs.
                tokenizer = type(tokenizer).from_str(tokenizer.to_str())
            return HuggingFace(tokenizer, None, **options) if is_tokenizers else Batches(tokenizer)
        if callable(tokenizer):
            return Function(tokenizer)
        raise OptionError(
            "a tokenizer is the path of a tokenizer.json, an object with encode_batch (tokenizers, tiktoken) "
            f"or a function from text to ids, not {tokenizer!r}"
        )

    def _check_fit(self) -> None:
        """Raise an OptionError if the dtype does not hold all ids of the vocabulary."""
        max_id = int(np.iinfo(self.dtype).max)
        # The usual dtypes need no check.
        size = self._library.vocabulary() if max_id < np.iinfo(np.int32).max else None
        largest = max((size or 0) - 1, self._begin or 0, self._end or 0)
        if largest > max_id:
            raise OptionError(
                f"the vocabulary does not fit into {self.dtype.name}: it has ids up to {largest:,}, and "
                f"{self.dtype.name} holds up to {max_id:,}; use int32",
                path=self.path,
            )

    def _special(self, name: str, token: int | str | bool | None) -> int | None:
        """Return the id of the token that is put at an end, None for none."""
        if token is None or token is False:
            return None
        if token is True:
            token_id = self._own_end() if name == "eos" else None
            why = f"it does not say which token is its {name}: give the token or its id, {name}=…"
        elif isinstance(token, str):
            token_id, why = (
                self._library.id_of(token),
                f"it has no token {token!r}, which is to be its {name}",
            )
        else:
            token_id, why = int(token), ""
        if token_id is None or token_id < 0:
            raise OptionError(why or f"{name} is an id from 0 on, not {token_id}", path=self.path)
        return token_id

    def _own_end(self) -> int | None:
        """Return the id of the end of a document, by the tokenizer, the file beside it or its usual name."""
        named = getattr(self.tokenizer, "eos_token_id", None)
        if isinstance(named, int):
            return named
        if self.path is not None:
            with contextlib.suppress(BatchplantError, *NOTE_ERRORS):
                entry = parse_object(read_whole(beside(file_of(self.path), CONFIG))).get("eos_token")
                token = entry.get("content") if isinstance(entry, Mapping) else entry
                token_id = self._library.id_of(token) if isinstance(token, str) else None
                if token_id is not None:
                    return token_id
        return self._library.end()

    @property
    def path(self) -> str | None:
        return self.tokenizer if isinstance(self.tokenizer, str) else None

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that ids depend on, as JSON; of a function only its name is known."""
        return {
            "tokenizer": self._library.digest(), "max_length": self.max_length, "truncate": self.truncate,
            "add_special_tokens": self.add_special_tokens, "bos": self._begin, "eos": self._end,
            "dtype": self.dtype.name,
        }  # fmt: skip

    def _options(self) -> dict[str, Any]:
        names = ("max_length", "truncate", "add_special_tokens", "bos", "eos", "dtype")
        return {name: getattr(self, name) for name in names}

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickle by arguments: a file is opened anew, and has to be the same."""
        tokenizer = self.tokenizer if self.path is None else absolute(self.path)
        return _remake, (type(self), tokenizer, self._options(), self._library.digest())

    # -- text to ids -----------------------------------------------------------------------------------

    def encode(self, texts: Sequence[str | None]) -> Tokens:
        """Return the ids of each text; none for a missing one."""
        failures: dict[int, Exception] = {}
        rows = [row for row, text in enumerate(texts) if text is not None]
        valid_texts: list[str] = []
        for row in rows.copy():
            text = texts[row]
            if isinstance(text, str):
                valid_texts.append(text)
            else:
                failures[row] = DecodeError(f"a tokenizer takes text, not {type(text).__name__}")
                rows.remove(row)
        try:
            encodings = self._library.batch(valid_texts) if valid_texts else []
        except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
            raise
        # Rust code panics with exceptions that are no Exception.
        except BaseException:
            encodings = self._one_by_one(valid_texts, rows, failures)
        ids: list[Sequence[int]] = [()] * len(texts)
        for row, encoding in zip(rows, encodings, strict=True):
            try:
                ids[row] = self._completed(_ids_in(encoding)) if row not in failures else ()
            except DecodeError as error:
                failures[row] = error
        return Tokens(*self._joined(ids, failures), failures)

    def _one_by_one(self, texts: list[str], rows: list[int], failures: dict[int, Exception]) -> list[Any]:
        """Find the texts that cannot be encoded."""
        encodings: list[Any] = []
        for row, text in zip(rows, texts, strict=True):
            try:
                encodings += self._library.batch([text])
            except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
                raise
            except BaseException as error:
                failures[row] = DecodeError(f"the tokenizer fails: {error}")
                if isinstance(error, Exception) and isinstance(self._library, Function):
                    failures[row] = error
                encodings.append(())
        return encodings

    def _completed(self, ids: Sequence[int]) -> Sequence[int]:
        """Return ids with the tokens at the ends, truncated to max_length."""
        first = [self._begin] if self._begin is not None and (not ids or ids[0] != self._begin) else []
        last = [self._end] if self._end is not None and (not ids or ids[-1] != self._end) else []
        if self.max_length is not None and len(ids) + len(first) + len(last) > self.max_length:
            room = self.max_length - len(first) - len(last)
            # The ids may have begun or ended with one of them: then there still has to be one.
            if self.truncate == "right" and not last and self._end is not None and len(ids) > room:
                room, last = room - 1, [self._end]
            if self.truncate == "left" and not first and self._begin is not None and len(ids) > room:
                room, first = room - 1, [self._begin]
            ids = ids[:room] if self.truncate == "right" else ids[len(ids) - room :]
        return [*first, *ids, *last] if first or last else ids

    def _joined(self, ids: list[Sequence[int]], failures: dict[int, Exception]) -> tuple[Any, I64]:
        offsets = starts_of(np.fromiter(map(len, ids), dtype=np.int64, count=len(ids)))
        values = np.fromiter(itertools.chain.from_iterable(ids), dtype=np.int64, count=int(offsets[-1]))
        low, high = np.iinfo(self.dtype).min, np.iinfo(self.dtype).max
        if len(values) and (values.min() < low or values.max() > high):
            for position in np.flatnonzero((values < low) | (values > high)).tolist():
                row = int(np.searchsorted(offsets, position, side="right")) - 1
                failures.setdefault(row, DecodeError(f"the id {values[position]} is no {self.dtype.name}"))
        return values.astype(self.dtype), offsets


def texts_of(cells: Ragged) -> tuple[list[str | None], dict[int, Exception]]:
    """Return the cells of a field as text, and by row the errors of cells that are no text."""
    packed = cells.take(slice(None))
    data, offsets = packed.data.tobytes(), packed.offsets.tolist()
    texts: list[str | None] = []
    failures: dict[int, Exception] = {}
    for row, (start, end) in enumerate(itertools.pairwise(offsets)):
        if packed.valid is not None and not packed.valid[row]:
            texts.append(None)
            continue
        try:
            texts.append(data[start:end].decode())
        except UnicodeDecodeError as error:
            texts.append(None)
            failures[row] = DecodeError(f"no text: {error}")
    return texts, failures


def _ids_in(encoding: Any) -> Sequence[int]:
    """Return the ids in a tokenizer's result for one text."""
    if hasattr(encoding, "ids"):
        return encoding.ids
    if isinstance(encoding, Mapping) and "input_ids" in encoding:
        encoding = encoding["input_ids"]
    try:
        array = np.asarray(encoding)
    except ValueError:
        array = np.empty((0, 0))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise DecodeError(f"a tokenizer gives a row of ids, not {type(encoding).__name__} of {array.dtype}")
    return array.tolist()


def _remake(kind: type[Tokenizer], tokenizer: Any, options: dict[str, Any], digest: str) -> Tokenizer:
    remade = kind(tokenizer, **options)
    if remade._library.digest() != digest:
        raise OptionError("the tokenizer is not the one that it was when work began", path=remade.path)
    return remade


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
