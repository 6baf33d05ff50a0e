"""Run a script of FFCV unchanged: ``python -m batchplant.ffcv train.py --its arguments``."""

from __future__ import annotations

import os
import runpy
import sys

from . import redirect_imports


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print("usage: python -m batchplant.ffcv SCRIPT [ARGUMENTS]\n\nRuns a script that imports ffcv.")
        sys.exit(0 if len(sys.argv) > 1 else 2)
    script = sys.argv[1]
    if not os.path.exists(script):
        sys.exit(f"batchplant.ffcv: there is no script {script}")
    redirect_imports()
    sys.argv = sys.argv[1:]
    # What `python train.py` does.
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
