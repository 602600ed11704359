"""Features of Nova that this cloud does not support. Requests for such a feature are refused, not ignored.

    check_flavor({'hw:tpm_version': '2.0'})      # NotServed (400): extra spec hw:tpm_version …
    check_image({'hw_tpm_version': '2.0'})       # NotServed
    check_image({'hw_mem_encryption': 'false'})  # accepted: the value asks for nothing

``docs/admin/limitations.md`` lists the same features, and a test compares the list with this file. When a feature is
implemented, delete its row in this file and in the document.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kilonova.api.services.block_devices import NoVolumeService
from kilonova.errors import Invalid


class NotServed(Invalid):
    """Error 400: an extra spec or image property asks for an unsupported feature."""

    msg_fmt = '%(kind)s %(name)s is not supported by this cloud: %(reason)s.'


class NoNetworkService(Invalid):
    """Error 400: the request names a network or port, and this cloud has no network service."""

    msg_fmt = "There is no network service in this cloud: networks must be 'none', 'auto' or left out, not %(wanted)s."


class NoSuchSecurityGroup(Invalid):
    """Error 400: the security group does not exist, because this cloud has no network service."""

    msg_fmt = 'Security group %(name)s not found for project %(project)s.'


class CertificatesUnverified(Invalid):
    """Error 400: the request names trusted certificates, and this cloud does not verify signatures."""

    msg_fmt = (
        'This cloud does not verify the signatures of images: trusted_image_certificates must be left out or null.'
    )


class Row(NamedTuple):
    """One row of the tables of unsupported extra specs and image properties.

    ``names`` are names or shell-style patterns (fnmatch) of extra specs or image properties, such as ``quota:vif_*``.
    ``reason`` is the end of the error message for users.
    """

    names: tuple[str, ...]
    reason: str


_TPM, _ENCRYPTION = 'guests have no emulated TPM', 'guest memory cannot be encrypted'
_USB, _EPHEMERAL = 'USB devices cannot be redirected', 'disks cannot be encrypted'

EXTRA_SPECS: tuple[Row, ...] = (
    Row(('hw:ephemeral_encryption', 'hw:ephemeral_encryption_format'), _EPHEMERAL),
    Row(('hw:mem_encryption', 'hw:mem_encryption_model'), _ENCRYPTION),
    Row(('hw:pmem',), 'there is no persistent memory'),
    Row(('hw:redirected_usb_ports',), _USB),
    Row(('hw:tpm_model', 'hw:tpm_version', 'hw:tpm_secret_security'), _TPM),
    Row(('quota:vif_*',), 'the bandwidth of interfaces cannot be limited'),
    Row(
        ('quota:*_limit', 'quota:*_reservation', 'quota:*_shares_level', 'quota:*_shares_share'),
        'it is only for other hypervisors',
    ),
)
IMAGE_PROPERTIES: tuple[Row, ...] = (
    Row(('img_block_device_mapping',), 'only block_device_mapping can name the disks of new servers'),
    Row(('mappings', 'img_mappings'), 'only the flavor defines ephemeral and swap disks'),
    Row(('hw_emulation_architecture',), "guests always have the host's architecture"),
    Row(
        ('hw_ephemeral_encryption', 'hw_ephemeral_encryption_format', 'hw_ephemeral_encryption_secret_uuid'), _EPHEMERAL
    ),
    Row(('hw_firmware_stateless',), 'UEFI variables are always kept'),
    Row(('hw_mem_encryption', 'hw_mem_encryption_model'), _ENCRYPTION),
    Row(('hw_redirected_usb_ports',), _USB),
    Row(('hw_tpm_model', 'hw_tpm_version'), _TPM),
)
# Image properties that are accepted at boot, but prevent the creation of an image of a running server.
SNAPSHOTS: tuple[Row, ...] = (
    Row(('os_require_quiesce',), "the guest's file systems cannot be frozen; stop the server first"),
)
# Members of a create request that some clouds do not support, with the error class for each of them.
FIELDS: dict[str, type[Invalid]] = {
    'networks': NoNetworkService,
    'security_groups': NoSuchSecurityGroup,
    'trusted_image_certificates': CertificatesUnverified,
    'block_device_mapping_v2': NoVolumeService,
}

# Values of an extra spec or image property that do not request the feature.
_OFF = frozenset(('', '0', '[]', 'disabled', 'f', 'false', 'n', 'no', 'none', 'off'))


def names(rows: Iterable[Row]) -> set[str]:
    """Return the names and shell-style patterns, such as ``quota:vif_*``, of all ``rows`` of a table.

    A test compares the result with the documentation.
    """
    return {name for row in rows for name in row.names}


def check_flavor(extra_specs: Mapping[str, str]) -> None:
    """Raise NotServed for the first extra spec that asks for an unsupported feature."""
    _check('extra spec', EXTRA_SPECS, extra_specs)


def check_image(properties: Mapping[str, Any]) -> None:
    """Raise NotServed for the first image property that asks for an unsupported feature."""
    _check('image property', IMAGE_PROPERTIES, properties)


def check_snapshot(properties: Mapping[str, Any]) -> None:
    """Raise NotServed for the first property that prevents the creation of an image of a running server.

    ``properties`` are the properties of the server's own image.
    """
    _check('image property', SNAPSHOTS, properties)


def _check(kind: str, rows: Iterable[Row], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if str(value).strip().lower() in _OFF:
            continue
        for row in rows:
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in row.names):
                raise NotServed(kind=kind, name=name, reason=row.reason)
