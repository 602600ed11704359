"""Real daemons on native threads do not disclose the password and the file of a boot.

The tests search messages, files of RabbitMQ and of databases, logs at DEBUG and command lines, and check file modes.
The scheduler has two workers. The last test boots and resizes servers while a scheduler worker is killed.
"""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kombu import Connection, Exchange, Queue

from kilonova import sealing
from tests.functional.test_secrets import content
from tests.integration.site import Site

PASSWORD, CONTENT = 'Tr0ub4dor-and-3', b'-----BEGIN A PRIVATE THING-----'
ENCODED = base64.b64encode(CONTENT).decode()
LOUD = """[DEFAULT]
concurrency_backend = native
debug = true
default_log_levels = oslo_messaging=DEBUG,keystonemiddleware=DEBUG,keystoneauth=DEBUG,urllib3=DEBUG,sqlalchemy=INFO
[oslo_messaging_notifications]
driver = messagingv2
[notifications]
notification_format = both
[scheduler]
workers = 2
"""
DAEMONS = ('conductor', 'scheduler', 'api', 'compute-gpu1', 'compute-gpu2')
# What a user of the machine may read there: ids, and a mark of the command that starts the cloud.
PUBLIC = {'compute_id', '.storage_id', 'mapped'}


@pytest.fixture(scope='module')
def loud_site(running_site: Site) -> Iterator[Site]:
    """Its daemons log and tell all that they can."""
    running_site.configure('')
    running_site.up()
    sizes = {name: running_site.log_size(name) for name in DAEMONS}
    running_site.configure(LOUD)
    running_site.up()
    for name, size in sizes.items():
        assert 'Native threads are used, not eventlet' in running_site.log_after(name, size), name
    yield running_site
    running_site.configure('')


@pytest.fixture
def loud(loud_site: Site) -> Site:
    """Without any server."""
    loud_site.clean()
    return loud_site


@contextlib.contextmanager
def listening(site: Site) -> Iterator[list[bytes]]:
    """What passes through the exchange, to whomever; filled at the end."""
    url = f'amqp://kilonova:{site.cloud.secrets["rabbitmq"]}@127.0.0.1:{site.cloud.ports["rabbitmq"]}//'
    exchange = Exchange('nova', type='topic', durable=False, passive=True)
    bodies: list[bytes] = []
    with Connection(url) as connection:
        queue = Queue('all-ears', exchange, routing_key='#', durable=False, auto_delete=True)
        queue = queue(connection.default_channel)
        queue.declare()
        try:
            yield bodies
            while (message := queue.get(no_ack=True)) is not None:
                bodies.append(message.body if isinstance(message.body, bytes) else message.body.encode())
        finally:
            queue.delete()


def command_lines() -> set[bytes]:
    """Of all processes, as everybody may read them."""
    found = set()
    for entry in Path('/proc').iterdir():
        with contextlib.suppress(OSError):
            found.add((entry / 'cmdline').read_bytes())
    return found


def test_nothing_of_a_boot_is_to_be_read(loud: Site) -> None:
    """It is where it must be: in the guest's config drive, which is its owner's alone."""
    var = loud.layout.var
    keys = [key.encode() for key in sealing.read_file(str(loud.layout.keys))]
    flavor, token = loud.flavor('sealed-gpu', gpus=1), loud.token('demo')
    needles = {PASSWORD.encode(), CONTENT, ENCODED.encode(), token.encode(), *keys}
    body = {
        'server': {
            'name': 'sealed',
            'flavorRef': flavor,
            'imageRef': loud.image,
            'adminPass': PASSWORD,
            'personality': [{'path': '/etc/thing', 'contents': ENCODED}],
        }
    }
    lines: set[bytes] = set()
    with listening(loud) as bodies:
        server = loud.call('POST', '/servers', body, version='2.36')['server']['id']
        deadline = time.monotonic() + 60
        while loud.servers()[server]['status'] == 'BUILD' and time.monotonic() < deadline:
            lines |= command_lines()
        loud.settle([server])
    assert loud.servers()[server]['status'] == 'ACTIVE'
    # 1. Messages: they were seen, and hold nothing.
    assert any(b'schedule_and_build_instances' in one for one in bodies)
    assert any(b'build_and_run_instance' in one and b'gAAAA' in one for one in bodies)
    assert any(b'instance.create.end' in one for one in bodies)
    assert [needle for needle in needles if any(needle in one for one in bodies)] == []
    # 2. Command lines.
    assert any(b'kilonova-compute' in line for line in lines)
    assert [needle for needle in needles if any(needle in line for line in lines)] == []
    # 3. All files of all services.
    found, drives = {}, []
    for folder, _, names in os.walk(var):
        for path in (Path(folder, name) for name in names):
            if path.is_symlink() or not path.is_file() or path == loud.layout.keys:
                continue
            data = content(path)
            if path.name == 'disk.config':
                drives.append((path.parent.name, PASSWORD.encode() in data and CONTENT in data))
            elif hits := [needle for needle in needles if needle in data]:
                found[str(path.relative_to(var))] = hits
    assert found == {} and drives == [(server, True)]
    # 4. What our daemons wrote besides logs.
    ours = [path for name in ('etc', 'hosts', 'data/kilonova') for path in (var / name).rglob('*') if path.is_file()]
    assert loud.layout.keys in ours and len(ours) > 10
    assert {path.name for path in ours if stat.S_IMODE(path.stat().st_mode) & 0o077} <= PUBLIC


def test_the_main_job_on_native_threads(loud: Site) -> None:
    """Also while one of the scheduler's workers is killed."""
    site = loud
    one, two = site.flavor('native-one', gpus=1), site.flavor('native-two', gpus=2)
    (moved,) = site.boot(1, one)
    site.act(moved, 'resize', {'flavorRef': two})
    site.await_status([moved], 'VERIFY_RESIZE')
    site.act(moved, 'confirmResize')
    shown = site.await_status([moved], 'ACTIVE')[moved]
    assert len(site.hostdevs(shown['OS-EXT-SRV-ATTR:host'], moved)) == 2
    site.boot(3, one)
    worker, *_ = subprocess.run(
        ['pgrep', '-P', str(site.pid('scheduler'))], capture_output=True, text=True, check=True
    ).stdout.split()
    created = site.at_once(lambda number: site.create(f'native-{number}', one), range(4))
    os.kill(int(worker), signal.SIGKILL)
    # Eight devices, of which five are taken.
    ends = sorted(row['status'] for row in site.settle(created).values())
    assert ends == ['ACTIVE', 'ACTIVE', 'ACTIVE', 'ERROR'], ends
    site.audit()
    site.clean()
    site.assert_nothing_held()
