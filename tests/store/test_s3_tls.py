"""S3 over TLS: certificates are checked, connections are kept, bodies are not hashed twice."""

import datetime
import ipaddress
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from cairn.core.errors import Unavailable
from tests.support.fake_s3 import FakeS3, fake_s3


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for loopback that signs itself, with its key in the same file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "loopback")])
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - day, now + day)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "certificate.pem"
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path.write_bytes(
        signed.public_bytes(serialization.Encoding.PEM) + key.private_bytes(serialization.Encoding.PEM, *form)
    )
    return path


@pytest.fixture
def fake(certificate: Path) -> Iterator[FakeS3]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with fake_s3(context) as fake:
        yield fake


def test_objects_travel_over_tls_on_kept_connections(fake: FakeS3, certificate: Path) -> None:
    s3 = fake.backend(secure=True, ca_bundle=str(certificate))
    data = bytes(range(256)) * (12 << 12)
    s3.create("a", [data[:100], data[100:]])
    for offset in range(0, len(data), 1 << 20):
        target = bytearray(1 << 20)
        assert s3.read_into("a", offset, target) == 1 << 20
        assert target == data[offset : offset + (1 << 20)]
    assert (s3.size("a"), [one.name for one in s3.list()]) == (len(data), ["a"])
    # Tickets that come after the handshake may look like a farewell once.
    assert fake.connections <= 2
    bodies = {one[2]["x-amz-content-sha256"] for one in fake.requests if one[0] == "PUT"}
    assert bodies == {"UNSIGNED-PAYLOAD"}


def test_an_unknown_certificate_is_refused(fake: FakeS3) -> None:
    with pytest.raises(Unavailable, match=r"does not serve now: .*CERTIFICATE_VERIFY_FAILED"):
        fake.backend(secure=True).read("a")
    assert not fake.requests
