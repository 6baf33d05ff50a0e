"""What ``~/.aws`` says: static keys, region and endpoint of a profile, as every tool of AWS reads it."""

from __future__ import annotations

import os
from typing import Any

from ...errors import OptionError

# A profile with one of these has no keys of its own: boto3 knows how to get some.
ELSEWHERE = ("role_arn", "sso_start_url", "sso_session", "credential_process", "web_identity_token_file")
KEYS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}


def aws(profile: str | None) -> dict[str, Any]:
    """Options of S3Store for a profile: keys, region, endpoint, or a provider of credentials.

    A profile that is named goes before the variables with keys; that of AWS_PROFILE and the one called
    default stand behind them.
    """
    if profile is None and os.environ.get("AWS_ACCESS_KEY_ID"):
        return {}
    named = profile or os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE")
    found = _read(named or "default")
    if found is None:
        if named is None:
            return {}
        raise OptionError(f"there is no profile {named!r} in {_file('CONFIG')} or {_file('CREDENTIALS')}")
    options = {name: found[key] for key, name in KEYS.items() if key in found}
    if "aws_access_key_id" not in found and any(one in found for one in ELSEWHERE):
        options["credential_provider"] = _provider(named or "default")
    for key, name in (("region", "region"), ("endpoint_url", "endpoint")):
        if found.get(key):
            options[name] = found[key]
    return options


def _file(which: str) -> str:
    variable, name = {
        "CREDENTIALS": ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
        "CONFIG": ("AWS_CONFIG_FILE", "~/.aws/config"),
    }[which]
    return os.path.expanduser(os.environ.get(variable) or name)


def _read(profile: str) -> dict[str, str] | None:
    # Few datasets lie behind a profile.
    import configparser

    found: dict[str, str] | None = None
    for which, section in (("CONFIG", f"profile {profile}"), ("CREDENTIALS", profile)):
        parser = configparser.RawConfigParser()
        try:
            parser.read(_file(which), encoding="utf-8")
        # It may hold keys: none of it goes into a message.
        except (OSError, ValueError, configparser.Error):
            raise OptionError("it cannot be read as a file of profiles", path=_file(which)) from None
        for name in (section, *(["default"] if profile == "default" else [])):
            if parser.has_section(name):
                found = {**(found or {}), **dict(parser.items(name))}
    return found


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
