"""What a doctor says of keys and rights: how this user opens the store, what it may do, and which rotation is due."""

import stat
from collections.abc import Iterator

from cairn.gc.remark import ACT, FINE, NOTE, Remark, several
from cairn.registry.opened import OpenStore
from cairn.registry.registry import Registry
from cairn.registry.rights import WRITING
from cairn.registry.rotation import exposed_models


def on_rights(registry: Registry) -> Iterator[Remark]:
    """Remarks on keys and rights."""
    yield _key(registry.opened)
    yield _identity(registry)
    state = registry.state
    due = exposed_models(state)
    if due:
        text = f"{several(len(due), 'model')} keep keys that somebody has who may read no longer"
        yield Remark("keys", ACT, text, "cairn keys rotate --due (an owner)")
    if state.root_exposed:
        yield Remark("keys", ACT, "a former owner knows the root key", "cairn keys rewrap (an owner)")


def _key(opened: OpenStore) -> Remark:
    path = opened.key_file
    if opened.member_wrap is not None:
        text = "the store opens by your identity, as you are a member; if you lose that, an owner has to add you anew"
        return Remark("key", FINE, text)
    if path is None:
        text = "the store opens by its passphrase or key service: keep that safe, nobody can restore it"
        return Remark("key", FINE, text)
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        return Remark("key", ACT, f"key file {path} cannot be looked at: {error.strerror}", "look at its folder")
    if mode & 0o077:
        text = f"key file {path} can be read by others (mode {mode:04o}), and whoever has it can read all"
        return Remark("key", ACT, text, f"chmod 600 {path}")
    return Remark(
        "key", FINE, f"the key file is {path}, for you alone; without a copy of it elsewhere, its loss is all"
    )


def _identity(registry: Registry) -> Remark:
    opened, state = registry.opened, registry.state
    found, member = opened.identity_among(state.owners), state.members.get(opened.identity.actor)
    if found is not None and found.actor == opened.identity.actor:
        return Remark("identity", FINE, "your identity is an owner's: you may read and write")
    if found is not None:
        return Remark("identity", NOTE, "you sign with the store's recovery identity, since yours is not an owner's")
    if member is not None and member.role in WRITING:
        return Remark("identity", FINE, f"you are a {member.role} here: 'cairn whoami' says what you may do")
    if member is not None and member.role:
        return Remark("identity", NOTE, f"you are {_article(member.role)} here, and write nothing")
    text = "your identity is not an owner's: you can read here, and not write"
    return Remark("identity", ACT, text, "copy identity.key from whoever created the store, to write")


def _article(role: str) -> str:
    return f"an {role}" if role[0] in "aeiou" else f"a {role}"
