"""Members of a store: each with a home of its own, and nothing in it but an identity."""

from dataclasses import replace

from cairn.core.ids import ActorId
from cairn.registry.members import grant, set_role
from cairn.registry.models import find_model
from cairn.registry.registry import Registry
from cairn.registry.rights import Role
from cairn.store.crypto.components import ComponentClass
from cairn.store.crypto.signing import Identity
from tests.support.stores import Site, home_in

READABLE = tuple(one for one in ComponentClass if one is not ComponentClass.META)


def newcomer(site: Site, name: str) -> Site:
    """Somebody else at the same store, who holds no key of it."""
    return replace(site, home=home_in(site.home.data.parent.with_name(f"home-of-{name}")))


def identity_of(member: Site) -> Identity:
    """Whoever this is."""
    return member.home.identity(member.entropy)


def actor_of(member: Site) -> ActorId:
    """Actor id of a member."""
    return identity_of(member).actor


def join(site: Site, name: str, role: Role) -> Site:
    """A new member, made by the owner of `site`."""
    member = newcomer(site, name)
    set_role(site.registry(), identity_of(member).public, role)
    return member


def give(site: Site, member: Site, model: str, *reads: ComponentClass, write: bool = False) -> None:
    """Grant something of a model (empty for all models)."""
    registry: Registry = site.registry()
    grant(registry, actor_of(member), find_model(registry, model) if model else None, reads, write)
