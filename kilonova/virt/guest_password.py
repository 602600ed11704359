"""The administrator's password of a guest, encrypted for its owner: system metadata password_0 … password_3.

    changes = in_parts(encrypted('hunter2', key_data))     # what a save writes
    joined(system_metadata)                                # what os-server-password shows; '' for none

The guest leaves it there by the metadata service, or a host that set it by the guest's agent.
"""
from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

# Characters of one value of the system metadata.
PART = 255
KEYS = tuple(f'password_{part}' for part in range(4))
LIMIT = PART * len(KEYS)


def joined(system_metadata: Mapping[str, str | None]) -> str:
    """The password as it was encrypted; '' for none."""
    return ''.join(system_metadata.get(key) or '' for key in KEYS)


def in_parts(text: str) -> dict[str, str | None]:
    """The values of a password of ``LIMIT`` characters at most; None: there is no such part."""
    return {key: text[PART * number:PART * (number + 1)] or None for number, key in enumerate(KEYS)}


def encrypted(password: str, public_key: str | None) -> str | None:
    """Base64 of the password, encrypted with a server's SSH key (PKCS #1 v1.5) as the field's clients decrypt it.

    None: there is no key, it isn't RSA's, or the password is too long for it.
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
    """The name of the guest's administrator: the image's os_admin_user, else as its system has it.

    ``image``: with its properties; ``os_type``: the server's.
    """
    properties = image.get('properties')
    named = properties if isinstance(properties, Mapping) else {}
    system = named.get('os_type') or os_type
    return str(named.get('os_admin_user') or ('Administrator' if system == 'windows' else 'root'))
