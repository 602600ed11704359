"""Access to os-brick, which makes volumes available on this host as files or block devices, for any storage protocol.

    bricks = Bricks(conf)
    bricks.connector()                      # the properties of this host that the volume service needs
    path = bricks.connect(volume)           # '/dev/dm-3'; a repeated call returns the same path
    bricks.disconnect(volume, path)

The library is loaded when the first volume is used, because loading costs half a second of CPU. It keeps its settings
in oslo.config's global object, which no other code of Kilonova reads.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging
from oslo_utils import strutils

from kilonova.errors import shortened
from kilonova.objects.volume import AttachedVolume
from kilonova.virt.parts.volumes import VolumeFailed, VolumeUnsupported

LOG = logging.getLogger(__name__)

# The program by which os-brick gets root rights if no privsep helper is configured.
_ROOT = 'sudo'
# The maximum length of an error text, in characters.
_MOST_TEXT = 1000
# Secret keys of a volume's connection. os-brick passes their values as program arguments, so its errors contain them.
_SECRETS = ('auth_password', 'discovery_auth_password', 'keyring')
# cryptsetup prints where the data of a LUKS device begin, in sectors of 512 bytes.
_OFFSET, _SECTOR = re.compile(r'Payload offset:\s+(\d+)'), 512


class Bricks:
    """The connection of one host to os-brick, configured by [libvirt], [os_brick] and [privsep_osbrick]."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._library: tuple[Any, tuple[type[Exception], ...]] | None = None
        # This lock is held while os-brick is imported, so that no other thread sees partly initialized modules.
        self._loading = threading.Lock()
        # The properties of this host, cached because os-brick starts several programs to read them.
        self._connector: dict[str, Any] | None = None

    def connector(self) -> dict[str, Any]:
        """Return the properties of this host that the volume service needs to attach volumes to it.

        If os-brick fails, for example without root rights, the result has only platform, os_type, ip, host and the
        multipath settings. The host can then use only volumes in Ceph and NFS. A complete result of os-brick is cached
        until the service is restarted. Raises VolumeUnsupported if os-brick fails and
        [libvirt]volume_enforce_multipath is set.
        """
        options = self._conf.libvirt
        if self._connector is not None:
            return dict(self._connector)
        module, errors = self._load()
        try:
            found: dict[str, Any] = module.get_connector_properties(
                _ROOT,
                self._conf.my_block_storage_ip,
                options.volume_use_multipath,
                options.volume_enforce_multipath,
                host=self._conf.host,
            )
        except errors as error:
            if options.volume_enforce_multipath:
                raise VolumeUnsupported(volume='of any kind', host=self._conf.host, reason=str(error)) from error
            LOG.warning(
                'This host can only have volumes in Ceph and NFS, because os-brick could not read the storage '
                'properties of the host: %s',
                error,
            )
            found = {
                'platform': platform.machine(),
                'os_type': sys.platform,
                'ip': self._conf.my_block_storage_ip,
                'host': self._conf.host,
                'multipath': False,
            }
            return {**found, 'enforce_multipath': options.volume_enforce_multipath}
        self._connector = {**found, 'enforce_multipath': options.volume_enforce_multipath}
        return dict(self._connector)

    def connect(self, volume: AttachedVolume) -> str:
        """Connect a volume to this host and return its path.

        Raises VolumeUnsupported if this host cannot connect it.
        """
        try:
            return str(
                self._act('connect', volume, lambda connector, connection: connector.connect_volume(connection))['path']
            )
        except VolumeFailed as error:
            raise VolumeUnsupported(
                volume=volume.volume_id, host=self._conf.host, reason=error.fields['reason']
            ) from None

    def disconnect(self, volume: AttachedVolume, path: str | None, force: bool = False) -> None:
        """Disconnect a volume from this host, after pending writes have been flushed to it.

        With ``force`` the volume is disconnected even if the flush fails. ``path`` is the result of ``connect``, or
        None if it is unknown. Raises VolumeFailed if the volume stays connected.
        """
        known = {'path': path} if path else None
        self._act(
            'disconnect',
            volume,
            lambda connector, connection: connector.disconnect_volume(
                connection, known, force=force, ignore_errors=force
            ),
        )

    def extend(self, volume: AttachedVolume) -> int | None:
        """Make this host read the new size of a volume that has grown, and return it in bytes.

        Returns None if there is no device whose size could be read. Raises VolumeFailed if os-brick fails.
        """
        found = self._act('extend', volume, lambda connector, connection: connector.extend_volume(connection))
        return None if found is None else int(found)

    def lock(self, volume: AttachedVolume, path: str, passphrase: str) -> None:
        """Write a LUKS header to an encrypted volume that has none yet. ``path`` is the volume's block device.

        A volume that has never been written has no header. A volume that has a LUKS header is not changed. Raises
        VolumeUnsupported if cryptsetup fails.
        """
        encryption = volume.encryption or {}
        form = [
            f'--{name}={encryption[key]}'
            for name, key in (('cipher', 'cipher'), ('key-size', 'key_size'))
            if encryption.get(key)
        ]
        try:
            if self._cryptsetup(volume, 'isLuks', path, no=1) is None:
                LOG.info('Writing a LUKS header to volume %s', volume.volume_id)
                self._cryptsetup(
                    volume, '--batch-mode', 'luksFormat', '--type=luks1', '--key-file=-', *form, path, text=passphrase
                )
        except VolumeFailed as error:
            raise VolumeUnsupported(
                volume=volume.volume_id, host=self._conf.host, reason=error.fields['reason']
            ) from None

    def header(self, volume: AttachedVolume, path: str) -> int:
        """Return the size of an encrypted volume's LUKS header in bytes.

        The guest's data begin after these bytes of the device. Raises VolumeFailed if cryptsetup fails or does not
        print the payload offset.
        """
        found = _OFFSET.search(self._cryptsetup(volume, 'luksDump', path) or '')
        if found is None:
            raise VolumeFailed(
                act='read the LUKS header of',
                volume=volume.volume_id,
                host=self._conf.host,
                reason='cryptsetup luksDump printed no payload offset',
            )
        return int(found[1]) * _SECTOR

    def _cryptsetup(
        self, volume: AttachedVolume, *arguments: str, text: str | None = None, no: int | None = None
    ) -> str | None:
        """Run cryptsetup as root and return its output.

        ``text`` is written to its standard input. If ``no`` is given, return None if cryptsetup ends with this exit
        code: ``isLuks``, for example, ends with 1 if a device has no LUKS header. Raises VolumeFailed for all other
        errors of cryptsetup.
        """
        _module, errors = self._load()
        from os_brick.privileged import rootwrap

        try:
            output: str = rootwrap.execute(
                'cryptsetup', *arguments, run_as_root=True, root_helper=_ROOT, process_input=text
            )[0]
        except errors as error:
            if no is not None and getattr(error, 'exit_code', None) == no:
                return None
            raise VolumeFailed(
                act='decrypt',
                volume=volume.volume_id,
                host=self._conf.host,
                reason=_without_secrets(f'{type(error).__name__}: {error}', volume),
            ) from None
        return output

    def _act(self, words: str, volume: AttachedVolume, act: Callable[[Any, dict[str, Any]], Any]) -> Any:
        options = self._conf.libvirt
        module, errors = self._load()
        try:
            return act(
                module.InitiatorConnector.factory(
                    volume.kind,
                    _ROOT,
                    use_multipath=options.volume_use_multipath,
                    device_scan_attempts=options.num_volume_scan_tries,
                    conn=dict(volume.connection),
                    nfs_mount_point_base=options.nfs_mount_point_base,
                    nfs_mount_options=options.nfs_mount_options,
                ),
                dict(volume.connection),
            )
        except errors as error:
            # os-brick's error is not kept as the cause of the new error, because its text may contain secrets.
            raise VolumeFailed(
                act=words,
                volume=volume.volume_id,
                host=self._conf.host,
                reason=_without_secrets(f'{type(error).__name__}: {error}', volume),
            ) from None

    def _load(self) -> tuple[Any, tuple[type[Exception], ...]]:
        """Return os-brick's connector module and the exception types that it raises. Load os-brick if needed."""
        with self._loading:
            if self._library is None:
                self._library = _load(self._conf)
            return self._library


def _load(conf: cfg.ConfigOpts) -> tuple[Any, tuple[type[Exception], ...]]:
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # warnings of eventlet
        import os_brick
        from os_brick import exception, privileged
        from os_brick.initiator import connector
        from oslo_concurrency import lockutils, processutils
        from oslo_privsep import daemon
    os.makedirs(conf.os_brick.lock_path, exist_ok=True)
    lockutils.set_defaults(conf.os_brick.lock_path)
    os_brick.setup(cfg.CONF)
    for context in (privileged.default, privileged.brick_privsep_hide_output):
        if os.geteuid() == 0:
            # A process that runs as root does the privileged work itself, without a helper.
            context.set_client_mode(False)
        elif conf.privsep_osbrick.helper_command:
            cfg.CONF.set_override('helper_command', conf.privsep_osbrick.helper_command, 'privsep_osbrick')
    # Return all exception types that os-brick raises, because they have no common base class.
    return connector, (
        exception.BrickException,
        processutils.ProcessExecutionError,
        daemon.FailedToDropPrivileges,
        OSError,
        LookupError,
        ValueError,
        TypeError,
        NotImplementedError,
    )


def _without_secrets(text: str, volume: AttachedVolume) -> str:
    for name in _SECRETS:
        if volume.connection.get(name):
            text = text.replace(str(volume.connection[name]), '***')
    return shortened(' '.join(str(strutils.mask_password(text)).split()), _MOST_TEXT)
