"""The administrator's password of a guest, encrypted with its owner's key, in system metadata password_0 … password_3.

    changes = in_parts(encrypted('hunter2', key_data))     # the values to save
    joined(system_metadata)                                # the encrypted password for the API, or '' if there is none

A password is set in one of two ways. The guest itself sets it and sends it to the metadata service. Or the compute
service sets it through the guest's agent and stores it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

# Maximum number of characters of a value in the instance's system metadata.
PART = 255
KEYS = tuple(f'password_{part}' for part in range(4))
LIMIT = PART * len(KEYS)


def joined(system_metadata: Mapping[str, str | None]) -> str:
    """Return the encrypted password that system metadata stores in parts, or '' if there is none."""
    return ''.join(system_metadata.get(key) or '' for key in KEYS)


def in_parts(text: str) -> dict[str, str | None]:
    """Split an encrypted password into the system metadata password_0 to password_3, of at most 255 characters each.

    A key that is not needed has the value None. ``text`` is the encrypted password, at most ``LIMIT`` (1020)
    characters.
    """
    return {key: text[PART * number : PART * (number + 1)] or None for number, key in enumerate(KEYS)}


def encrypted(password: str, public_key: str | None) -> str | None:
    """Return the password encrypted with a server's SSH key (PKCS #1 v1.5), in base64. Nova's clients can decrypt it.

    Return None if the server has no RSA key, or if the password is too long for the key.
    """
    try:
        key = load_ssh_public_key((public_key or '').encode())
        if not isinstance(key, rsa.RSAPublicKey):
            return None
        text = base64.b64encode(key.encrypt(password.encode(), padding.PKCS1v15())).decode()
    except (ValueError, UnsupportedAlgorithm, binascii.Error):
        return None
    return text if len(text) <= LIMIT else None


def administrator(image: Mapping[str, object], os_type: str | None) -> str:
    """Return the name of the guest's administrator: the image's os_admin_user, or the operating system's default.

    ``image`` is an image with its properties. ``os_type`` is the server's operating system. If the image has an
    os_type, the image's value is used instead.
    """
    properties = image.get('properties')
    named = properties if isinstance(properties, Mapping) else {}
    system = named.get('os_type') or os_type
    return str(named.get('os_admin_user') or ('Administrator' if system == 'windows' else 'root'))
