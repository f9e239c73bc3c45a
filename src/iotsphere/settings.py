"""Settings of a gateway: every field with its unit and a safe default, from `IOTSPHERE_*` variables or the CLI."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

ROLES: Final = ("ingress", "websocket", "api", "bridge", "changes", "processors")
CONTAINER_SECRETS: Final = "/run/secrets"


class Settings(BaseSettings):
    """One frozen set of settings. Unknown names in an ``.env``-like source are refused."""

    model_config = SettingsConfigDict(
        env_prefix="IOTSPHERE_",
        extra="forbid",
        frozen=True,
        secrets_dir=CONTAINER_SECRETS if Path(CONTAINER_SECRETS).is_dir() else None,
    )

    data: Path = Field(default=Path(".iotsphere"), description="Folder for the log, documents and secrets")
    log: str = Field(
        default="sqlite",
        description="Where the log is: `sqlite` (in the data folder), `memory`, or `redis://HOST:PORT/DB`",
    )
    database: str = Field(
        default="sqlite",
        description="Where shadows, commands and what users have are: `sqlite` (in the data folder), `memory`, or "
        "`mongodb://HOST:PORT/NAME?replicaSet=…`; in memory with a log in memory",
    )
    durability: Literal["fsynced", "logged", "memory"] = Field(
        default="fsynced",
        description="What an acknowledgement survives: `fsynced` a power cut, `logged` a crash (up to 2 s at power loss)",
    )
    trust_log_server: bool = Field(
        default=False, description="Accept a log server that does not let its durability be checked"
    )
    domains: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")], ...] = Field(
        default=("iotsphere",), min_length=1, description="The tenants of this gateway; the first one is the operator's"
    )
    secrets: Path | None = Field(
        default=None, description="File with the secrets; default: secrets.json in the data folder"
    )
    trusted_keys: Path | None = Field(
        default=None,
        description="JSON file with public keys of other token issuers: "
        '`{"KID": {"algorithm": "RS256|ES256|EdDSA", "key": "PEM or JWK"}}`',
    )
    node: str = Field(
        default="gateway",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$",
        description="Name of this process, the same after its restart; each of several ingress or websocket processes needs its own",
    )
    mqtt: str = Field(
        default="127.0.0.1:1883",
        description="HOST:PORT of the MQTT door without TLS; port 0 = any free one; empty = none, where there is TLS",
    )
    mqtt_tls: str = Field(
        default="127.0.0.1:8883", description="HOST:PORT of the MQTT door with TLS, which `tls_certificate` opens"
    )
    websocket: str = Field(default="127.0.0.1:8765", description="HOST:PORT of the WebSocket door")
    http: str = Field(default="127.0.0.1:8080", description="HOST:PORT of the HTTP door")
    tls_certificate: Path | None = Field(
        default=None,
        description="PEM file with the gateway's certificate and its chain: the WebSocket and HTTP doors then speak TLS "
        "only; read again when it changes, like the other `tls_` files",
    )
    tls_key: Path | None = Field(
        default=None, description="PEM file with the key, without a passphrase; default: the file of the certificate"
    )
    tls_client_ca: Path | None = Field(
        default=None, description="PEM file with the authorities whose client certificates are believed"
    )
    tls_client_crl: Path | None = Field(
        default=None,
        description="PEM file with those authorities' lists of revoked certificates; an expired list lets nobody in "
        "who shows a certificate",
    )
    tls_require_client_certificate: tuple[Literal["mqtt", "websocket", "http"], ...] = Field(
        default=(), description="Doors that let only clients with a certificate in; `mqtt` is the one with TLS"
    )
    tls_identity: Literal["cn", "san"] = Field(
        default="cn",
        description="What names a certificate's device: `cn` its common name, `san` its alternative name, which is "
        "`iotsphere://DOMAIN/devices/ID` or a DNS name",
    )
    bridges: tuple[Path, ...] = Field(
        default=(), description="Files of bridges to external brokers, one each, that this process runs"
    )
    bridge_ordinal: int = Field(
        default=0,
        ge=0,
        description="Number of this process among those that share a bridge; each needs its own, from 0",
    )
    changes_file: Path | None = Field(
        default=None,
        description="TOML file with the collections of the database whose changes are told too, and on which topics",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Least level logged")
    log_format: Literal["auto", "text", "json"] = Field(
        default="auto",
        description="How log lines are written: `auto` as text on a terminal, else one JSON object a line",
    )
    max_connections: int = Field(default=10_000, ge=1, description="Connections per door")
    max_connections_per_address: int = Field(
        default=200, ge=1, description="Connections per door and address; loopback is exempt unless `limit_loopback`"
    )
    limit_loopback: bool = Field(default=False, description="Let the limit per address bind loopback addresses too")
    outbox_bytes: int = Field(
        default=1024 * 1024, ge=64 * 1024, description="Bytes that may wait for one slow client before it reads the log"
    )
    messages_per_second: float = Field(default=5_000, ge=1, description="Messages a second that one client may publish")
    bytes_per_second: float = Field(
        default=16 * 1024 * 1024, gt=0, description="Payload bytes a second that one client may publish"
    )
    domain_messages_per_second: float = Field(
        default=200_000, gt=0, description="Messages a second that all clients of a domain together may publish"
    )
    websocket_compression: bool = Field(default=False, description="Offer permessage-deflate to WebSocket clients")
    websocket_origins: tuple[str, ...] = Field(
        default=(), description="Origins of web pages that may connect; empty = any (a token is needed all the same)"
    )
    websocket_url: str = Field(
        default="",
        pattern=r"^$|^wss?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[\w./~-]*)?$",
        description="URL at which browsers reach the WebSocket door, such as `wss://iot.example.org/live`; empty = the "
        "console's host, at the port of this process's WebSocket door",
    )
    console: bool = Field(default=True, description="Serve the console at `/` of the HTTP door")
    retention_days: float = Field(
        default=7, gt=0, le=36_500, description="Days that messages are kept at least for their readers"
    )
    retention_gib: float = Field(
        default=1, gt=0, le=1_000_000, description="GiB per partition past which messages may go"
    )
    hard_cap_days: float = Field(
        default=30, gt=0, le=36_500, description="Days past which messages go even if a reader lags"
    )
    hard_cap_gib: float = Field(
        default=4, gt=0, le=1_000_000, description="GiB per partition past which messages go in any case"
    )
    visibility_seconds: float = Field(
        default=30, gt=0, description="Seconds until an unacknowledged delivery of a group goes to another member"
    )
    max_attempts: int = Field(default=5, ge=1, description="Deliveries after which a message is poison")
    drain_seconds: float = Field(default=8, gt=0, le=60, description="Seconds for a graceful stop")

    @model_validator(mode="after")
    def _caps_lie_above(self) -> Self:
        if self.hard_cap_days < self.retention_days or self.hard_cap_gib < self.retention_gib:
            raise ValueError("a hard cap must not be below its retention: past it messages go even if a reader lags")
        return self

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if self.tls_certificate is None and (self.tls_key or self.tls_client_ca):
            raise ValueError("tls_key and tls_client_ca need tls_certificate, the gateway's own certificate")
        if self.tls_client_ca is None and (self.tls_client_crl or self.tls_require_client_certificate):
            raise ValueError("tls_client_crl and tls_require_client_certificate need tls_client_ca, whom to believe")
        if not self.mqtt and self.tls_certificate is None:
            raise ValueError("without an MQTT address there must be TLS: set tls_certificate")
        return self

    @property
    def secrets_file(self) -> Path:
        """Where the secrets are."""
        return self.secrets or self.data / "secrets.json"
