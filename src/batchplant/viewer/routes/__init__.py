"""What the page asks for, a module for each part of it. ``ROUTES`` of each: path below ``api/`` to function.

A function gets the session and the request, runs in a thread, and returns what becomes JSON, a job or a
response.
"""

from __future__ import annotations

from . import augment, comparing, dataset, epochs, health, live, media, overview, pictures, samples

ROUTES = {
    **augment.ROUTES,
    **comparing.ROUTES,
    **dataset.ROUTES,
    **epochs.ROUTES,
    **health.ROUTES,
    **live.ROUTES,
    **media.ROUTES,
    **overview.ROUTES,
    **pictures.ROUTES,
    **samples.ROUTES,
}
