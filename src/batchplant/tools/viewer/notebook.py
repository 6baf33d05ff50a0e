"""Notebooks: readers and loaders show themselves as a small grid; ``view`` shows the whole page."""

from __future__ import annotations

import base64
import contextlib
import re
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ...codecs import image
from ...data.reader import Reader
from ...errors import BatchplantError, shown
from ...formats.registry import open as open_reader
from ...loading.loader import Loader
from ...loading.preview import mixes
from ...ops.function import Function
from ...storage import is_remote
from .. import Document

if TYPE_CHECKING:
    from .cells import Dataset
    from .pixels import Images

# Samples, fields of each, and letters of each field that a notebook shows.
MAX_SAMPLES, MAX_FIELDS, MAX_LETTERS = 6, 8, 80
THUMBNAIL_PIXELS = 120
# An image of more pixels is not decoded for a thumbnail.
MAX_DECODED_PIXELS = 64_000_000
BOX_STYLE = (
    "display:inline-block;vertical-align:top;width:132px;margin:0 8px 8px 0;overflow:hidden;"
    "overflow-wrap:anywhere;font-size:12px"
)


# -- markup --------------------------------------------------------------------------------------------
# HTML made in Python. Strings are escaped unless they are Markup: no string of a dataset becomes a tag.

# As html.escape does, whose module takes long to import.
ESCAPES = {ord(letter): f"&#{ord(letter)};" for letter in "&<>\"'"}
# Control characters and direction marks, as page/dom.js has them.
HIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff\ufff9-\ufffb\ufffe\uffff]"
)


class Markup(str):
    """Text that is HTML: only :func:`tag` makes it."""

    __slots__ = ()


def tag(name: str, attributes: dict[str, Any] | None = None, *children: Any) -> Markup:
    """Return an element. Attributes that are None are left out; children may be lists."""
    text = "".join(
        f' {key}="{_text(value)}"' for key, value in (attributes or {}).items() if value is not None
    )
    # It has no content.
    return Markup(f"<img{text}>" if name == "img" else f"<{name}{text}>{join(children)}</{name}>")


def join(children: Iterable[Any]) -> Markup:
    """Return children one after the other; strings are escaped, None is left out."""
    parts: list[str] = []
    for child in children:
        if isinstance(child, list | tuple):
            parts.append(join(child))
        elif child is not None:
            parts.append(child if isinstance(child, Markup) else _text(child))
    return Markup("".join(parts))


def _text(value: Any) -> str:
    """Escape markup, surrogates, and characters that are invisible or change the direction of text."""
    text = str(value).encode("utf-8", "replace").decode()
    return HIDDEN.sub(lambda match: f"[U+{ord(match[0]):04X}]", text).translate(ESCAPES)


# -- readers and loaders -------------------------------------------------------------------------------


def reader_html(reader: Reader) -> str:
    """Return the HTML of a reader: its fields and first samples. Quick; raises nothing."""
    return _safely(repr(reader), lambda: _fields(reader), lambda: _samples(reader))


def loader_html(loader: Loader) -> str:
    """Return the HTML of a loader: its plan, and the first samples of its next epoch as it yields them."""

    def plan() -> Markup:
        return tag("pre", {"style": "white-space:pre-wrap"}, str(loader.plan)[: 40 * MAX_LETTERS])

    return _safely(repr(loader), plan, lambda: _loaded(loader))


def _safely(title: str, *parts: Callable[[], Markup]) -> str:
    """Join the parts, with errors in place of those that fail; else the notebook would show a stack trace."""
    rendered = [tag("p", {"style": "margin:0 0 6px"}, tag("code", None, title))]
    for part in parts:
        try:
            rendered.append(part())
        except Exception as error:
            rendered.append(tag("pre", None, f"{type(error).__name__}: {error}"[: 4 * MAX_LETTERS]))
    return tag("div", {"class": "batchplant"}, rendered)


def _fields(reader: Reader) -> Markup:
    rows = [f"{name}: {kind}"[: 2 * MAX_LETTERS] for name, kind in reader.schema.items()]
    if len(rows) > 4 * MAX_FIELDS:
        rows[4 * MAX_FIELDS :] = [f"{len(rows) - 4 * MAX_FIELDS} more"]
    return tag("ul", {"style": "margin:0 0 8px;columns:2"}, [tag("li", None, row) for row in rows])


def _samples(reader: Reader) -> Markup:
    """Return boxes of the first samples; an image is a square, ``src``, that stands for width × height."""
    from .cells import Dataset, cells_of
    from .pixels import Images
    from .render import summarize

    # Showing remote samples would download them.
    if is_remote(reader.path) or not len(reader):
        return Markup()
    dataset, numbers = Dataset(reader, ""), list(range(min(MAX_SAMPLES, len(reader))))
    samples = [
        {name: summarize(cell) for name, cell in cells.items()}
        for cells in cells_of(dataset, numbers, reader.schema)
    ]
    with contextlib.closing(Images()) as images:
        for field, shows in dataset.shows.items():
            if shows in ("image", "mask"):
                _add_thumbnails(dataset, images, field, [cells[field] for cells in samples])
    return join([_box(number, cells) for number, cells in enumerate(samples)])


def _add_thumbnails(dataset: Dataset, images: Images, field: str, cells: list[Document]) -> None:
    small = [
        number
        for number, cell in enumerate(cells)
        if not cell.keys() & {"missing", "error"}
        and cell.get("width", 0) * cell.get("height", 0) <= MAX_DECODED_PIXELS
    ]
    with contextlib.suppress(BatchplantError, OSError, MemoryError):
        tiles, errors = images.tiles(dataset, field, np.array(small, dtype=np.int64), THUMBNAIL_PIXELS)
        for row, number in enumerate(small):
            if row in errors:
                cells[number]["error"] = errors[row]
            else:
                data = image.encode(np.ascontiguousarray(tiles[row]), "jpeg", quality=82)
                cells[number]["src"] = f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"


def _text_of(cell: Document) -> str:
    """Return a cell as a short text."""
    if cell.get("missing"):
        return "–"
    if "error" in cell:
        return f"⚠ {cell['error']}"
    if "text" in cell:
        return str(cell["text"])
    if "width" in cell:
        return f"{cell['width']}×{cell['height']}"
    attributes = {name: value for name, value in cell.items() if name not in ("field", "shows", "src")}
    if len(attributes) == 1:
        return str(next(iter(attributes.values())))
    return ", ".join(
        f"{name} {value}" for name, value in attributes.items() if isinstance(value, str | int | float)
    )


def _box(number: int, cells: Document) -> Markup:
    parts: list[Any] = []
    for name, cell in list(cells.items())[:MAX_FIELDS]:
        if "src" in cell:
            # The square is stretched back to the shape of its image.
            width, height = max(1, cell.get("width", 1)), max(1, cell.get("height", 1))
            scale = THUMBNAIL_PIXELS / max(width, height)
            size = {"width": max(1, round(width * scale)), "height": max(1, round(height * scale))}
            parts.insert(0, tag("img", {"src": cell["src"], "alt": f"{name}, {width}×{height}", **size}))
        else:
            parts.append(tag("div", None, f"{name}: {_text_of(cell)[:MAX_LETTERS]}"))
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


# -- the whole page ------------------------------------------------------------------------------------


class View:
    """A page that shows a dataset, as long as it is not closed; in a notebook it is shown in place."""

    def __init__(self, server: Any, reader: Reader | None, height: int) -> None:
        self._server, self._reader, self._height = server, reader, height
        self._closed = False

    @property
    def url(self) -> str:
        return str(self._server.url)

    def close(self) -> None:
        """Stop the server and close the reader that was opened for it."""
        if not self._closed:
            self._closed = True
            self._server.stop()
            if self._reader is not None:
                self._reader.close()

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
    pipeline: Any = None,
    height: int = 640,
    port: int = 0,
    browser: bool | None = None,
    **options: Any,
) -> View:
    """See a dataset on a web page: in a notebook in place, else in the browser.

    source: a Reader, a Loader, whose samples are then also seen as it augments them, or what
    :func:`batchplant.open` takes, with its options. pipeline: a Loader's ``pipelines``, its
    arguments, or ops for the images. height: of the page in a notebook, in pixels. port: 0 for a free one.
    browser: open it there (default: unless this is a notebook). The page is served until ``close``, or until
    the program ends.

    Returns: a View with ``url`` and ``close()``.

    Raises: MissingLibraryError without the extra ``view``; what :func:`batchplant.open` raises.
    """
    from .augment import loader_arguments
    from .serve import Server, open_browser
    from .session import Session

    opened: Reader | None = None
    is_notebook = in_notebook()
    try:
        if isinstance(source, Loader):
            reader, pipeline = source.reader, source if pipeline is None else pipeline
        elif isinstance(source, Reader):
            reader = source
        else:
            reader = opened = open_reader(source, **options)
        arguments = None if pipeline is None else loader_arguments(pipeline, reader)
        session = Session(reader, pipeline=arguments, title=shown(reader.path))
        server = Server(session, port=port, frames=is_notebook)
    except BaseException:
        if opened is not None:
            opened.close()
        raise
    server.start()
    page = View(server, opened, height)
    if browser or (browser is None and not is_notebook):
        open_browser(page.url)
    return page


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")
