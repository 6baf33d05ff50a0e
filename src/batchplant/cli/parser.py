"""The parser of the command line: argparse's, with shorter answers, and subcommands made of modules.

It is all that ``batchplant --help`` imports, so it imports nothing that takes long.
"""

from __future__ import annotations

import argparse
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from ..errors import listed, near, no_such


class Command(NamedTuple):
    """The functions of a command. ``run`` has the name of the command, and its help as docstring."""

    add_args: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def add_commands(
    parser: argparse.ArgumentParser,
    commands: Iterable[ModuleType | Command],
    listed_only: Mapping[str, str] | None = None,
) -> None:
    """Add subcommands: the docstring is the help; ``add_args`` and ``run`` are the rest.

    A module without ``run`` is a group, whose ``add_args`` adds commands again. ``listed_only``: names and
    summaries of commands that help and error messages name, without their arguments.
    """
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    parser.set_defaults(run=lambda args: _without_command(parser))
    for name, summary in (listed_only or {}).items():
        subparsers.add_parser(name, help=summary)
    for command in commands:
        named: Any = command.run if isinstance(command, Command) else command
        summary, _, examples = (inspect.getdoc(named) or "").partition("\n\n")
        subparser = subparsers.add_parser(
            named.__name__.rpartition(".")[2].replace("_", "-"),
            help=summary.rstrip("."),
            description=summary,
            epilog=examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_args(subparser)
        subparser.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help="print JSON for machines"
        )
        subparser.set_defaults(parser=subparser)
        if hasattr(command, "run"):
            subparser.set_defaults(run=command.run)


def _without_command(parser: argparse.ArgumentParser) -> int:
    """Show which commands there are. Nothing was done, so the exit code is that of wrong use."""
    parser.print_help()
    return 2


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
