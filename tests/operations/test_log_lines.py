"""Lines of the log: what they bear, that each is one line, and that no secret ever stands in one."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from training.contract import log_lines
from training.contract.log_lines import Blotter, JsonLines, TextLines, errors_alone

# The secret, and lines in which it stands. Each was written by some library at some time, or looks like it.
CORPUS = [
    ("hunter2secret", "password=hunter2secret"),
    ("hunter2secret", "DB_PASSWORD: hunter2secret, host: db"),
    ("hunter2secret", '{"username": "alice", "password": "hunter2secret"}'),
    ("hunter2 secret", "{'new_password1': 'hunter2 secret'}"),
    ("hunter2secret", "POST /login/?next=/&password=hunter2secret&x=1"),
    ("hunter2secret", "passwd=hunter2secret"),
    ("hunter2secret", "connection to postgres://rondo:hunter2secret@db:5432/rondo failed"),
    ("p@ss:w0rd", "cannot reach redis://:p@ss:w0rd@cache:6379/0"),
    ("guestpass", "amqp://guest:guestpass@rabbit:5672//: ACCESS_REFUSED"),
    ("x9f8e7d6c5b4a3210", "git clone https://x9f8e7d6c5b4a3210@github.com/acme/private"),
    ("abc123def456", "Authorization: Bearer abc123def456"),
    ("YWxpY2U6c2VjcmV0", "headers: {'Authorization': 'Basic YWxpY2U6c2VjcmV0'}"),
    ("abc123def456", "[(b'authorization', b'Bearer abc123def456'), (b'accept', b'*/*')]"),
    ("abc123def456", "HTTP_AUTHORIZATION='Token abc123def456'"),
    ("k3ys3ss10n", "Cookie: sessionid=k3ys3ss10n; csrftoken=t0k3ncsrf"),
    ("t0k3ncsrf", "Cookie: sessionid=k3ys3ss10n; csrftoken=t0k3ncsrf"),
    ("k3ys3ss10n", "{'HTTP_COOKIE': 'sessionid=k3ys3ss10n'}"),
    ("k3ys3ss10n", "Set-Cookie: sessionid=k3ys3ss10n; HttpOnly; Path=/"),
    ("k3ys3ss10n", "sessionid=k3ys3ss10n"),
    ("sk-proj-AbCdEf0123456789", "Incorrect API key provided: sk-proj-AbCdEf0123456789."),
    ("hf_AbCdEfGhIjKlMnOp", "401 for hf_AbCdEfGhIjKlMnOp at the hub"),
    ("ghp_0123456789abcdefABCDEF", "remote: ghp_0123456789abcdefABCDEF was refused"),
    ("rondo_Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4Zm9v", "token rondo_Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4Zm9v"),
    ("whsec_C2FVsBQIhrscChlQIMV", "signed with whsec_C2FVsBQIhrscChlQIMV"),
    ("AKIAIOSFODNN7EXAMPLE", "botocore: key AKIAIOSFODNN7EXAMPLE"),
    ("wJalrXUtnFEMI", "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI"),
    ("s3rverkey", "RONDO_SERVER_KEY_ACME=s3rverkey"),
    ("dj4ng0", "SECRET_KEY = 'dj4ng0'"),
    ("c0ffee11", "api_key=c0ffee11"),
    ("c0ffee11", "x-api-key: c0ffee11"),
    ("c0ffee11", "https://api.example.org/v1?access_token=c0ffee11"),
    ("c0ffee11", '{\\"client_secret\\": \\"c0ffee11\\"}'),
    ("eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"),
    ("Q2FycnkgT24gQ29kZXI", "Not Found: /invitations/Q2FycnkgT24gQ29kZXI/"),
    ("MIIEvQIBADANBg", "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\n-----END PRIVATE KEY-----"),
]
# What looks a little like one of them and must stay readable.
HARMLESS = [
    "max_tokens=256, tokens: 512, token_count=7, tokens_per_second=33.1",
    "the key of the category is irrelevant",
    "https://hub.example.org:8443/models/tea failed after 3 s",
    "redis://127.0.0.1:6379/0 answers",
    "training.tasks.do_job(('export', 7)): no message to the workers",
    "Not Found: /invitations/",
    "rondo_web_requests_total counted 5",
    "user=7 asked for /projects/tea/label/ at 12:30:05",
]


@pytest.fixture
def written() -> Iterator[tuple[logging.Logger, io.StringIO, logging.StreamHandler[io.StringIO]]]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("tests.log_lines")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    yield logger, stream, handler
    logger.removeHandler(handler)


@pytest.mark.parametrize("kind", log_lines.FORMATS)
@pytest.mark.parametrize(("secret", "line"), CORPUS, ids=[line[:50] for _, line in CORPUS])
def test_no_secret_stands_in_a_line_a_traceback_or_a_field(kind: str, secret: str, line: str, written):
    logger, stream, handler = written
    handler.setFormatter(log_lines.formatter(kind))
    with log_lines.bearing(said=line):
        logger.warning("it said %s", line)
    try:
        raise ValueError(line)
    except ValueError:
        logger.exception("failed")
    assert "it said" in stream.getvalue()
    assert secret not in stream.getvalue()


@pytest.mark.parametrize("line", HARMLESS)
def test_what_only_looks_a_little_like_a_secret_stays(line: str):
    assert Blotter()(line) == line


def test_values_that_are_known_to_be_secret_go_wherever_they_stand():
    blot = Blotter(["opensesame", "opensesame-and-more", "short"])
    assert blot("xopensesame-and-morex opensesame") == "x[secret]x [secret]"
    # Five letters are a word as often as a secret.
    assert blot("a short line") == "a short line"


def test_the_environment_tells_which_values_are_secret():
    values = log_lines.secrets_of_environment(
        {
            "RONDO_SERVER_KEY_ACME": "acme-key",
            "RONDO_METRICS_TOKEN": "metrics",
            "RONDO_MODEL_SERVER_MORE_KEYS": "first-key,second-key",
            "RONDO_GITHUB_CLIENT_SECRET": "github",
            "DATABASE_URL": "postgres://rondo:pass@word@db/rondo",
            "RONDO_BROKER_URL": "redis://cache:6379/0",
            "KEYBOARD": "de",
            "HOME": "/root",
        }
    )
    assert sorted(values) == ["acme-key", "first-key", "github", "metrics", "pass@word", "second-key"]


def test_a_json_line_is_one_object_with_what_it_belongs_to(written):
    logger, stream, handler = written
    handler.setFormatter(JsonLines(Blotter()))
    with log_lines.bearing(request_id="0123456789abcdef", user=lambda: 7, route=lambda: None):
        logger.info("first\nsecond %s", "ü")
    logger.error("outside")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first["message"] == "first\nsecond ü"
    assert (first["level"], first["logger"]) == ("INFO", "tests.log_lines")
    assert (first["request_id"], first["user"]) == ("0123456789abcdef", 7)
    # What is not known is left out.
    assert "route" not in first
    assert first["time"].endswith("Z")
    assert "request_id" not in second


def test_a_message_cannot_forge_a_line_of_text(written):
    logger, stream, handler = written
    handler.setFormatter(TextLines(Blotter()))
    logger.info("no such project: %s", "tea\n2026-01-01 00:00:00,000 INFO root: all is well")
    assert len(stream.getvalue().splitlines()) == 1


def test_a_very_long_message_is_cut():
    assert len(Blotter()("x" * 1_000_000)) < 40_000


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("0123456789abcdef", True),
        ("4f1c9c9e-8f0b-4f5e-9a53-0d2a4f2f7a11", True),
        ("short", False),
        ("x" * 65, False),
        ("two words-here", False),
        ("line\nbreak-here", False),
        ("<script>alert(1)</script>", False),
        ("", False),
    ],
)
def test_which_ids_of_others_are_taken(text: str, is_one: bool):
    assert log_lines.is_request_id(text) is is_one


def test_another_form_than_the_two_is_refused():
    with pytest.raises(ValueError, match="RONDO_LOG_FORMAT"):
        log_lines.formatter("xml")


def test_a_command_that_logs_errors_alone_gives_the_level_back():
    root = logging.getLogger()
    level = root.level
    with errors_alone():
        assert root.level == logging.ERROR
    assert root.level == level != logging.ERROR
