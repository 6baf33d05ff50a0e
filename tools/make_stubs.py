"""Write src/batchplant/_native.pyi from the compiled module: its types and docstrings stand in native/bind.

python tools/make_stubs.py [FILE]

nanobind's stubgen does the work. This script drops the shapes and orders of arrays, which no type checker
knows, and gives docstrings this project's form.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

MODULE = "batchplant._native"
STUB = Path(__file__).resolve().parent.parent / "src" / "batchplant" / "_native.pyi"
# Earlier ones write other types for arrays.
LEAST_NANOBIND = (3, 0)

# Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C')]
_ANNOTATED = re.compile(r"Annotated\[(NDArray(?:\[[\w.]+\])?), dict\((?:[^()]|\([^()]*\))*\)\]")
_ANY_ARRAY = re.compile(r"(?<!import )\bNDArray\b(?!\[)")
_DOCSTRING = re.compile(r'"""\n?\s*(.*?)\s*"""', re.DOTALL)


def generate() -> str:
    """The stub of the module that is installed, before formatting."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stub.pyi"
        command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-P", "-m", MODULE, "-o", str(path)]
        subprocess.run(command, check=True)
        return tidy(path.read_text())


def tidy(text: str) -> str:
    """A stub of stubgen's as this project writes one."""
    text = _ANNOTATED.sub(r"\1", text)
    text = _ANY_ARRAY.sub("NDArray[Any]", text)
    text = text.replace("from typing import Annotated, ", "from typing import ")
    return _DOCSTRING.sub(_docstring, text)


def _docstring(match: re.Match[str]) -> str:
    words = match[1]
    # A docstring of several lines ends on a line of its own, indented as those before it.
    indents = re.findall(r"\n( +)\S", words)
    end = "\n" + min(indents, key=len) if indents else "\n" if "\n" in words else ""
    return f'"""{words}{end}"""'


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else STUB
    path.write_text(generate())
    subprocess.run([sys.executable, "-m", "ruff", "format", "-q", str(path)], check=True)


if __name__ == "__main__":
    main()
