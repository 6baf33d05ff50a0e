"""Tools built on the library: measurements, advice, the doctor, the simulator and the viewer."""

from __future__ import annotations

from typing import Any

# A JSON object.
Document = dict[str, Any]
