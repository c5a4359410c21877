"""What the command line answers to wrong words: one line, with the prefix of all, that says what to write; code 2."""

from __future__ import annotations

import errno
import urllib.error

import pytest

from mediaworker.cli.main import COMMANDS, create_parser, main
from mediaworker.cli.terminal import trust

WRONG = [
    (["serv"], "did you mean `mediaworker serve`?"),
    (["Watch"], "did you mean `mediaworker watch`?"),
    (["transcripts"], "did you mean `mediaworker transcript`?"),
    (["help", "wach"], "did you mean `mediaworker watch`?"),
    (["frobnicate"], "`mediaworker help` lists them"),
    ([], "`mediaworker help` lists them"),
    (["watch", "--jsn"], "did you mean --json?"),
    (["call", "sip:a@b", "--play", "c", "--port", "80"], "there is no option --port"),
    (["call", "sip:a@b", "--play", "c", "--codec", "pcmu"], "did you mean PCMU?"),
    (["call", "bob", "--play", "c"], "'bob' is not sip:USER@HOST:PORT"),
    (["models", "pul"], "did you mean pull?"),
    (["completion", "cmd"], "SHELL 'cmd': expected bash, zsh or fish"),
    (["serve", "--port", "80"], "port = 80 under [http] in mediaworker.toml, or set MEDIAWORKER_HTTP__PORT=80"),
    (["serve", "--port", "80"], "or did you mean media.port, sip.port or audiosocket.port?"),
    (["serve", "--port=80"], "set MEDIAWORKER_HTTP__PORT=80"),
    (["serve", "--sip-port", "80"], "set MEDIAWORKER_SIP__PORT=80"),
    (["serve", "--data-dir", "x"], 'write data_dir = "x" in mediaworker.toml, or set MEDIAWORKER_DATA_DIR=x'),
    (["engine", "--model", "x"], 'write model = "x" under [asr]'),
    (["serve", "worker.toml"], "did you mean --config worker.toml?"),
    (["serve", "now"], "it takes no further argument, such as 'now'"),
    (["watch", "gopher://x"], "gopher://x: expected http://HOST:PORT or https://HOST"),
]


@pytest.mark.parametrize(("argv", "said"), WRONG, ids=[" ".join(argv) or "nothing" for argv, _ in WRONG])
def test_wrong_words_are_told_in_one_line(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(argv)
    except SystemExit as ended:  # as argparse ends
        code = int(str(ended.code))
    shown = capsys.readouterr()
    assert code == 2 and not shown.out
    assert shown.err.startswith("mediaworker: ") and shown.err.count("\n") == 1 and said in shown.err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_its_exit_codes(command: str) -> None:
    _, commands = create_parser(command)
    assert "Exit code: 0" in " ".join(commands.choices[command].format_help().split())


def test_help_is_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["help"], ["help", "watch"], ["help", "models", "pull"], ["watch", "--help"]):
        with pytest.raises(SystemExit) as ended:
            main(argv)
        assert ended.value.code == 0 and capsys.readouterr().out.startswith("usage: mediaworker")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (urllib.error.URLError(ConnectionRefusedError(111, "Connection refused")), "nothing listens there"),
        (OSError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 8080)"), "nothing listens there"),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 1), [Errno 111] …"), "nothing listens"),
        (ConnectionError("[Errno 111] Connect call failed ('127.0.0.1', 8080)"), "nothing listens there"),
        (ConnectionError("received 1012 (service restart)"), "received 1012 (service restart)"),
        (TimeoutError(), "no answer in time"),
        (urllib.error.URLError(TimeoutError("timed out")), "no answer in time"),
        (OSError(errno.ENETUNREACH, "x"), "network is unreachable"),
    ],
)
def test_a_lost_connection_is_told_in_words(error: OSError, said: str) -> None:
    assert said in trust.reason(error) and "rrno" not in trust.reason(error) and "<" not in trust.reason(error)


def test_what_a_library_made_of_it_is_looked_through() -> None:
    try:
        try:
            raise ConnectionRefusedError(111, "Connection refused")
        except OSError as error:
            raise ConnectionError("All connection attempts failed") from error
    except ConnectionError as error:
        assert trust.reason(error) == "connection refused: nothing listens there"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"type":"about:blank","title":"Forbidden","status":403,"detail":"no call"}', ": no call"),
        (b'{"error":{"message":"no model","code":null}}', ": no model"),
        (b'{"error":"odd"}', ""),
        (b"<html><body>502</body></html>", ""),
        (b"[1,2", ""),
        (b"", ""),
        (b"\xff\xfe", ": \ufffd\ufffd"),
        (b"connection refused\nmore", ": connection refused"),
    ],
)
def test_a_refusal_is_told_in_words(body: bytes, said: str) -> None:
    assert trust.refusal(502, body) == f"refused with status 502{said}"
