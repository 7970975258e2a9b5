"""Services that keep a key and never hand it out: they seal a store's root key, and open it for whom they trust.

Each call names what the root key is for; a service that is asked to open it for anything else refuses.
"""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

from cairn.core.canonical import encode
from cairn.core.errors import IntegrityError, NotAllowed, Unavailable, UsageError
from cairn.core.settings import VaultSettings

_SECONDS = 30
# Mount and name of a key; what a record in a store says must not lead to another call.
_VAULT_KEY = re.compile(r"[\w-]+(/[\w-]+)*/[\w-]+", re.ASCII)
_ANSWER_BYTES_MAX = 1 << 20
Context = Mapping[str, str]


class KeyService(Protocol):
    """Seals small secrets under a key that stays with the service."""

    @property
    def address(self) -> str:
        """Kind and key, as `service_at` takes it; no secret."""
        ...

    def seal(self, plaintext: bytes, context: Context) -> bytes:
        """Seal for a context.

        Raises:
            NotAllowed: the service refuses.
            Unavailable: it does not answer.
        """
        ...

    def open(self, sealed: bytes, context: Context, what: str) -> bytes:
        """Open what was sealed for the same context.

        Raises:
            NotAllowed: the service refuses.
            IntegrityError: damaged, or sealed for another context.
            Unavailable: it does not answer.
        """
        ...


def service_at(address: str) -> KeyService:
    """The service that an address means: `aws-kms:KEY` or `vault-transit:MOUNT/KEY`.

    Raises:
        UsageError: another kind, or no key.
        NotAllowed: credentials or a package are missing.
    """
    kind, _, key = address.partition(":")
    if kind == "aws-kms" and key:
        return AwsKms(key)
    if kind == "vault-transit" and _VAULT_KEY.fullmatch(key):
        mount, _, name = key.rpartition("/")
        return VaultTransit(mount, name, VaultSettings.from_environment())
    raise UsageError(
        f"{address[:80]!r} is no key service",
        hint="write aws-kms:KEY-ID or vault-transit:MOUNT/KEY, as in transit/cairn",
    )


@dataclass(frozen=True, slots=True)
class AwsKms:
    """AWS KMS, and what speaks its language, through AWS's own library; the context is its encryption context."""

    key: str

    @property
    def address(self) -> str:
        return f"aws-kms:{self.key}"

    def seal(self, plaintext: bytes, context: Context) -> bytes:
        answer = self._ask("encrypt", "the root key", Plaintext=plaintext, EncryptionContext=dict(context))
        return bytes(answer["CiphertextBlob"])

    def open(self, sealed: bytes, context: Context, what: str) -> bytes:
        answer = self._ask("decrypt", what, CiphertextBlob=sealed, EncryptionContext=dict(context))
        return bytes(answer["Plaintext"])

    def _ask(self, call: str, what: str, **arguments: Any) -> Any:
        try:
            import botocore.exceptions
            import botocore.session
        except ImportError:
            raise NotAllowed("aws-kms needs a package that is missing", hint="install 'cairn-store[kms]'") from None
        try:
            client = botocore.session.Session().create_client("kms")
            return getattr(client, call)(KeyId=self.key, **arguments)
        except botocore.exceptions.ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            raise _refused(self.address, code, what, code == "InvalidCiphertextException") from None
        except (botocore.exceptions.NoCredentialsError, botocore.exceptions.NoRegionError) as error:
            raise NotAllowed(f"{self.address}: {error}", hint="set AWS_REGION and credentials") from None
        except (botocore.exceptions.BotoCoreError, OSError) as error:
            raise Unavailable(
                f"{self.address} does not answer: {type(error).__name__}", hint="try again later"
            ) from None


@dataclass(frozen=True, slots=True)
class VaultTransit:
    """The transit engine of Vault, and services that speak its language; the context is its associated data.

    The key must be of an AEAD type (`aes256-gcm96`, the default of the engine).
    """

    mount: str
    key: str
    settings: VaultSettings = field(repr=False)

    @property
    def address(self) -> str:
        return f"vault-transit:{self.mount}/{self.key}"

    def seal(self, plaintext: bytes, context: Context) -> bytes:
        told = self._ask("encrypt", "the root key", context, plaintext=_text(plaintext))
        return str(told.get("ciphertext", "")).encode()

    def open(self, sealed: bytes, context: Context, what: str) -> bytes:
        told = self._ask("decrypt", what, context, ciphertext=sealed.decode("ascii", "replace"))
        try:
            return base64.b64decode(str(told["plaintext"]), validate=True)
        except (KeyError, ValueError):
            raise Unavailable(f"{self.address} answers something else than a key", hint="check VAULT_ADDR") from None

    def _ask(self, call: str, what: str, context: Context, **fields: str) -> dict[str, Any]:
        import http.client  # for those stores alone that need it

        settings = self.settings
        parts = urlsplit(settings.address or "")
        if parts.scheme not in ("http", "https") or not parts.hostname or not settings.token:
            raise NotAllowed(f"{self.address} needs an address and a token", hint="set VAULT_ADDR and VAULT_TOKEN")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname, parts.port, timeout=_SECONDS)
        body = json.dumps({**fields, "associated_data": _text(encode(dict(context)))})
        headers = {"X-Vault-Token": settings.token, "Content-Type": "application/json"}
        if settings.namespace:
            headers["X-Vault-Namespace"] = settings.namespace
        try:
            connection.request("POST", f"/v1/{self.mount}/{call}/{self.key}", body, headers)
            answer = connection.getresponse()
            data = json.loads(answer.read(_ANSWER_BYTES_MAX) or b"{}")
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unavailable(
                f"{self.address} does not answer: {type(error).__name__}", hint="try again later"
            ) from None
        finally:
            connection.close()
        told = data.get("data") if isinstance(data, dict) else None
        if answer.status != 200 or not isinstance(told, dict):
            raise _refused(self.address, str(answer.status), what, answer.status == 400)
        return told


def _silent(address: str, error: Exception) -> Unavailable:
    return Unavailable(f"{address} does not answer: {type(error).__name__}", hint="try again later")


def _refused(address: str, code: str, what: str, damaged: bool) -> IntegrityError | NotAllowed | Unavailable:
    """What an answer that is a refusal means; its text is not repeated, since it may hold anything."""
    if damaged:
        return IntegrityError(f"{address} does not open {what}: damaged, or sealed for another store ({code})")
    if code.startswith("5") or "Throttling" in code or "Internal" in code:
        return Unavailable(f"{address} does not serve now ({code})", hint="try again later")
    return NotAllowed(f"{address} refuses ({code})", hint="ask whoever runs it for the right to use this key")


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
