"""Group X, addresses of stores: a place and nothing else; what else they carry is never shown."""

from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cairn.core.errors import UsageError
from cairn.registry.location import local_path
from tests.cases.shell import Shell, stored

PLACES = [
    "file:///{}/../../etc", "file:///{}/%2e%2e/%2e%2e/etc", "file:///{}/%2E%2e/x", "file:///{}/.%2e/x",
    "file:///{}/..%2fx",
    "file:///{}#/../../etc", "file:///{}?x=/../etc", "file://h/#/../../../etc", "file://example.org/{}",
    "file://user:secret@localhost/{}", "file:{}", "file:/{}", "file://", "file://localhost", "file:///{}%00/x",
    "http://h/{}",
    "s3://bucket/{}/../x", "s3://bucket/{}?x", "s3://u:p@bucket/{}",
    "memory://u@h/{}", "memory://{}/%2e%2e/x", "FILE:///../{}", "://{}", "file:///{}/..", "file://..//{}", "file:////..",
    "file://[", "file://a\u2100b/",
    "file://]/x", "file:///{}/%2e%2e%2f", "gopher://x", "file:///{}/\t../x", "file:///{}/.\n./x",
]  # fmt: skip


@pytest.mark.parametrize("url", PLACES, ids=ascii)
def test_X34_an_address_that_is_more_than_a_place_is_refused(shell: Shell, url: str) -> None:
    url = url.format(str(shell.folder)[1:])
    seen = {path for path in stored(shell.folder.parent) if "cache" not in path}
    for command in (["init", url], ["--store", url, "ls"], ["--store", url, "verify"]):
        done = shell.any(*command)
        if "://" in url:
            assert done.code == 2 and done.err.startswith("error: "), done
        else:
            assert done.code in (0, 1, 3, 7)
    if "://" in url:
        assert {path for path in stored(shell.folder.parent) if "cache" not in path} == seen
    assert not Path("/etc/format").exists()


@given(st.lists(st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1), min_size=1))
def test_X34_a_path_in_an_address_is_that_path(parts: list[str]) -> None:
    if ".." in parts:
        return
    path = "/" + "/".join(parts)
    assert local_path("file://" + quote(path)) == Path(path)
    assert local_path("file://localhost" + quote(path)) == Path(path)


@given(st.text("./%2eE25fF?#:@&;=[]\\ \t\nfile~a0", max_size=30))
def test_X34_no_address_climbs(text: str) -> None:
    for url in (f"file:///{text}", f"file://{text}"):
        try:
            place = local_path(url)
        except UsageError:
            continue
        except ValueError as error:
            assert "netloc" in str(error) or "IPv6" in str(error)  # reported above
            continue
        assert place.is_absolute() and ".." not in place.parts and "\0" not in str(place)


SECRET = "hunter2sEcReT"
ADDRESSES = [
    f"s3://AKIA:{SECRET}@bucket/x", f"https://h/b?X-Amz-Signature={SECRET}", f"file://u:{SECRET}@localhost/x", f"file:///x?t={SECRET}",
    f"file:///x#{SECRET}", f"gs://b/x?token={SECRET}&y", f"https://{SECRET}@h", f"{SECRET}://h/x", f"az://c;k={SECRET}@h/..",
]  # fmt: skip


@pytest.mark.parametrize("url", ADDRESSES)
def test_X27_no_error_shows_what_an_address_carries(shell: Shell, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = [
        shell.any(*command) for command in (["init", url], ["--store", url, "ls"], ["--store", url, "verify", "--json"])
    ]
    monkeypatch.setenv("CAIRN_STORE", url)
    shown += [shell.any("log", "m"), shell.any("commit", shell.tree({"a": b"1"}), "m")]
    for done in shown:
        assert done.code == 2 and (SECRET.lower() not in (done.out + done.err).lower() or url.startswith(SECRET))
