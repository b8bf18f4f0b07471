"""Decide by its name, and by the form of its value, whether a setting is a secret: ``HF_TOKEN``, not ``pad_token``."""

from __future__ import annotations

import re
from typing import Final


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_PASSWORDS: Final = frozenset({"password", "passwd", "passphrase", "passcode", "pwd", "pw"})
_NOUNS: Final = frozenset(
    {*_PASSWORDS, "secret", "credential", "credentials", "cookie", "authorization", "dsn", "apikey", "sas"}
)
_JOINED: Final = re.compile(
    r"(?:password|passwd|passphrase|secretkey|accesskey|apikey|privatekey|accountkey|authkey|(?:auth|access|api|bearer)token)$"
)
_OWNERS_OF_KEYS: Final = _set(
    "api access secret private account encryption signing master shared storage ssh license consumer client auth app"
    " service deploy hmac aes rsa subscription admin ingest integration wandb openai anthropic azure aws gcp google hf"
    " huggingface cohere ngc nvidia kaggle comet neptune clearml sentry datadog stripe sendgrid mailgun"
)
_OWNERS_OF_PASSES: Final = _set(
    "db user smtp redis mysql pg postgres admin root http https ftp mail proxy login registry docker ldap es"
)
# A vocabulary's tokens, and counts of them, are no secrets.
_OF_A_VOCABULARY: Final = _set(
    "pad eos bos unk sep cls mask special stop start end image img audio video num max min per next prev last first"
    " input output new prompt completion target class patch register time text byte char sub word each every single"
    " draft context current query padding decoder encoder begin placeholder think eot im fim prefix suffix middle"
    " assistant tool additional extra"
)
_AFTER_THE_NOUN: Final = frozenset({"data", "value", "base64", "b64", "pem", "raw", "plain", "plaintext", "literal"})
# What stands where a value might, and is none: words of messages, types, and kinds of authentication.
_NO_VALUES: Final = _set(
    "incorrect invalid missing required expired wrong empty none not is must cannot the for and or failed unset set"
    " changed too null true false yes no on off str string int bytes bool tensor optional any list dict tuple float"
    " object basic digest ntlm kerberos oauth oauth2 ldap bearer token password secret key auto default prompt denied"
    " was has in of from to with authentication error redacted unknown unavailable found rejected refused"
)
_PATH: Final = re.compile(r"(?:~|\.{1,2})?(?:/[\w.@-]+)+/?|[\w.-]+\.(?:pem|key|crt|json|ya?ml|txt|env|conf|ini|toml)")
_REFERENCE: Final = re.compile(
    r"\$[\w({].*|\{\{.*|<[^>]*>|%\(?\w+\)?s?|\*+|x{3,}|[a-z_]+(?:\.[a-z_]+)*[(\[].*"
    r"|(?:self|args|cfg|config|conf|opts?|options|settings|os|env)\.[\w.]+|\[\w+\]",
)
_NUMBER: Final = re.compile(r"[-+]?\d{1,15}(?:\.\d*)?(?:e[-+]?\d+)?[kKmMgGbB%]?")
_LEAST_OF_PROSE: Final = 16  # characters of a word without digits that may be a token all the same


def words_of(name: str) -> list[str]:
    """Return the words of a name in any of its spellings, in lower case: ``apiToken``, ``API_TOKEN``, ``api-token``."""
    return [word.lower() for word in _WORD.findall(name)]


def is_secret_name(name: str) -> bool:
    """Check whether a setting of this name holds a secret, and not where one is, or how many there are."""
    words = words_of(name.rpartition("/")[2])
    while len(words) > 1 and (words[-1] in _AFTER_THE_NOUN or words[-1].isdecimal()):
        words.pop()
    if not words:
        return False
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last == "token":
        return before not in _OF_A_VOCABULARY
    if last in ("key", "keys"):
        return before in _OWNERS_OF_KEYS
    if last == "pass":
        return before in _OWNERS_OF_PASSES or name.lstrip("-") == "pass" or (bool(before) and name.isupper())
    if last == "auth":
        return name.isupper() or not before or before in ("basic", "http", "registry", "proxy")
    if last == "string":
        return before == "connection"
    if last == "url":
        return before == "webhook"
    return last in _NOUNS or last == "webhook" or _JOINED.search(last) is not None


def is_password_name(name: str) -> bool:
    """Check whether a setting of this name holds a password, of which any word may be one."""
    return any(word in _PASSWORDS or word.endswith(("password", "passwd")) for word in words_of(name))


def may_be_secret(name: str, value: str, *, quoted: bool = True) -> bool:
    """Check whether the value of a setting with a secret's name is one, and no path, reference, number or plain word.

    ``quoted``: it stood in quotation marks or was given by itself; else it may be a word of a message.
    """
    shown = value.strip()
    if not shown or shown.lower() in _NO_VALUES or shown.lower() == name.lower().lstrip("-"):
        return False
    if _PATH.fullmatch(shown) or _REFERENCE.fullmatch(shown):
        return False
    if is_password_name(name):
        return True
    if _NUMBER.fullmatch(shown) or len(shown) < 4:
        return False
    return quoted or len(shown) >= _LEAST_OF_PROSE or not shown.isalpha()
