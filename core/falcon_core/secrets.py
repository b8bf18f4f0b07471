"""Remove secrets from text: passwords, tokens and keys, by their form and by the words before them.

Status, Events, last words of a program and the archive of a bug report are cleaned by the same rules. What precedes a
value decides more often than its form: forty hexadecimal digits are a key of Weights & Biases after ``wandb login``,
and a commit elsewhere. A list of forms alone, as scanners of repositories have, would miss the key or hide commits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from falcon_core.secret_names import is_secret_name, may_be_secret

REDACTED: Final = "[redacted]"


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# An expression is tried only where the text has one of these, in lower case: most lines have none.
_OF_FORMS: Final = _words(
    "-----begin -----end eyj ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- gldt- glrt- glcbt- glptt- glft- glsoat-"
    " glagent- gloas- hf_ api_org_ akia asia aroa aida anpa xox xapp- sk- k_live_ k_test_ whsec_ npm_ pypi- aiza ya29."
    " gocspx- sg. doo_v1_ dop_v1_ dor_v1_ dapi dckr_pat_ hvs. hvb. hvr. nvapi- gsk_ r8_ wandb_v1_ shpat_ shpss_ shpca_"
    " yxbpvmvyc2lvbj ls0tls1crudjti shppa_ age-secret :aa hooks.slack.com discord.com"
)
_OF_NAMES: Final = _words("pass pwd pw secret token key cred cookie auth dsn sas signature webhook connection")

# Forms that say by themselves what they are.
_FORMS: Final = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----[\s\S]*?(?:-----END[A-Z0-9 ]*-----|$)"
    r"|(?:(?<=\n)|^)(?:[A-Za-z0-9+/=]{1,80}\n){1,100}-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
    r"|\beyJ[\w-]{8,2000}\.[\w-]{8,}(?:\.[\w-]*)*"  # JSON web tokens
    r"|\b(?:YXBpVmVyc2lvbj|LS0tLS1CRUdJTi|eyJhdXRocyI6)[A-Za-z0-9+/]{16,}={0,2}"  # a kubeconfig, PEM, Docker's file
    r"|\bgh[pousr]_\w{16,}|\bgithub_pat_\w{20,}|\bgl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|oas)-[\w.-]{16,}"
    r"|\b(?:hf|api_org)_[A-Za-z0-9]{16,}|\b(?:AKIA|ASIA|AROA|AIDA|ANPA)[A-Z0-9]{16}\b"
    r"|\bxox[abeoprs]-[\w-]{10,}|\bxapp-[\w-]{10,}|\bsk-[\w-]{20,}|\b[srp]k_(?:live|test)_\w{10,}|\bwhsec_\w{16,}"
    r"|\bnpm_[A-Za-z0-9]{30,}|\bpypi-[\w-]{16,}|\bAIza[\w-]{30,}|\bya29\.[\w.-]{16,}|\bGOCSPX-[\w-]{16,}"
    r"|\bSG\.[\w-]{16,}\.[\w-]{16,}|\bdo[opr]_v1_[a-f0-9]{32,}|\bdapi[a-f0-9]{32}|\bdckr_pat_[\w-]{16,}"
    r"|\bhv[sbr]\.[\w-]{20,}|\bnvapi-[\w-]{20,}|\bgsk_\w{20,}|\br8_\w{20,}|\bwandb_v1_\w{20,}|\bshp(?:at|ss|ca|pa)_\w{20,}"
    r"|\bAGE-SECRET-KEY-1[A-Z0-9]{20,}|\b\d{8,10}:AA[\w-]{32,}"
    r"|(?<=hooks\.slack\.com/services/)[\w/-]+|(?<=discord\.com/api/webhooks/)[\w/-]+"
)
# A line of a key's body, by itself: output is read line by line.
_LEAST_OF_BODY: Final = 60
_BODY: Final = re.compile(
    r"(?:(?<=\n)|^)(?=[^\n]*[a-z])(?=[^\n]*[A-Z])(?=[^\n]*[0-9])[A-Za-z0-9+/]{60,76}={0,2}(?=\n|$)"
)

# What may stand before a secret, in group 1, which stays; only where the text has one of the words.
_AFTER: Final = tuple(
    (_words(hints), re.compile(pattern, re.IGNORECASE))
    for hints, pattern in (
        ("://", r"(://)[^\s/:@\"'<>]*:[^\s/\"'<>]+(?=@)"),  # user and password of a URL
        ("://", r"(://)[^\s/:@\"'<>]{16,}(?=@)"),  # a token in the place of a user
        (
            "sig= signature= code= key= x-amz- x-goog-",
            r"([?&](?:sig|signature|code|key|x-amz-(?:signature|credential|security-token)"
            r"|x-goog-(?:signature|credential))=)[^\s&\"'<>]+",
        ),
        (
            "authorization",
            r"(\bauthorization\\*[\"']?\s*[:=]\s*\\*[\"']?"
            r"(?:(?:bearer|basic|token|digest|negotiate|apikey|aws4-hmac-sha256)\s+)?)"
            r"[^\s\"'\\]+(?:[ ](?!-)[^\s\"'\\]*=[^\s\"'\\]*)*",
        ),
        ("cookie", r"(\b(?:set-)?cookie\\*[\"']?\s*:\s*\\*[\"']?)[^\n\"'\\\x1f]+"),
        ("bearer", r"(\bbearer\s+)(?=\S*\d)[\w.~+/=-]{12,}"),
        ("basic", r"(\bbasic\s+)(?=\S*[\d=])[A-Za-z0-9+/]{8,}={0,2}"),
        (  # .netrc
            "login",
            r"(\blogin\s{1,9}\S{1,99}\s{1,9}(?:account\s{1,9}\S{1,99}\s{1,9})?password\s{1,9})[^\s\"']+",
        ),
        ("login", r"(\bpassword\s+)[^\s\"']+(?=\s+login\s)"),
        (
            "login",
            r"((?:\b(?:wandb|vault|hf|huggingface-cli)|npm)\s+(?:auth\s+)?login\s+(?:--?(?:relogin|no-print)\s+)*)"
            r"(?!-)[^\s\"';&|]{8,}",
        ),
        (
            "mysql mariadb 7z sshpass",
            r"(\b(?:mysql\w*|mariadb[\w-]*|7z|sshpass)\b[^\n|;&]{0,300}?\s[\"']?-p[\"']?)[^\s\"'-][^\s\"']*",
        ),
        ("mysql mariadb", r"(\b(?:mysql\w*|mariadb[\w-]*)\b[^\n|;&]{0,300}?\s-p[\"'])[^\"'\n]+"),
        ("sshpass", r"(\bsshpass\s+[\"']?-p[\"']?\s+[\"']?)[^\s\"']+"),
        (
            "login",
            r"(\b(?:docker|podman|buildah|skopeo|oc|az\s+acr|helm\s+registry)\s+login\b[^\n|;&]{0,300}?\s-p\s*[\"']?)"
            r"[^\s\"']+",
        ),
        ("redis-cli", r"(\bredis-cli\b[^\n|;&]{0,300}?\s-a\s+[\"']?)[^\s\"']+"),
        (
            "-u -user --src-creds --dest-creds --creds",
            r"((?:^|[\s\"'])(?:-u|--user|--proxy-user|--creds|--src-creds|--dest-creds)(?:[=\s]\s*)?[\"']?"
            r"(?!\d+:\d+\b)[^\s:\"'/=-][^\s:\"'/]*:)(?!//)[^\s\"']+",
        ),
        ("pass:", r"((?:\s-pass(?:in|out)?[\s\"']+|[\"'])pass:)(?!\s)[^\s\"']+"),  # of openssl
        ("sudo", r"(\bsudo\b[^\n|;&]{0,300}?<<<\s{0,9}[\"']?)[^\s\"']+"),
        ("keytool jarsigner", r"(\s-(?:store|key|src|dest|srcstore|deststore)pass\s{1,9}[\"']?)[^\s\"'-][^\s\"']*"),
        ("auth=(", r"(\bauth=\(\s{0,9}[\"'][^\"'\n]{0,200}[\"']\s{0,9},\s{0,9}[\"'])[^\"'\n]+"),
        ("--oauth2-bearer", r"(--oauth2-bearer[=\s]\s{0,9}[\"']?)[^\s\"']+"),
        ("secret_id", r"(\bsecret_id[\"']?\s{0,9}[=:]\s{0,9}[\"']?)(?=[^\s\"']{0,99}\d)[\w-]{8,}"),
        ("pass secret token", r"(<(?:[\w.-]{0,40}(?:password|passwd|secret|token))>)[^<>\s]+(?=</)"),
        ("identified", r"(\bidentified\s+by\s+[\"'])[^\"']+"),
        ("password", r"(\bpassword\s+[\"'])[^\"']+(?=[\"'])"),  # of SQL
        ("--from-literal", r"(--from-literal[=\s]+[\w.-]+=)[^\s\"']+"),
        (
            "-stdin --with-token base64 login sudo",
            r"(\b(?:echo|printf)\s+(?:-n\s+)?(?:[\"']?%s[^\s]*\s+)?[\"']?)(?!\$)[^\s\"'|][^\"'|\n]{0,400}?"
            r"(?=[\"']?\s{0,9}\|[^|;&\n]{0,200}?"
            r"(?:-stdin|--stdin|--with-token|\blogin\b|\bsudo\b[^|;&\n]{0,99}?\s-\w*S|base64\s+(?:-d|-D|--decode)))",
        ),
        (  # aws configure set
            "secret_access_key aws_session_token personal_access_token",
            r"(\b(?:aws_secret_access_key|aws_session_token|secret_access_key|personal_access_token)\s+)[^\s\"'=:]{8,}",
        ),
        (
            "key",
            r"(\\*[\"']key\\*[\"']\s*:\s*\\*[\"'])(?=[A-Za-z+/_-]*\d)(?=\d*[A-Za-z])[A-Za-z0-9+/_-]{24,}={0,2}",
        ),
        ("login(", r"(\blogin\([^)\n]{0,100}?\bkey\s*=\s*[\"'])[^\"'\n]+"),
        ("mc ", r"(\bmc\s+(?:alias|config\s+host)\s+(?:set|add)\s+\S{1,99}\s+\S{1,199}\s+\S{1,99}\s+)[^\s\"']+"),
        ("curl", r"(\bcurl\b[^\n|;&]{0,300}?\s(?:-b|--cookie)[=\s]?\s*[\"']?[\w-]+=)[^\s\"']+"),
        ("%", r"((?:^|\s)(?:-U|--user)[=\s]?\s*[\"']?[\w.\\-]+%)[^\s\"'%]{3,}"),
        ("ldap", r"(\bldap\w+\b[^\n|;&]{0,300}?\s-w\s*[\"']?)[^\s\"']+"),
        (
            "echo printf",
            r"(\b(?:echo|printf)\s+(?:-n\s+)?[\"']?)(?!\$)[^\s\"'|>][^\"'|>\n]{0,400}?"
            r"(?=[\"']?\s{0,9}>{1,2}\s{0,9}\S{0,200}?(?:token|secret|passw|credential|netrc|api_?key))",
        ),
        ("auth", r"(\\*[\"']auth\\*[\"']\s*:\s*\\*[\"'])[A-Za-z0-9+/]{8,}={0,2}"),
    )
)
# -pX and -p X of a command that is not known, where X has what passwords have to have.
_MIXED: Final = re.compile(r"(?<!\S)(-[pPa]\s?)(?=\S*[a-z])(?=\S*[A-Z])(?=\S*\d)[^\s\"'/=:-][^\s\"'/=:]{7,}")

_VALUE: Final = re.compile(
    r"\\+\"(?:[^\"\\]|\\(?!\"))*|\"(?:[^\"\\\n]|\\.)*|'(?:[^'\\\n]|\\.)*"
    # Without quotation marks: up to a space, a quotation mark, or what begins another setting.
    r"|[^\s\"'`&;,{}\[\]|\\](?:[^\s\"'&;,}\]\\]|&(?![&\s]|[\w.-]+=)|[;,](?![\s\"']|[\w. -]+=|$))*|\$[^\s\"']+"
)
_MARK: Final = re.compile(r"\\*[\"']")
_NAME: Final = r"(?P<name>[A-Za-z_][\w.-]{0,79})"
# NAME=value, "name": "value", \"name\": \"value\", name := value
_SETTING: Final = re.compile(
    rf"(?<![\w.-])(?:--?)?{_NAME}(?P<between>\\{{0,8}}[\"']?\]?\s{{0,4}}(?:=>|:=|==?|:)[ \t]{{0,4}})"
)
# --name value, '--name', 'value'
_FLAG: Final = re.compile(rf"(?<![\w.-])--?{_NAME}(?P<between>[\"']?,?(?:\s|\\\n){{1,12}})")
# "the token X is", setdefault('NAME', 'X'), setenv NAME X: where X is no word.
_LOOSE: Final = re.compile(
    rf"(?<![\w.-]){_NAME}(?P<between>[\"']?(?:,\s?|\s(?:is\s|provided:?\s)?|:\s)[\"'(]?)"
    r"(?=[\w!$.+-]{10,})(?=[^\s\d]*\d[^\s\d]*\d)(?=[^\sa-z]*[a-z])(?=[^\sA-Z]*[A-Z])(?P<value>[\w!$+-]{10,})"
)
_KEYS: Final = re.compile(
    r"(\b(?:api|access|secret)\s?keys?(?:\s\w{1,12}){0,2}:?\s[\"'(]?)(?=\S*\d\S*\d)(?=\S*[a-z])(?=\S*[A-Z])[\w-]{10,}",
    re.IGNORECASE,
)
# name: | and the lines of a block below it
_BLOCK: Final = re.compile(rf"(?<![\w.-]){_NAME}[\"']?:[ \t]{{0,9}}[|>][-+\d]{{0,3}}[ \t]{{0,9}}\n")
_LINES: Final = re.compile(r"(?P<indent>[ \t]+)[^\n]*(?:\n(?:(?P=indent)[^\n]*|[ \t]*(?=\n)))*")


def without_secrets(text: str) -> str:
    """Return the text with what looks like a secret replaced by ``REDACTED``."""
    # Most text has no secret. A search for plain words first saves most of the regular expressions.
    low = text.lower()
    if _has(low, _OF_FORMS):
        text = _FORMS.sub(REDACTED, text)
    if len(text) >= _LEAST_OF_BODY:
        text = _BODY.sub(REDACTED, text)
    named = _has(low, _OF_NAMES)
    # Blocks first: the patterns below would replace a part of a secret of several lines, and leave the rest.
    if named:
        text = _replaced(_BLOCK, text, _block)
    for hints, pattern in _AFTER:
        if _has(low, hints):
            text = pattern.sub(rf"\1{REDACTED}", text)
    if "-p" in low or "-a" in low:
        text = _MIXED.sub(rf"\1{REDACTED}", text)
    if named:
        text = _replaced(_FLAG, _replaced(_SETTING, text, _value), _value)
        text = _replaced(_LOOSE, text, lambda _, head: head.span("value"))
        text = _KEYS.sub(rf"\1{REDACTED}", text)
    return text


def _has(text: str, hints: tuple[str, ...]) -> bool:
    return any(hint in text for hint in hints)


def arguments_without_secrets(arguments: list[str]) -> list[str]:
    """Return a command's arguments without secrets: one may say of the next what it is."""
    found = list(arguments)
    for at, each in enumerate(found[:-1]):
        follows = each.startswith("-") and "=" not in each and is_secret_name(each)
        if follows and not found[at + 1].startswith("--") and may_be_secret(each, found[at + 1]):
            found[at + 1] = REDACTED
    for at, each in enumerate(found):
        name, given, value = each.partition("=")
        if given and _FLAG_NAME.fullmatch(name) and is_secret_name(name) and may_be_secret(name, value):
            found[at] = f"{name}={REDACTED}"
    # A control character that regular expressions take for a space, and that no argument has.
    joined = [each.replace(_SEPARATOR, " ") for each in found]
    parts = without_secrets(_SEPARATOR.join(joined)).split(_SEPARATOR)
    return parts if len(parts) == len(found) else [without_secrets(each) for each in found]


_SEPARATOR: Final = "\x1f"
_FLAG_NAME: Final = re.compile(r"--?[A-Za-z][\w.-]*")


def _replaced(heads: re.Pattern[str], text: str, secret: Callable[[str, re.Match[str]], tuple[int, int] | None]) -> str:
    """Replace what follows names of secrets. ``secret``: return where it begins and ends, or None."""
    parts, at = [], 0
    for head in heads.finditer(text):
        if head.start() < at or not is_secret_name(head["name"]):
            continue
        found = secret(text, head)
        if found is not None:
            parts += [text[at : found[0]], REDACTED]
            at = found[1]
    return "".join([*parts, text[at:]])


def _value(text: str, head: re.Match[str]) -> tuple[int, int] | None:
    """Return where the value after a name begins and ends; None where it is no secret."""
    match = _VALUE.match(text, head.end())
    if match is None:
        return None
    value = match.group()
    mark = _MARK.match(value)
    begin = match.start() + (mark.end() if mark else 0)
    inner, between = text[begin : match.end()].strip("\\"), head["between"].strip(" \t\"'\\,\x1f\n")
    if REDACTED in value or (not between and inner.startswith("-")):
        return None
    quoted = mark is not None or between != ":"
    return (begin, match.end()) if may_be_secret(head["name"], inner, quoted=quoted) else None


def _block(text: str, head: re.Match[str]) -> tuple[int, int] | None:
    """Return where the lines of a block begin, behind their indent, and end."""
    match = _LINES.match(text, head.end())
    return None if match is None else (match.start() + len(match["indent"]), match.end())
