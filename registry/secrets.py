"""Keys of a store that are at hand: all of them for who holds the root key, for members what their role comes with."""

import msgspec

from cairn.core.ids import TenantId
from cairn.store.crypto.tenant import TenantKeys, held


class StoreSecrets(msgspec.Struct, frozen=True):
    """What the first wrap holds: the tenant's secret, random class keys, the recovery identity.

    All stores of a tenant share `tenant_secret` and `k_ckpt`, hence ids; the rest is the store's own.
    """

    tenant_secret: bytes
    k_index: bytes
    k_log: bytes
    k_ckpt: bytes
    recovery_seed: bytes

    # What members may lack.
    sees_index = True

    def content(self, tenant: TenantId) -> TenantKeys:
        """The tenant's content keys."""
        return TenantKeys.from_secret(tenant, self.tenant_secret)

    def __repr__(self) -> str:
        return "StoreSecrets(<secret>)"


class HeldRoot(msgspec.Struct, frozen=True):
    """A root key and its generation."""

    generation: int
    key: bytes

    def __repr__(self) -> str:
        return "HeldRoot(<secret>)"


class MemberSecrets(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a member's wrap holds.

    Args:
        root: for owners, who get all else through it.
        index_key, checkpoint_key, content_keys: None where the role does not come with them; the last are in the order
            of `TenantKeys.parts`.
    """

    k_log: bytes
    index_key: bytes | None = None
    checkpoint_key: bytes | None = None
    content_keys: tuple[bytes, bytes, bytes, bytes, bytes, bytes] | None = None
    root: HeldRoot | None = None

    @property
    def sees_index(self) -> bool:
        """Whether index and packs can be looked into."""
        return self.index_key is not None

    @property
    def k_index(self) -> bytes:
        """Class key of index pieces, pack footers and reachability lists.

        Raises:
            NotAllowed: it was not given, as of all below.
        """
        return held(self.index_key, "the key of the index", "collector")

    @property
    def k_ckpt(self) -> bytes:
        """Class key of manifest bodies."""
        return held(self.checkpoint_key, "the key of manifests", "reader")

    @property
    def tenant_secret(self) -> bytes:
        """The tenant's secret."""
        return held(None, "the secret of the tenant", "owner")

    @property
    def recovery_seed(self) -> bytes:
        """Private half of the recovery identity."""
        return held(None, "the recovery identity", "owner")

    def content(self, tenant: TenantId) -> TenantKeys | None:
        """The tenant's content keys, if they were given."""
        return TenantKeys.from_parts(tenant, self.content_keys) if self.content_keys else None

    def __repr__(self) -> str:
        return "MemberSecrets(<secret>)"


Secrets = StoreSecrets | MemberSecrets
