"""Remove what may be a secret from objects and logs before they leave the cluster in a bug report.

Three things are done. Values of environment variables, of HTTP headers, of a volume driver's attributes, and of fields
and annotations with a secret's name are taken out wherever an object has them. Text that looks like a secret is taken
out everywhere (``falcon_core.secrets``). The value of each environment variable with a secret's name is remembered, and
taken out wherever else it stands, logs included.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from falcon_core.secret_names import is_secret_name, may_be_secret
from falcon_core.secrets import REDACTED, arguments_without_secrets
from falcon_core.text import clean

_NAMED_VALUES = ("env", "httpHeaders")  # lists of name and value
_VALUE_MAPS = ("volumeAttributes", "options")  # maps of a volume driver's own
_DROPPED = ("managedFields",)  # of no use to a reader
_DROPPED_ANNOTATIONS = ("kubectl.kubernetes.io/last-applied-configuration",)  # the object once more, unredacted
_PASSWORD_OF_URL = re.compile(r"://[^\s/:@]*:([^\s/@]+)@")
_LEAST = 6  # characters: a shorter value stands in too many places by chance


def secret_values(objects: Iterable[object]) -> set[str]:
    """Return the literal values of all environment variables whose names are those of secrets, in their spellings."""
    found: set[str] = set()
    for each in objects:
        _collect(each, found)
    return {spelling for value in found for spelling in _spellings(value)}


def _collect(value: object, found: set[str]) -> None:
    if isinstance(value, dict):
        named, text = value.get("name"), value.get("value")
        if isinstance(named, str) and isinstance(text, str):
            found.update(each for each in _secrets_of(named, text) if len(each) >= _LEAST)
        for part in value.values():
            _collect(part, found)
    elif isinstance(value, list):
        for part in value:
            _collect(part, found)


def _secrets_of(name: str, text: str) -> list[str]:
    """Return what is secret in a variable's value: all of it, or the password of a URL."""
    if is_secret_name(name) and may_be_secret(name, text):
        return [text]
    return _PASSWORD_OF_URL.findall(text)


def _spellings(value: str) -> set[str]:
    """Return how a value may stand elsewhere: as it is, in a URL, in JSON, in base64."""
    encoded = b64encode(value.encode()).decode()
    return {value, value.strip(), quote(value, safe=""), json.dumps(value)[1:-1], encoded, encoded.rstrip("=")}


class Redaction:
    """Redacts objects and texts. ``secrets``: values that are taken out wherever they stand."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = sorted(secrets, key=len, reverse=True)  # a value that contains another one goes first

    def text(self, text: str) -> str:
        """Return the text without control characters and secrets."""
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        return clean(text)

    def value(self, value: Any) -> Any:
        """Return a decoded JSON value without secrets."""
        match value:
            case dict():
                return {
                    self.text(str(key)): self._field(str(key), part)
                    for key, part in value.items()
                    if key not in _DROPPED
                }
            case list():
                return self._items(value)
            case str():
                return self.text(value)
        return value

    def _field(self, key: str, value: Any) -> Any:
        if key in _NAMED_VALUES and isinstance(value, list):
            return list(map(self._named, value))
        if key in _VALUE_MAPS and isinstance(value, dict):
            return dict.fromkeys(value, REDACTED)
        if isinstance(value, str):
            return REDACTED if is_secret_name(key) and may_be_secret(key, value) else self.text(value)
        if key == "annotations" and isinstance(value, dict):
            return self.value({name: text for name, text in value.items() if name not in _DROPPED_ANNOTATIONS})
        return self.value(value)

    def _named(self, each: Any) -> Any:
        """Redact an entry of name and value; where the value comes from elsewhere, its source stays."""
        if not isinstance(each, dict):
            return self.value(each)
        return {key: REDACTED if key == "value" else self.value(part) for key, part in each.items()}

    def _items(self, items: list[Any]) -> list[Any]:
        """Redact a list. In a list of strings, such as a command's arguments, one may name the next."""
        if all(isinstance(each, str) for each in items):
            return arguments_without_secrets([self.text(each) for each in items])
        return [self.value(each) for each in items]
