"""The progress bar of the commands, drawn by Rich."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from ..storage import uploads


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        # Of steps that take seconds there is none to tell.
        return Text(f"{task.speed:,.0f}/s" if (task.speed or 0) >= 0.5 else "", style="progress.data.speed")


@contextlib.contextmanager
def progress(label: str, *, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """As ``terminal.progress_bar`` says."""
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(), console=Console(stderr=True),
        disable=quiet or not Console(stderr=True).is_terminal,
    )  # fmt: skip
    with bar:
        task = bar.add_task(label, total=None)
        sent: dict[str, tuple[int, int]] = {}
        lines: list[TaskID] = []

        def sending(url: str, done: int, size: int) -> None:
            sent[url] = done, size
            if not lines:
                lines.append(bar.add_task("sending (MB)"))
            completed, total = (sum(part) // 10**6 for part in zip(*sent.values(), strict=True))
            bar.update(lines[0], completed=completed, total=total)

        with uploads.watching(sending):
            yield lambda done, total, now=label: bar.update(
                task, completed=done, total=total, description=now
            )
