"""One connection to libvirt, and what is asked of it as a whole.

    host = Host('test:///…/gpu1.xml', 'gpu1')
    host.connect()
    guest = host.find(uuid)          # None: no such domain

The connection is opened once. A lost connection to a daemon is opened again by the next call; a test:///
one never is, as each has its own set of domains, lost with it. Calls go through ``concurrency.native``.
"""
from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import libvirt

from kilonova import concurrency
from kilonova.virt import driver
from kilonova.virt.libvirt.guest import Guest

LOG = logging.getLogger(__name__)

_LOST = {libvirt.VIR_ERR_SYSTEM_ERROR, libvirt.VIR_ERR_INTERNAL_ERROR, libvirt.VIR_ERR_NO_CONNECT,
         libvirt.VIR_ERR_INVALID_CONN}
_FROM_WIRE = {libvirt.VIR_FROM_REMOTE, libvirt.VIR_FROM_RPC}

# libvirt prints each error to stderr unless told not to; ours are raised.
libvirt.registerErrorHandler(lambda context, error: None, None)


class Host:
    """The hypervisor of one host, by libvirt."""

    def __init__(self, uri: str, name: str) -> None:
        self.uri, self.name = uri, name
        self._connection: Any = None
        self._lock = threading.Lock()

    @property
    def is_test(self) -> bool:
        """Whether libvirt's test driver plays the host."""
        return self.uri.startswith('test:')

    def connect(self) -> Any:
        """The connection, opened if need be; raises HypervisorUnavailable."""
        with self._lock:
            if self._connection is None:
                LOG.info('Connecting to libvirt: %s', self.uri)
                try:
                    self._connection = concurrency.native(libvirt.open, self.uri)
                except libvirt.libvirtError as error:
                    raise driver.HypervisorUnavailable(host=self.name, reason=str(error)) from error
            return self._connection

    def call(self, func: Callable[..., Any], *args: Any) -> Any:
        """Call into libvirt without stopping other threads; a lost connection raises HypervisorUnavailable."""
        try:
            return concurrency.native(func, *args)
        except libvirt.libvirtError as error:
            if self.is_test or error.get_error_code() not in _LOST or error.get_error_domain() not in _FROM_WIRE:
                raise
            with self._lock:
                self._connection = None
            raise driver.HypervisorUnavailable(host=self.name, reason=str(error)) from error

    def ask(self, method: str, *args: Any) -> Any:
        """Call a method of the connection."""
        return self.call(getattr(self.connect(), method), *args)

    # -- domains -------------------------------------------------------------------------------------

    def find(self, uuid: str) -> Guest | None:
        """The domain of that uuid, running or not."""
        try:
            return Guest(self, self.ask('lookupByUUIDString', uuid))
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                return None
            raise

    def guests(self) -> list[Guest]:
        """All domains, running or not."""
        return [Guest(self, domain) for domain in self.ask('listAllDomains')]

    def define(self, xml: str, uuid: str) -> Guest:
        """Keep a domain; one of the same uuid gets this as its next start's XML."""
        try:
            return Guest(self, self.ask('defineXML', xml))
        except libvirt.libvirtError as error:
            LOG.error('Error defining a guest with XML: %s', xml)
            raise driver.GuestFailed(act='define', uuid=uuid, reason=str(error)) from error

    # -- the machine ---------------------------------------------------------------------------------

    def info(self) -> list[Any]:
        """[model, memory MiB, CPUs, MHz, NUMA nodes, sockets a node, cores a socket, threads a core]"""
        return self.ask('getInfo')

    def capabilities_xml(self) -> str:
        return self.ask('getCapabilities')

    def kind(self) -> str:
        """QEMU, TEST …"""
        return self.ask('getType')

    def version(self) -> int:
        """The hypervisor's version as major * 1000000 + minor * 1000 + micro."""
        return self.ask('getVersion')

    def libvirt_version(self) -> int:
        return self.ask('getLibVersion')

    def has_node_device(self, name: str) -> bool:
        """Whether the machine has the device that libvirt calls so now."""
        try:
            self.ask('nodeDeviceLookupByName', name)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_NODE_DEVICE:
                raise
            return False
        return True

    def node_devices(self) -> list[str]:
        """XML of all PCI functions, network devices and vDPA devices."""
        flags = (libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_PCI_DEV | libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_NET
                 | libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_VDPA)
        try:
            devices = self.ask('listAllDevices', flags)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
                raise
            LOG.warning('libvirt lists no devices of this host: %s', error)
            return []
        found = []
        for device in devices:
            try:
                found.append(self.call(device.XMLDesc, 0))
            except libvirt.libvirtError as error:
                if error.get_error_code() != libvirt.VIR_ERR_NO_NODE_DEVICE:    # unplugged since the list was made
                    raise
        return found
