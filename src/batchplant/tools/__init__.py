"""Tools built on the library: measurements, advice, the doctor, the simulator and the viewer."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

# A JSON object, and an array of any dtype.
Document = dict[str, Any]
Array = npt.NDArray[Any]
