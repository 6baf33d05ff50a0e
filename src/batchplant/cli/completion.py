"""Print a script that completes commands, options and formats in your shell.

examples:
  batchplant completion bash > ~/.local/share/bash-completion/completions/batchplant
  batchplant completion zsh > ~/.zfunc/_batchplant
  batchplant completion fish > ~/.config/fish/completions/batchplant.fish

For the shell at hand: source <(batchplant completion bash); in zsh the same; in fish: batchplant completion
fish | source.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from typing import Any

from ..formats.registry import all_formats
from ..tools import Document
from .terminal import print_json

SHELLS = ("bash", "zsh", "fish")
# Options, and arguments, whose values are formats.
FORMATS = ("--format", "--to", "name")


def add_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="bash, zsh or fish")


def run(args: argparse.Namespace) -> int:
    words = dict(_words(args.root, ()))
    if args.json:
        print_json({" ".join(path): entry for path, entry in words.items()})
        return 0
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](words), end="")
    return 0


Words = dict[tuple[str, ...], dict[str, Any]]


def _words(
    parser: argparse.ArgumentParser, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Document]]:
    """For a command and those below it: its subcommands, its options, and the values that are known."""
    words: dict[str, Any] = {"commands": {}, "options": {}, "values": {}, "arguments": []}
    below: list[tuple[str, argparse.ArgumentParser]] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            help_texts = {choice.dest: choice.help or "" for choice in action._choices_actions}
            words["commands"] = {name: help_texts.get(name, "") for name in action.choices}
            below += action.choices.items()
            continue
        values = [str(choice) for choice in action.choices] if action.choices is not None else None
        if any(option in FORMATS for option in (*action.option_strings, action.dest)):
            values = sorted(all_formats())
        if not action.option_strings:
            words["arguments"] += values or []
        for name in action.option_strings:
            words["options"][name] = (action.help or "").replace("%%", "%")
            # None: it takes no value; empty: any.
            words["values"][name] = None if action.nargs == 0 else values or []
    yield path, words
    for name, child in below:
        yield from _words(child, (*path, name))


def _branches(words: Words) -> list[str]:
    """Shared part of bash and zsh: choose the words ``known`` after those typed so far; - for any word."""
    lines = ['        case "$place $one" in']
    for path in filter(None, words):
        location = shlex.quote(_place(path))
        lines.append(f"            {location}) place={location} ;;")
    lines += ["        esac", "    done", '    case "$place:$before" in']
    for path, entry in words.items():
        for name, values in entry["values"].items():
            if values is not None:
                values_text = shlex.quote(" ".join(values) or "-")
                lines.append(f"        {shlex.quote(f'{_place(path)}:{name}')}) known={values_text} ;;")
    lines += ["    esac", '    if [[ -z "$known" ]]; then', '        case "$place:$word" in']
    for path, entry in words.items():
        options = shlex.quote(" ".join(entry["options"]))
        arguments_text = shlex.quote(" ".join([*entry["commands"], *entry["arguments"]]) or "-")
        lines.append(f"            {shlex.quote(_place(path) + ':-')}*) known={options} ;;")
        lines.append(f"            {shlex.quote(_place(path) + ':')}*) known={arguments_text} ;;")
    return [*lines, "        esac", "    fi"]


def _place(path: tuple[str, ...]) -> str:
    return "".join(f" {name}" for name in path)


def _bash(words: Words) -> str:
    lines = [
        "# Completion of batchplant for bash.",
        "_batchplant() {",
        '    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
        '    local place="" known="" one',
        # Bash takes --to=x apart.
        '    [[ "$word" == = ]] && word=""',
        '    [[ "$before" == = ]] && before="${COMP_WORDS[COMP_CWORD-2]}"',
        '    for one in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
        *_branches(words),
        "    COMPREPLY=()",
        '    [[ "$known" == - ]] || COMPREPLY=($(compgen -W "$known" -- "$word"))',
        "}",
        # What is none of our words may be a file.
        "complete -o default -F _batchplant batchplant",
    ]
    return "\n".join(lines) + "\n"


def _zsh(words: Words) -> str:
    lines = [
        "#compdef batchplant",
        "# Completion of batchplant for zsh.",
        "_batchplant() {",
        '    local word="$words[CURRENT]" before="$words[CURRENT-1]" place="" known="" one',
        '    for one in "${(@)words[2,CURRENT-1]}"; do',
        *_branches(words),
        '    [[ "$known" == - ]] || compadd -- ${=known}',
        '    [[ "$word" == -* ]] || _files',
        "}",
        # Read as a file of functions, or sourced.
        'if [[ "$funcstack[1]" == _batchplant ]]; then _batchplant "$@"',
        "else compdef _batchplant batchplant; fi",
    ]
    return "\n".join(lines) + "\n"


def _fish(words: Words) -> str:
    """Fish: a line for each word; a condition says below which commands it is known."""
    lines = ["# Completion of batchplant for fish."]
    for path, entry in words.items():
        seen = " and ".join(f"__fish_seen_subcommand_from {name}" for name in path)
        not_yet = (
            f"not __fish_seen_subcommand_from {' '.join(entry['commands'])}" if entry["commands"] else ""
        )
        where = f" -n {shlex.quote(seen.replace(' and ', '; and '))}" if seen else ""
        first = "; and ".join(filter(None, (seen.replace(" and ", "; and "), not_yet)))
        for name, help_text in entry["commands"].items():
            lines.append(
                f"complete -c batchplant -f -n {shlex.quote(first)} -a {name} -d {shlex.quote(help_text)}"
            )
        if entry["arguments"]:
            lines.append(f"complete -c batchplant -f{where} -a {shlex.quote(' '.join(entry['arguments']))}")
        for name, help_text in entry["options"].items():
            values = entry["values"][name]
            flag = f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
            takes = "" if values is None else f" -x -a {shlex.quote(' '.join(values))}" if values else " -r"
            lines.append(f"complete -c batchplant{where} {flag}{takes} -d {shlex.quote(help_text)}")
    return "\n".join(lines) + "\n"
