"""The parser of the command line: what is wrong is said in one line, with what was probably meant."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any, NoReturn

from ..errors import listed, near, no_such


class Parser(argparse.ArgumentParser):
    """argparse's, with shorter answers. A command sets the default ``parser`` to its own."""

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        found, rest = self.parse_known_args(args, namespace)
        if rest:
            getattr(found, "parser", self).refuse(rest)
        return found

    def refuse(self, rest: Sequence[str]) -> NoReturn:
        """Say that the command does not take these."""
        options = [one.partition("=")[0] for one in rest if one.startswith("-")]
        if options:
            known = [name for action in self._actions for name in action.option_strings]
            self.error(f"there is no option {options[0]}{near(options[0], known)}")
        hint = "; put quotes around a glob" if all(map(os.path.exists, rest)) else ""
        self.error(f"too many arguments: {listed(rest)}{hint}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = list(map(str, action.choices))
        if isinstance(action, argparse._SubParsersAction):
            raise argparse.ArgumentError(None, no_such("command", value, known))
        raise argparse.ArgumentError(action, f"{value!r} is none of {listed(known)}{near(value, known)}")

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"batchplant: {message}; `{self.prog} --help` tells more\n")
