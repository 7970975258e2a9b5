"""The environment, read in this one place.

Folders follow the XDG base directory specification: *data* holds what must be backed up (key files),
*state* what a client remembers (identity, seen log heads), *cache* what may be deleted at any time.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple


class Settings(NamedTuple):
    """What the user's surroundings say; every field can be overridden by an argument."""

    store: str | None
    key_file: Path | None
    passphrase: str | None
    data: Path
    state: Path
    cache: Path
    new_passphrase: str | None = None
    require_signed: bool = False

    @staticmethod
    def from_environment() -> "Settings":
        """Read `CAIRN_STORE`, `CAIRN_KEY_FILE`, `CAIRN_PASSPHRASE`, `CAIRN_NEW_PASSPHRASE`, `CAIRN_REQUIRE_SIGNED` and
        the XDG folders.
        """
        key_file = os.environ.get("CAIRN_KEY_FILE")
        return Settings(
            store=os.environ.get("CAIRN_STORE") or None,
            key_file=Path(key_file) if key_file else None,
            passphrase=os.environ.get("CAIRN_PASSPHRASE") or None,
            data=_folder("XDG_DATA_HOME", ".local/share"),
            state=_folder("XDG_STATE_HOME", ".local/state"),
            cache=_folder("XDG_CACHE_HOME", ".cache"),
            new_passphrase=os.environ.get("CAIRN_NEW_PASSPHRASE") or None,
            # A word that nobody foresaw demands rather than waives.
            require_signed=(os.environ.get("CAIRN_REQUIRE_SIGNED") or "0").lower() not in ("0", "false", "no", "off"),
        )


@dataclass(frozen=True, slots=True)
class S3Settings:
    """How to reach S3, in the variables that other tools read as well."""

    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    region: str | None = None
    endpoint: str | None = field(default=None, repr=False)
    ca_bundle: str | None = None
    allow_http: bool = False
    bucket_in_host: bool = False

    @staticmethod
    def from_environment() -> "S3Settings":
        """Read `AWS_ACCESS_KEY_ID` and its like; of two names of one thing, the more special one wins."""
        told = {name: value for name, value in os.environ.items() if name.startswith("AWS_") and value}
        return S3Settings(
            access_key=told.get("AWS_ACCESS_KEY_ID"),
            secret_key=told.get("AWS_SECRET_ACCESS_KEY"),
            session_token=told.get("AWS_SESSION_TOKEN"),
            region=told.get("AWS_REGION") or told.get("AWS_DEFAULT_REGION"),
            endpoint=told.get("AWS_ENDPOINT_URL_S3") or told.get("AWS_ENDPOINT_URL"),
            ca_bundle=told.get("AWS_CA_BUNDLE"),
            allow_http=told.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "yes"),
            bucket_in_host=told.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() in ("1", "true", "yes"),
        )


@dataclass(frozen=True, slots=True)
class VaultSettings:
    """How to reach Vault, in the variables that its own client reads."""

    address: str | None = None
    token: str | None = field(default=None, repr=False)
    namespace: str | None = None

    @staticmethod
    def from_environment() -> "VaultSettings":
        """Read `VAULT_ADDR`, `VAULT_TOKEN` and `VAULT_NAMESPACE`."""
        told = (os.environ.get(name) or None for name in ("VAULT_ADDR", "VAULT_TOKEN", "VAULT_NAMESPACE"))
        return VaultSettings(*told)


def _folder(variable: str, default: str) -> Path:
    base = os.environ.get(variable)
    return (Path(base) if base else Path.home() / default) / "cairn"


def variables(patterns: Iterable[str], among: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables whose names match one of `patterns`, in which `*` stands for anything; sorted by name.

    Args:
        among: all variables; by default those of this process.
    """
    given, wanted = os.environ if among is None else among, tuple(patterns)
    return {name: given[name] for name in sorted(given) if any(fnmatchcase(name, form) for form in wanted)}
