"""Convert while one system call fails, or kills; then look at what is left. Run with the shim preloaded.

Prints one JSON object: how many points were tried of each format, at least, and the bad ones. See
test_faults.py.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import importlib
import itertools
import json
import os
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")

import numpy as np  # noqa: E402

import batchplant as bp  # noqa: E402
from batchplant.data.writer import Writer  # noqa: E402
from batchplant.formats.base.tensors import TENSORS, from_array  # noqa: E402
from batchplant.formats.registry import all_formats  # noqa: E402
from batchplant.jobs.conversion.run import Files  # noqa: E402
from batchplant.testing.cases import cells, film, jpeg, sound  # noqa: E402

SHIM = ctypes.CDLL(None)
MODES = {"kill": (1, 0), "EIO": (2, errno.EIO), "ENOSPC": (2, errno.ENOSPC), "interrupt": (3, 0)}


def in_child(function: Callable[[], Any]) -> Any:
    """Result of a function in a process of its own: a value, or ("signal", number), or ("raised", name)."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            result = function()
        except BaseException as error:
            ours = isinstance(error, bp.BatchplantError | OSError | KeyboardInterrupt)
            message = f"{type(error).__name__}: {error}"
            result = ("raised", message if ours else f"OUTSIDE {message}\n{traceback.format_exc()[-1500:]}")
        SHIM.faults_disarm()
        with os.fdopen(writing, "w") as out:
            json.dump(result, out)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        data = file.read()
    status = os.waitpid(pid, 0)[1]
    return ("signal", os.WTERMSIG(status)) if os.WIFSIGNALED(status) else json.loads(data)


class Case:
    """One format: a source, an old and a new dataset, and where they go."""

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        sharded: bool,
        overwrite: bool,
        suffix: str | None,
        append: bool = False,
    ) -> None:
        self.format = all_formats()[name]
        self.sharded, self.overwrite, self.append = sharded, overwrite, append
        # A transaction of the format's own knows nothing of a side-car.
        self.sums = not (append and name in ("lmdb", "delta", "iceberg"))
        self.leave = {"allow_pickle": True} if name in ("pickle", "joblib") else {}
        self.suffix = suffix if suffix is not None else (self.format.suffixes or ("",))[0]
        self.folder = folder
        self.source, self.former = folder / "src.msgpack", folder / "former.msgpack"
        self.root = folder / "root"
        self.target = self.root / f"t{self.suffix}"
        self.saved = folder / "saved"
        (folder / "template").mkdir()
        (folder / "template" / "bystander").write_text("not yours")
        self.old = None
        if append:
            self.old = self.prepared(self.former, 14, ("cat", "dog"))
            self.become_template()
        self.new = self.prepared(self.source, 28, ("cat", "dog"))
        if overwrite:
            self.old = self.prepared(self.former, 14, ("ant", "bee"))
            self.become_template()

    def prepared(self, path: Path, samples: int, classes: tuple[str, ...]) -> Any:
        """Return the state after a conversion of such a source. Children find the libraries loaded."""

        def work() -> tuple[Any, list[str]]:
            self.write(path, samples, classes)
            return self.made(path), list(sys.modules)

        answer = in_child(work)
        assert isinstance(answer[0], dict), answer
        for module in answer[1]:
            with contextlib.suppress(Exception):
                importlib.import_module(module)
        return answer[0]

    def become_template(self) -> None:
        """What is there now is there before each conversion."""
        shutil.rmtree(self.folder / "template")
        shutil.copytree(self.root, self.folder / "template", symlinks=True)

    def write(self, path: Path, samples: int, classes: tuple[str, ...]) -> None:
        if self.format.tensors:
            with bp.create(path, TENSORS) as out:
                for number in range(samples):
                    out.append(from_array(f"{classes[0]}.{number}", np.full(50, number, np.int32)))
            return
        kinds: dict[str, Any] = {
            "image": bp.Image(), "audio": bp.Audio(), "video": bp.Video(), "n": bp.Int(),
            "label": bp.Int(names=classes), "maybe": bp.Int(optional=True), "blob": bp.Bytes(),
        }  # fmt: skip
        if self.format.fields:
            with bp.create(path, {"tokens": self.format.fields["tokens"]}) as out:
                for number in range(samples):
                    own = np.arange(1, 1 + number % 9, dtype=self.format.fields["tokens"].dtype)
                    out.append({"tokens": own + len(classes[0])})
            return
        media = {"imagefolder": "image", "audiofolder": "audio", "videofolder": "video"}.get(self.format.name)
        fields = {
            name: field for name, field in kinds.items()
            if self.format.refuses(field) is None and name in ("n", "label", "maybe", "blob", media)
        }  # fmt: skip
        values = {"image": jpeg(), "audio": sound(4), "video": film(1) if media == "video" else b""}
        with bp.create(path, fields) as out:
            for n in range(samples):
                own = {
                    "n": n,
                    "label": n % 2,
                    "maybe": n if n % 3 else None,
                    "blob": bytes([n]) * (n * 7 % 90),
                }
                out.append({key: {**values, **own}[key] for key in fields})

    def reset(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.folder / "template", self.root, symlinks=True)
        self.saved.write_bytes(b"")

    def convert(self, source: Path, *, resume: bool = False, overwrite: bool | None = None) -> bp.Conversion:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        tuning = bp.ConvertTuning(checkpoint_seconds=0, batch_bytes=400)
        ending: Any = (Files, "commit") if self.sharded else (Writer, "close")
        checkpoint, close = Writer.checkpoint, getattr(*ending)
        before = -1

        def noting(writer: Any, extra: Any = None) -> None:
            checkpoint(writer, extra)
            with open(self.saved, "ab") as out:
                out.write(b".")

        def closing(writer: Any) -> Any:
            nonlocal before
            before = SHIM.faults_count() if before < 0 else before
            return close(writer)

        Writer.checkpoint = noting  # type: ignore[method-assign]
        setattr(*ending, closing)
        result = bp.convert(
            source,
            self.target,
            resume=resume,
            overwrite=self.overwrite if overwrite is None else overwrite,
            append=self.append,
            shard_samples=12 if self.sharded else None,
            target_options={"format": self.format.name, "eos": 0} if self.format.name == "tokens" else {},
            options=bp.ConvertOptions(workers=1, checksums=self.sums, tuning=tuning),
        )
        self.before_close = before
        return result

    def state(self) -> Any:
        """Content of the dataset, or None where there is none."""
        path = self.target.with_name("t-*" + self.suffix) if self.sharded else self.target
        try:
            with bp.open(path, format=self.format.name, **self.leave) as reader:
                content = {"schema": reader.schema.to_json(), "cells": repr(cells(reader))}
            verified = bp.verify(path, format=self.format.name, decode=True, **self.leave)
        except bp.NotFoundError:
            return None
        return {
            **content,
            "problems": [str(problem) for problem in verified.problems],
            "checks": list(verified.checks),
        }

    def made(self, source: Path) -> Any:
        self.reset()
        self.convert(source, overwrite=not self.append)
        state = self.state()
        assert state is not None
        assert not state["problems"], state
        return state

    def count(self) -> tuple[int, int]:
        """System calls before the writer closes, and in all."""
        self.reset()

        def work() -> list[int]:
            SHIM.faults_arm(str(self.root).encode(), -1, 0, 0)
            self.convert(self.source)
            return [self.before_close, SHIM.faults_count()]

        result = in_child(work)
        assert isinstance(result[0], int), result
        return result[0], result[1]

    def at(self, number: int, mode: str) -> str | None:
        """Return the problem after a fault at one point, or None."""
        self.reset()

        def work() -> str:
            SHIM.faults_arm(str(self.root).encode(), number, *MODES[mode])
            self.convert(self.source)
            return "done"

        result = in_child(work)
        if (isinstance(result, list) and "OUTSIDE" in result[1]) or (
            result[0] == "signal" and mode != "kill"
        ):
            return f"ended by {result}"
        if mode == "ENOSPC" and result[0] == "raised" and not result[1].startswith("WriteError: "):
            return f"a full disk is {result}"
        saved = len(self.saved.read_bytes())
        state = in_child(self.state)
        if state not in (self.old, self.new):
            return f"mixed after {result}: {str(state)[:1500]}"
        if result == "done" and state != self.new:
            return "done, and the old is there"
        if (self.root / "bystander").read_text() != "not yours":
            return "another file was touched"
        if state == self.new:
            return None
        resumed, state = in_child(lambda: [self.convert(self.source, resume=True).resumed_at, self.state()])
        if not isinstance(resumed, int):
            return f"resume: {resumed} {state}, after {result}"
        if saved and not resumed:
            return f"lost {saved} checkpoints after {result}"
        leftovers = [path.name for path in self.root.iterdir() if path.name.startswith(".")]
        if state != self.new or leftovers:
            return f"after a resume from {resumed}: {leftovers} {str(state)[:500]}"
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, epilog="Runs are separated by the word then.")
    parser.add_argument("format", nargs="*")
    parser.add_argument("--suffix")
    parser.add_argument("--sharded", action="store_true")
    parser.add_argument("--overwrite", action="store_true")
    parser.add_argument("--append", action="store_true", help="to the old dataset")
    parser.add_argument("--most", type=int, default=10**9, help="points for each kind of fault")
    parser.add_argument("--close", action="store_true", help="only while the writer closes")
    parser.add_argument("--mode", action="append", choices=list(MODES))
    parser.add_argument("--anywhere", action="append", default=[], choices=list(MODES),
                        help="a mode to try at all points, too, with --close")  # fmt: skip
    parser.add_argument("--point", type=int)
    # A child that imports these does so in vain: its siblings do it again.
    for library in ("deltalake", "h5py", "lmdb", "pyarrow.parquet"):
        with contextlib.suppress(ImportError):
            importlib.import_module(library)
    tried, bad = [], []
    # Several runs in one process: what takes long is to import libraries.
    for separates, words in itertools.groupby(sys.argv[1:], lambda word: word == "then"):
        args = parser.parse_args([] if separates else list(words))
        for name in args.format:
            with tempfile.TemporaryDirectory() as temporary:
                case = Case(
                    name, Path(temporary), sharded=args.sharded, overwrite=args.overwrite, suffix=args.suffix,
                    append=args.append,
                )  # fmt: skip
                points, wrong = try_points(case, args)
            tried.append(points)
            bad += [[f"{name}: {mode}", point, problem] for mode, point, problem in wrong]
    print(json.dumps({"tried": min(tried), "bad": bad}))
    return 0


def try_points(case: Case, args: argparse.Namespace) -> tuple[int, list[tuple[str, int, str]]]:
    """Number of points that were tried, and the problems after some of them."""
    closing, last = case.count()
    bad, tried = [], 0
    modes = [(mode, closing if args.close else 0) for mode in args.mode or MODES]
    for mode, first in [*modes, *((mode, 0) for mode in args.anywhere)]:
        points = np.unique(np.linspace(first, last - 1, min(args.most, last - first)).astype(int)).tolist()
        for point in points if args.point is None else [args.point]:
            tried += 1
            wrong = case.at(point, mode)
            if wrong is not None:
                bad.append((mode, point, wrong))
    return tried, bad


if __name__ == "__main__":
    sys.exit(main())
