"""JSON logs: every line of a service is one object, with its run and its generation."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from dagster import DagsterInstance, OpExecutionContext, job, op

from cdc_platform.errors import InputError
from cdc_platform.json_logs import (
    LOG_FORMAT_VARIABLE,
    JsonFormatter,
    await_service_log,
    configure_json_logs,
    get_log_format,
    open_service_log,
    to_json_line,
    to_text_line,
)
from cdc_platform.processes import Service, ServiceDied, supervise
from cdc_platform.timeline import is_generation_name

PARTITION = "12_10.0.0.4_5f0c3c5e"


@pytest.fixture
def json_logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Request JSON, and restore the logging of this process afterwards."""
    import coloredlogs

    monkeypatch.setenv(LOG_FORMAT_VARIABLE, "json")
    for name in ("ColoredFormatter", "BasicFormatter"):
        monkeypatch.setattr(coloredlogs, name, getattr(coloredlogs, name))
    handlers = logging.getLogger().handlers[:]
    yield
    logging.getLogger().handlers[:] = handlers
    logging.captureWarnings(False)
    JsonFormatter.names_generation = None
    JsonFormatter._run = {}


@op
def logging_op() -> None:
    """Write a message through Dagster and one through a module's logger."""
    OpExecutionContext.get().log.info('a "quoted"\nmessage')
    logging.getLogger("cdc_platform.lifecycle.rewrite").warning("from a module")


@op
def failing_op() -> None:
    """Fail."""
    raise ValueError("broken")


@job
def logged_job() -> None:
    """Run both."""
    logging_op()
    failing_op()


@pytest.mark.dagster
@pytest.mark.usefixtures("json_logs")
@pytest.mark.parametrize(("partition", "generation"), [(PARTITION, PARTITION), ("shop.carts", None)])
def test_each_line_of_a_run_has_its_run_and_generation(
    capfd: pytest.CaptureFixture[str], partition: str, generation: str | None
) -> None:
    """Events, messages of ops and modules, and a failure with its stack are one line each."""
    configure_json_logs(is_generation_name)
    with DagsterInstance.ephemeral() as instance:
        result = logged_job.execute_in_process(
            instance=instance, raise_on_error=False, tags={"dagster/partition": partition}
        )
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line]
    assert {line["run"] for line in lines} == {result.run_id}
    assert {line.get("generation") for line in lines} == {generation}
    assert {line["partition"] for line in lines} == {partition}
    assert {line["job"] for line in lines} == {"logged_job"}
    assert all(line["timestamp"].endswith("Z") and line["level"] and line["logger"] for line in lines)
    (message,) = [line for line in lines if line["event"].startswith("a ")]
    assert (message["event"], message["step"]) == ('a "quoted"\nmessage', "logging_op")
    (module,) = [line for line in lines if line["event"] == "from a module"]
    assert (module["logger"], module["level"]) == ("cdc_platform.lifecycle.rewrite", "warning")
    (failure,) = [line for line in lines if line.get("event_type") == "STEP_FAILURE"]
    assert (failure["step"], failure["level"]) == ("failing_op", "error")
    assert "ValueError: broken" in failure["exception"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("plain text", {"level": "info", "event": "plain text"}),
        ("{not json", {"level": "info", "event": "{not json"}),
        ('{"json": "of another form"}', {"level": "info", "event": '{"json": "of another form"}'}),
        ("[1, 2]", {"level": "info", "event": "[1, 2]"}),
        ("10:00:00 ERROR Inbox: lost", {"level": "error", "logger": "Inbox", "event": "lost"}),
        ("10:00:00 WARN o.a.Rpc$: slow: 3 s", {"level": "warning", "logger": "o.a.Rpc$", "event": "slow: 3 s"}),
        ("10:00:00 and a half", {"level": "info", "event": "10:00:00 and a half"}),
    ],
)
def test_line_without_a_logger_is_wrapped(line: str, expected: dict[str, str]) -> None:
    """Its text can be restored, and a wrapped line only gets its service."""
    wrapped = to_json_line(line, "part")
    document = json.loads(wrapped)
    timestamp = document.pop("timestamp")
    assert document == expected | {"service": "part"}
    assert to_text_line(wrapped) == expected["event"]
    assert to_text_line(line) == line
    assert json.loads(to_json_line(wrapped, "other")) == document | {"timestamp": timestamp, "service": "other"}


def test_unknown_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the name and the choices; an empty variable means text."""
    monkeypatch.setenv(LOG_FORMAT_VARIABLE, "xml")
    with pytest.raises(InputError, match="CDC_PLATFORM_LOG_FORMAT is 'xml'; set it to text or json"):
        get_log_format()
    monkeypatch.setenv(LOG_FORMAT_VARIABLE, "")
    assert get_log_format() == "text"


@pytest.mark.usefixtures("json_logs")
def test_a_log_has_all_lines_of_processes_that_share_it(tmp_path: Path) -> None:
    """It has long lines, invalid UTF-8, an unterminated last line, and earlier lines that are appended to."""
    log = tmp_path / "part.log"
    log.write_text('{"before": 1}\n', encoding="utf-8")
    with open_service_log(log, "part", append=True) as output:
        os.write(output.fileno(), b"one\n\n" + b"x" * 100_000 + b"\n\xff\n")
        os.write(output.fileno(), b"no end")
    await_service_log(log)
    first, *lines = log.read_text(encoding="utf-8").splitlines()
    assert first == '{"before": 1}'
    assert [json.loads(line)["event"] for line in lines] == ["one", "x" * 100_000, "\ufffd", "no end"]


@pytest.mark.processes
@pytest.mark.usefixtures("json_logs")
def test_the_message_about_a_dead_service_quotes_text(tmp_path: Path) -> None:
    """A person reads the last line of the log as text."""
    log = tmp_path / "part.log"
    command = [sys.executable, "-c", "import sys; print('first'); sys.exit('it failed')"]
    with supervise() as supervisor:
        supervisor.start(Service("part", command, os.environ, log, lambda: False))
        with pytest.raises(ServiceDied, match=r"and ends with: it failed$"):
            supervisor.await_answers(60)
    lines = log.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["first", "it failed"]
