"""Cyborg, the accelerator service, in the one-machine cloud (``make up CYBORG=1``).

This file writes its configuration and finds which hosts' accelerators it knows.

    text = cyborg.conf(layout, ports, secrets)

Its API and conductor are services of the table in ``services``, and so is an agent for each host. An agent offers what
Cyborg's fake driver makes up, whose handles no hypervisor attaches, and the FPGA cards of its host's description
(``described/``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from tools.cloud import http, render
from tools.cloud.layout import ROOT, Layout

# The directory of the driver of hosts' descriptions, and of the entry point by which Cyborg finds it.
PLUG_IN = ROOT / 'tools' / 'cloud' / 'described'
# Vendor and product of the cards.
CARD = ('0x10ee', '0x5020')
# What agents offer where libvirt's test driver plays the hosts, and where machines do, which have no such card.
DRIVERS = {'test': 'fake_driver,described', 'qemu': 'fake_driver'}


def conf(layout: Layout, ports: Mapping[str, int], secrets: Mapping[str, str]) -> str:
    """Return the text of cyborg.conf, which its API, conductor and agents read."""
    account = render.account(ports, secrets, 'cyborg')
    return render.ini(
        {
            'DEFAULT': {
                'transport_url': render.broker(ports, secrets),
                'state_path': str(layout.data('cyborg')),
                # Seconds between two reports of an agent.
                'periodic_interval': 10,
            },
            'api': {'api_paste_config': str(layout.cyborg_venv / 'etc' / 'cyborg' / 'api-paste.ini')},
            'database': render.services_database(layout, 'cyborg'),
            'keystone_authtoken': render.token_check(ports, secrets, 'cyborg')
            | {'service_token_roles_required': 'true'},
            'placement': account,
            'nova': account,
            'service_user': account | {'send_service_user_token': 'true'},
            'oslo_concurrency': {'lock_path': str(layout.var / 'lock')},
            'oslo_messaging_notifications': {'driver': 'noop'},
        }
    )


def agent(layout: Layout, host: str, node_file: Path, kind: str) -> str:
    """Return the text of cyborg-agent-HOST.conf, what is that host's own. ``kind`` of its guests is test or qemu."""
    return render.ini(
        {
            'DEFAULT': {'host': host},
            'agent': {'enabled_drivers': DRIVERS[kind], 'resource_provider_name': host},
            'described': {'node_file': str(node_file), 'card': ':'.join(part.removeprefix('0x') for part in CARD)},
        }
    )


def gunicorn(layout: Layout, ports: Mapping[str, int]) -> str:
    """Return gunicorn.conf.py of Cyborg's API.

    The API takes the path of its configuration from the command line alone, which is gunicorn's until the worker has
    started.
    """
    arguments = ['--config-file', str(conf_path(layout)), '--log-file', str(layout.log('cyborg'))]
    return f'import sys\n\n\ndef post_fork(server, worker):\n    sys.argv[1:] = {arguments!r}\n\n\n' + render.gunicorn(
        ports, 'cyborg'
    )


def conf_path(layout: Layout) -> Path:
    """Return the path of cyborg.conf."""
    return layout.etc / 'cyborg' / 'cyborg.conf'


def agent_path(layout: Layout, host: str) -> Path:
    """Return the path of the configuration of a host's agent."""
    return layout.etc / 'cyborg' / f'agent-{host}.conf'


def hosts_known(url: str, token: str, hosts: Mapping[str, Path], kind: str) -> set[str]:
    """Return the hosts all of whose accelerators Cyborg has put into Placement.

    ``hosts`` is a dict from hosts to their node files, ``kind`` that of their guests: test or qemu.
    """
    try:
        rows = http.call('GET', f'{url}/deployables', token=token).data['deployables']
    except OSError:
        return set()
    found = Counter(row['name'].partition('_')[0] for row in rows if row['rp_uuid'])
    # The fake driver makes up one device a host.
    return {host for host, node_file in hosts.items() if found[host] >= 1 + (cards(node_file) if kind == 'test' else 0)}


def cards(node_file: Path) -> int:
    """Return the number of FPGA cards that a host's description has."""
    ids = [
        tuple(
            found.get('id', '') if (found := capability.find(name)) is not None else ''
            for name in ('vendor', 'product')
        )
        for capability in ElementTree.parse(node_file).findall("./device/capability[@type='pci']")
    ]
    return ids.count(CARD)
