"""A certificate authority, a server certificate for loopback and keys of SuperNodes."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_PLAIN = serialization.NoEncryption()


def write_certificates(folder: Path) -> None:
    """`ca.crt`, `server.pem` and `server.key`, good for one hour and for loopback only."""
    authority, key = (
        ec.generate_private_key(ec.SECP384R1()),
        ec.generate_private_key(ec.SECP384R1()),
    )
    name = _name("gradveil tests CA")
    root = (
        _builder(name, name, authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(authority, hashes.SHA256())
    )
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    server = (
        _builder(_name("localhost"), name, key.public_key())
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .sign(authority, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "ca.crt").write_bytes(root.public_bytes(pem))
    (folder / "server.pem").write_bytes(server.public_bytes(pem))
    (folder / "server.key").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, _PLAIN)
    )


def write_node_key(path: Path) -> None:
    """An ECDSA key pair as `ssh-keygen -t ecdsa -b 384` writes it: `path` and `path.pub`."""
    key = ec.generate_private_key(ec.SECP384R1())
    pem, openssh = serialization.Encoding.PEM, serialization.Encoding.OpenSSH
    path.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.OpenSSH, _PLAIN))
    path.chmod(0o600)
    public = key.public_key().public_bytes(openssh, serialization.PublicFormat.OpenSSH)
    path.with_suffix(".pub").write_bytes(public + b"\n")


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(hours=1))
    )
