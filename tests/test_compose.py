"""The production shape in docker-compose.yml: valid by schema, and hardened and complete where no schema looks."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from pydantic_settings import SecretsSettingsSource

import iotsphere
from iotsphere.settings import Settings

ROOT = Path(__file__).parent.parent
FILE = ROOT / "docker-compose.yml"
Shape = dict[str, Any]


def load() -> Shape:
    return cast(Shape, yaml.safe_load(FILE.read_text(encoding="utf-8")))


SERVICES = sorted(load()["services"])
ROLES = ("api", "changes", "ingress", "processors", "websocket")


def service(name: str) -> Shape:
    return cast(Shape, load()["services"][name])


def check_schema(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def names(entries: list[Any]) -> list[str]:
    """The names that a short (text) or long (mapping) list of secrets, configs or networks refers to."""
    return [entry if isinstance(entry, str) else entry["source"] for entry in entries]


def test_file_follows_the_compose_specification() -> None:
    result = check_schema(FILE)
    assert result.returncode == 0, result.stdout + result.stderr


def test_schema_check_notices_a_misspelt_key(tmp_path: Path) -> None:
    broken = tmp_path / "docker-compose.yml"
    broken.write_text(FILE.read_text(encoding="utf-8").replace("cap_drop:", "cap_dropp:"), encoding="utf-8")
    assert check_schema(broken).returncode == 1


def test_production_shape_has_every_part() -> None:
    assert {"redis", "mongodb", *ROLES} <= set(SERVICES)
    for role in ROLES:
        assert service(role)["command"][:2] == ["run", role]


@pytest.mark.parametrize("name", SERVICES)
def test_service_is_hardened(name: str) -> None:
    shape = service(name)
    user, _, group = shape["user"].partition(":")
    assert int(user) > 0
    assert int(group) > 0
    assert shape["read_only"] is True
    assert shape["cap_drop"] == ["ALL"]
    assert "cap_add" not in shape
    assert shape["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in shape
    assert any(mount.startswith("/tmp") for mount in shape["tmpfs"])  # the only place to write beside the volumes
    assert shape["mem_limit"]
    assert shape["pids_limit"]


@pytest.mark.parametrize("name", SERVICES)
def test_service_has_a_health_check_and_comes_back(name: str) -> None:
    shape = service(name)
    check = shape["healthcheck"]
    assert check["test"][0] in {"CMD", "CMD-SHELL"}
    assert check["interval"]
    assert check["timeout"]
    assert check["retries"] >= 3
    assert shape["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", SERVICES)
def test_image_is_pinned_to_a_full_version(name: str) -> None:
    image, _, tag = service(name)["image"].rpartition(":")
    assert image
    assert re.match(r"\d+\.\d+\.\d+", tag), f"{name}: {image}:{tag} may change under us"


def test_gateway_image_carries_the_version_of_the_package() -> None:
    for role in ROLES:
        assert service(role)["image"] == f"iotsphere:{iotsphere.__version__}"


@pytest.mark.parametrize("name", SERVICES)
def test_everything_a_service_refers_to_is_declared(name: str) -> None:
    shape, whole = service(name), load()
    for other, condition in shape.get("depends_on", {}).items():
        assert other in whole["services"]
        assert condition == {"condition": "service_healthy"}
    for volume in shape.get("volumes", []):
        source = volume.partition(":")[0]
        assert source in whole["volumes"], f"{source}: only named volumes, so that data outlives the containers"
    for kind in ("secrets", "configs", "networks"):
        assert set(names(shape.get(kind, []))) <= set(whole[kind])


def test_nothing_is_declared_in_vain() -> None:
    whole = load()
    shapes = whole["services"].values()
    for kind in ("secrets", "configs", "networks"):
        assert {name for shape in shapes for name in names(shape.get(kind, []))} == set(whole[kind])
    used = {volume.partition(":")[0] for shape in shapes for volume in shape.get("volumes", [])}
    assert used == set(whole["volumes"])


def test_paths_that_are_built_and_mounted_exist() -> None:
    for role in ROLES:
        build = service(role)["build"]
        assert (ROOT / build["context"] / build["dockerfile"]).is_file()
    for config in load()["configs"].values():
        assert (ROOT / config["file"]).is_file()


def test_published_ports_are_unique_and_local() -> None:
    published = [port for name in SERVICES for port in service(name).get("ports", [])]
    assert len(published) == 3
    addresses = [port.rpartition(":")[0] for port in published]
    assert len(set(addresses)) == len(addresses)
    assert all(address.startswith("127.0.0.1:") for address in addresses)


def test_stores_are_not_published_and_have_no_way_out() -> None:
    assert load()["networks"]["stores"] == {"internal": True}
    for store in ("redis", "mongodb"):
        assert "ports" not in service(store)
        assert service(store)["networks"] == ["stores"]


def test_redis_is_set_to_forget_nothing() -> None:
    lines = (ROOT / "deploy/redis.conf").read_text(encoding="utf-8").splitlines()
    settings = dict(line.split(" ", 1) for line in lines if line and not line.startswith("#"))
    assert settings["appendonly"] == "yes"
    assert settings["appendfsync"] == "always"
    assert settings["aof-load-truncated"] == "no"
    assert settings["maxmemory-policy"] == "noeviction"
    assert settings["include"] == "/run/secrets/redis_auth"


def test_no_secret_is_written_in_the_file() -> None:
    for name in SERVICES:
        for key, value in service(name).get("environment", {}).items():
            if re.search("PASSWORD|SECRET|TOKEN|KEY", key):
                assert str(value).startswith(("/run/secrets/", "/var/lib/")), f"{name}: {key} belongs in a file"
            assert "@" not in str(value)


def test_secrets_are_made_once_and_closed_to_others(tmp_path: Path) -> None:
    script = tmp_path / "secrets.sh"
    script.write_bytes((ROOT / "deploy/secrets.sh").read_bytes())
    subprocess.run(["sh", str(script)], check=True)
    folder = tmp_path / "secrets"
    made = {path.name: path.read_text() for path in folder.iterdir()}
    assert set(made) == {Path(secret["file"]).name for secret in load()["secrets"].values()}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert all(len(text.strip()) >= 64 for text in made.values())
    password = made["redis_auth"].removeprefix("requirepass ").strip()
    assert made["iotsphere_log"].strip() == f"redis://:{password}@redis:6379/0"

    database = f"mongodb://iotsphere:{made['mongodb_password'].strip()}@mongodb:27017/iotsphere"
    assert made["iotsphere_database"].strip() == f"{database}?replicaSet=iotsphere&authSource=admin"

    (folder / "mongodb_key").unlink()
    subprocess.run(["sh", str(script)], check=True)
    again = {path.name: path.read_text() for path in folder.iterdir()}
    assert again.pop("mongodb_key") != made.pop("mongodb_key")
    assert again == made


def test_environment_names_settings_that_exist() -> None:
    fields = {f"IOTSPHERE_{name.upper()}" for name in Settings.model_fields}
    for role in ROLES:
        used = {key for key in service(role)["environment"] if key.startswith("IOTSPHERE_")}
        assert used <= fields
        assert {secret.upper() for secret in names(service(role)["secrets"])} <= fields


def test_doors_listen_where_their_ports_are_published() -> None:
    for role, door in (("ingress", "mqtt"), ("websocket", "websocket"), ("api", "http")):
        shape = service(role)
        default = Settings.model_fields[door].default.rpartition(":")[2]
        assert shape["environment"][f"IOTSPHERE_{door.upper()}"] == f"0.0.0.0:{default}"
        assert shape["ports"] == [f"127.0.0.1:{default}:{default}"]
        assert default in " ".join(shape["healthcheck"]["test"])


def test_address_of_the_log_is_read_from_its_secret(tmp_path: Path) -> None:
    (tmp_path / "iotsphere_log").write_text("redis://:password@redis:6379/0\n")
    assert SecretsSettingsSource(Settings, secrets_dir=tmp_path)() == {"log": "redis://:password@redis:6379/0"}


def test_image_is_built_from_the_locks_and_runs_as_nobody() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    bases = [line.split()[1] for line in lines if line.startswith("FROM ")]
    assert len(bases) == 2
    assert all(re.search(r":\d+\.\d+\.\d+", base) for base in bases)
    assert "USER 10001:10001" in lines
    installs = [line for line in lines if "pip install" in line]
    assert all("--require-hashes" in line or "--no-deps" in line for line in installs)
    copied = {line.split()[1] for line in lines if line.startswith("COPY ") and "--from" not in line}
    assert {"entities", "use_cases", "adapters", "drivers", "gateways", "src", "pyproject.toml"} <= copied
    assert service("api")["user"] == "10001:10001"
