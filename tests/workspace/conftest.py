"""Fixtures of this folder."""

from tests.support.fixtures import environments_closed, site, store

__all__ = ["environments_closed", "site", "store"]
