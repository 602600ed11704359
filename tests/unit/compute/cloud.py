"""Hosts on fake hypervisors and the conductor of their cell (``cell.Cell``): what the compute's tests work with."""

from __future__ import annotations

import json
from typing import Any

from oslo_config import cfg

from kilonova import objects
from kilonova.compute.manager import ComputeManager
from kilonova.conf import (
    base,
    base_compute,
    base_usage,
    base_virt,
    compute,
    devices,
    filter_scheduler,
    image_cache,
    pci,
    serial_console,
    spice,
    vnc,
)
from kilonova.rpc.notify import OFF
from kilonova.virt.fake import FakeDriver
from kilonova.virt.fakes.state import FakeMachine
from tests.unit.compute.cell import Cell, new_context, requests

NO_PAUSE = (0.0,)
GPUS = ['0000:08:00.0', '0000:88:00.0']


def new_conf(host: str, **overrides: Any) -> cfg.ConfigOpts:
    """Return the configuration of a host.

    ``overrides`` is {option: its value}. An option of a group is written as 'group.option'.
    """
    conf = cfg.ConfigOpts()
    for module in (
        base,
        base_compute,
        base_usage,
        base_virt,
        compute,
        devices,
        pci,
        filter_scheduler,
        image_cache,
        serial_console,
        spice,
        vnc,
    ):
        conf.register_opts(module.OPTS, group=module.GROUP)
    conf([], project='kilonova', default_config_files=[], default_config_dirs=[])
    conf.set_override('host', host)
    conf.set_override('my_ip', '192.0.2.1')
    conf.set_override('periodic_enable', False)
    conf.set_override('device_spec', [json.dumps({'vendor_id': '10de', 'product_id': '13f1'})], group='pci')
    for name, value in overrides.items():
        group, _, option = name.rpartition('.')
        if group.startswith('mdev_'):
            devices.mdev_section(conf, group.removeprefix('mdev_'))
        conf.set_override(option, value, group=group or None)
    return conf


def gpu(address: str, **values: Any) -> dict[str, Any]:
    return {
        'dev_id': 'pci_' + address.replace(':', '_').replace('.', '_'),
        'address': address,
        'vendor_id': '10de',
        'product_id': '13f1',
        'numa_node': 0,
        'label': 'label_10de_13f1',
        'dev_type': 'type-PCI',
        'capabilities': {},
        **values,
    }


def request_spec(instance: objects.Instance, of: objects.Flavor, count: int) -> objects.RequestSpec:
    return objects.RequestSpec(
        flavor=of, pci_requests=requests(instance.uuid, count), numa_topology=None, instance_uuid=instance.uuid
    )


class Cloud:
    """Hosts of one cell on one machine."""

    def __init__(self) -> None:
        self.cell = Cell()
        self.machine = FakeMachine()
        self.drivers: dict[str, FakeDriver] = {}
        self.placement: Any = None
        self.notify: Any = OFF
        self.managers: dict[str, ComputeManager] = {}

    def host(self, name: str, gpus: list[str] | None = None, **overrides: Any) -> ComputeManager:
        """A compute service that has started. The same name again: it restarted, its guests went on running."""
        conf = new_conf(name, **overrides)
        driver = self.drivers.get(name)
        if driver is None:
            driver = self.drivers[name] = FakeDriver(conf, machine=self.machine)
            driver.pci_devices = [gpu(address) for address in gpus or []]
        driver.conf = conf
        manager = ComputeManager(
            conf,
            driver=driver,
            conductor=self.cell,
            placement=self.placement,
            ctxt=self.cell.context,
            pauses=NO_PAUSE,
            notify=self.notify,
        )
        if name in self.managers:
            self.managers[name].stopping.set()
        self.managers[name] = manager
        manager.start()
        return manager

    def stop(self) -> None:
        """No timer outlives the test."""
        for manager in self.managers.values():
            manager.stop()
        self.cell.close()

    def reboot(self, name: str, **overrides: Any) -> ComputeManager:
        """The whole host went down and came back: no domain is left."""
        self.drivers[name].domains.clear()
        return self.host(name, **overrides)

    def boot(self, manager: ComputeManager, gpus: int = 1, of: objects.Flavor | None = None) -> objects.Instance:
        """A server that runs on this host."""
        instance = self.cell.new_instance(gpus, of)
        build(manager, instance, key=f'boot-{instance.uuid}/3.build/1')
        self.cell.end(f'boot-{instance.uuid}')
        return self.cell.instance(instance.uuid)


def build(
    manager: ComputeManager,
    instance: objects.Instance,
    key: str | None = 'o/3.build/1',
    attempt: int = 1,
    image: dict | None = None,
) -> Any:
    return manager.endpoint.build_and_run_instance(
        new_context(), order=build_order(instance, image, attempt=attempt), key=key
    )


def build_order(instance: objects.Instance, image: dict[str, Any] | None = None, **fields: Any) -> objects.BuildOrder:
    return objects.BuildOrder(
        **{
            'instance': instance,
            'image': image or {'id': None, 'properties': {}},
            'request_spec': None,
            'sealed': None,
            'attempt': 1,
            'block_devices': [],
            'limits': None,
            **fields,
        }
    )
