"""The servers that tests start do what the tests rely on: they answer, die, come back with their data, and freeze."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import provision, servers
from tests.support.fixtures import Starter
from tests.support.servers import Server, ServerFailed, answers, answers_ping, ask, free_port, ports_of


def test_a_killed_redis_comes_back_with_its_port_and_data(start_redis: Starter) -> None:
    server = start_redis()
    port = server.port
    assert ask(port, "SET", "k", "v") == b"+OK"
    server.kill()
    assert not answers(port)
    server.start()
    assert server.port == port
    assert ask(port, "EXISTS", "k") == b":1"


def test_a_restarted_redis_is_another_process(start_redis: Starter) -> None:
    server = start_redis()
    before = server.process
    server.restart()
    assert before is not None
    assert server.process is not None
    assert server.process.pid != before.pid
    assert answers_ping(server.port)


def test_a_frozen_redis_does_not_answer_and_then_does(start_redis: Starter) -> None:
    server = start_redis()
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as link:
        with server.pause():
            link.sendall(b"PING\r\n")
            link.settimeout(0.2)
            with pytest.raises(TimeoutError):
                link.recv(10)
        link.settimeout(60)
        assert link.recv(10) == b"+PONG\r\n"


def test_no_port_is_chosen_twice_by_one_worker_or_by_two() -> None:
    assert len({free_port() for _ in range(1_000)}) == 1_000
    chosen = [port for worker in range(3) for port in ports_of(worker, 3)]
    assert sorted(chosen) == list(range(*servers.PORTS))


def test_a_server_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match="no-such-setting"):
        servers.redis(tmp_path, options={"no-such-setting": "1"}).start()


def test_valkey_and_the_cluster_answer(valkey_server: Server, redis_cluster_server: Server) -> None:
    assert ask(valkey_server.port, "PING") == b"+PONG"
    assert ask(redis_cluster_server.port, "MSET", "a", "1", "b", "2").startswith(b"-CROSSSLOT")


def test_mosquitto_answers_a_connect(mosquitto_server: Server) -> None:
    with socket.create_connection(("127.0.0.1", mosquitto_server.port), timeout=60) as link:
        link.sendall(bytes.fromhex("100d 0004 4d515454 04 02 003c 0001 61"))
        assert link.recv(4) == bytes.fromhex("20020000")


def test_servers_die_with_the_process_that_started_them(tmp_path: Path) -> None:
    code = f"""
import sys; sys.path.insert(0, {str(servers.ROOT)!r})
from pathlib import Path
from tests.support import servers
print(servers.redis(Path({str(tmp_path)!r})).start().port, flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        port = int(starter.stdout.readline())
        assert answers_ping(port)
        starter.kill()
        starter.wait()
    deadline = time.monotonic() + 60
    while answers(port):
        assert time.monotonic() < deadline, "the server outlived its starter"
        time.sleep(0.01)


def test_a_missing_server_skips_on_a_laptop_and_fails_on_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "")
    with pytest.raises(pytest.skip.Exception, match="no-such-server"):
        servers.binary("no-such-server")
    for value in ("1", "true", "True"):
        monkeypatch.setenv("CI", value)
        with pytest.raises(pytest.fail.Exception, match="no-such-server"):
            servers.binary("no-such-server")


def test_provision_has_nothing_to_do_where_all_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    for name in provision.PACKAGES:
        servers.binary(name)
    assert provision.main() == 0
    assert "all here" in capsys.readouterr().out


def test_provision_explains_itself_where_it_cannot(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(provision, "found", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CI", "")
    assert provision.main() == 0
    told = capsys.readouterr().err
    assert "no apt-get" in told
    assert "redis-server" in told
    monkeypatch.setenv("CI", "true")
    assert provision.main() == 1


def test_provision_keeps_a_policy_that_exists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    monkeypatch.setattr(provision, "POLICY", policy)
    with provision.no_daemons():
        assert os.access(policy, os.X_OK)
    assert not policy.exists()
    policy.write_text("mine")
    with provision.no_daemons():
        assert policy.read_text() == "mine"
    assert policy.read_text() == "mine"
