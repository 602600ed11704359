"""The configuration files of the one-machine cloud."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from oslo_config import cfg

from tools.cloud import layout as layouts
from tools.cloud import ports, render, services
from tools.cloud.layout import CloudError, Layout, find_hosts

PORTS = {name: 21000 + number for number, name in enumerate(ports.names_for(['alpha', 'gpu1']))}
SECRETS = {name: f'secret-of-{name}' for name in layouts.SECRET_NAMES}


@pytest.fixture
def layout(tmp_path):
    return Layout(
        var=tmp_path / 'var',
        venv=tmp_path / 'venv',
        services_venv=tmp_path / 'services',
        tempest_venv=tmp_path / 'tempest',
        cyborg_venv=tmp_path / 'cyborg',
        neutron_venv=tmp_path / 'neutron',
        cinder_venv=tmp_path / 'cinder',
    )


def parse(tmp_path: Path, *texts: str) -> dict[str, dict[str, list[str]]]:
    """What oslo.config's own parser reads from the files together."""
    sections: dict[str, dict[str, list[str]]] = {}
    for number, text in enumerate(texts):
        path = tmp_path / f'{number}.conf'
        path.write_text(text)
        cfg.ConfigParser(str(path), sections).parse()
    return sections


def test_ini_repeats_an_option_for_each_value_of_a_list():
    assert render.ini({'pci': {'alias': ['a', 'b'], 'n': 3}}) == '[pci]\nalias = a\nalias = b\nn = 3\n'


def test_ini_keeps_dollar_signs_literal(tmp_path):
    path = tmp_path / 'x.conf'
    path.write_text(render.ini({'DEFAULT': {'word': 'pa$$word'}}))
    conf = cfg.ConfigOpts()
    conf.register_opt(cfg.StrOpt('word'))
    conf(['--config-file', str(path)], project='x')
    assert conf.word == 'pa$$word'


def test_url_carries_the_version_where_the_catalog_does():
    assert render.url(PORTS, 'keystone') == f'http://127.0.0.1:{PORTS["keystone"]}/v3'
    assert render.url(PORTS, 'api') == f'http://127.0.0.1:{PORTS["api"]}/v2.1'
    assert render.url(PORTS, 'placement') == f'http://127.0.0.1:{PORTS["placement"]}'


def test_kilonova_conf_names_the_broker_the_databases_and_every_alias(layout, tmp_path):
    read = parse(tmp_path, render.kilonova(layout, PORTS, SECRETS))
    assert read['DEFAULT']['transport_url'] == [f'rabbit://kilonova:secret-of-rabbitmq@127.0.0.1:{PORTS["rabbitmq"]}/']
    assert read['database']['connection'] == [f'sqlite:///{layout.var}/data/kilonova/cell1.sqlite']
    assert read['api_database']['connection'] != read['database']['connection']
    names = [json.loads(value)['name'] for value in read['pci']['alias']]
    assert names[0] == 'QuadroM4000-video' and len(names) == len(set(names))
    assert int(read['quota']['cores'][0]) > 20
    assert read['secrets']['key_file'] == [f'{layout.var}/etc/secrets.keys']


def test_what_other_services_keep_is_behind_a_closed_door(layout):
    layout.make_directories()
    assert (layout.var / 'data').stat().st_mode & 0o777 == 0o700


def test_one_process_a_daemon_and_a_health_port_for_each(layout, tmp_path):
    read = parse(tmp_path, render.kilonova(layout, PORTS, SECRETS))
    assert (read['DEFAULT']['osapi_compute_workers'], read['conductor']['workers'], read['scheduler']['workers']) == (
        ['1'],
        ['1'],
        ['1'],
    )
    own = parse(tmp_path, render.compute(layout, PORTS, 'alpha', Path('/alpha.xml'), ''))
    told = [*read['health'].values(), *own['health'].values()]
    assert len({port for (port,) in told}) == 4
    assert own['health']['compute_port'] == [str(PORTS['health-compute-alpha'])]


def test_compute_conf_holds_what_is_the_hosts_own_and_its_settings(layout, tmp_path):
    text = render.compute(layout, PORTS, 'gpu1', Path('/h o/gpu1.xml'), '[pci]\ndevice_spec = {"a": "b"}\n')
    read = parse(tmp_path, text)
    assert read['DEFAULT']['host'] == ['gpu1']
    assert read['DEFAULT']['instances_path'] == [str(layout.var / 'hosts' / 'gpu1' / 'instances')]
    assert read['libvirt']['connection_uri'] == ['test:///h%20o/gpu1.xml']
    assert read['pci'] == {'report_in_placement': ['true'], 'device_spec': ['{"a": "b"}']}


def test_a_hosts_own_setting_wins(layout, tmp_path):
    text = render.compute(
        layout, PORTS, 'gpu1', Path('/gpu1.xml'), '[DEFAULT]\nresume_guests_state_on_host_boot = false\n'
    )
    conf = cfg.ConfigOpts()
    conf.register_opt(cfg.BoolOpt('resume_guests_state_on_host_boot'))
    path = tmp_path / 'x.conf'
    path.write_text(text)
    conf(['--config-file', str(path)], project='x')
    assert conf.resume_guests_state_on_host_boot is False


def test_placement_has_one_process_with_one_thread(layout):
    settings: dict[str, object] = {}
    exec(render.gunicorn(PORTS, 'placement'), settings)
    assert (settings['workers'], settings['worker_class'], settings['threads']) == (1, 'gthread', 1)
    # Its clients wait for nothing when a request is over.
    assert settings['keepalive']
    assert settings['wsgi_app'] == 'placement.wsgi.api:application'


def test_glance_takes_an_image_from_a_client_that_still_reads_another_one():
    settings: dict[str, object] = {}
    exec(render.gunicorn(PORTS, 'glance'), settings)
    assert (settings['workers'], settings['threads']) == (1, 4)
    # The second of two threads waits for SQLite, where it would be refused.
    assert 'post_fork' in settings


def cloud_of(
    layout: Layout, tmp_path: Path, *, cyborg: bool = True, network: bool = True, volume: bool = True
) -> services.Cloud:
    node = tmp_path / 'hosts' / 'alpha.xml'
    node.parent.mkdir(exist_ok=True)
    node.write_text('<node/>')
    return services.Cloud(layout, PORTS, SECRETS, {'alpha': node}, cyborg=cyborg, network=network, volume=volume)


def test_written_files_are_private_and_complete(layout, tmp_path):
    cloud = cloud_of(layout, tmp_path)
    layout.make_directories()
    services.write_configuration(cloud)
    written = [path for path in layout.etc.rglob('*') if path.is_file()] + [layout.clouds]
    assert {path.name for path in written} >= {
        'kilonova.conf',
        'compute-alpha.conf',
        'clouds.yaml',
        'rabbitmq.conf',
        'cyborg.conf',
        'agent-alpha.conf',
        'neutron.conf',
        'cinder.conf',
    }
    assert {path.stat().st_mode & 0o777 for path in written} == {0o600}
    assert layout.instances('alpha').is_dir()


def test_no_secret_on_a_command_line_or_in_an_environment(layout, tmp_path):
    for service in services.table(cloud_of(layout, tmp_path)):
        text = repr((service.argv, dict(service.env)))
        assert 'secret-of-' not in text, service.name


def test_the_configuration_of_a_host_that_went_away_goes_too(layout, tmp_path):
    cloud = cloud_of(layout, tmp_path)
    layout.make_directories()
    stale = layout.compute_conf('gone'), layout.etc / 'cyborg' / 'agent-gone.conf'
    stale[1].parent.mkdir()
    for path in stale:
        path.write_text('')
    services.write_configuration(cloud)
    assert not any(path.exists() for path in stale) and layout.compute_conf('alpha').exists()


def test_a_change_of_the_node_file_makes_that_compute_out_of_date(layout, tmp_path):
    cloud = cloud_of(layout, tmp_path)
    layout.make_directories()
    services.write_configuration(cloud)

    def digests() -> dict[str, str]:
        return {service.name: service.digest for service in services.table(cloud)}

    before = digests()
    cloud.hosts['alpha'].write_text('<node><memory>1</memory></node>')
    after = digests()
    assert {name for name in before if before[name] != after[name]} == {'compute-alpha', 'cyborg-agent-alpha'}


# Each service that a cloud may have: the processes that it adds, and some of its own configuration.
WANTED: dict[str, tuple[str, set[str], Callable[[Any], dict[tuple[str, str], str]]]] = {
    'cyborg': (
        'cyborg',
        {'cyborg', 'cyborg-conductor', 'cyborg-agent-alpha'},
        lambda layout: {
            ('database', 'connection'): f'sqlite:///{layout.var}/data/cyborg/cyborg.sqlite',
            ('placement', 'username'): 'cyborg',
            ('keystone_authtoken', 'username'): 'cyborg',
        },
    ),
    'neutron': (
        'network',
        {'neutron', 'ovn-nb', 'ovn-sb', 'ovn-northd', 'ovn-hosts'},
        lambda layout: {
            ('ovn', 'ovn_sb_connection'): f'unix:{layout.var}/data/neutron/sb.sock',
            ('nova', 'username'): 'neutron',
            ('keystone_authtoken', 'username'): 'neutron',
        },
    ),
    'cinder': (
        'volume',
        {'cinder'},
        lambda layout: {
            ('DEFAULT', 'osapi_volume_listen_port'): str(PORTS['cinder']),
            ('nova', 'username'): 'cinder',
            ('keystone_authtoken', 'username'): 'cinder',
        },
    ),
}


@pytest.mark.parametrize('name', WANTED)
def test_a_service_is_there_where_it_is_wanted(layout, tmp_path, name):
    """Without it neither a process, a file nor a section of kilonova.conf is about it."""
    option, processes, configured = WANTED[name]
    without, there = (cloud_of(layout, tmp_path, **{option: wanted}) for wanted in (False, True))
    before, after = ({service.name for service in services.table(cloud)} for cloud in (without, there))
    assert after - before == processes
    layout.make_directories()
    services.write_configuration(without)
    assert not (layout.etc / name).exists() and f'[{name}]' not in layout.conf.read_text()
    services.write_configuration(there)
    assert f'[{name}]' in layout.conf.read_text()
    read = parse(tmp_path, (layout.etc / name / f'{name}.conf').read_text())
    wanted = configured(layout)
    assert {place: read[place[0]][place[1]] for place in wanted} == {place: [value] for place, value in wanted.items()}


def test_kilonova_asks_cinder_as_itself(layout, tmp_path):
    layout.make_directories()
    services.write_configuration(cloud_of(layout, tmp_path, volume=True))
    assert parse(tmp_path, layout.conf.read_text())['cinder']['username'] == ['kilonova']


def test_extra_configuration_comes_last_for_every_daemon(layout, tmp_path):
    plain = cloud_of(layout, tmp_path)
    cloud = services.Cloud(layout, PORTS, SECRETS, plain.hosts, extra=tmp_path / 'extra.conf')
    for service in services.daemons(cloud):
        files = [service.argv[place + 1] for place, part in enumerate(service.argv) if part == '--config-file']
        assert files[0] == str(layout.conf) and files[-1] == str(tmp_path / 'extra.conf'), service.name


def test_hosts_are_found_by_their_node_files(tmp_path):
    for name in ('b.xml', 'a.xml', 'a.conf', 'notes.txt'):
        (tmp_path / name).write_text('')
    assert list(find_hosts(tmp_path)) == ['a', 'b']
    with pytest.raises(CloudError, match='no host description'):
        find_hosts(layouts.ROOT / 'tools')
    with pytest.raises(CloudError, match='no directory'):
        find_hosts(tmp_path / 'nowhere')


def test_secrets_are_made_once_and_kept_private(layout):
    first = layouts.load_secrets(layout)
    assert layouts.load_secrets(layout) == first
    assert len(set(first.values())) == len(layouts.SECRET_NAMES)
    assert (layout.var / 'secrets.json').stat().st_mode & 0o777 == 0o600
