"""Notebooks: readers and loaders show themselves as a small grid; ``view`` shows the whole page."""

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
from .. import Document
from .markup import Markup, join, tag

# Samples, fields of each, and letters of each field that a notebook shows.
MAX_SAMPLES, MAX_FIELDS, MAX_LETTERS = 6, 8, 80
THUMBNAIL_PIXELS = 120
BOX_STYLE = (
    "display:inline-block;vertical-align:top;width:132px;margin:0 8px 8px 0;overflow:hidden;"
    "overflow-wrap:anywhere;font-size:12px"
)


def reader_html(reader: Reader) -> str:
    """Return the HTML of a reader: its fields and first samples. Quick; raises nothing."""
    return _safely(lambda: _head(repr(reader)), lambda: _fields(reader), lambda: _samples(reader))


def loader_html(loader: Loader) -> str:
    """Return the HTML of a loader: its plan, and the first samples of its next epoch as it yields them."""
    return _safely(lambda: _head(repr(loader)), lambda: _plan(loader), lambda: _loaded(loader))


def _safely(*parts: Callable[[], Markup]) -> str:
    """Join the parts, with errors in place of those that fail; else the notebook would show a stack trace."""
    rendered: list[Markup] = []
    for part in parts:
        try:
            rendered.append(part())
        except Exception as error:
            rendered.append(tag("pre", None, f"{type(error).__name__}: {error}"[: 4 * MAX_LETTERS]))
    return tag("div", {"class": "batchplant"}, rendered)


def _plan(loader: Loader) -> Markup:
    return tag("pre", {"style": "white-space:pre-wrap"}, str(loader.plan)[: 40 * MAX_LETTERS])


def _head(text: str) -> Markup:
    return tag("p", {"style": "margin:0 0 6px"}, tag("code", None, text))


def _fields(reader: Reader) -> Markup:
    rows = [f"{name}: {kind}"[: 2 * MAX_LETTERS] for name, kind in reader.schema.items()]
    hidden = len(rows) - 4 * MAX_FIELDS
    rows = [*rows[: 4 * MAX_FIELDS], *([f"{hidden} more"] if hidden > 0 else [])]
    return tag("ul", {"style": "margin:0 0 8px;columns:2"}, [tag("li", None, row) for row in rows])


def _samples(reader: Reader) -> Markup:
    from .cells import Side
    from .pixels import Images
    from .report import describe_samples

    # Showing remote samples would download them.
    if is_remote(reader.path) or not len(reader):
        return Markup()
    images = Images()
    try:
        samples = describe_samples(
            Side("a", reader, ""), images, list(range(min(MAX_SAMPLES, len(reader)))), THUMBNAIL_PIXELS
        )
    finally:
        images.close()
    return join([_box(sample["sample"], sample["cells"]) for sample in samples])


def _box(number: int, cells: Document) -> Markup:
    from .export import thumbnail
    from .report import text_of

    parts: list[Any] = []
    for name, cell in list(cells.items())[:MAX_FIELDS]:
        if "src" in cell:
            parts.insert(0, thumbnail(name, cell, THUMBNAIL_PIXELS, THUMBNAIL_PIXELS))
        else:
            parts.append(tag("div", None, f"{name}: {text_of(cell)[:MAX_LETTERS]}"))
    return tag("div", {"style": BOX_STYLE}, tag("div", {"style": "opacity:.7"}, f"{number:,}"), parts)


def _loaded(loader: Loader) -> Markup:
    from ...loading.preview import preview
    from .augment import render_value

    if loader._closed or is_remote(loader.reader.path) or not loader.samples:
        return Markup()
    epoch = loader._epoch
    ids = loader.ids_at(loader._shard(epoch, 0).batch(0))[:MAX_SAMPLES].tolist()
    # A user's function may be slow, or have side effects.
    if mixes(loader) or any(isinstance(op, Function) for op in loader.plan.ops):
        return tag("p", None, f"The next epoch begins with the samples {', '.join(map(str, ids))}.")
    boxes = []
    for sample in ids:
        result = preview(loader, sample, epoch)
        cells = {}
        for output in loader.plan.outputs[:MAX_FIELDS]:
            cell = render_value(output, result.values[output.name])
            if "src" in cell:
                height, width = image_size(cell["shape"])
                cell |= {"width": width, "height": height}
            elif "text" not in cell:
                cell = {"text": f"{cell['dtype']} {tuple(cell['shape'])}"}
            cells[output.name] = cell
        boxes.append(_box(sample, cells))
    return join([tag("p", {"style": "margin:0 0 6px"}, f"Epoch {epoch} begins with"), *boxes])


def image_size(shape: list[int]) -> tuple[int, int]:
    """Return height and width of an image of a batch, whatever its layout."""
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
        """Stop the server and close the readers that were opened for it."""
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
    from .pipelines import loader_arguments
    from .serve import Server, open_browser
    from .session import Session

    opened_readers: list[Reader] = []

    def opened(source: Any) -> Reader:
        if isinstance(source, Reader):
            return source
        opened_readers.append(open_reader(source, **options))
        return opened_readers[-1]

    is_notebook = in_notebook()
    try:
        if isinstance(source, Loader):
            reader, pipeline = source.reader, source if pipeline is None else pipeline
        else:
            reader = opened(source)
        arguments = None if pipeline is None else loader_arguments(pipeline, reader)
        session = Session(
            reader, None if other is None else opened(other), pipeline=arguments, title=shown(reader.path)
        )
        server = Server(session, port=port, frames=is_notebook)
    except BaseException:
        for opened_reader in opened_readers:
            opened_reader.close()
        raise
    server.start()
    page = View(server, opened_readers, height)
    if browser or (browser is None and not is_notebook):
        open_browser(page.url)
    return page


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")
