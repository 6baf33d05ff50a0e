"""The server: a socket on this machine, uvicorn, and the link to open."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator

from ...errors import AccessError, MissingLibraryError
from .session import Session

# Open connections.
MAX_CONNECTIONS = 256


class Server:
    """Listens from its creation on, answers once :meth:`run` or :meth:`start` is called."""

    def __init__(
        self, session: Session, *, host: str = "127.0.0.1", port: int = 0, frames: bool = False
    ) -> None:
        try:
            import uvicorn

            from .app import application
            from .security import Guard, new_token
        except ImportError as error:
            raise MissingLibraryError("batchplant view needs: pip install 'batchplant[view]'") from error
        self.session = session
        self.token = new_token()
        self._socket = _listen(host, port)
        self.host, self.port = host, self._socket.getsockname()[1]
        names = {"127.0.0.1", "localhost", "::1", host}
        app = Guard(application(session), token=self.token, hosts=names, frames=frames)
        config = uvicorn.Config(
            app, loop="asyncio", log_level="error", log_config=None, access_log=False, lifespan="on",
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS, timeout_keep_alive=30, timeout_graceful_shutdown=1, ws="none",
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/{self.token}/"

    def run(self) -> None:
        """Answer until interrupted."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self.session.close()

    def start(self) -> None:
        """Answer in a thread."""
        # The caller handles signals.
        self._server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self.run, name="view-server", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()
        self._socket.close()


@contextlib.contextmanager
def serving(session: Session, **options: object) -> Iterator[Server]:
    """Run a server in a thread, for tests and notebooks."""
    server = Server(session, **options)  # type: ignore[arg-type]
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise AccessError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return listener


def open_browser(url: str) -> threading.Thread | None:
    """Open the page in a browser if there is a screen; a text browser would take over the terminal.

    Return the thread that does so. It ends when the browser has started, or, for some browsers, is closed.
    """
    if sys.platform.startswith("linux") and not ({"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()):
        print("no screen here: open the link in a browser", file=sys.stderr)
        return None
    import webbrowser

    thread = threading.Thread(target=webbrowser.open, args=(url,), daemon=True)
    thread.start()
    return thread
