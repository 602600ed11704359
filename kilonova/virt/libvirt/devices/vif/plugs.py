"""Plug ports for which the compute service must create network devices before the guest starts, and record them.

    plugs = Plugs(conf)
    plugs.renew(instance, instance.vifs)        # before the guest starts: unplug old ports, plug instance.vifs
    plugs.retain(instance.uuid, instance.vifs)  # only unplug old ports
    plugs.add(instance, vif)                    # plug one more port
    plugs.remove(instance.uuid, [vif.id])       # unplug a port that was detached from the guest
    plugs.remove(instance.uuid)                 # unplug all ports of a guest that was deleted

Each port is recorded before it is plugged, in one file per server in ``state_path``/plugged. A recorded port is old if
it is not in ``instance.vifs`` any more, or has another binding there. The record has all values that are needed to
unplug the port, even after Neutron has deleted it. If a plug was interrupted, the port is unplugged before it is
plugged again.

A PCI function has a representor, a network device that is plugged into the switch. When the function has been given to
another server, the representor must not be unplugged for the former server. Therefore one file per function records its
present server, and the representor is unplugged only for that server.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Collection, Iterable
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from kilonova import objects
from kilonova.objects.vif import Plug, Vif
from kilonova.virt.libvirt.devices.vif.openvswitch import OpenVSwitch
from kilonova.virt.libvirt.storage import files
from kilonova.virt.parts.guests import InterfaceFailed

LOG = logging.getLogger(__name__)

_DIRECTORY, _KIND, _OWNER = 'plugged', '.json', '.owner'
# The recorded ports of one server: a dict from port id to (port, True if its plug completed, False if interrupted).
Known = dict[str, tuple[Vif, bool]]


class Plugs:
    """The ports of one host for which the compute service creates network devices before the guest starts.

    For all other ports, libvirt creates the network devices, or no network devices are needed.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._path, self._switch = os.path.join(conf.state_path, _DIRECTORY), OpenVSwitch(conf)

    def renew(self, instance: objects.Instance, vifs: Iterable[Vif]) -> None:
        """Plug these ports of a server whose guest is not running, so that the guest can start.

        Before that, old ports are unplugged: recorded ports of the server that are not in ``vifs``, or whose recorded
        binding differs from the binding in ``vifs``. Raises InterfaceFailed if a port cannot be plugged.
        """
        wanted = list(vifs)
        self.retain(instance.uuid, wanted)
        for vif in wanted:
            self.add(instance, vif)

    def retain(self, uuid: str, vifs: Iterable[Vif]) -> None:
        """Unplug the old ports of a server whose guest is not running.

        ``vifs`` are the ports that the server has now. A recorded port is old if it is not in ``vifs``, or if its
        recorded binding differs from its binding in ``vifs``.
        """
        wanted = {vif.id: _form(vif) for vif in vifs}
        self.remove(uuid, [name for name, (vif, _whole) in self._known(uuid).items() if _form(vif) != wanted.get(name)])

    def add(self, instance: objects.Instance, vif: Vif) -> None:
        """Plug a port. Repeated calls are safe.

        Raises InterfaceFailed if the port cannot be plugged. In this case the port is unplugged again. If the unplug
        fails, too, the port stays recorded, so that ``remove`` can unplug it later.
        """
        if vif.plug is None:
            return
        known, uuid = self._known(instance.uuid), instance.uuid
        self._switch.check(vif)
        if vif.id in known and not known[vif.id][1]:
            self.remove(uuid, [vif.id])
        self._keep(uuid, {**known, vif.id: (vif, False)})
        if vif.plug is Plug.REPRESENTOR:
            files.write_whole(self._owner(vif), uuid)
        try:
            self._switch.plug(vif, uuid)
        except InterfaceFailed:
            self.remove(uuid, [vif.id])
            raise
        self._keep(uuid, {**known, vif.id: (vif, True)})
        LOG.info('Port %s is plugged into this host', vif.id, instance_uuid=uuid)

    def remove(self, uuid: str, ports: Collection[str] | None = None) -> None:
        """Unplug these ports of a server, or all its ports if ``ports`` is None.

        Ports that are not plugged on this host are ignored. A failure is only logged, and the unplug is tried again
        when the service is restarted.
        """
        known = self._known(uuid)
        for name in [one for one in known if ports is None or one in ports]:
            try:
                self._unplug(known[name][0], uuid)
            except InterfaceFailed as error:
                LOG.error(
                    'Could not unplug port %s from this host; the next start of this service tries it again: %s',
                    name,
                    error.fields['reason'],
                    instance_uuid=uuid,
                )
                continue
            del known[name]
            self._keep(uuid, known)
            LOG.info('Port %s is no longer plugged into this host', name, instance_uuid=uuid)

    def _unplug(self, vif: Vif, uuid: str) -> None:
        if vif.plug is Plug.REPRESENTOR:
            with contextlib.suppress(FileNotFoundError), open(self._owner(vif), encoding='utf-8') as stream:
                if stream.read() != uuid:
                    return
        self._switch.unplug(vif, uuid)
        if vif.plug is Plug.REPRESENTOR:
            files.remove(self._owner(vif))

    def clear(self, there: Callable[[str], bool]) -> None:
        """Unplug the ports of all servers that are no longer on this host.

        ``there(uuid)`` must return whether the server is still on this host.
        """
        for name in sorted(os.listdir(self._path)) if os.path.isdir(self._path) else ():
            uuid, kind = os.path.splitext(name)
            if kind == _KIND and not there(uuid):
                self.remove(uuid)

    def _known(self, uuid: str) -> Known:
        try:
            with open(self._file(uuid), encoding='utf-8') as stream:
                return {one['vif']['id']: (Vif.read(one['vif']), one['whole']) for one in json.load(stream)}
        except FileNotFoundError:
            return {}
        except ValueError as error:
            # The file is incomplete, because the host lost power while the file was written.
            # After a power failure, the recorded ports have no network devices on the host, so logging is sufficient.
            LOG.error(
                'Could not read %s; the ports that it records are not removed from Open vSwitch: %s',
                self._file(uuid),
                error,
                instance_uuid=uuid,
            )
            return {}

    def _keep(self, uuid: str, known: Known) -> None:
        if not known:
            files.remove(self._file(uuid))
            return
        os.makedirs(self._path, exist_ok=True)
        files.write_whole(
            self._file(uuid), json.dumps([{'vif': vif.stored(), 'whole': whole} for vif, whole in known.values()])
        )

    def _owner(self, vif: Vif) -> str:
        return os.path.join(self._path, f'{vif.slot}{_OWNER}')

    def _file(self, uuid: str) -> str:
        return os.path.join(self._path, uuid + _KIND)


def _form(vif: Vif) -> tuple[Any, ...]:
    """Return the values of a port's binding that determine how the port is plugged.

    A recorded port is unplugged as an old port if these values differ from the values of the server's present port.
    """
    return (
        vif.plug,
        vif.mac,
        vif.switch,
        vif.socket,
        vif.slot,
        *map(vif.details.get, ('datapath_type', 'vhostuser_mode')),
    )
