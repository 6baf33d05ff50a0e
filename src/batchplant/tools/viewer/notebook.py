"""Notebooks: a reader or a loader as the value of a cell is a small grid; ``view`` is the whole page."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Self

from ...data.reader import Reader
from ...errors import shown
from ...formats.registry import open as open_reader
from ...loading.loader import Loader
from ...loading.preview import mixes
from ...ops.function import Function
from ...storage import is_remote
from .markup import Markup, joined, tag

# Samples, fields and letters that a notebook shows of each.
SAMPLES, FIELDS, LETTERS = 6, 8, 80
THUMBNAIL = 120
BOX = (
    "display:inline-block;vertical-align:top;width:132px;margin:0 8px 8px 0;overflow:hidden;"
    "overflow-wrap:anywhere;font-size:12px"
)


def reader_html(reader: Reader) -> str:
    """What a notebook shows of a reader: its fields and first samples. Quick, and never an error."""
    return _safely(lambda: _head(repr(reader)), lambda: _fields(reader), lambda: _samples(reader))


def loader_html(loader: Loader) -> str:
    """What a notebook shows of a loader: its plan, and samples of its next epoch as it gives them."""
    return _safely(lambda: _head(repr(loader)), lambda: _plan(loader), lambda: _loaded(loader))


def _safely(*parts: Callable[[], Markup]) -> str:
    """The parts; where one fails, the notebook would show a stack trace in place of the value."""
    made: list[Markup] = []
    for part in parts:
        try:
            made.append(part())
        except Exception as error:
            made.append(tag("pre", None, f"{type(error).__name__}: {error}"[: 4 * LETTERS]))
    return tag("div", {"class": "batchplant"}, made)


def _plan(loader: Loader) -> Markup:
    return tag("pre", {"style": "white-space:pre-wrap"}, str(loader.plan)[: 40 * LETTERS])


def _head(text: str) -> Markup:
    return tag("p", {"style": "margin:0 0 6px"}, tag("code", None, text))


def _fields(reader: Reader) -> Markup:
    rows = [f"{name}: {kind}"[: 2 * LETTERS] for name, kind in reader.schema.items()]
    left = len(rows) - 4 * FIELDS
    rows = [*rows[: 4 * FIELDS], *([f"{left} more"] if left > 0 else [])]
    return tag("ul", {"style": "margin:0 0 8px;columns:2"}, [tag("li", None, one) for one in rows])


def _samples(reader: Reader) -> Markup:
    from .pixels import Images
    from .report import described
    from .session import Side

    # Behind a URL, to look is to download.
    if is_remote(reader.path) or not len(reader):
        return Markup()
    images = Images()
    try:
        found = described(Side("a", reader, ""), images, list(range(min(SAMPLES, len(reader)))), THUMBNAIL)
    finally:
        images.close()
    return joined([_box(one["sample"], one["cells"]) for one in found])


def _box(number: int, cells: dict[str, Any]) -> Markup:
    from .export import thumbnail
    from .report import text_of

    parts: list[Any] = []
    for name, cell in list(cells.items())[:FIELDS]:
        if "src" in cell:
            parts.insert(0, thumbnail(name, cell, THUMBNAIL, THUMBNAIL))
        else:
            parts.append(tag("div", None, f"{name}: {text_of(cell)[:LETTERS]}"))
    return tag("div", {"style": BOX}, tag("div", {"style": "opacity:.7"}, f"{number:,}"), parts)


def _loaded(loader: Loader) -> Markup:
    from ...loading.preview import preview
    from .augment import shown_value

    if loader._closed or is_remote(loader.reader.path) or not loader.samples:
        return Markup()
    epoch = loader._epoch
    ids = loader.ids_at(loader._shard(epoch, 0).batch(0))[:SAMPLES].tolist()
    # A function of the user's may take long, or count its calls.
    if mixes(loader) or any(isinstance(op, Function) for op in loader.plan.ops):
        return tag("p", None, f"The next epoch begins with the samples {', '.join(map(str, ids))}.")
    boxes = []
    for sample in ids:
        made = preview(loader, sample, epoch)
        cells = {}
        for output in loader.plan.outputs[:FIELDS]:
            cell = shown_value(output, made.values[output.name])
            if "src" in cell:
                height, width = made_size(cell["shape"])
                cell |= {"width": width, "height": height}
            elif "text" not in cell:
                cell = {"text": f"{cell['dtype']} {tuple(cell['shape'])}"}
            cells[output.name] = cell
        boxes.append(_box(sample, cells))
    return joined([tag("p", {"style": "margin:0 0 6px"}, f"Epoch {epoch} begins with"), *boxes])


def made_size(shape: list[int]) -> tuple[int, int]:
    """Height and width of an image in a batch, whatever its layout."""
    if len(shape) == 4:
        return shape[1], shape[2] * min(6, shape[0])
    first = shape[0] in (1, 3, 4) and shape[2] not in (1, 3, 4)
    return (shape[1], shape[2]) if first else (shape[0], shape[1])


class View:
    """A page that shows a dataset, as long as it is not closed; in a notebook it is shown in place."""

    def __init__(self, server: Any, readers: list[Reader], height: int) -> None:
        self._server, self._readers, self._height = server, readers, height
        self._closed = False

    @property
    def url(self) -> str:
        return str(self._server.url)

    def close(self) -> None:
        """End the server, and close what was opened for it."""
        if not self._closed:
            self._closed = True
            self._server.stop()
            for reader in self._readers:
                reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return "<view, closed>" if self._closed else f"<view at {self.url}>"

    def _repr_html_(self) -> str:
        if self._closed:
            return "<p>The view is closed.</p>"
        frame = {
            "src": self.url,
            "title": "batchplant view",
            "style": f"width:100%;height:{self._height}px;border:1px solid #8888",
        }
        return tag("iframe", frame)


def view(
    source: Any,
    *,
    other: Any = None,
    pipeline: Any = None,
    height: int = 640,
    port: int = 0,
    browser: bool | None = None,
    **options: Any,
) -> View:
    """See a dataset on a web page: in a notebook in place, else in the browser.

    source: a Reader, a Loader, whose samples are then also seen as it augments them, or what
    :func:`batchplant.open` takes, with its options. other: what it is compared with. pipeline: a Loader's
    ``pipelines``, its arguments, or ops for the images. height: of the page in a notebook, in pixels. port:
    0 for a free one. browser: open it there (default: unless this is a notebook). The page is served until
    ``close``, or until the program ends.
    """
    from .pipelines import arguments
    from .serve import Server, show
    from .session import Session

    own: list[Reader] = []

    def opened(what: Any) -> Reader:
        if isinstance(what, Reader):
            return what
        own.append(open_reader(what, **options))
        return own[-1]

    inside = in_notebook()
    try:
        if isinstance(source, Loader):
            reader, pipeline = source.reader, source if pipeline is None else pipeline
        else:
            reader = opened(source)
        given = None if pipeline is None else arguments(pipeline, reader)
        session = Session(
            reader, None if other is None else opened(other), pipeline=given, title=shown(reader.path)
        )
        server = Server(session, port=port, frames=inside)
    except BaseException:
        for one in own:
            one.close()
        raise
    server.start()
    made = View(server, own, height)
    if browser or (browser is None and not inside):
        show(made.url)
    return made


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")
