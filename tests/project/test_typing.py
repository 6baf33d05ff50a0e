"""What users write passes ``mypy --strict``."""

import subprocess
import sys
from pathlib import Path

import pytest

import batchplant

SNIPPET = """
import batchplant as bp

reader = bp.open("train.parquet")
names: tuple[str, ...] | None = reader.schema["label"].names
field = reader.schema["label"]
if isinstance(field, bp.Int):
    number: int = field.number("cat")
loader = bp.Loader(reader, 32, order="random", seed=1)
for batch in loader:
    keys: list[str] = list(batch)
    images = batch["image"]
first: dict[str, object] = next(iter(loader))
sample: dict[str, object] = reader[0]
"""


def test_a_users_script_is_typed(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    script = tmp_path / "train.py"
    script.write_text(SNIPPET)
    root = Path(batchplant.__file__).parent.parent
    # Imports are followed for their types, and what is wrong in them is another test's affair.
    found = subprocess.run(
        [
            sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--ignore-missing-imports",
            "--config-file=", f"--cache-dir={root.parent / '.mypy_cache' / 'users'}", str(script),
        ],
        env={"MYPYPATH": str(root), "PATH": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout + found.stderr
