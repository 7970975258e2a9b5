"""Whose signatures count, by this user's own word: never by that of a store, which could name its own signers.

A file in the user's data folder for each tenant, so that it holds for all copies of a store. It lists public
identities, each for all models or for some by name. Nobody is trusted without having been named, oneself included.
"""

from pathlib import Path

import msgspec

from cairn.core.errors import ConflictError, IntegrityError, NotFoundError, UsageError
from cairn.core.ids import ID_PREFIX_HEX_MIN, ActorId, short
from cairn.registry.localfiles import replace_file
from cairn.registry.opened import OpenStore
from cairn.store.crypto.signing import PublicIdentity


class Signer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Somebody whose signatures count.

    Args:
        identity: the line that `cairn identity` prints.
        models: names of those whose checkpoints; none: all.
        name: as this user calls the signer.
    """

    identity: str
    models: tuple[str, ...] = ()
    name: str = ""

    @property
    def actor(self) -> ActorId:
        """Whose signature that is."""
        return PublicIdentity.parse(self.identity).actor

    def speaks_for(self, model: str) -> bool:
        """Whether its signatures count for a model."""
        return not self.models or model in self.models


class Trust(msgspec.Struct, frozen=True):
    """Signers, and where they were named."""

    signers: tuple[Signer, ...]
    source: str

    def of(self, model: str) -> dict[ActorId, Signer]:
        """Those who count for a model."""
        return {one.actor: one for one in self.signers if one.speaks_for(model)}


def named_trust(lines: tuple[str, ...]) -> Trust:
    """Trust in those alone whom a command names.

    Raises:
        UsageError: a line is none of an identity.
    """
    return Trust(tuple(map(signer_by, lines)), "--signer")


def signer_by(line: str, models: tuple[str, ...] = (), name: str = "") -> Signer:
    """A signer by the line of its identity.

    Raises:
        UsageError: it is none.
    """
    PublicIdentity.parse(line)
    return Signer(line.strip(), models, name)


def trust_in(opened: OpenStore, lines: tuple[str, ...]) -> Trust:
    """Trust in those whom a command names; if it names nobody, in those whom the user has noted."""
    return named_trust(lines) if lines else noted_trust(opened)


def trust_file(opened: OpenStore) -> Path:
    """Where a tenant's signers are noted."""
    return opened.home.trust_file(opened.tenant)


def noted_trust(opened: OpenStore) -> Trust:
    """The signers that this user has named for a store's tenant.

    Raises:
        IntegrityError: the file is damaged: nothing of it counts.
    """
    path = trust_file(opened)
    try:
        signers = msgspec.json.decode(path.read_bytes(), type=tuple[Signer, ...])
        for one in signers:
            PublicIdentity.parse(one.identity)
    except FileNotFoundError:
        signers = ()
    except (OSError, msgspec.MsgspecError, UsageError) as error:
        raise IntegrityError(f"{path} cannot be read: {error}", hint="mend it, or remove it") from None
    return Trust(signers, str(path))


def trust(opened: OpenStore, signer: Signer) -> None:
    """Note a signer.

    Raises:
        ConflictError: it is noted already.
    """
    known = noted_trust(opened).signers
    if any(one.actor == signer.actor for one in known):
        raise ConflictError(
            f"{short(signer.actor)} is trusted already", hint="to change for which models, remove it first"
        )
    _save(opened, (*known, signer))


def distrust(opened: OpenStore, text: str) -> Signer:
    """Forget a signer by its line, the first digits of its actor id, or the name that was given to it; returns it.

    Raises:
        NotFoundError: there is none, or several are meant.
    """
    known = noted_trust(opened).signers
    digits = text.lower() if len(text) >= ID_PREFIX_HEX_MIN else None
    meant = [
        one for one in known
        if text and (text in (one.identity, one.name) or (digits and one.actor.hex().startswith(digits)))
    ]  # fmt: skip
    if len(meant) != 1:
        what = "several signers" if meant else "no signer"
        raise NotFoundError(f"{text[:80]!r} means {what} in {trust_file(opened)}", hint="'cairn trust list' lists them")
    _save(opened, tuple(one for one in known if one is not meant[0]))
    return meant[0]


def _save(opened: OpenStore, signers: tuple[Signer, ...]) -> None:
    replace_file(trust_file(opened), msgspec.json.format(msgspec.json.encode(signers), indent=2) + b"\n")
