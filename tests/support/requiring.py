"""Two stores of a tenant, of which one pulls from the other what trusted signers vouch for.

`here` pulls from `there`. Whoever writes `there` is hostile unless a test says otherwise; whatever is refused leaves
both as they were.
"""

from pathlib import Path

import pytest

from cairn.core.errors import RefusedError
from cairn.core.ids import CheckpointId
from cairn.registry.sync import SendOptions, Sent, send
from cairn.registry.trust import Trust
from tests.support.signing import ALICE, BOB, seen, trusting
from tests.support.stores import Site, commit_tree
from tests.support.trees import write_files

TRUST = trusting(ALICE, BOB)


@pytest.fixture
def there(sites: tuple[Site, Site], tmp_path: Path) -> Site:
    """A remote with an unsigned checkpoint of step 1 on main."""
    commit_step(sites[1], tmp_path, 1)
    return sites[1]


@pytest.fixture
def here(sites: tuple[Site, Site]) -> Site:
    return sites[0]


def commit_step(site: Site, folder: Path, step: int, **options: object) -> CheckpointId:
    tree = write_files(folder / f"tree-{step}", {"a": b"%d" % step})
    return commit_tree(site.registry(), tree, step=step, **options).checkpoint


def pull(there: Site, here: Site, selector: str = "m", trust: Trust = TRUST, **options: object) -> Sent:
    options = {"trust": trust, **options}
    return send(there.registry(), here.registry(), selector, SendOptions(**options))  # type: ignore[arg-type]  # checked by the struct


def refused(there: Site, here: Site, match: str, selector: str = "m", trust: Trust = TRUST, **options: object) -> None:
    """A pull is refused, and nothing has changed on either side."""
    before = seen(here), seen(there)
    with pytest.raises(RefusedError, match=match):
        pull(there, here, selector, trust, **options)
    assert (seen(here), seen(there)) == before
