"""Incident bundles: everything that the platform reports, and no secrets."""

from __future__ import annotations

import json
import os
import stat
import tarfile
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from support.command_line import run
from support.homes.timelines import FIRST_MS, home_of, uuid_of

from cdc_platform.clock import format_ms
from cdc_platform.redaction import Redactor, redact_secrets
from cdc_platform.settings import AlertSettings, Settings, redacted_settings


def test_a_bundle_has_the_reports_of_the_home(tmp_path: Path) -> None:
    """A bundle has status, findings, versions, settings and log tails, readable only by its owner."""
    home = home_of(tmp_path, "named_by_node")
    (home / "logs").mkdir()
    (home / "logs" / "spark.log").write_text("begin\n" + "x" * 400_000 + "\nthe end, token=geheim\n", encoding="utf-8")
    file = tmp_path / "incident.tar.gz"
    answer = run("--home", home, "--clock", format_ms(FIRST_MS), "bundle", file, "--json")
    assert answer.exit_code == 0, answer.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with tarfile.open(file) as archive:
        files = {name: archive.extractfile(name) for name in archive.getnames()}
        texts = {name: file.read().decode() for name, file in files.items() if file is not None}
    assert set(texts) == set(files) == {f"incident/{name}" for name in answer.json["contents"]}
    status = json.loads(texts["incident/status.json"])
    assert next(alert["code"] for alert in status["alerts"]) == "not-retrievable"
    assert status["generations"]["operating"]["id"] == uuid_of(FIRST_MS)
    versions = json.loads(texts["incident/versions.json"])
    assert versions["tables"]["platform.generations"] >= 0
    assert versions["packages"]["deltalake"]
    assert json.loads(texts["incident/findings.json"]) == []
    log = texts["incident/logs/spark.log"]
    assert log.endswith("the end, token=***\n")
    assert len(log) <= 256 * 1024
    assert "geheim" not in "".join(texts.values())
    second = run("--home", home, "bundle", file)
    assert (second.exit_code, "already exists" in second.stderr) == (2, True)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("GET /?token=abc123&x=1", "GET /?token=***&x=1"),
        ('"password": "hunter2", "user": "u"', '"password": "***", "user": "u"'),
        ("Authorization: Bearer ey.J.x done", "Authorization: Bearer *** done"),
        ("sent Bearer ey.J.x", "sent Bearer ***"),
        ("cassandra_passwd = s3cret", "cassandra_passwd = ***"),
        ("at https://u:p@host/x", "at https://***@host/x"),
        ("token 42 lies in range 7", "token 42 lies in range 7"),
        ("10 tokens, 3 shards", "10 tokens, 3 shards"),
        ('password = "two words" user = "u"', 'password = "***" user = "u"'),
        ("password = 'it\\'s', next", "password = '***', next"),
        ('password = "cut off', 'password = "***'),
        ("run --password geheim --user u", "run --password *** --user u"),
        ("run -Dtoken 'a b' rest", "run -Dtoken *** rest"),
        ("AWS_ACCESS_KEY_ID=AKIA1 AWS_SECRET_ACCESS_KEY=x/y+z", "AWS_ACCESS_KEY_ID=*** AWS_SECRET_ACCESS_KEY=***"),
        ("Authorization: Basic dTpw done", "Authorization: Basic *** done"),
        ("?X-Amz-Signature=abc&x=1", "?X-Amz-Signature=***&x=1"),
        ("a\n-----BEGIN PRIVATE KEY-----\nMC4\n-----END PRIVATE KEY-----\nb", "a\n***\nb"),
        ("a\n-----BEGIN OPENSSH PRIVATE KEY-----\nMC4", "a\n***"),
        ("MC4\n-----END PRIVATE KEY-----\nb", "***\nb"),
        ("seal and signature hold", "seal and signature hold"),
    ],
)
def test_secrets_are_redacted(text: str, shown: str) -> None:
    """A value after a word that announces a secret is redacted; tokens of the ring are not."""
    assert redact_secrets(text) == shown


def test_every_text_setting_is_redacted(tmp_path: Path) -> None:
    """A bundle shows only whether a text setting exists; other settings are unchanged."""
    hints = get_type_hints(Settings)
    texts = {
        setting.name: f"geheim-{setting.name.replace('_', '-')}"
        for setting in fields(Settings)
        if hints[setting.name] is str
    }
    assert set(texts) == {"cluster_hook", "user_header"}, "a new text setting is left out too; name it here"
    shown = redacted_settings(replace(Settings(), **dict[str, Any](texts)))
    assert {name: shown[name] for name in texts} == dict.fromkeys(texts, "***")
    assert {name: redacted_settings(Settings())[name] for name in texts} == dict.fromkeys(texts, "")
    alerts = AlertSettings(command="geheim", webhook_file="geheim", apprise_env="geheim")
    assert "geheim" not in str(redacted_settings(Settings(alerts=alerts)))
    assert shown["owners"] == "***"
    others = {name: value for name, value in asdict(Settings()).items() if name not in {*texts, "owners"}}
    assert {name: value for name, value in shown.items() if name not in {*texts, "owners"}} == others


@pytest.mark.parametrize("kind", ["variables", "file"])
def test_no_planted_secret_is_in_a_bundle(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets from every known source are redacted, also in logs without a word that announces them."""
    home = home_of(tmp_path, "named_by_node")
    planted = {
        name: f"geheim-{name}-5f0c3c5e"
        for name in ("hook", "header", "password", "ui", "spark", "aws", "session", "url", "cluster", "key", "webhook")
    }
    planted["password"] = 'geheim "pass\\word" ü'
    (home / "settings.toml").write_text(
        f'cluster_hook = "/opt/hooks/{planted["hook"]} --to x"\nuser_header = "{planted["header"]}"\n'
        '[alerts]\nwebhook_env = "ALERT_TARGET"\n',
        encoding="utf-8",
    )
    monkeypatch.setenv("ALERT_TARGET", f"https://hooks.example.com/{planted['webhook']}")
    (home / "up").mkdir(exist_ok=True)
    (home / "up" / "ui.token").write_text(planted["ui"], encoding="utf-8")
    remote = "SPARK_REMOTE=sc://localhost:15002"
    (home / "up" / "spark.env").write_text(
        f"{remote}\nSPARK_CONNECT_AUTHENTICATE_TOKEN={planted['spark']}\n", encoding="utf-8"
    )
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", planted["aws"])
    monkeypatch.setenv("AWS_SESSION_TOKEN", planted["session"])
    options: tuple[object, ...]
    if kind == "variables":
        monkeypatch.setenv("MY_USER", "somebody")
        monkeypatch.setenv("MY_PASS", planted["password"])
        options = ("--user-env", "MY_USER", "--password-env", "MY_PASS")
    else:
        file = tmp_path / "credentials.toml"
        file.touch(mode=0o600)
        file.write_text(f"user = 'somebody'\npassword = {json.dumps(planted['password'])}\n", encoding="utf-8")
        options = ("--credentials-file", file)
    added = run("--home", home, "cluster", "add", "prod", "--contact", "127.0.0.1:1", *options)
    assert added.exit_code == 0, added.stderr
    key = f"-----BEGIN PRIVATE KEY-----\n{planted['key']}\n-----END PRIVATE KEY-----"
    lines = [f"sent {value} to it" for value in planted.values()]
    lines += [json.dumps({"said": value}) for value in planted.values()]
    lines += [f"at https://u:{planted['url']}@host/x", f'{{"cluster_token": "{planted["cluster"]}"}}', key]
    known = [value for name, value in planted.items() if name not in ("url", "cluster", "key")]
    lines = [line for line in lines if any(value in line or json.dumps(value) in line for value in known)] + lines[-3:]
    for folder in ("logs", "dagster/logs"):
        (home / folder).mkdir(parents=True, exist_ok=True)
        (home / folder / "up.log").write_text("x" * 300_000 + "\n" + "\n".join(lines) + "\n", encoding="utf-8")
    os.mkfifo(home / "logs" / "pipe.log")
    file = tmp_path / "incident.tar.gz"
    answer = run("--home", home, "--clock", format_ms(FIRST_MS), "bundle", file, "--json")
    assert answer.exit_code == 0, answer.stderr
    with tarfile.open(file) as archive:
        members = [(name, archive.extractfile(name)) for name in archive.getnames()]
        texts = {name: member.read().decode() for name, member in members if member is not None}
    everything = "\n".join([*texts, *texts.values(), answer.stdout, answer.stderr])
    for name, value in planted.items():
        for form in (value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]):
            assert form not in everything, name
    assert texts["incident/logs/up.log"].count("***") >= len(lines)
    assert json.loads(texts["incident/settings.json"])["cluster_hook"] == "***"


def test_a_field_announces_a_secret_too() -> None:
    """The field's name decides, at any depth; a token of the ring is a number and stays."""
    document = {"token": "-42", "list": [{"api_key": "abc", "password": "", "n": 1}], "note abcdef-12": ["abcdef-12"]}
    assert Redactor(["abcdef-12"]).document(document) == {
        "token": "-42",
        "list": [{"api_key": "***", "password": "", "n": 1}],
        "note ***": ["***"],
    }
