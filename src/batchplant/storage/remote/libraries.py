"""What a library with a client of its own needs to reach the same server."""

from __future__ import annotations

import os

from ..settings import settings_for
from ..urls import is_remote, options_at, place_of
from . import profiles


def options_for(url: str) -> dict[str, str]:
    """Options by the names that object_store gives them, on which delta-rs is built.

    Keys in the environment are not among them: the library finds them there itself.
    """
    if not is_remote(url):
        return {}
    scheme, options = place_of(url).scheme, settings_for(str(url), options_at(url))
    found: dict[str, str] = {}
    endpoint = options.endpoint
    if scheme in ("s3", "s3a"):
        known = {} if options.anonymous else profiles.aws(options.profile)
        known.pop("credential_provider", None)
        endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        endpoint = endpoint or known.pop("endpoint", None)
        region = options.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        found = {f"aws_{name}": str(value) for name, value in known.items()}
        found["aws_region"] = region or found.get("aws_region") or "us-east-1"
        if endpoint:
            found["aws_endpoint"] = endpoint
        if options.anonymous:
            found["aws_skip_signature"] = "true"
    elif scheme in ("gs", "gcs"):
        found |= {"google_base_url": endpoint} if endpoint else {}
        found |= {"google_skip_signature": "true"} if options.anonymous else {}
    elif scheme not in ("http", "https"):
        found |= {"azure_endpoint": endpoint} if endpoint else {}
        found |= {"azure_skip_signature": "true"} if options.anonymous else {}
    if endpoint and endpoint.startswith("http://"):
        found["allow_http"] = "true"
    return found
