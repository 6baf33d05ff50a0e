"""Figures, by matplotlib where it is installed, and the tables beside them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich.table import Table

from ...errors import NotFoundError, OptionError, needs
from ...storage import put_file

# Classes of matplotlib, which may be missing.
Figure = Any
Axes = Any
SUFFIXES = (".png", ".svg", ".pdf")
COLOURS = ("#2a6f97", "#e07a1f", "#4b8b3b", "#8e5ea2", "#b0413e", "#6b7280", "#c9a227", "#d6779b")
GREY = "#6b7280"


def table(*columns: str) -> Table:
    """The first column is text, the others are numbers; nothing is wrapped."""
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table


def check(path: str | None) -> None:
    """Raise where a figure could not be written to this path, before anything is measured."""
    if path is None:
        return
    if Path(path).suffix.lower() not in SUFFIXES:
        raise OptionError(f"a figure ends in {', '.join(SUFFIXES)}", path=path)
    if not Path(path).absolute().parent.is_dir():
        raise NotFoundError("the folder of the figure is not there", path=path)
    _matplotlib()


def _matplotlib() -> Any:
    with needs("a figure needs matplotlib", "figures"):
        import matplotlib.figure
        import matplotlib.ticker
    return matplotlib


def blank(width: float, height: float) -> Figure:
    """A figure of its own: no window, no state that others share."""
    return _matplotlib().figure.Figure(figsize=(width, height), layout="constrained")


def tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def legend_below(figure: Figure, axes: Axes, columns: int) -> None:
    """That of one panel, below all: inside it lies upon points, and finding a free place can take seconds."""
    names = axes.get_legend_handles_labels()
    figure.legend(*names, fontsize=8, frameon=False, loc="outside lower center", ncols=columns)


def logarithmic(axes: Axes) -> None:
    """Both axes, with numbers that people read."""
    for scale, axis in ((axes.set_xscale, axes.xaxis), (axes.set_yscale, axes.yaxis)):
        scale("log")
        plain_numbers(axis)


def plain_numbers(axis: Any) -> None:
    """1, 2, 5, 10, … along a logarithmic axis."""
    ticker = _matplotlib().ticker
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(ticker.NullFormatter())


def in_thousands(axis: Any) -> None:
    """1,000 and 10,000 along a linear axis."""
    axis.set_major_formatter(_matplotlib().ticker.FuncFormatter(lambda value, _: f"{value:,g}"))


def renderer(figure: Figure) -> Any:
    """Renderer that measures the size of texts."""
    _matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    return FigureCanvasAgg(figure).get_renderer()


def save(figure: Figure, path: str) -> None:
    """It appears when it is whole."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format=Path(path).suffix[1:].lower(), dpi=130)
    put_file(path, drawn.getvalue())
