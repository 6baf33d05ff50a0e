"""What the page asks for, a module for each part of it. ``ROUTES`` of each: path below ``api/`` to function.

A function gets the session and the request, runs in a thread, and returns what becomes JSON, a job or a
response.
"""

from __future__ import annotations

from . import dataset, live, pictures, samples

ROUTES = {**dataset.ROUTES, **samples.ROUTES, **pictures.ROUTES, **live.ROUTES}
