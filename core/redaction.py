"""Secrets and home folders in text that is to be kept: found as far as their form gives them away."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

REDACTED = "[redacted]"

# Forms that issuers give their tokens.
_TOKENS = {
    "private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    "AWS key": re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    "GitHub token": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,})"),
    "GitLab token": re.compile(r"\bglpat-[\w-]{20,}"),
    "Hugging Face token": re.compile(r"\bhf_[A-Za-z0-9]{30,}"),
    "API key": re.compile(r"\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{20,}|\bAIza[\w-]{35}"),
    "Slack token": re.compile(r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),
    "JSON web token": re.compile(r"(?<![\w-])eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*"),
    "password in an address": re.compile(r"://[^\s/:@]*:[^\s/@]{3,}@"),
}
# Names whose values are secrets. `token` and `key` have other uses too (pad_token, sort_key): there the value decides.
_SECRET_NAME = re.compile(r"passw(?:or)?d|secret|credential|api[-_]?key|access[-_]?key|private[-_]?key", re.IGNORECASE)
_MAYBE_NAME = re.compile(r"(?:token|key|auth)$", re.IGNORECASE)
_RANDOM = re.compile(r"[0-9a-fA-F]{32,}|(?=\S*[0-9])(?=\S*[a-z])(?=\S*[A-Z])[\w+/=-]{20,}")
_ASSIGNED = re.compile(r"""(?<![\w.-])([\w.-]{1,80})["']?\s{0,4}[:=]\s{0,4}(["']?)([^\s"',;)}\]]{6,})""")
# What stands there without quotes and is fetched from elsewhere, as in `api_key=api_key`, `os.environ[...]`, `${KEY}`.
_CODE = re.compile(r"[$(<{\[]|[A-Za-z_]\w*[(\[.]|[A-Za-z_]+$")
_HOMES = re.compile(r"/(?:home|Users)/[^/\s:;,'\"]+")


def secret_in(text: str) -> str | None:
    """The kind of the first secret that the text seems to hold; never the secret itself."""
    for kind, form in _TOKENS.items():
        if form.search(text):
            return kind
    for name, quote, value in _ASSIGNED.findall(text):
        # In a file of variables, NAME=value, even a plain word is the value itself.
        code = not quote and not name.isupper() and _CODE.match(value)
        if not code and _is_secret(name, value):
            return "value of a name like password or token"
    return None


def redacted_argv(argv: Sequence[str]) -> list[str]:
    """The words of a command without secrets and home folders: `--token X`, `--token=X`, `password=X`, known forms."""
    words, name = [], ""
    for word in argv:
        key, equals, value = word.partition("=")
        if name and not word.startswith("-") and _is_secret(name, word):
            words.append(REDACTED)
        elif equals and _is_secret(key, value):
            words.append(f"{key}={REDACTED}")
        else:
            words.append(redacted(word))
        name = key if word.startswith("-") and not equals else ""
    return words


def _is_secret(name: str, value: str) -> bool:
    return bool(_SECRET_NAME.search(name) or (_MAYBE_NAME.search(name) and _RANDOM.fullmatch(value)))


def redacted(text: str) -> str:
    """A text without secrets of known forms and home folders."""
    for form in _TOKENS.values():
        text = form.sub(REDACTED, text)
    home = str(Path.home())
    return _HOMES.sub("~", text if home == "/" else re.sub(rf"{re.escape(home)}(?=/|$)", "~", text))


def safe_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables without secrets and home folders."""
    return {name: REDACTED if _is_secret(name, value) else redacted(value) for name, value in variables.items()}
