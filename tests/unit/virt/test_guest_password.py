"""What is kept of a guest's password, and who its administrator is."""

from __future__ import annotations

import base64

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, padding, rsa

from kilonova.virt import guest_password

RSA = rsa.generate_private_key(65537, 2048)


def public(private: rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey) -> str:
    return (
        private.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    )


def test_the_owner_of_the_key_reads_it() -> None:
    text = guest_password.encrypted('hunter-ä', f'{public(RSA)} bob@example')
    assert text is not None
    assert RSA.decrypt(base64.b64decode(text), padding.PKCS1v15()).decode() == 'hunter-ä'


@pytest.mark.parametrize(
    ('password', 'key'),
    [
        ('x', None),
        ('x', ''),
        ('x', 'no key'),
        ('x', 'ssh-rsa AAAA'),
        ('x' * 300, public(RSA)),
        ('x', public(ed25519.Ed25519PrivateKey.generate())),
    ],
)
def test_what_no_key_can_encrypt_is_not_kept(password: str, key: str | None) -> None:
    assert guest_password.encrypted(password, key) is None


@pytest.mark.parametrize('length', [0, 1, 255, 256, 1020])
def test_parts(length: int) -> None:
    parts = guest_password.in_parts('x' * length)
    assert tuple(parts) == guest_password.KEYS and all(part is None or 0 < len(part) <= 255 for part in parts.values())
    assert guest_password.joined(parts) == 'x' * length


@pytest.mark.parametrize(
    ('properties', 'os_type', 'name'),
    [
        ({}, None, 'root'),
        ({}, 'windows', 'Administrator'),
        ({'os_type': 'windows'}, None, 'Administrator'),
        ({'os_type': 'linux'}, 'windows', 'root'),
        ({'os_admin_user': 'core', 'os_type': 'windows'}, None, 'core'),
    ],
)
def test_administrator(properties: dict[str, str], os_type: str | None, name: str) -> None:
    assert guest_password.administrator({'properties': properties}, os_type) == name
