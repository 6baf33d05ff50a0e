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
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            getattr(parsed, "parser", self).refuse(unknown)
        return parsed

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Say that the command does not take these."""
        options = [argument.partition("=")[0] for argument in unknown if argument.startswith("-")]
        if options:
            choices = [name for action in self._actions for name in action.option_strings]
            self.error(f"there is no option {options[0]}{near(options[0], choices)}")
        hint = "; put quotes around a glob" if all(map(os.path.exists, unknown)) else ""
        self.error(f"too many arguments: {listed(unknown)}{hint}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = list(map(str, action.choices))
        if isinstance(action, argparse._SubParsersAction):
            raise argparse.ArgumentError(None, no_such("command", value, choices))
        raise argparse.ArgumentError(action, f"{value!r} is none of {listed(choices)}{near(value, choices)}")

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"batchplant: {message}; `{self.prog} --help` tells more\n")
