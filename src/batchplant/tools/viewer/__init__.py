"""See a dataset: a web page on this machine over the public API, for every format.

``serve`` starts the server, ``app`` is the web application behind ``security``, ``session`` the open dataset
(``cells``) and the computations for the page (``jobs``). ``rows`` filters, searches and sorts samples,
``render`` makes the JSON of cells, ``media/`` and ``pixels`` their images. ``overview``, ``epochs`` and
``augment`` (with ``pipelines``) compute what panels of the page show. ``routes/`` answers requests. ``page/``
is the page: plain ES modules, no build step, no external resources. ``dashboard`` shows running loaders,
``notebook`` datasets, loaders and the page in a notebook.
"""

from __future__ import annotations
