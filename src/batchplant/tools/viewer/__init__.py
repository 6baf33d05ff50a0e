"""See a dataset: a web page on this machine over the public API, for every format.

``serve`` starts the server, ``app`` is its routes behind ``security``, ``session`` what is open and what is
being computed for the page (``jobs``), ``rows`` which samples a filter, a search or a sort leaves, ``cells/``
what is told of a cell, ``pixels`` images for a browser, ``overview``, ``measures``, ``epochs``, ``health``
and ``comparing`` what parts of the page compute. ``routes/`` has one module for each part of the page: what
it answers, as JSON or images. ``page/`` is the page itself: plain ES modules, no build, nothing from
elsewhere.
"""

from __future__ import annotations
