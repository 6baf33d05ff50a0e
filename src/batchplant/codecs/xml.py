"""XML without its dangers: no document types, so no entities to expand and no other files to fetch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from xml.parsers import expat

from ..errors import BatchplantError, DamagedError, UnsafeError


class Parser:
    """Calls ``start(tag, attributes)``, ``end(tag)`` and ``text(letters)`` as it goes through a file.

    Tags are "namespace name" if they have a namespace. ``format_name`` is for messages.
    """

    def __init__(
        self,
        start: Callable[[str, dict[str, str]], Any],
        end: Callable[[str], Any],
        text: Callable[[str], Any],
        format_name: str,
    ) -> None:
        self._format_name = format_name
        self._parser = parser = expat.ParserCreate(namespace_separator=" ")
        parser.StartElementHandler = start
        parser.EndElementHandler = end
        parser.CharacterDataHandler = text
        parser.StartDoctypeDeclHandler = self._refuse
        parser.EntityDeclHandler = self._refuse
        parser.ExternalEntityRefHandler = self._refuse

    @property
    def offset(self) -> int:
        return self._parser.CurrentByteIndex

    def feed(self, data: bytes, last: bool) -> None:
        try:
            self._parser.Parse(data, last)
        except BatchplantError:
            raise
        except expat.ExpatError as error:
            raise DamagedError(f"no XML: {error}", offset=self._parser.ErrorByteIndex) from None
        # What the codec of a strange encoding says.
        except (ValueError, LookupError, TypeError) as error:
            raise DamagedError(f"no XML: {error}", offset=max(0, self.offset)) from None

    def _refuse(self, *_: Any) -> int:
        raise UnsafeError(
            "it declares a document type or entities, which can grow without bound or name other files; "
            f"{self._format_name} has no need of them",
            offset=self.offset,
        )
