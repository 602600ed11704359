"""Libvirt secrets with which QEMU opens encrypted volumes.

A secret exists as long as its volume is connected to this host.

    passphrase = secrets.keep(volume)       # read from the key manager, and stored in libvirt as a private secret
    secrets.forget(volume.volume_id)
    secrets.clear()                         # delete the secrets of volumes that no domain has

A secret has the id of its volume. Secrets exist only in libvirt's memory: libvirtd loses all of them when it is
restarted, and the next start of a guest stores its secrets again. Libvirt's test driver does not support secrets.
"""

from __future__ import annotations

import libvirt
from oslo_log import log as logging

from kilonova.clients.key_manager import KeyManager, KeyNotAvailable
from kilonova.objects.volume import AttachedVolume
from kilonova.virt.libvirt.connection import Connection
from kilonova.virt.libvirt.devices.hotplug_xml import targets
from kilonova.virt.libvirt.xml.base import node, to_text
from kilonova.virt.parts.host import HypervisorUnavailable
from kilonova.virt.parts.volumes import VolumeUnsupported

LOG = logging.getLogger(__name__)


class LibvirtSecrets:
    """The libvirt secrets of volumes on one host."""

    def __init__(self, connection: Connection, keys: KeyManager) -> None:
        self._libvirt, self._keys = connection, keys

    def keep(self, volume: AttachedVolume) -> str | None:
        """Store the passphrase of an encrypted volume in libvirt and return the passphrase.

        Return None if the volume is not encrypted. Repeated calls are safe. Raises VolumeUnsupported if this host
        cannot read the volume's encryption key.
        """
        if volume.encryption is None:
            return None
        try:
            passphrase = self._keys.passphrase(volume.encryption['encryption_key_id'])
        except KeyNotAvailable as error:
            raise VolumeUnsupported(volume=volume.volume_id, host=self._libvirt.name, reason=str(error)) from None
        if self._libvirt.is_test:
            return passphrase
        xml = to_text(
            node(
                'secret',
                node('uuid', volume.volume_id),
                node('usage', node('volume', volume.volume_id), type='volume'),
                ephemeral='yes',
                private='yes',
            )
        )

        def define(connection: libvirt.virConnect) -> None:
            connection.secretDefineXML(xml).setValue(passphrase.encode())

        self._libvirt.do(define)
        return passphrase

    def forget(self, volume_id: str) -> None:
        """Delete the secret of a volume. Do nothing if the volume has no secret.

        If libvirt does not answer, only a warning is logged. The secret is lost when libvirtd is restarted. If libvirtd
        is not restarted, ``clear`` deletes the secret at the next start of this compute service.
        """
        if self._libvirt.is_test:
            return
        try:
            self._libvirt.do(lambda connection: connection.secretLookupByUUIDString(volume_id).undefine())
        except HypervisorUnavailable as error:
            LOG.warning(
                'Could not delete the libvirt secret of volume %s; the next start of this service deletes it: %s',
                volume_id,
                error,
            )
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_SECRET:
                raise

    def clear(self) -> None:
        """Delete the secrets of volumes that no domain has. A crash may have left such secrets.

        Only secrets of Kilonova are deleted: their usage id is equal to their own id.
        """
        if self._libvirt.is_test:
            return

        def ours(connection: libvirt.virConnect) -> list[str]:
            return [
                secret.UUIDString()
                for secret in connection.listAllSecrets(
                    libvirt.VIR_CONNECT_LIST_SECRETS_EPHEMERAL | libvirt.VIR_CONNECT_LIST_SECRETS_PRIVATE
                )
                if secret.usageType() == libvirt.VIR_SECRET_USAGE_TYPE_VOLUME
                and secret.usageID() == secret.UUIDString()
            ]

        try:
            left = set(self._libvirt.do(ours))
        except (HypervisorUnavailable, libvirt.libvirtError) as error:
            # Log only a warning, because a host may run without virtsecretd, libvirt's daemon for secrets.
            LOG.warning(
                'Could not list the secrets of libvirt; guests of this host cannot have encrypted volumes: %s', error
            )
            return
        for guest in self._libvirt.guests() if left else ():
            left.difference_update(targets(guest.xml()))
        for volume_id in left:
            LOG.info('Deleting the libvirt secret of volume %s, because no guest uses the volume', volume_id)
            self.forget(volume_id)
