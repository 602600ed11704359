"""Generate key pairs (for microversions until 2.91), and compute the fingerprints of public keys and certificates.

    made = generate('ssh', user_id)         # made.private_key is returned to the user and stored nowhere
    fingerprint('ssh', public_key)          # 'aa:bb:…', or InvalidKeypair

The module ``keypairs`` calls these functions.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import hashlib
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID

from kilonova import concurrency
from kilonova.errors import Invalid

SSH, X509 = 'ssh', 'x509'

_COMMENT = 'Generated-by-Nova'
_RSA_BITS = 2048
_CERTIFICATE_DAYS = 3650
# The object identifier (OID) of the user principal name in a certificate. Windows finds a user's account by this name.
_PRINCIPAL_NAME = x509.ObjectIdentifier('1.3.6.1.4.1.311.20.2.3')
_MAX_COMMON_NAME = 64


class InvalidKeypair(Invalid):
    """Error 400: the public key or certificate can't be read."""

    msg_fmt = 'Keypair data is invalid: %(reason)s'


@dataclass(frozen=True)
class Material:
    """A new key pair.

    For ssh, the private key is in OpenSSH's format and the public key is one line. For x509, the private key is a
    PKCS#12 archive in base64 and the public key is a certificate in PEM.
    """

    private_key: str = field(repr=False)
    public_key: str


def generate(kind: str, user_id: str) -> Material:
    """Generate a key pair as Nova does. ``kind`` is 'ssh' (Ed25519) or 'x509' (RSA with a self-signed certificate)."""
    return _ssh() if kind == SSH else concurrency.native(_certificate, user_id)


def fingerprint(kind: str, public_key: str) -> str:
    """Return the fingerprint of a public key, as pairs of hex digits with colons.

    For ssh it is the MD5 of the key's blob, for x509 the SHA-1 of the certificate's DER. Raises InvalidKeypair if the
    key or certificate can't be read.
    """
    return _ssh_fingerprint(public_key) if kind == SSH else _x509_fingerprint(public_key)


def _ssh() -> Material:
    key = ed25519.Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return Material(private.decode(), f'{public.decode()} {_COMMENT}')


def _certificate(user_id: str) -> Material:
    """Generate a self-signed client certificate, with which a user can log in to Windows over WinRM."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=_RSA_BITS)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, user_id[:_MAX_COMMON_NAME])])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=_CERTIFICATE_DAYS))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([x509.OtherName(_PRINCIPAL_NAME, _utf8_string(f'{user_id}@localhost'))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    archive = pkcs12.serialize_key_and_certificates(None, key, certificate, None, serialization.NoEncryption())
    return Material(base64.b64encode(archive).decode(), certificate.public_bytes(serialization.Encoding.PEM).decode())


def _utf8_string(text: str) -> bytes:
    """Return the text as a DER UTF8String (X.690): tag 12, the length, the bytes."""
    data = text.encode()
    if len(data) < 128:
        return bytes([12, len(data)]) + data
    length = len(data).to_bytes((len(data).bit_length() + 7) // 8, 'big')
    return bytes([12, 128 + len(length)]) + length + data


def _ssh_fingerprint(public_key: str) -> str:
    try:
        serialization.load_ssh_public_key(public_key.encode())
        blob = base64.b64decode(public_key.split()[1], validate=True)
    except (ValueError, IndexError, UnsupportedAlgorithm, binascii.Error):
        raise InvalidKeypair(reason='failed to generate fingerprint') from None
    # MD5 is not used for security here: ssh-keygen -l -E md5 shows the same fingerprint.
    return _colons(hashlib.md5(blob, usedforsecurity=False).hexdigest())


def _x509_fingerprint(certificate: str) -> str:
    try:
        found = x509.load_pem_x509_certificate(certificate.encode())
    except ValueError as error:
        raise InvalidKeypair(reason=f'failed to generate X509 fingerprint. Error message: {error}') from None
    return _colons(hashlib.sha1(found.public_bytes(serialization.Encoding.DER), usedforsecurity=False).hexdigest())


def _colons(digits: str) -> str:
    return ':'.join(digits[start : start + 2] for start in range(0, len(digits), 2))
