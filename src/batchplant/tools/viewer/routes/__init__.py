"""What the page asks for, a module for each part of it. ``ROUTES`` of each: path below ``api/`` to function.

A function gets the session and the request, runs in a thread, and returns what becomes JSON, a job or a
response.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import dataset, images, samples

Routes = dict[str, Callable[..., Any]]

# What a page asks for first.
FIRST: Routes = {**dataset.ROUTES, **images.ROUTES, **samples.ROUTES}


def others() -> Routes:
    """What it asks for when somebody looks further: it brings much, and is imported then."""
    from . import augment, comparing, epochs, health, live, media, overview

    return {
        **augment.ROUTES,
        **comparing.ROUTES,
        **epochs.ROUTES,
        **health.ROUTES,
        **live.ROUTES,
        **media.ROUTES,
        **overview.ROUTES,
    }
