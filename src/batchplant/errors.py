"""Every exception that batchplant raises on purpose.

::

    BatchplantError
    ├── OptionError            an argument, option or name that cannot be used (also a ValueError)
    ├── NotFoundError          no such file (also a FileNotFoundError)
    ├── AccessError            a file or a server does not give its bytes (also an OSError)
    ├── WriteError             a disk does not take what is written: full, read-only, broken (also an OSError)
    ├── SampleIndexError       a sample number out of range (also an IndexError)
    ├── SampleKeyError         a key that no sample has, or several have (also a KeyError)
    ├── SchemaError            a value does not fit its field, or a format cannot hold a field
    │   └── FieldNameError     there is no field of that name (also a KeyError)
    ├── UnknownFormatError     nothing here reads this file
    ├── MissingLibraryError    the format's own library is not installed
    ├── UnsafeError            opening it could run code; the caller has to allow that
    ├── ExistsError            the target exists and ``overwrite`` was not given
    ├── BusyError              another process is writing the same target
    ├── WorkerError            a process that ran a function died, or could not be started
    └── DataError              the bytes themselves are wrong
        ├── DamagedError       a file is truncated, inconsistent or fails a checksum
        ├── DecodeError        a cell cannot be decoded
        └── EncodeError        a value cannot be encoded

A place is part of every message: ``path``, ``sample``, ``field`` and ``offset`` are attributes too,
``None`` where they make no sense.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable
from typing import Any, Self

# Names that a message lists.
NAMES_SHOWN = 30
# Characters of a name that messages, tables and reprs show.
MAX_NAME_CHARACTERS = 60
# Of names that "did you mean" suggests; 1 is the same name.
MIN_SIMILARITY = 0.7


def shown(path: str) -> str:
    """Return a path as messages name it: a URL without its query (it may sign it) and without a password."""
    scheme, separator, location = path.partition("://")
    if not separator:
        return path
    host, slash, name = location.partition("?")[0].partition("/")
    user, _, server = host.rpartition("@")
    # A user of a web server may be a token; that of others is the name of a container.
    secret = ":" in user or scheme.lower() in ("http", "https")
    return f"{scheme}://{server if secret else host}{slash}{name}"


def with_place(
    message: str, path: str | None, sample: int | None, field: str | None, offset: int | None
) -> str:
    """Prefix a message with its location: ``a.beton, sample 3, field 'image', byte 812: …``."""
    parts = [shown(path)] if path else []
    if sample is not None:
        parts.append(f"sample {sample}")
    if field is not None:
        parts.append(f"field {field!r}")
    if offset is not None:
        parts.append(f"byte {offset}")
    text = f"{', '.join(parts)}: {message}" if parts else message
    # Names of files can hold bytes that are no text and cannot be printed.
    return text.encode("utf-8", "backslashreplace").decode()


def near(name: object, names: Iterable[str]) -> str:
    """Return `` (did you mean x?)`` if there are similar names; else nothing."""
    # Imported only for messages.
    import difflib

    folded: dict[str, str] = {}
    for candidate in names:
        folded.setdefault(candidate.casefold(), candidate)
    matches = [
        folded[folded_name]
        for folded_name in difflib.get_close_matches(str(name).casefold(), folded, cutoff=MIN_SIMILARITY)
    ]
    return f" (did you mean {' or '.join(map(brief, matches))}?)" if matches else ""


def printable(text: str) -> str:
    """Escape control characters, line ends and marks of direction."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def shortened(text: str, max_characters: int = MAX_NAME_CHARACTERS) -> str:
    """Return the text, or its beginning and an ellipsis."""
    return text if len(text) <= max_characters else text[: max_characters - 1] + "…"


def brief(name: str) -> str:
    """Return a name from a file as messages, tables and reprs show it: short and printable."""
    return printable(shortened(name))


def listed(all_names: Iterable[str]) -> str:
    """Join the names, or the first of many."""
    # Some hold ends of lines.
    names = [shortened(name) if name.isprintable() else repr(shortened(name)) for name in all_names]
    suffix = f", … and {len(names) - NAMES_SHOWN:,} more" if len(names) > NAMES_SHOWN else ""
    return (", ".join(names[:NAMES_SHOWN]) or "none") + suffix


def no_such(kind: str, name: object, candidates: Iterable[str]) -> str:
    """Return the message for a name that does not exist: similar names, and all names."""
    names = list(candidates)
    return f"there is no {kind} {name!r}{near(name, names)}; the {kind}s are: {listed(names)}"


def check_choice(option: str, value: object, choices: Iterable[str], *, path: object = None) -> None:
    """OptionError unless the value of an option is one of these."""
    names = list(choices)
    if value not in names:
        raise OptionError(f"{option} is one of {', '.join(names)}, not {value!r}", path=path)


class BatchplantError(Exception):
    """The root of the tree."""

    def __init__(
        self,
        message: str,
        *,
        path: object = None,
        sample: int | None = None,
        field: str | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = None if path is None else str(path)
        self.sample = None if sample is None else int(sample)
        self.field = field
        self.offset = None if offset is None else int(offset)

    def at(
        self,
        *,
        path: object = None,
        sample: int | None = None,
        field: str | None = None,
        offset: int | None = None,
    ) -> Self:
        """Fill in what is not known yet of the place, and return the same exception."""
        if self.path is None and path is not None:
            self.path = str(path)
        if self.sample is None and sample is not None:
            self.sample = int(sample)
        self.field = self.field if self.field is not None else field
        if self.offset is None and offset is not None:
            self.offset = int(offset)
        return self

    def __str__(self) -> str:
        return with_place(self.message, self.path, self.sample, self.field, self.offset)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _remake, (type(self), self.message, self.path, self.sample, self.field, self.offset)


def _remake(
    kind: type[BatchplantError],
    message: str,
    path: str | None,
    sample: int | None,
    field: str | None,
    offset: int | None,
    **attributes: Any,
) -> BatchplantError:
    return kind(message, path=path, sample=sample, field=field, offset=offset, **attributes)


class OptionError(BatchplantError, ValueError):
    """An argument, option or name that cannot be used."""


class NotFoundError(BatchplantError, FileNotFoundError):
    """No such file or folder."""


class AccessError(BatchplantError, OSError):
    """The bytes cannot be had: no permission, a pipe where a file is needed, a server that fails.

    Nothing is known about the bytes themselves, so that it is no DataError: a Loader with ``on_error="skip"``
    does not pass over it.
    """


class WriteError(BatchplantError, OSError):
    """A disk does not take what is written: it is full or read-only, a quota is used up, it fails.

    ``errno`` and ``strerror`` are those of the system: ``errno.ENOSPC`` where the disk is full.
    """

    def __init__(self, message: str, *, errno: int | None = None, **location: Any) -> None:
        super().__init__(message, **location)
        self.errno = errno
        self.strerror = None if errno is None else os.strerror(errno)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        make, (kind, message, path, sample, field, offset) = super().__reduce__()
        return functools.partial(make, errno=self.errno), (kind, message, path, sample, field, offset)


class SampleIndexError(BatchplantError, IndexError):
    """A sample number out of range."""


class SampleKeyError(BatchplantError, KeyError):
    """A key that no sample has, or several have."""


class SchemaError(BatchplantError):
    """A value does not fit its field, or a format cannot hold a field."""


class FieldNameError(SchemaError, KeyError):
    """There is no field of that name."""


class UnknownFormatError(BatchplantError):
    """Nothing here reads this file."""


class MissingLibraryError(BatchplantError):
    """The format's own library is not installed."""


class UnsafeError(BatchplantError):
    """Opening it could run code; the caller has to allow that."""


class ExistsError(BatchplantError):
    """The target exists and ``overwrite`` was not given."""


class BusyError(BatchplantError):
    """Another process is writing the same target."""


class WorkerError(BatchplantError, RuntimeError):
    """A process that ran a function died, or could not be started."""


class DataError(BatchplantError):
    """The bytes themselves are wrong."""


class DamagedError(DataError):
    """A file is truncated, inconsistent or fails a checksum."""


class DecodeError(DataError):
    """A cell cannot be decoded."""


class EncodeError(DataError):
    """A value cannot be encoded."""


class located:  # noqa: N801 -- it reads as a statement
    """Add a place to the errors of ours that leave a ``with`` block.

    path, sample, field, offset: what an error does not know yet of its place is filled in.
    """

    __slots__ = ("_place",)

    def __init__(self, **place: Any) -> None:
        self._place = place

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, BatchplantError):
            error.at(**self._place)


class on_error(located):  # noqa: N801 -- as above
    """Call a function, such as the ``close`` of what is open, when an exception leaves a ``with`` block.

    path, sample, field, offset: the place of errors of ours that pass.
    """

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], object], **place: Any) -> None:
        super().__init__(**place)
        self._call = call

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self._call()
        super().__exit__(kind, error, traceback)


class exceptions_as(located):  # noqa: N801 -- as above
    """Raise exceptions of a library or of Python that leave a ``with`` block as an error of ours.

    make: the class of the error. message: what it says before the exception's own text. kinds: the
    exceptions; where ``Exception`` is one of them, errors of ours stay as they are. path, sample, field,
    offset: the place of the error, and of errors of ours that pass.
    """

    __slots__ = ("_kinds", "_make", "_message")

    def __init__(
        self, make: type[BatchplantError], message: str, *kinds: type[Exception], **place: Any
    ) -> None:
        super().__init__(**place)
        self._make, self._message, self._kinds = make, message, kinds

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, self._kinds) and not (
            Exception in self._kinds and isinstance(error, BatchplantError)
        ):
            raise self._make(f"{self._message}: {error}", **self._place) from None
        super().__exit__(kind, error, traceback)


class needs(located):  # noqa: N801 -- as above
    """Raise MissingLibraryError where an import in a ``with`` block fails.

    reason: what needs which library. extra: the extra of this package that installs it.
    """

    __slots__ = ("_extra", "_reason")

    def __init__(self, reason: str, extra: str) -> None:
        super().__init__()
        self._reason, self._extra = reason, extra

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        # OSError: the package is there, and the library that it wraps is not.
        if isinstance(error, ImportError | OSError):
            raise MissingLibraryError(f'{self._reason}: pip install "batchplant[{self._extra}]"') from None


@dataclasses.dataclass(frozen=True)
class Problem:
    """One thing that verify found wrong.

    message: the sentence that describes it. path, sample, field, offset: its place, as far as known: the
    file, the number of the sample, the name of the field, the byte in the file.
    """

    message: str
    path: str | None = None
    sample: int | None = None
    field: str | None = None
    offset: int | None = None

    @classmethod
    def of(cls, error: BatchplantError) -> Problem:
        """Return the problem that an error tells of."""
        return cls(error.message, error.path, error.sample, error.field, error.offset)

    def __str__(self) -> str:
        return with_place(self.message, self.path, self.sample, self.field, self.offset)
