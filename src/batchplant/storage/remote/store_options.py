"""Options of object stores: AWS profiles, and options for libraries with clients of their own."""

from __future__ import annotations

import os
from typing import Any

from ...errors import OptionError
from ..settings import settings_for
from ..urls import is_remote, options_at, place_of

# A profile with one of these has no static keys; boto3 can get some.
CREDENTIAL_SOURCES = (
    "role_arn",
    "sso_start_url",
    "sso_session",
    "credential_process",
    "web_identity_token_file",
)
KEYS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}


def aws_profile(profile: str | None) -> dict[str, Any]:
    """Return options of S3Store for a profile: keys, region, endpoint, or a provider of credentials.

    A named profile takes precedence over key variables; that of AWS_PROFILE and the default profile do not.
    """
    if profile is None and os.environ.get("AWS_ACCESS_KEY_ID"):
        return {}
    named = profile or os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE")
    section = _read(named or "default")
    if section is None:
        if named is None:
            return {}
        raise OptionError(f"there is no profile {named!r} in {_file('CONFIG')} or {_file('CREDENTIALS')}")
    options = {name: section[key] for key, name in KEYS.items() if key in section}
    if "aws_access_key_id" not in section and any(name in section for name in CREDENTIAL_SOURCES):
        options["credential_provider"] = _provider(named or "default")
    for key, name in (("region", "region"), ("endpoint_url", "endpoint")):
        if section.get(key):
            options[name] = section[key]
    return options


def _file(kind: str) -> str:
    variable, name = {
        "CREDENTIALS": ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
        "CONFIG": ("AWS_CONFIG_FILE", "~/.aws/config"),
    }[kind]
    return os.path.expanduser(os.environ.get(variable) or name)


def _read(profile: str) -> dict[str, str] | None:
    # Imported here: few datasets need a profile.
    import configparser

    merged: dict[str, str] | None = None
    for kind, section in (("CONFIG", f"profile {profile}"), ("CREDENTIALS", profile)):
        parser = configparser.RawConfigParser()
        try:
            parser.read(_file(kind), encoding="utf-8")
        # The file may hold keys: none of it goes into a message.
        except (OSError, ValueError, configparser.Error):
            raise OptionError("it cannot be read as a file of profiles", path=_file(kind)) from None
        for name in (section, *(["default"] if profile == "default" else [])):
            if parser.has_section(name):
                merged = {**(merged or {}), **dict(parser.items(name))}
    return merged


def _provider(profile: str) -> Any:
    try:
        import boto3  # type: ignore[import-not-found, unused-ignore]
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise OptionError(
            f"the profile {profile!r} gets its credentials from elsewhere (a role, SSO or a command), "
            "and that needs boto3: pip install boto3"
        ) from None
    return Boto3CredentialProvider(boto3.Session(profile_name=profile))


def options_for(url: str) -> dict[str, str]:
    """Return options by the names that object_store gives them, on which delta-rs is built.

    Keys in the environment are not among them: the library reads them itself.
    """
    if not is_remote(url):
        return {}
    scheme, options = place_of(url).scheme, settings_for(str(url), options_at(url))
    options_by_name: dict[str, str] = {}
    endpoint = options.endpoint
    if scheme in ("s3", "s3a"):
        profile = {} if options.anonymous else aws_profile(options.profile)
        profile.pop("credential_provider", None)
        endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        endpoint = endpoint or profile.pop("endpoint", None)
        region = options.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        options_by_name = {f"aws_{name}": str(value) for name, value in profile.items()}
        options_by_name["aws_region"] = region or options_by_name.get("aws_region") or "us-east-1"
        if endpoint:
            options_by_name["aws_endpoint"] = endpoint
        if options.anonymous:
            options_by_name["aws_skip_signature"] = "true"
    elif scheme in ("gs", "gcs"):
        options_by_name |= {"google_base_url": endpoint} if endpoint else {}
        options_by_name |= {"google_skip_signature": "true"} if options.anonymous else {}
    elif scheme not in ("http", "https"):
        options_by_name |= {"azure_endpoint": endpoint} if endpoint else {}
        options_by_name |= {"azure_skip_signature": "true"} if options.anonymous else {}
    if endpoint and endpoint.startswith("http://"):
        options_by_name["allow_http"] = "true"
    return options_by_name
