"""A back end of Cinder whose volumes are files: its driver of NFS, with a directory of this machine for the share.

    [files]
    volume_driver = tools.cloud.volume_files.Driver

Nothing is mounted: the directory is where the share would be. All programs run as who runs Cinder. Runs in Cinder's
virtual environment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cinder.privsep
import os_brick.privileged  # noqa: TID253 - Cinder has it loaded
from cinder.volume.drivers import nfs
from oslo_concurrency import processutils

# They would have processes of their own, started by sudo.
for context in (cinder.privsep.sys_admin_pctxt, os_brick.privileged.default):
    context.set_client_mode(False)


def execute(*command: str, run_as_root: bool = False, root_helper: str = '', **options: Any) -> Any:
    """Run a program as ourselves; return what it prints, and its errors."""
    # The driver asks whether mounts can be had.
    return ('', '') if command[0] == 'mount.nfs' else processutils.execute(*command, **options)


class Driver(nfs.NfsDriver):  # type: ignore[misc]  # Cinder comes without types.
    """The driver of NFS, without mounts. It also lets several servers have a volume."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # What the base classes were given, too.
        self._execute = execute
        self._remotefsclient.set_execute(execute)

    def _ensure_share_mounted(self, nfs_share: str) -> None:
        Path(self._get_mount_point_for_share(nfs_share)).mkdir(parents=True, exist_ok=True)

    def _update_volume_stats(self) -> None:
        super()._update_volume_stats()
        self._stats['multiattach'] = True
