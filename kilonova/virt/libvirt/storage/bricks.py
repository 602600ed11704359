"""os-brick: volumes become files and block devices of this host, whatever network they come by.

    bricks = Bricks(conf)
    bricks.connector()                      # what the volume service must know of this host
    path = bricks.connect(volume)           # '/dev/dm-3'; once more: the same
    bricks.disconnect(volume, path)

The library is loaded with the first volume: it costs half a second of CPU. It keeps its settings in oslo.config's
global object, which nobody else here reads.
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

# How the library asks for root where no helper is named.
_ROOT = 'sudo'
# Characters of an error that are told, and values of a connection that programs are called with, and that are in
# the library's errors then.
_MOST_TEXT = 1000
_SECRETS = ('auth_password', 'discovery_auth_password', 'keyring')
# Where the data of a LUKS device begin, as cryptsetup tells it, in sectors.
_OFFSET, _SECTOR = re.compile(r'Payload offset:\s+(\d+)'), 512


class Bricks:
    """Of one host, as [libvirt], [os_brick] and [privsep_osbrick] say."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._library: tuple[Any, tuple[type[Exception], ...]] | None = None
        # Two that import it at once find a module that is half made.
        self._loading = threading.Lock()
        # What the library said of this host: it starts several programs to find that out.
        self._connector: dict[str, Any] | None = None

    def connector(self) -> dict[str, Any]:
        """Keys as ``Volumes.connector`` says; without those of the library where it finds no way to root. What
        the library says holds until the service is started again."""
        options = self._conf.libvirt
        if self._connector is not None:
            return dict(self._connector)
        module, errors = self._load()
        try:
            found: dict[str, Any] = module.get_connector_properties(
                _ROOT, self._conf.my_block_storage_ip, options.volume_use_multipath, options.volume_enforce_multipath,
                host=self._conf.host)
        except errors as error:
            if options.volume_enforce_multipath:
                raise VolumeUnsupported(volume='any', host=self._conf.host, reason=str(error)) from error
            LOG.warning('This host can only have volumes in Ceph and NFS, os-brick does not tell of its devices: %s',
                        error)
            found = {'platform': platform.machine(), 'os_type': sys.platform, 'ip': self._conf.my_block_storage_ip,
                     'host': self._conf.host, 'multipath': False}
            return {**found, 'enforce_multipath': options.volume_enforce_multipath}
        self._connector = {**found, 'enforce_multipath': options.volume_enforce_multipath}
        return dict(self._connector)

    def connect(self, volume: AttachedVolume) -> str:
        """Its path on this host; VolumeUnsupported: this host doesn't get to it."""
        try:
            return str(self._act('connect', volume, lambda connector, connection: connector.connect_volume(
                connection))['path'])
        except VolumeFailed as error:
            raise VolumeUnsupported(volume=volume.volume_id, host=self._conf.host,
                                    reason=error.fields['reason']) from None

    def disconnect(self, volume: AttachedVolume, path: str | None, force: bool = False) -> None:
        """What is written reaches it first; ``force``: where that fails it goes all the same. ``path``: what
        ``connect`` gave, None: nobody knows. VolumeFailed: it stays."""
        known = {'path': path} if path else None
        self._act('let go of', volume, lambda connector, connection: connector.disconnect_volume(
            connection, known, force=force, ignore_errors=force))

    def extend(self, volume: AttachedVolume) -> int | None:
        """The host looks at its size: bytes, None where there is nothing to look at. VolumeFailed."""
        found = self._act('extend', volume, lambda connector, connection: connector.extend_volume(connection))
        return None if found is None else int(found)

    def lock(self, volume: AttachedVolume, path: str, passphrase: str) -> None:
        """An encrypted volume on a block device that nobody has written has no header of LUKS yet: it gets one.
        VolumeUnsupported."""
        encryption = volume.encryption or {}
        form = [f'--{name}={encryption[key]}' for name, key in (('cipher', 'cipher'), ('key-size', 'key_size'))
                if encryption.get(key)]
        try:
            if self._cryptsetup(volume, 'isLuks', path, no=1) is None:
                LOG.info('Volume %s gets its header of LUKS', volume.volume_id)
                self._cryptsetup(volume, '--batch-mode', 'luksFormat', '--type=luks1', '--key-file=-', *form, path,
                                 text=passphrase)
        except VolumeFailed as error:
            raise VolumeUnsupported(volume=volume.volume_id, host=self._conf.host,
                                    reason=error.fields['reason']) from None

    def header(self, volume: AttachedVolume, path: str) -> int:
        """Bytes of its device before those that a guest sees of an encrypted volume. VolumeFailed."""
        found = _OFFSET.search(self._cryptsetup(volume, 'luksDump', path) or '')
        if found is None:
            raise VolumeFailed(act='look at', volume=volume.volume_id, host=self._conf.host,
                               reason='cryptsetup luksDump tells no payload offset')
        return int(found[1]) * _SECTOR

    def _cryptsetup(self, volume: AttachedVolume, *arguments: str, text: str | None = None,
                    no: int | None = None) -> str | None:
        """What it prints; None where it ends with ``no``. VolumeFailed."""
        _module, errors = self._load()
        from os_brick.privileged import rootwrap
        try:
            output: str = rootwrap.execute('cryptsetup', *arguments, run_as_root=True, root_helper=_ROOT,
                                           process_input=text)[0]
        except errors as error:
            if no is not None and getattr(error, 'exit_code', None) == no:
                return None
            raise VolumeFailed(act='decrypt', volume=volume.volume_id, host=self._conf.host,
                               reason=_without_secrets(f'{type(error).__name__}: {error}', volume)) from None
        return output

    def _act(self, words: str, volume: AttachedVolume, act: Callable[[Any, dict[str, Any]], Any]) -> Any:
        options = self._conf.libvirt
        module, errors = self._load()
        try:
            return act(module.InitiatorConnector.factory(
                volume.kind, _ROOT, use_multipath=options.volume_use_multipath,
                device_scan_attempts=options.num_volume_scan_tries, conn=dict(volume.connection),
                nfs_mount_point_base=options.nfs_mount_point_base, nfs_mount_options=options.nfs_mount_options),
                dict(volume.connection))
        except errors as error:
            # Without its cause: secrets may be in that.
            raise VolumeFailed(act=words, volume=volume.volume_id, host=self._conf.host,
                               reason=_without_secrets(f'{type(error).__name__}: {error}', volume)) from None

    def _load(self) -> tuple[Any, tuple[type[Exception], ...]]:
        """The library, and what it raises."""
        with self._loading:
            if self._library is None:
                self._library = _load(self._conf)
            return self._library


def _load(conf: cfg.ConfigOpts) -> tuple[Any, tuple[type[Exception], ...]]:
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')     # of eventlet
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
            # Root itself does what else a helper would.
            context.set_client_mode(False)
        elif conf.privsep_osbrick.helper_command:
            cfg.CONF.set_override('helper_command', conf.privsep_osbrick.helper_command, 'privsep_osbrick')
    # A connection that lacks what its kind needs is among them, and a kind that can't grow.
    return connector, (exception.BrickException, processutils.ProcessExecutionError, daemon.FailedToDropPrivileges,
                       OSError, LookupError, ValueError, TypeError, NotImplementedError)


def _without_secrets(text: str, volume: AttachedVolume) -> str:
    for name in _SECRETS:
        if volume.connection.get(name):
            text = text.replace(str(volume.connection[name]), '***')
    return shortened(' '.join(str(strutils.mask_password(text)).split()), _MOST_TEXT)
