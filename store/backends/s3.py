"""A bucket of S3 or of whatever speaks its language, below a prefix.

Every object is one PUT with `If-None-Match: *`, seen whole or not at all; nothing is ever sent in parts, since servers
differ in whether the end of such an upload heeds conditions.

A request whose answer is lost may have had its effect. Reading and deleting are repeated. Each `create` carries a
random mark, which is stored with the object: "the name is taken" is believed only after a look at whose mark is there,
and a create of unknown outcome is repeated with the same mark, so that it is never taken for a rival of its own.
"""

import contextlib
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from urllib.parse import quote, unquote

from cairn.core.buffers import Buffer
from cairn.core.clock import Clock, Entropy, SystemClock, SystemEntropy
from cairn.core.errors import (
    AnswerLost,
    CairnError,
    NotAllowed,
    ObjectExists,
    ObjectNotFound,
    StorageError,
    Unavailable,
)
from cairn.core.limits import REMOTE_ERROR_BYTES_MAX, REMOTE_PAGE_BYTES_MAX, REMOTE_PUT_BYTES_MAX
from cairn.store.backends.connections import Answer, Connections, Excess, Lost, Place, Request, Unsent
from cairn.store.backends.contract import Capabilities, Listed, check_name, is_name
from cairn.store.backends.patience import Patience
from cairn.store.backends.s3_answers import code_of, failure, page_of, passing, retry_after, throttled
from cairn.store.backends.s3_signing import Signer, encoded
from cairn.store.backends.s3_uploads import abort_old

_MARK = "x-amz-meta-cairn-upload"
# These list folder by folder: `a/b` before `a-b`. All others list in order of names, and are held to it.
_FOLDER_WISE = ("SeaweedFS",)
_GIVE_UP = "look at the storage and the network, then repeat"


class S3Backend:
    """Objects below `prefix` in a bucket. Safe in threads and after `fork`; holds idle connections between calls.

    Args:
        place: the server.
        in_host: whether the bucket is named in the host (`place` then holds it) or in the path.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str,
        place: Place,
        signer: Signer,
        *,
        in_host: bool = False,
        ca_bundle: str | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        self.url = f"s3://{bucket}" + (f"/{prefix}" if prefix else "")
        self.capabilities = Capabilities(exclusive_create=True, ranged_read=True, durable=True)
        self._bucket = bucket
        self._above = f"{prefix}/" if prefix else ""
        self._base = "" if in_host else f"/{bucket}"
        self._place = place
        self._signer = signer
        self._clock = clock or SystemClock()
        self._entropy = entropy or SystemEntropy()
        self._connections = Connections(place, self._clock, ca_bundle)

    def create(self, name: str, parts: Sequence[Buffer]) -> None:
        path = self._path(name)
        views = [memoryview(part).cast("B") for part in parts if memoryview(part).nbytes]
        size = sum(view.nbytes for view in views)
        if size > REMOTE_PUT_BYTES_MAX:
            raise StorageError(f"cannot create {name}: {size} bytes are more than one PUT takes; nothing was changed")
        mark = self._entropy.token(16).hex()
        headers = {"if-none-match": "*", _MARK: mark, "content-length": str(size)}
        patience, unsure = Patience(self._clock, self._entropy), ""
        while True:
            asked, connected = None, True
            try:
                answer = self._send("PUT", path, (), headers, views, None, REMOTE_ERROR_BYTES_MAX)
            except Unsent as error:
                connected, trouble = False, str(error)
            except (Lost, Excess) as error:
                trouble = unsure = str(error)
            else:
                if 200 <= answer.status < 300:
                    return
                # The name is taken, if only by an earlier try of ours, or by one that a proxy made of it.
                if answer.status == 412:
                    if self._mark_of(name, size, unsure, patience) == mark:
                        return
                    raise ObjectExists(f"{name} exists already")
                if not passing(answer):
                    if unsure:
                        break
                    raise failure(answer, "create", name, self._bucket, self._clock)
                asked, trouble = retry_after(answer, self._clock), code_of(answer)
                unsure = unsure if throttled(answer) else trouble
            if not patience.wait(asked, connected=connected):
                if not unsure:
                    raise self._unavailable("create", name, trouble, asked)
                break
            if unsure and (found := self._mark_of(name, size, unsure, patience)) is not None:
                if found == mark:
                    return
                raise ObjectExists(f"{name} exists already")
        raise AnswerLost(f"no answer to the creation of {name} ({unsure}): it may or may not exist", hint=_GIVE_UP)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        if offset < 0:
            raise StorageError(f"cannot read {name} at byte {offset}: there is no such place")
        if length is not None and length <= 0:
            self.size(name)
            return b""
        end = "" if length is None else str(offset + length - 1)
        headers = {"range": f"bytes={offset}-{end}"} if offset or end else {}
        answer = self._ask("read", name, "GET", self._path(name), headers=headers, body_bytes_max=length, good=(416,))
        return answer.body if _starts(answer, name, offset) else b""

    def read_into(self, name: str, offset: int, target: Buffer) -> int:
        view = memoryview(target)
        if offset < 0 or not view.nbytes:
            return len(self.read(name, offset, 0))
        view = view.cast("B")
        headers = {"range": f"bytes={offset}-{offset + view.nbytes - 1}"}
        answer = self._ask("read", name, "GET", self._path(name), headers=headers, into=view, good=(416,))
        return answer.length if _starts(answer, name, offset) else 0

    def size(self, name: str) -> int:
        answer = self._ask("read", name, "HEAD", self._path(name))
        return _number(answer.headers.get("content-length", ""), name)

    def list(self, prefix: str = "") -> Iterator[Listed]:
        return self._list(check_name(prefix) + "/" if prefix else "")

    def folders(self, prefix: str = "") -> Sequence[str]:
        below = check_name(prefix) + "/" if prefix else ""
        found = set()
        for page, _ in self._pages(below, delimited=True):
            for element in page.findall("CommonPrefixes/Prefix"):
                found.add(unquote(element.text or "")[len(self._above) + len(below) :].rstrip("/"))
        return sorted(leaf for leaf in found if is_name(leaf))

    def delete(self, name: str) -> None:
        answer = self._ask("delete", name, "DELETE", self._path(name), good=(404,))
        if code_of(answer) == "NoSuchBucket":
            raise failure(answer, "delete", name, self._bucket, self._clock)

    def settle(self, name: str) -> None:
        # What can be read is durable.
        self.size(name)

    def reclaim(self, prefix: str) -> int:
        # A writer that dies leaves nothing: a PUT is seen whole or not at all. Other tools send in parts.
        if prefix:
            check_name(prefix)
            return 0
        # There are servers that cannot list these, and keys that may not; nothing depends on it.
        with contextlib.suppress(CairnError):
            # A bucket that is a store's as a whole may still have neighbours in it.
            return abort_old(self._ask, self._base, self._above or "objects/", self._clock.wall_ns())
        return 0

    def make_bucket(self) -> None:
        """Create the bucket; one that is the caller's already is fine.

        Raises:
            ObjectExists: the name is somebody else's.
        """
        region = self._signer.region
        # The oldest region is the one that must not be named.
        where = f"<LocationConstraint>{region}</LocationConstraint>" if region != "us-east-1" else ""
        body = f"<CreateBucketConfiguration>{where}</CreateBucketConfiguration>".encode() if where else b""
        answer = self._ask(
            "create", f"bucket {self._bucket}", "PUT", self._base or "/",
            headers={"content-length": str(len(body))}, parts=[memoryview(body)], good=(200, 409),
        )  # fmt: skip
        if answer.status == 409 and code_of(answer) != "BucketAlreadyOwnedByYou":
            raise ObjectExists(f"bucket {self._bucket} is somebody else's", hint="choose another name")

    # --- Names --------------------------------------------------------------------------------

    def _path(self, name: str) -> str:
        return f"{self._base}/{quote(self._above + check_name(name), safe='/~')}"

    def _list(self, below: str) -> Iterator[Listed]:
        unordered: list[Listed] = []
        last = ""
        for page, server in self._pages(below):
            for element in page.findall("Contents"):
                name = unquote(element.findtext("Key") or "")[len(self._above) :]
                if not is_name(name):
                    continue
                listed = Listed(name, _number(element.findtext("Size") or "", name), _stamp(element))
                if server.startswith(_FOLDER_WISE):
                    unordered.append(listed)
                    continue
                if name < last:
                    raise StorageError(f"cannot list {below or 'the store'}: it is not listed in order of names")
                last = name
                yield listed
        yield from sorted(unordered, key=lambda listed: listed.name)

    def _pages(self, below: str, *, delimited: bool = False) -> Iterator[tuple[ET.Element, str]]:
        """The pages of a listing, and which server they are from."""
        query = [("list-type", "2"), ("prefix", self._above + below), ("encoding-type", "url")]
        query += [("delimiter", "/")] if delimited else []
        token: str | None = ""
        while token is not None:
            asked = [*query, *([("continuation-token", token)] if token else [])]
            limit, path = REMOTE_PAGE_BYTES_MAX, self._base or "/"
            answer = self._ask("list", below.rstrip("/"), "GET", path, query=asked, body_bytes_max=limit)
            page = page_of(answer, below)
            yield page, answer.headers.get("server", "")
            token = page.findtext("NextContinuationToken") if page.findtext("IsTruncated") == "true" else None

    # --- Requests -----------------------------------------------------------------------------

    def _ask(
        self,
        action: str,
        name: str,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        headers: dict[str, str] | None = None,
        parts: Sequence[memoryview] = (),
        into: memoryview | None = None,
        body_bytes_max: int | None = REMOTE_ERROR_BYTES_MAX,
        good: Sequence[int] = (),
        patience: Patience | None = None,
    ) -> Answer:
        """Send a request that may be sent again; returns the answer, if it is a good one.

        Args:
            good: statuses that are, besides those of success.
            patience: that of the call, if it has waited before.
        """
        patience, lost = patience or Patience(self._clock, self._entropy), False
        while True:
            asked, connected = None, True
            try:
                answer = self._send(method, path, query, headers or {}, parts, into, body_bytes_max)
            except Unsent as error:
                connected, trouble = False, str(error)
            except Lost as error:
                lost, trouble = True, str(error)
            except Excess:
                raise StorageError(f"cannot {action} {name}: the storage sends more than it was asked for") from None
            else:
                if not passing(answer):
                    if 200 <= answer.status < 300 or answer.status in good:
                        return answer
                    if method == "HEAD" and answer.status != 404:
                        # Its answer has no body, and so no reason.
                        self._ask(action, name, "GET", path, headers={"range": "bytes=0-0"}, patience=patience)
                    raise failure(answer, action, name, self._bucket, self._clock)
                asked, trouble = retry_after(answer, self._clock), code_of(answer)
            if not patience.wait(asked, connected=connected):
                if lost and method == "DELETE":
                    raise AnswerLost(f"no answer to the deletion of {name}: it may or may not exist", hint=_GIVE_UP)
                raise self._unavailable(action, name, trouble, asked)

    def _send(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]],
        headers: dict[str, str],
        parts: Sequence[memoryview],
        into: memoryview | None,
        body_bytes_max: int | None,
    ) -> Answer:
        # TLS protects a body on its way; without it the signature does.
        signed_parts = None if self._place.secure and parts else parts
        signed = self._signer.headers(method, self._place.authority, path, query, headers, signed_parts)
        target = f"{path}?{encoded(query)}" if query else path
        return self._connections.exchange(Request(method, target, signed, parts, into, body_bytes_max))

    def _mark_of(self, name: str, size: int, unsure: str, patience: Patience) -> str | None:
        """The mark of the object that has the name; empty if it has none, another size, or may not be seen.

        None for no object. (There are servers that keep half an upload when its connection breaks, mark and all.)
        """
        try:
            answer = self._ask("read", name, "HEAD", self._path(name), patience=patience)
        except ObjectNotFound:
            return None
        except CairnError as error:
            if isinstance(error, NotAllowed) and not unsure:
                return ""
            raise AnswerLost(
                f"no answer to the creation of {name} ({unsure or 'the name is taken'}), nor to whose object it is",
                hint=_GIVE_UP,
            ) from error
        whole = answer.headers.get("content-length") == str(size)
        return answer.headers.get(_MARK, "") if whole else ""

    def _unavailable(self, action: str, name: str, trouble: str, asked: float | None) -> CairnError:
        wait = f" and asks to be left alone for {asked:.0f} s" if asked else ""
        return Unavailable(
            f"cannot {action} {name or 'the store'}: {self._place.authority} does not serve now: {trouble}{wait};"
            " nothing was changed",
            hint="check AWS_ENDPOINT_URL and the network; if it throttles, repeat later or with fewer processes",
        )


def _stamp(element: ET.Element) -> bytes:
    """Version of a listed object: its tag, and when it was stored, so that equal hashes alone are not enough."""
    tag = element.findtext("ETag")
    return f"{tag} {element.findtext('LastModified')}".encode() if tag else b""


def _number(text: str, name: str) -> int:
    if not re.fullmatch(r"\d{1,19}", text, re.ASCII):
        raise StorageError(f"cannot read {name}: the storage tells no size of it")
    return int(text)


def _starts(answer: Answer, name: str, offset: int) -> bool:
    """Whether an answer holds bytes from `offset` on; if not, the object ends before.

    Raises:
        StorageError: it holds others.
    """
    if answer.status == 416:
        return False
    begun = re.match(r"bytes (\d+)-", answer.headers.get("content-range", ""))
    if (int(begun[1]) if begun else 0) != offset:
        raise StorageError(f"cannot read {name}: the storage answers with another range than it was asked for")
    return True
