"""See a dataset: a web page on this machine over the public API, for every format.

``serve`` is the server: a guard before the web application. ``session`` has the open dataset (``cells``), its
jobs and caches, and a request of the page. ``browse``, ``panels`` and ``media`` answer requests: ``rows``
filters, searches and sorts samples, ``render`` makes the JSON of cells, and ``pixels``, ``arrays``,
``recordings`` and ``overlays`` what is drawn of them; ``overview``, ``epochs`` and ``augment`` compute what
panels show. ``page/`` is the page: plain ES modules, no build step, no external resources. ``dashboard``
shows running loaders, ``notebook`` datasets, loaders and the page in a notebook.
"""

from __future__ import annotations
