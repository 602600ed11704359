"""os-vif: what must be there on a host, in Linux and in Open vSwitch, before libvirt can start a guest with a port.

    switch = OpenVSwitch(conf)
    switch.check(vif)                           # InterfaceFailed: nothing can be plugged or unplugged now
    switch.plug(vif, uuid)                      # InterfaceFailed: a part of it may be there
    switch.unplug(vif, uuid)                    # once more: nothing is there

The library takes a part of what it has to make for the whole when it is asked again: who uses this unplugs in between.
It is loaded with the first such port: it costs a third of a second of CPU. It keeps its settings in oslo.config's
global object, which nobody else here reads.
"""
from __future__ import annotations

import os
import socket
import threading
import warnings
from collections.abc import Callable
from typing import Any

from oslo_config import cfg

from kilonova.errors import shortened
from kilonova.objects.vif import Plug, Vif
from kilonova.virt.parts.guests import InterfaceFailed

# Seconds in which Open vSwitch's database must take a connection. Without one the library waits for long, and says that
# it has unplugged what is still in there.
_REACHED = 5
# Characters of an error that are told.
_MOST_TEXT = 1000
# Takes a port and its server.
Act = Callable[[Any, Any], None]
# What plugs, what unplugs, and what both raise.
Library = tuple[Act, Act, tuple[type[Exception], ...]]


class OpenVSwitch:
    """Of one host, as [os_vif_ovs] and [vif_plug_ovs_privileged] say."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._library: Library | None = None
        # Two that import it at once find a module that is half made.
        self._loading = threading.Lock()

    def check(self, vif: Vif) -> None:
        database: str = self._conf.os_vif_ovs.ovsdb_connection
        try:
            _reach(database)
        except (OSError, ValueError) as error:
            raise self._failed(vif, f"Open vSwitch's database at {database} takes no connection: {error}") from error

    def plug(self, vif: Vif, uuid: str) -> None:
        plug, _unplug, errors = self._load()
        self._act(plug, errors, vif, uuid)

    def unplug(self, vif: Vif, uuid: str) -> None:
        self.check(vif)
        _plug, unplug, errors = self._load()
        self._act(unplug, errors, vif, uuid)

    def _act(self, act: Act, errors: tuple[type[Exception], ...], vif: Vif, uuid: str) -> None:
        try:
            act(*_given(vif, uuid))
        except errors as error:
            # Without the port, of which the library's errors are full.
            cause = getattr(error, 'kwargs', {}).get('err', error)
            raise self._failed(vif, shortened(f'{type(cause).__name__}: {cause}', _MOST_TEXT)) from error

    def _failed(self, vif: Vif, reason: str) -> InterfaceFailed:
        return InterfaceFailed(port=vif.id, host=self._conf.host, reason=reason)

    def _load(self) -> Library:
        with self._loading:
            if self._library is None:
                self._library = _load(self._conf)
            return self._library


def _load(conf: cfg.ConfigOpts) -> Library:
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')     # of eventlet
        import os_vif
        from os_vif import exception
        from vif_plug_ovs import privsep
        from vif_plug_ovs.ovs import OvsPlugin
    # It reads them once, when it is initialized.
    cfg.CONF.register_opts(OvsPlugin.CONFIG_OPTS, group='os_vif_ovs')
    for name, value in conf.os_vif_ovs.items():
        cfg.CONF.set_override(name, value, 'os_vif_ovs')
    os_vif.initialize()
    if os.geteuid() == 0:
        # Root itself does what else a helper would.
        privsep.vif_plug.set_client_mode(False)
    elif conf.vif_plug_ovs_privileged.helper_command:
        cfg.CONF.set_override('helper_command', conf.vif_plug_ovs_privileged.helper_command,
                              'vif_plug_ovs_privileged')
    # What a port's binding says may be of a form that the library doesn't take.
    return os_vif.plug, os_vif.unplug, (exception.ExceptionBase, ValueError)


def _reach(database: str) -> None:
    """OSError: it takes no connection. ValueError: that is no place of one."""
    kind, _, place = database.partition(':')
    if kind == 'unix':
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(_REACHED)
            line.connect(place)
    else:
        address, _, port = place.rpartition(':')
        socket.create_connection((address.strip('[]'), int(port)), timeout=_REACHED).close()


def _given(vif: Vif, uuid: str) -> tuple[Any, Any]:
    """The port and its server, as the library knows them."""
    from os_vif import objects as known
    profile = known.vif.VIFPortProfileOpenVSwitch(interface_id=vif.id,
                                                  datapath_type=vif.details.get('datapath_type'))
    network = known.network.Network(id=vif.network_id, bridge=vif.switch, label=vif.label, mtu=vif.mtu)
    same = {'id': vif.id, 'address': vif.mac, 'network': network, 'port_profile': profile, 'plugin': 'ovs',
            'vif_name': vif.device_name}
    server = known.instance_info.InstanceInfo(uuid=uuid, name=uuid, project_id=vif.project_id)
    if vif.plug is Plug.REPRESENTOR:
        same['port_profile'] = known.vif.VIFPortProfileOVSRepresentor(
            interface_id=vif.id, datapath_type=vif.details.get('datapath_type'), representor_name=vif.device_name,
            representor_address=vif.slot)
        return known.vif.VIFHostDevice(dev_type='ethernet', dev_address=vif.slot, **same), server
    if vif.plug is Plug.HYBRID:
        return known.vif.VIFBridge(bridge_name=vif.own_bridge, **same), server
    if vif.plug is Plug.VHOST_USER:
        return known.vif.VIFVHostUser(path=vif.socket, mode=vif.details['vhostuser_mode'], **same), server
    return known.vif.VIFOpenVSwitch(bridge_name=vif.switch, **same), server
