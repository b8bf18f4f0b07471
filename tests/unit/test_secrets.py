"""Secrets in every shape in which they reach an export, a status or an Event; and lines that must stay as they are."""

from __future__ import annotations

import base64
import json

import pytest

from falcon_core.secrets import REDACTED, arguments_without_secrets, without_secrets
from falcon_core.text import clean
from kubectl_falcon.redact import Redaction, secret_values

HEX = "0123456789abcdef0123456789abcdef01234567"
PASSWORD = "Tr0ub4dor&3xyz"
BODY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{BODY}\n{BODY}\n-----END RSA PRIVATE KEY-----"
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJlc2lnbmF0dXJl"
AWS = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
AZURE = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

# A text, and what may not be in it afterwards.
TEXTS = [
    # words of a command
    ("machine api.wandb.ai login user password " + HEX, HEX),
    ("machine h\n  login me\n  password s3cr3t\n", "s3cr3t"),
    ("mysql -u root -pHunter2Hunter2 db", "Hunter2Hunter2"),
    ("mysqldump --host h -p'Hunter 2' db", "Hunter"),
    ("sshpass -p Hunter2 ssh host", "Hunter2"),
    ("docker login -u me -p Hunter2x registry", "Hunter2x"),
    ("redis-cli -h cache -a Hunter2x ping", "Hunter2x"),
    ("train.py --token=abcDEF123456", "abcDEF123456"),
    ("train.py --token abcDEF123456", "abcDEF123456"),
    ("train.py --password hunter", "hunter"),
    ("train.py --password 'two words'", "two words"),
    ('train.py --password="two words"', "two words"),
    (f"train.py --db-password={PASSWORD} --steps 3", "3xyz"),
    ("train.py --api_key abcd1234", "abcd1234"),
    (f"wandb login {HEX}", HEX),
    ("huggingface-cli login --token abcd-1234-efgh", "abcd-1234-efgh"),
    (f"aws configure set aws_secret_access_key {AWS}", AWS),
    ("curl -u me:Hunter2 http://host/x", "Hunter2"),
    ("curl --user me:Hunter2 http://host/x", "Hunter2"),
    ("wget --http-password=Hunter2 http://host/x", "Hunter2"),
    ("kubectl create secret generic s --from-literal=k=Hunter2", "Hunter2"),
    ("helm upgrade x --set auth.password=Hunter2", "Hunter2"),
    ("openssl enc -pass pass:Hunter2", "Hunter2"),
    ("psql 'host=h user=u password=Hunter2 dbname=d'", "Hunter2"),
    ("ALTER USER me PASSWORD 'Hunter 2'", "Hunter"),
    ("CREATE USER me IDENTIFIED BY 'Hunter2'", "Hunter2"),
    ("echo SHVudGVyMkh1bnRlcjI= | base64 -d | docker login --password-stdin", "SHVudGVyMkh1bnRlcjI"),
    ("echo 'Hunter 2' | docker login --password-stdin", "Hunter"),
    ("printf %s Hunter2x | gh auth login --with-token", "Hunter2x"),
    # variables
    (f"export WANDB_API_KEY={HEX}; exec python train.py", HEX),
    (f"AWS_SECRET_ACCESS_KEY={AWS} python t.py", AWS),
    ("PGPASSWORD=Hunter2 psql", "Hunter2"),
    ("env MYSQL_PWD=Hunter2 mysql", "Hunter2"),
    ("REDISCLI_AUTH=Hunter2x redis-cli", "Hunter2x"),
    ("SMTP_PASS=hunter python t.py", "hunter"),
    ('os.environ["HF_TOKEN"] = "abcd1234"', "abcd1234"),
    ("SLACK_WEBHOOK_URL=https://h/services/T0/B0/abcdefgh", "abcdefgh"),
    ("password=semi;colon,comma&more next", "colon"),
    # URLs
    ("https://user:glpat-x@git.example.com/x.git", "glpat-x"),
    ("postgresql+asyncpg://u:p%40ss@db:5432/x", "p%40ss"),
    ("redis://:hunter22@cache:6379/0", "hunter22"),
    ("mongodb+srv://u:p@ss@h/x", "ss@"),
    ("git clone https://abcdef0123456789abcd@github.com/x", "abcdef0123456789abcd"),
    ("https://b.s3.amazonaws.com/k?X-Amz-Credential=AK%2F1&X-Amz-Signature=abc123&x=1", "abc123"),
    ("https://a.blob.core.windows.net/c?sv=2022-11-02&sig=abc%2Fdef%3D", "abc%2Fdef"),
    ("https://host/x?access_token=abc123&y=1", "abc123"),
    ("https://host/x?y=1&token=abcdef12", "abcdef12"),
    ("https://maps.example.com/?key=abcdefgh", "abcdefgh"),
    ("https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXX", "B00000000"),
    # JSON, YAML and dictionaries
    ('{"password": "Hunter 2, and more"}', "and more"),
    ('{\\"apiToken\\":\\"abcDEF123456\\"}', "abcDEF123456"),
    ("{'api_key': 'abcd1234'}", "abcd1234"),
    ('{"auths":{"ghcr.io":{"auth":"dXNlcjpwYXNzd29yZA=="}}}', "dXNlcjpwYXNzd29yZA"),
    ('{"username":"me","key":"0123456789abcdef0123456789abcdef"}', "0123456789abcdef"),
    ("users:\n- user:\n    token: abcdef.ghi123\n", "abcdef.ghi123"),
    (f"    client-key-data: {base64.b64encode(BODY.encode()).decode()}\n", base64.b64encode(BODY.encode()).decode()),
    ("password: |\n  hunter2\n  more\nsteps: 3\n", "hunter2"),
    ("  token: >-\n    abcdefgh\n  steps: 3\n", "abcdefgh"),
    ("password: hunter", "hunter"),
    (json.dumps({"type": "service_account", "private_key": PEM}), BODY),
    # headers
    (f"Authorization: Bearer {JWT}", JWT),
    ("authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
    ("'Authorization': 'Token abcd1234'", "abcd1234"),
    ("X-Vault-Token: s.abcdefgh1234", "s.abcdefgh1234"),
    ("PRIVATE-TOKEN: abcd1234efgh", "abcd1234efgh"),
    ("Cookie: session=abc; theme=dark", "abc"),
    ("Set-Cookie: id=abcdef; HttpOnly", "abcdef"),
    # forms
    ("AKIAABCDEFGHIJKLMNOP", "AKIAABCDEFGHIJKLMNOP"),
    ("using hf_ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefgh", "hf_ABC"),
    ("ghp_0123456789abcdefghij0123", "ghp_"),
    ("github_pat_11ABCDEFG0abcdefghijkl_mnop", "github_pat_"),
    ("glpat-AAAAAAAAAAAAAAAAAAAA", "glpat-AAAA"),
    ("xoxb-123456789012-abcdefghij", "xoxb-1"),
    ("sk-proj-abcdefghijklmnopqrstuvwx", "sk-proj-abc"),
    ("sk-ant-api03-abcdefghijklmnopqrstuvwx", "api03-abc"),
    ("npm_abcdefghijklmnopqrstuvwxyz0123456789", "npm_abc"),
    ("pypi-AgEIcHlwaS5vcmcCJDAwMDAwMDAw", "pypi-AgE"),
    ("AIzaSyA0123456789abcdefghijklmnopqrstuv", "AIzaSy"),
    ("nvapi-abcdefghijklmnopqrstuvwxyz", "nvapi-abc"),
    ("dckr_pat_abcdefghijklmnopqrst", "dckr_pat_abc"),
    (f"DefaultEndpointsProtocol=https;AccountName=x;AccountKey={AZURE};EndpointSuffix=y", AZURE),
    ("Endpoint=sb://x/;SharedAccessKeyName=n;SharedAccessKey=abcDEF123=", "abcDEF123"),
    ("Server=h;User Id=sa;Password=Hunter2;Database=x", "Hunter2"),
    (f"key:\n{PEM}\nend", BODY),
    (PEM.replace("RSA", "OPENSSH"), BODY),
    (PEM[len("-----BEGIN RSA PRIVATE KEY-----") + 9 :], BODY),
    (f"line\n{BODY}\nline", BODY),
    ("train \\\n  --token \\\n  Hunter2x --steps 3", "Hunter2x"),
    ("KUBECONFIG_B64=YXBpVmVyc2lvbjogdjEKa2luZDogQ29uZmlnCg==", "a2luZDogQ29uZmlnCg"),
    ("--ca LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0tCk1J", "BQUklWQVRFIEtFWS0"),
    # words before a value that is no word
    ("the token Zq9Hunter2Zq9abc is invalid", "Zq9Hunter2"),
    ("Incorrect API key provided: Zq9Hunter2Zq9abc.", "Zq9Hunter2"),
    ("os.environ.setdefault('HF_TOKEN', 'Zq9Hunter2Zq9')", "Zq9Hunter2"),
    ("setenv HF_TOKEN Zq9Hunter2Zq9", "Zq9Hunter2"),
    ("wandb.login(key='abcdef123456')", "abcdef123456"),
    ("mc alias set m http://h access Hunter2x", "Hunter2x"),
    ("curl -b 'session=Hunter2x' h", "Hunter2x"),
    ("smbclient -U me%Hunter2x //h", "Hunter2x"),
    ("ldapsearch -x -w Hunter2x", "Hunter2x"),
    ("unzip -P Zq9Hunter2Zq9 x.zip", "Zq9Hunter2"),
    ("echo Hunter2x > /run/secrets/token", "Hunter2x"),
    # a traceback, a log
    ('  File "t.py", line 3, in f\n    connect(user="u", password="hunter")', "hunter"),
    ("ValueError: cannot connect with password='hunter2'", "hunter2"),
    ('level=error msg="login failed" api_key=abcd1234 step=3', "abcd1234"),
    # a password that a command reads from a pipe or a here-string, and words of other programs
    ("echo Hunter2x | sudo -S ls", "Hunter2x"),
    ("echo 'Hunter 2' | sudo -kS -p '' apt-get install x", "Hunter"),
    ("sudo -S ls <<< Hunter2x", "Hunter2x"),
    ("keytool -list -storepass Hunter2x -keypass Hunter3x", "Hunter"),
    ("curl --oauth2-bearer Hunter2x http://host", "Hunter2x"),
    ("requests.post(url, auth=('me', 'Hunter 2'))", "Hunter"),
    ("vault write auth/approle/login role_id=a secret_id=1b2c3d4e-aaaa-bbbb-cccc-1234567890ab", "1b2c3d4e"),
    ("<server><username>me</username><password>Hunter2x</password></server>", "Hunter2x"),
    ("openssl rsa -passin pass:Hunter2 -passout 'pass:Hunter3'", "Hunter"),
]

ARGUMENTS = [
    (["--db-password", PASSWORD], PASSWORD),
    (["--password", "two words"], "words"),
    (["--password=two words, and more"], "more"),
    (["mysql", "-u", "root", "-pHunter2Hunter2"], "Hunter2Hunter2"),
    (["client", "-pHunter2Hunter2"], "Hunter2Hunter2"),
    (["sshpass", "-p", "Hunter2", "ssh"], "Hunter2"),
    (["curl", "-u", "me:Hunter2", "http://h"], "Hunter2"),
    (["curl", "-H", f"Authorization: Bearer {JWT}"], JWT),
    (["wandb", "login", HEX], HEX),
    (["login", "user", "password", HEX], HEX),
    (["sh", "-c", "export A_TOKEN=abcd1234; train --password hunter && x"], "hunter"),
    (["t.py", '{"password": "Hunter2 Hunter2"}'], "Hunter2"),
    (["t.py", "password: |\n  hunter2\n"], "hunter2"),
    (["redis-cli", "-a", "Hunter2x"], "Hunter2x"),
    (["aws", "configure", "set", "aws_secret_access_key", AWS], AWS),
]

HARMLESS = [
    "--tokenizer gpt2 --max-tokens 4096",
    "tokens=4096 tokens_per_second=1234.5",
    "password_file=/run/secrets/db",
    "--password-file /run/secrets/db",
    "TOKEN_PATH=/var/run/secrets/token",
    "--token-file=/var/run/x",
    "ghcr.io/team/train@sha256:" + HEX + HEX[:24],
    "image: registry.example.com/team/gpt2:0123456789abcdef0123456789abcdef01234567",
    f"commit {HEX}",
    "checkpoint-160/model-00001-of-00002.safetensors",
    "max_tokens: 2048",
    "key_padding_mask=None",
    "4fd4ac3e-1c3f-4c3a-9d0c-8f2c0c1b8e5d",
    "pad_token=<pad> eos_token='</s>' bos_token: <s>",
    "pad_token: [PAD]",
    "num_tokens: 12, token_count=77",
    "token_type_ids shape (2, 3)",
    "the token of the cycle",
    "secret gpt2-falcon-gateway is missing",
    'MountVolume.SetUp failed for volume "certs": secret "gpt2-certs" not found',
    "couldn't find key TOKEN in Secret team/gpt2",
    "secretName: gpt2-certs",
    "automountServiceAccountToken: true",
    "tokenExpirationSeconds: 3600",
    "tokenizer=bpe",
    "Invalid token: expired",
    "password: incorrect",
    "Bearer token is missing",
    "Basic training of the model",
    "author=ann authors: 3",
    "key=value sort_key=step primary_key=id cache_key=ab12",
    "KeyError: 'model.layers.0.key_proj.weight'",
    "query_key_value: 3",
    "token = self.tokenizer.decode(ids)",
    "password=os.environ['DB_PASSWORD']",
    "password=$DB_PASSWORD --token ${TOKEN} --api-key $(KEY)",
    "nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3",
    "rendezvous at tcp://10.0.0.7:29500",
    "http://host:8080/a@b",
    "s3://bucket/path?versionId=3",
    "ssh://git@github.com/team/x.git",
    "-p 8080:80 -p4 --port 3 -parallel",
    "forward_pass=1 backward_pass: 2",
    "PWD=/workspace OLDPWD=/root",
    "signal 15, signature of f: (x)",
    "torchrun --nproc-per-node=8 --rdzv-id=abc train.py --lr 3e-4",
    'File "/usr/lib/python3/tokens.py", line 3, in next_token',
    "step 3: loss 2.31, tokens/s 12345, grad_norm 0.9",
    "NCCL WARN Call to connect returned Connection refused",
    "docker.io/library/python:3.11-slim-bookworm",
    "login user ann",
    "passed 3/4, 1 failed",
    "monkey: banana, turkey=1",
    "sk-learn 1.4, hf_transfer 0.1, npm_config_cache=/x",
    "run_id: 20240101-abcdef12, wandb: offline",
    "auth: ldap",
    "-u 1000:1000",
    "signature: (Tensor, Tensor)",
    "access_token_lifetime=3600 password_min_length=8",
    "use_auth_token=True api_key=None auth=None",
    "Token indices sequence length is longer than the maximum (1024 > 512)",
    'Unexpected key(s) in state_dict: "a.b"',
    'failed calling webhook "x.io": timeout',
    "secretKeyRef: {name: hf, key: token}",
    "model=meta-llama/Llama-3-8B dataset=HuggingFaceFW/fineweb-edu",
    "epoch 3 pass:1 fail:0",
    "sudo apt-get install x <<EOF",
    "<token_count>4096</token_count>",
    "echo started | tee log; sudo ls",
]


@pytest.mark.parametrize(("text", "secret"), TEXTS)
@pytest.mark.parametrize("before", ["", "failed with ", "a long line " * 60], ids=["alone", "after", "long"])
def test_a_secret_in_a_text_is_taken_out(text: str, secret: str, before: str) -> None:
    assert secret in text
    shown = clean(f"{before}{text}")
    assert secret not in shown
    assert REDACTED in shown


@pytest.mark.parametrize(("arguments", "secret"), ARGUMENTS)
def test_a_secret_in_arguments_is_taken_out(arguments: list[str], secret: str) -> None:
    shown = arguments_without_secrets(arguments)
    assert len(shown) == len(arguments)
    assert secret not in "\0".join(shown)


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_lines_stay_as_they_are(text: str) -> None:
    assert without_secrets(text) == text
    arguments = text.split()
    assert arguments_without_secrets(arguments) == arguments


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_lines_stay_in_an_object(text: str) -> None:
    found = {"metadata": {"annotations": {"team.example.com/note": text}}, "status": {"message": text}}
    assert Redaction(secret_values([found])).value(found) == found


@pytest.mark.parametrize(("text", "secret"), TEXTS)
def test_a_secret_in_an_object_is_taken_out(text: str, secret: str) -> None:
    found = {
        "metadata": {"annotations": {"team.example.com/note": text}},
        "spec": {"containers": [{"command": ["sh", "-c", text], "env": [{"name": "NOTE", "value": text}]}]},
        "status": {"conditions": [{"message": text}]},
    }
    shown = json.dumps(Redaction(secret_values([found])).value(found), ensure_ascii=False)
    assert secret not in shown.replace('\\"', '"').replace("\\n", "\n")


def test_a_variables_secret_is_taken_out_in_each_of_its_spellings() -> None:
    value = 'p"s &3word'
    found = {"env": [{"name": "DB_PASSWORD", "value": value}, {"name": "DB", "value": "redis://:from-a-url@h/0"}]}
    redaction = Redaction(secret_values([found]))
    spellings = [value, "p%22s%20%263word", json.dumps(value), base64.b64encode(value.encode()).decode(), "from-a-url"]
    shown = redaction.text(" | ".join(spellings))
    assert all(each not in shown for each in (*spellings, "3word"))


def test_fields_with_a_secrets_name_are_taken_out() -> None:
    found = {"annotations": {"team.example.com/api-token": "abcd1234", "team.example.com/token-count": "3"}}
    assert Redaction([]).value(found)["annotations"] == {
        "team.example.com/api-token": REDACTED,
        "team.example.com/token-count": "3",
    }


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "piece",
    ["a=", "password=", "-p", "://", "a:", "'", '"', "\\", "-----BEGIN PRIVATE KEY-----", "key: |\n", "a ", "A"],
)
def test_a_hostile_text_is_read_to_its_end(piece: str) -> None:
    """A program prints what it likes: an expression that takes the square of a text's length never comes to its end."""
    assert without_secrets(piece * (400_000 // len(piece)))
