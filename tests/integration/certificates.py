"""Certificates as QEMU and libvirt want them, of a CA of the test's own."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


def write(directory: Path, address: str) -> None:
    """``directory`` gets the CA, and a certificate and key of ``address`` for servers and for clients."""
    directory.mkdir(parents=True, exist_ok=True)
    ca, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = _certificate(
        'test',
        ca,
        'test',
        ca,
        [(x509.BasicConstraints(ca=True, path_length=None), True), (_usage(key_cert_sign=True), True)],
    )
    signed = _certificate(
        address,
        key,
        'test',
        ca,
        [
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (_usage(digital_signature=True), True),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), False),
            (x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), False),
        ],
    )
    pem = serialization.Encoding.PEM
    (directory / 'ca-cert.pem').write_bytes(authority.public_bytes(pem))
    for side in ('server', 'client'):
        (directory / f'{side}-cert.pem').write_bytes(signed.public_bytes(pem))
        (directory / f'{side}-key.pem').write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    extensions: list[tuple[x509.ExtensionType, bool]],
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(issuer_key, hashes.SHA256())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(**wanted: bool) -> x509.KeyUsage:
    usages = dict.fromkeys(
        (
            'digital_signature',
            'content_commitment',
            'key_encipherment',
            'data_encipherment',
            'key_agreement',
            'key_cert_sign',
            'crl_sign',
            'encipher_only',
            'decipher_only',
        ),
        False,
    )
    return x509.KeyUsage(**usages | wanted)
