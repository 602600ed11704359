"""The examples of the guide: daemons read what it shows, and the flavors ask for what the hosts give out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kilonova import conf as kilonova_conf
from kilonova.pci import kinds
from kilonova.pci.devices import NodeDevices
from kilonova.pci.mdev import MdevTypes
from kilonova.pci.request import Aliases, request_groups, requests_from_flavor
from tests.unit.pci.builders import NODE, found, saved

PAGE = (Path(__file__).parents[3] / 'docs' / 'admin' / 'gpu-passthrough.md').read_text(encoding='utf-8')
EXAMPLES = PAGE.partition('## An example for each card')[2].partition('\n## ')[0].split('\n\n**')[1:]


def example(words: str, directory: Path) -> tuple[Any, list[dict[str, str]]]:
    """The configuration of an example, and the properties of its flavors."""
    (text,) = [one for one in EXAMPLES if words in one.partition('**')[0]]
    path = directory / 'kilonova.conf'
    path.write_text(''.join(re.findall(r'```ini\n(.*?)```', text, re.DOTALL)))
    made = kilonova_conf.new()
    made(['--config-file', str(path)], project='kilonova', default_config_dirs=[])
    made.set_override('host', 'gpu1')
    made.set_override('state_path', str(directory))
    flavors = re.findall(r'openstack flavor set \S+ --property (\S+)', text)
    return made, [dict([one.split('=', 1)]) for one in flavors]


@pytest.mark.parametrize(
    ('words', 'devices', 'provider', 'wanted'),
    [
        (
            'A whole H100',
            [found(f'0000:8{number}:00.0', product_id='2330') for number in (1, 2)],
            'n_0000:81:00.0',
            [{'CUSTOM_PCI_10DE_2330': 1}] * 2,
        ),
        (
            'A virtual function',
            [found('0000:3b:00.4', dev_type='type-VF', parent='0000:3b:00.0', product_id='2330')],
            'n_0000:3B:00.0',
            [{'CUSTOM_H100_40C': 1}],
        ),
        (
            'Two L40S',
            [found(f'0000:{bus}:00.0', product_id='26b9') for bus in ('81', '82')],
            'n_0000:81:00.0',
            [{'CUSTOM_PCI_GROUP_L40S_PAIR': 1}],
        ),
    ],
)
def test_pci_devices(
    tmp_path: Path, words: str, devices: list[dict[str, Any]], provider: str, wanted: list[dict[str, int]]
) -> None:
    conf, (properties,) = example(words, tmp_path)
    host = saved(NodeDevices(kinds.from_conf(conf), NODE).looked(devices))
    (request,) = requests = requests_from_flavor(properties, Aliases.from_conf(conf))
    assert [group.resources for group in request_groups(requests)] == wanted
    assert host.providers('n')[provider].resource_class in wanted[0]
    taken = host.pools.copy().consume_requests(requests)
    assert len(taken) == request.count
    assert sorted(address for device, _ in taken for address in host.members(device)) == [
        one['address'] for one in devices
    ]


def test_mediated_devices(tmp_path: Path) -> None:
    conf, flavors = example('A16', tmp_path)
    types = MdevTypes.from_conf(conf)
    parents = ('0000:41:00.6', '0000:41:00.4')
    assert [f'resources:{types.of(parent).resource_class}' for parent in parents] == [  # type: ignore[union-attr]
        name for flavor in flavors for name in flavor
    ]


def test_accelerators(tmp_path: Path) -> None:
    _, flavors = example('An FPGA', tmp_path)
    assert flavors == [{'accel:device_profile': 'fpga'}]


def test_each_card_of_the_table_has_an_example() -> None:
    assert len(EXAMPLES) == 5
