from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.encode import encode

from .house import open_house
from .peer import message


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that vouches for itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gateway")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key.pem").write_bytes(private)
    return folder / "cert.pem", folder / "key.pem"


async def test_the_door_speaks_tls(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.minimum_version = ssl.TLSVersion.TLSv1_2
    server.load_cert_chain(cert, key)
    topic = "iotsphere/devices/d1/telemetry"
    async with open_house() as house:
        device = await house.device("d1")
        address = await house.door(ssl=server)
        reader, writer = await asyncio.open_connection(*address, ssl=ssl.create_default_context(cafile=str(cert)))
        login = p.Connect(4, "c1", username=device.username, password=device.password.encode())
        writer.write(encode(login, 4))
        assert await reader.readexactly(4) == b"\x20\x02\x00\x00"
        writer.write(b"".join(encode(message(topic, b"%d" % i, i), 4) for i in range(1, 5_001)))
        answers = await asyncio.wait_for(reader.readexactly(4 * 5_000), 60)
        assert answers[-4:] == b"\x40\x02" + (5_000).to_bytes(2, "big")
        assert [e["payload"]["value"] for e in await house.envelopes()] == list(range(1, 5_001))
        writer.close()
        plain, other = await asyncio.open_connection(*address)
        other.write(encode(login, 4))
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(plain.readexactly(4), 60)
        other.close()
