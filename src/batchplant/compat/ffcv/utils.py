"""Small helpers with FFCV's names."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from ...errors import MissingLibraryError
from .pipeline.compiler import numba

T = TypeVar("T")

s_print_lock = threading.Lock()


def chunks(lst: Sequence[T], n: int) -> Iterator[Sequence[T]]:
    """Return chunks of ``n`` items; the last may be shorter."""
    return (lst[start : start + n] for start in range(0, len(lst), n))


def is_power_of_2(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


def align_to_page(ptr: int, page_size: int) -> int:
    """Round up to a multiple of the page size."""
    return -(-ptr // page_size) * page_size


def decode_null_terminated_string(bytes: Any) -> str:
    """Decode ASCII up to the first NUL."""
    text: str = bytes.tobytes().partition(b"\0")[0].decode("ascii")
    return text


def s_print(*a: object, **b: Any) -> None:
    """Print, one thread at a time."""
    with s_print_lock:
        print(*a, **b)


def cast_int_to_byte_ptr(typingctx: Any, src: Any) -> Any:
    """Convert a number to a pointer to bytes, in compiled code."""
    raise MissingLibraryError("cast_int_to_byte_ptr works in compiled code alone: pip install numba")


if (_numba := numba()) is not None:
    from numba.extending import intrinsic as _intrinsic

    @_intrinsic  # type: ignore[untyped-decorator]
    def cast_int_to_byte_ptr(typingctx: Any, src: Any) -> Any:
        """Convert a number to a pointer to bytes, in compiled code."""
        if not isinstance(src, _numba.types.Integer):
            return None
        pointer = _numba.types.CPointer(_numba.types.uint8)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return pointer(_numba.types.uintp), codegen
