"""The auditor's page: equal bytes for an unchanged home, no input becomes HTML, and every change is detected."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization as s
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from deltalake import DeltaTable
from support.command_line import Answer, run
from support.homes.expiring import GRACE_MS, IDS, TIMES_MS, add_table, at, import_generations, iso
from support.nodes import node_text

from cdc_platform.clock import Clock, Microseconds, Milliseconds, parse_time_us, us_from_ms
from cdc_platform.delta import Lake, TaskRunner, transaction_log
from cdc_platform.generations import WriteVerdict, decide_write
from cdc_platform.importing import parse_join_request
from cdc_platform.lifecycle import run_join
from cdc_platform.metastore import inbox
from cdc_platform.reporting.page import parse_record, render_page
from cdc_platform.reporting.record import acceptance_window_us
from cdc_platform.reporting.seal import parse_sealed_page, seal_page
from cdc_platform.settings import Settings
from cdc_platform.tables import BOOTSTRAP_EVENTS, GENERATION_TIMESTAMPS, NODES, TABLES
from cdc_platform.timeline import Generation, GenerationKeys

NOON = "2026-01-31T12:00:00.000Z"
LATER = "2026-01-31T12:05:00.000Z"
HOSTILE = "\"'</script><script>alert(1)</script><img src=x onerror=alert(1)>"


def clock(time: str) -> Clock:
    """Return a stopped clock."""
    return Clock(parse_time_us(time))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a joined node with a hostile rack and a queued one, and the page of the first."""
    folder = tmp_path_factory.mktemp("audited")
    lake = Lake(folder / "home" / "lake")
    hostile = json.dumps(json.loads(node_text(1)) | {"rack": HOSTILE})
    for text in (hostile, node_text(2)):
        inbox.queue_join(lake, clock(NOON), parse_join_request(text, "a test"))
    run_join(TaskRunner.alone(), lake, clock(NOON), Settings(), GenerationKeys.read(lake).joins[0].generation_id)
    answer = run("--home", folder / "home", "--clock", LATER, "report", "latest", "--html", folder / "page.html")
    assert answer.exit_code == 0, answer.stderr
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of that folder, which tests may alter."""
    return Path(shutil.copytree(made, tmp_path / "audited"))


def verify(folder: Path, *more: str | Path) -> Answer:
    """Return the answer of `--verify` for the page of a folder."""
    return run("--home", folder / "home", "report", "--verify", folder / "page.html", *more, "--json")


def group_checks(answer: Answer) -> dict[str, list[str]]:
    """Return the checks by their result."""
    checks: dict[str, list[str]] = {}
    for line in answer.rows:
        checks.setdefault(line["result"], []).append(line["check"])
    return checks


def forge(folder: Path, change: Any) -> None:
    """Change the record of the page, render it and seal it again."""
    file = folder / "page.html"
    record = parse_record(parse_sealed_page(file.read_text(encoding="utf-8")).body)
    change(record)
    file.write_text(seal_page(render_page(record)), encoding="utf-8")


class Tags(HTMLParser):
    """The tags of a page, and the attributes that would execute or load something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [
            name for name, _ in attrs if name in ("src", "href", "onerror", "onload") or name.startswith("on")
        ]


def test_an_unchanged_home_has_an_unchanged_page(folder: Path) -> None:
    """With the same clock a second page has equal bytes, and an existing file is not overwritten."""
    words = ("--home", folder / "home", "--clock", LATER, "report", "latest", "--html", folder / "again.html")
    assert run(*words).exit_code == 0
    assert (folder / "again.html").read_bytes() == (folder / "page.html").read_bytes()
    refused = run(*words)
    assert (refused.exit_code, refused.stderr.count("\n"), "already exists" in refused.stderr) == (2, 1, True)


def test_no_input_becomes_html(folder: Path) -> None:
    """A hostile text in the rack or anywhere in the record is displayed, but neither executed nor loaded."""
    text = (folder / "page.html").read_text(encoding="utf-8")
    assert "onerror=alert" in text.replace("&#34;", '"')  # the page has the text

    def hostile(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key: hostile(inner, key) for key, inner in value.items()}
        if isinstance(value, list):
            return [hostile(inner, name) for inner in value]
        is_unchanged = name in ("time", "until", "made_at", "kind") or not isinstance(value, str)
        return value if is_unchanged else value + HOSTILE

    attacked = render_page(hostile(parse_record(parse_sealed_page(text).body)))
    for page in (text, attacked):
        tags = Tags(page)
        assert tags.tags.count("script") == 1  # the record, which is data
        assert ("img" in tags.tags, tags.loads) == (False, [])
    assert parse_record(attacked)["generations"][0]["event"]["rack"] == HOSTILE + HOSTILE


def test_an_unaltered_page_holds(folder: Path) -> None:
    """Seal, page, commits, rows, history and generation hold in the home of the page; the exit code is 0."""
    verified = verify(folder)
    assert (verified.exit_code, list(group_checks(verified))) == (0, ["holds"])
    checks = group_checks(verified)["holds"]
    assert {"seal", "page", "commits of platform.nodes"} <= set(checks)
    generation = parse_record((folder / "page.html").read_text(encoding="utf-8"))["generations"][0]
    assert [line["passed"] for line in generation["invariants"]] == [True] * 10
    assert generation["writes"][0]["table"] == BOOTSTRAP_EVENTS.full_name
    assert all(line["commit"] and line["digest"] for line in generation["writes"])


def test_a_page_holds_after_later_commits(folder: Path) -> None:
    """After another join the first one's page still holds: nothing differs, and later changes are newer."""
    lake = Lake(folder / "home" / "lake")
    run_join(TaskRunner.alone(), lake, clock(LATER), Settings(), GenerationKeys.read(lake).joins[1].generation_id)
    verified = verify(folder)
    assert (verified.exit_code, set(group_checks(verified))) == (0, {"holds", "newer"})


def test_an_altered_page_is_found(folder: Path) -> None:
    """A change of the page or its seal, and a truncated page, are found in a line of their own."""
    file = folder / "page.html"
    text = file.read_text(encoding="utf-8")
    for change in (
        text.replace("All 13 checks passed", "All 12 checks passed", 1),
        text.replace("Seal</h2>", "Seal</h2><p>approved</p>"),
        text[: text.index("<footer")],
    ):
        assert change != text
        file.write_text(change, encoding="utf-8")
        verified = verify(folder)
        assert (verified.exit_code, "seal" in group_checks(verified)["differs"]) == (1, True)
    file.write_text(
        seal_page(parse_sealed_page(text).body.replace("All 13 checks passed", "All is well")), encoding="utf-8"
    )
    assert group_checks(verify(folder))["differs"] == ["page"]


def test_a_forged_page_is_found(folder: Path) -> None:
    """If a forged record is rendered and sealed again, the home reveals each forgery in a line of its own."""
    forgeries = {
        "history of": lambda record: record["generations"][0]["writes"][3].update(who="mallory"),
        "generation ": lambda record: record["generations"][0]["invariants"][0].update(passed=False),
        "rows of": lambda record: record["generations"][0]["parts"][0].update(digest="0" * 32),
        "commits of": lambda record: record["tables"][0]["links"][2].__setitem__(1, "0" * 64),
    }
    text = (folder / "page.html").read_text(encoding="utf-8")
    for line, change in forgeries.items():
        (folder / "page.html").write_text(text, encoding="utf-8")
        forge(folder, change)
        verified = verify(folder)
        assert verified.exit_code == 1
        assert [check.startswith(line) for check in group_checks(verified)["differs"]] == [True], line
    (folder / "page.html").write_text(text, encoding="utf-8")
    forge(folder, lambda record: record["generations"][0]["writes"].pop())
    assert group_checks(verify(folder))["differs"][0].startswith("history of")


def test_a_changed_history_is_found(folder: Path) -> None:
    """If another user is written to a commit in the home, the hash chain of that table breaks there."""
    lake = Lake(folder / "home" / "lake")
    entry = Path(str(transaction_log.get_entry_path(lake.path(NODES), lake.version(NODES) or 0)))
    user = json.loads(run("--home", folder / "home", "history", "latest", "--json").stdout)["commits"][0]["who"]
    text = entry.read_text(encoding="utf-8")
    entry.write_text(text.replace(f'\\"user\\": \\"{user}\\"', '\\"user\\": \\"mallory\\"'), encoding="utf-8")
    assert entry.read_text(encoding="utf-8") != text
    verified = verify(folder)
    assert verified.exit_code == 1
    assert "commits of platform.nodes" in group_checks(verified)["differs"]


def test_changed_rows_are_found(folder: Path) -> None:
    """A foreign commit that removes rows leaves the history unchanged, but the rows differ."""
    DeltaTable(Lake(folder / "home" / "lake").path(GENERATION_TIMESTAMPS)).delete()
    verified = verify(folder)
    assert verified.exit_code == 1
    assert any(line.startswith("rows of") and "timestamps" in line for line in group_checks(verified)["differs"])


def test_a_cleaned_log_is_unknown(folder: Path) -> None:
    """A log without its oldest entries neither holds nor differs: the result is unknown, with exit code 1."""
    lake = Lake(folder / "home" / "lake")
    DeltaTable(lake.path(NODES)).create_checkpoint()
    transaction_log.get_entry_path(lake.path(NODES), 0).remove()
    verified = verify(folder)
    assert (verified.exit_code, group_checks(verified)["unknown"][0]) == (1, "commits of platform.nodes")
    assert "differs" not in group_checks(verified)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys of OpenSSL and OpenSSH, created as documented; `other` belongs to another person."""
    folder = tmp_path_factory.mktemp("keys")
    for name, private, public in (
        ("openssl", s.PrivateFormat.PKCS8, (s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)),
        ("openssh", s.PrivateFormat.OpenSSH, (s.Encoding.OpenSSH, s.PublicFormat.OpenSSH)),
        ("other", s.PrivateFormat.PKCS8, (s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)),
    ):
        key = Ed25519PrivateKey.generate()
        (folder / name).write_bytes(key.private_bytes(s.Encoding.PEM, private, s.NoEncryption()))
        (folder / f"{name}.pub").write_bytes(key.public_key().public_bytes(*public))
    locked = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.BestAvailableEncryption(b"secret"))
    (folder / "locked").write_bytes(locked)
    return folder


@pytest.mark.parametrize("kind", ["openssl", "openssh"])
def test_a_signature_identifies_the_signer(folder: Path, keys: Path, kind: str) -> None:
    """A signed page holds for its key alone, not after a forgery; an unsigned page is reported."""
    assert group_checks(verify(folder, "--key", keys / f"{kind}.pub"))["differs"] == ["signature"]
    (folder / "page.html").unlink()
    sign = ("report", "latest", "--html", folder / "page.html", "--sign", keys / kind)
    assert run("--home", folder / "home", "--clock", LATER, *sign).exit_code == 0
    assert verify(folder).exit_code == verify(folder, "--key", keys / f"{kind}.pub").exit_code == 0
    assert group_checks(verify(folder, "--key", keys / "other.pub"))["differs"] == ["signature"]
    forge(folder, lambda record: None)
    assert group_checks(verify(folder))["differs"] == ["signature"]


def test_openssl_alone_can_check_a_signature(folder: Path, keys: Path) -> None:
    """An auditor can check the signature over the bytes above the seal with OpenSSL alone."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl")
    (folder / "page.html").unlink()
    sign = ("report", "latest", "--html", folder / "page.html", "--sign", keys / "openssl")
    assert run("--home", folder / "home", *sign).exit_code == 0
    sealed_page = parse_sealed_page((folder / "page.html").read_text(encoding="utf-8"))
    (folder / "body").write_text(sealed_page.body, encoding="utf-8")
    (folder / "signature").write_bytes(base64.b64decode(sealed_page.signature))
    check = ["openssl", "pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", keys / "openssl.pub"]
    result = subprocess.run([*check, "-in", folder / "body", "-sigfile", folder / "signature"], capture_output=True)
    assert result.returncode == 0, result.stderr


def bad_requests() -> Iterator[tuple[list[str], str]]:
    """Yield invalid requests, each with a word of its message."""
    yield ["report"], "write GENERATION"
    yield ["report", "latest"], "--html FILE"
    yield ["report", "latest", "--html", "new.html", "--key", "KEYS/other.pub"], "write GENERATION"
    yield ["report", "a", "b", "c", "--html", "new.html"], "write GENERATION"
    yield ["report", LATER, NOON, "--html", "new.html"], "write the earlier time first"
    yield ["report", "2020-01-01", "2020-01-02", "--html", "new.html"], "without a zone"
    yield ["report", "2020-01-01T00:00:00Z", "2020-01-02T00:00:00Z", "--html", "new.html"], "no generation operates"
    yield ["report", "deadbeef", "--html", "new.html"], "generations begin with"
    yield ["report", "latest", "--html", "new.html", "--sign", "KEYS/other.pub"], "is no private key"
    yield ["report", "latest", "--html", "new.html", "--sign", "KEYS/locked"], "passphrase"
    yield ["report", "--verify", "page.html", "--html", "new.html"], "stands alone"
    yield ["report", "--verify", "KEYS/other"], "is no page"
    yield ["report", "--verify", "page.html", "--key", "KEYS/other"], "is no public key"
    yield ["report", "--verify", "nothing.html"], "no such file"


@pytest.mark.parametrize(("asked", "says"), list(bad_requests()))
def test_a_wrong_request_is_one_line(
    made: Path, keys: Path, asked: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An invalid request prints one line, with exit code 2, and leaves no file."""
    monkeypatch.chdir(made)
    answer = run("--home", made / "home", *(word.replace("KEYS", str(keys)) for word in asked))
    assert (answer.exit_code, answer.stderr.count("\n"), answer.stdout) == (2, 1, "")
    assert says in answer.stderr
    assert not (made / "new.html").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.pop("tables"),
        lambda record: record["tables"][0].update(table="../../etc"),
        lambda record: record["tables"][0].update(first=-(10**15)),
        lambda record: record["tables"][0].update(links=[]),
        lambda record: record["tables"][0].update(last="many"),
        lambda record: record.update(made_at="never"),
        lambda record: record["generations"][0].pop("story", None) or record["generations"][0].pop("expiry"),
        lambda record: record["generations"][0].update(ring={"nodes": 7}),
        lambda record: record["generations"][0].update(key="\ud800"),
        lambda record: record.update(generations=[[[[]]]]),
    ],
)
def test_an_invalid_record_is_refused(folder: Path, change: Any) -> None:
    """A page with an invalid record is refused in one line, or differs, without a defect of the program."""
    body = parse_sealed_page((folder / "page.html").read_text(encoding="utf-8")).body
    record = parse_record(body)
    change(record)
    start = body.index('id="record">') + len('id="record">')
    forged = f"{body[:start]}{json.dumps(record)}{body[body.index('</script>', start) :]}"
    (folder / "page.html").write_text(seal_page(forged), encoding="utf-8")
    refused = verify(folder)
    assert (refused.exit_code, refused.stderr.count("\n")) in ((2, 1), (1, 0))


def test_an_invalid_file_is_refused(folder: Path) -> None:
    """A file that is too large, too deep or not text is refused in one line."""
    body = parse_sealed_page((folder / "page.html").read_text(encoding="utf-8")).body
    start = body.index('id="record">') + len('id="record">')
    deep = f"{body[:start]}{'[' * 100_000}{body[body.index('</script>', start) :]}".encode()
    for content in (deep, b"\xff\xfe", b""):
        (folder / "page.html").write_bytes(content)
        refused = verify(folder)
        assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    with (folder / "page.html").open("wb") as large:
        large.truncate(1 << 40)
    assert "has more than 64 MiB" in verify(folder).stderr


def test_a_page_of_a_period_has_all_operating_generations(tmp_path: Path) -> None:
    """FROM TO selects the generations that operate in between; a removed one is listed without its rows."""
    home = import_generations(tmp_path)
    lake = Lake(home / "lake")
    add_table(lake, 60)
    expired_clock = at(Milliseconds(TIMES_MS[1] + 2 * GRACE_MS))
    for later_clock in (expired_clock, at(Milliseconds(expired_clock.now_ms() + 2 * GRACE_MS))):
        assert run("--home", home, "--clock", str(iso(later_clock.now_ms())), "expire").exit_code == 0
    assert lake.read(TABLES["platform.removed_generations"]).num_rows == 1
    times = (iso(TIMES_MS[0]), iso(Milliseconds(TIMES_MS[2])))
    assert run("--home", home, "report", *times, "--html", tmp_path / "page.html").exit_code == 0
    generations = parse_record((tmp_path / "page.html").read_text(encoding="utf-8"))["generations"]
    assert [generation["id"] for generation in generations] == list(IDS[:2])
    assert (generations[0]["state"], generations[0]["invariants"]) == ("removed", [])
    assert parse_time_us(generations[1]["accepted"][2]["answer"]) == us_from_ms(TIMES_MS[2])
    assert run("--home", home, "report", "--verify", tmp_path / "page.html").exit_code == 0


def test_a_queued_generation_has_a_page(folder: Path) -> None:
    """Without a timestamp the page has an event and its commit, and no checks."""
    lake = Lake(folder / "home" / "lake")
    queued_key = GenerationKeys.read(lake).joins[1].key
    assert run("--home", folder / "home", "report", queued_key, "--html", folder / "waits.html").exit_code == 0
    generation = parse_record((folder / "waits.html").read_text(encoding="utf-8"))["generations"][0]
    assert (generation["state"], generation["time"], len(generation["writes"])) == ("waits in the inbox", None, 1)


@pytest.mark.parametrize("policy", ["strict", "recent-past"])
@pytest.mark.parametrize("leeway", [0, 5_000])
def test_the_acceptance_window_equals_that_of_coordinators(policy: Any, leeway: int) -> None:
    """The rule accepts writes exactly within the window on the page, to the µs."""
    settings = Settings(policy=policy, generation_leeway_ms=Milliseconds(leeway))
    times = [Milliseconds(1_000_000), Milliseconds(2_000_000), Milliseconds(3_000_000)]
    us = [us_from_ms(time_ms) for time_ms in times]

    def accepts_any(index: int, now: int) -> bool:
        end = us[index + 1] - 1 if index + 1 < len(us) else now + us_from_ms(Milliseconds(leeway))
        for write in {us[index], end, min(max(now, us[index]), end)}:
            decision = decide_write(
                us, Microseconds(write), Microseconds(now), leeway_us=us_from_ms(Milliseconds(leeway)), policy=policy
            )
            if decision.verdict is WriteVerdict.OK and decision.generation_us == us[index]:
                return True
        return False

    for index, time in enumerate(times):
        successor = Generation(times[index + 1], None) if index + 1 < len(times) else None
        first, last = acceptance_window_us(settings, us[0], Generation(time, None), successor)
        assert (accepts_any(index, first - 1), accepts_any(index, first)) == (False, True)
        if last is not None:
            assert (accepts_any(index, last - 1), accepts_any(index, last)) == (True, False)
        else:
            assert index == 2
