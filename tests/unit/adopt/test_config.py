"""nova.conf becomes kilonova.conf: each option is taken, renamed or without effect; a problem prevents the file."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from oslo_config import cfg

from kilonova.adopt import config, nova_options
from kilonova.cmd import options
from kilonova.conf import known

NOVA = {
    'DEFAULT': ['transport_url = rabbit://nova:s3cret@ctl:5672/', 'state_path = /var/lib/nova'],
    'database': ['connection = mysql+pymysql://nova:s3cret@db/nova'],
    'api_database': ['connection = mysql+pymysql://nova:s3cret@db/nova_api'],
}
OWN = {
    'DEFAULT': ['transport_url = rabbit://kn:s3cret@ctl:5672/kilonova'],
    'database': ['connection = mysql+pymysql://kn:s3cret@db/kn'],
    'api_database': ['connection = mysql+pymysql://kn:s3cret@db/kn_api'],
}
Sections = dict[str, list[str]]


def text_of(*files: Sections) -> str:
    sections: Sections = {}
    for file in files:
        for section, lines in file.items():
            sections.setdefault(section, []).extend(lines)
    return ''.join(f'[{section}]\n' + '\n'.join(lines) + '\n' for section, lines in sections.items())


@pytest.fixture
def translate(tmp_path) -> Callable[..., config.Translation]:
    """Translate the usual nova.conf with some more sections; ``own`` are more sections of the operator's own file."""

    def translate(
        more: Sections, own: Sections | None = None, left_out: frozenset = frozenset(), nova: Sections = NOVA
    ):
        (tmp_path / 'nova.conf').write_text(text_of(nova, more))
        (tmp_path / 'own.conf').write_text(text_of(OWN, own or {}))
        return config.translate(
            config.ConfigRequest([tmp_path / 'nova.conf'], tmp_path / 'own.conf', left_out), options.new
        )

    return translate


def read(translation: config.Translation, path: Path) -> cfg.ConfigOpts:
    """Return the configuration of the daemons that start with the file of this translation."""
    assert translation.problems == []
    config.write(translation, path, 'test')
    conf = options.parse(['--config-file', str(path)], 'kilonova-test')
    assert known.unread(conf) == []
    return conf


def test_options_of_the_same_name_keep_their_values(translate, tmp_path):
    alias = ['{"name": "h100", "product_id": "2330", "vendor_id": "10de"}', '{"name": "a100", "product_id": "20b5"}']
    found = translate(
        {
            'pci': [f'alias = {one}' for one in alias],
            'libvirt': ['cpu_models = EPYC,\n   Skylake-Server', 'virt-type = qemu'],
            'devices': ['enabled_mdev_types = nvidia-35'],
            'mdev_nvidia-35': ['device_addresses = 0000:84:00.0'],
            'keystone_authtoken': ['auth_type = password', 'password = a$$b', "username = ' nova'"],
        }
    )
    conf = read(found, tmp_path / 'k.conf')
    assert conf.pci.alias == alias
    assert (conf.libvirt.cpu_models, conf.libvirt.virt_type) == (['EPYC', 'Skylake-Server'], 'qemu')
    assert conf.state_path == '/var/lib/nova'
    values = known.in_file(tmp_path / 'k.conf')
    assert values['keystone_authtoken', 'password'] == ['a$$b']
    assert values['keystone_authtoken', 'username'] == [' nova']
    assert values['mdev_nvidia-35', 'device_addresses'] == ['0000:84:00.0']


def test_databases_and_broker_are_those_of_the_own_file(translate, tmp_path):
    conf = read(translate({}, {'libvirt': ['virt_type = qemu']}), tmp_path / 'k.conf')
    assert conf.database.connection == 'mysql+pymysql://kn:s3cret@db/kn'
    assert conf.api_database.connection == 'mysql+pymysql://kn:s3cret@db/kn_api'
    assert conf.libvirt.virt_type == 'qemu'


def test_the_own_file_has_priority_under_any_name(translate, tmp_path):
    found = translate({'DEFAULT': ['quota_cores = 7']}, {'quota': ['cores = 3']})
    assert read(found, tmp_path / 'k.conf').quota.cores == 3
    assert found.without_effect == [(('DEFAULT', 'quota_cores'), 'the own file sets [quota]cores')]


@pytest.mark.parametrize(
    ('former', 'value', 'current'),
    [
        # Kilonova reads the former name itself; the second one only Nova reads.
        (('DEFAULT', 'quota_cores'), '7', ('quota', 'cores')),
        (('DEFAULT', 'osapi_max_limit'), '70', ('api', 'max_limit')),
        (('libvirt', 'iscsi_use_multipath'), 'True', ('libvirt', 'volume_use_multipath')),
    ],
)
def test_an_option_under_a_former_name_gets_its_current_name(translate, former, value, current):
    found = translate({former[0]: [f'{former[1]} = {value}']})
    assert found.problems == [] and found.renamed == [(former, current)]
    assert config.OptionLine(current, (value,), f'in Nova: {config.shown(former)}') in found.written


def test_the_current_name_has_priority_over_the_former(translate, tmp_path):
    found = translate({'DEFAULT': ['quota_cores = 7'], 'quota': ['cores = 3']})
    assert read(found, tmp_path / 'k.conf').quota.cores == 3
    assert found.renamed == []


def test_an_option_that_kilonova_lacks_is_listed_with_what_happens_instead(translate, tmp_path):
    found = translate(
        {
            'libvirt': ['inject_password = True'],
            'service_user': ['password = s3cret'],
            'DEFAULT': ['reboot_timeout = 0', 'sync_power_state_pool_size = 9'],
            'upgrade_levels': ['compute = 2026.1'],
        }
    )
    reasons = dict(found.without_effect)
    assert reasons['libvirt', 'inject_password'] == 'no passwords are written into the disks of guests'
    assert 'service token' in reasons['service_user', 'password']
    assert reasons['DEFAULT', 'reboot_timeout'] == "has Nova's default"
    assert reasons['DEFAULT', 'sync_power_state_pool_size'] == 'has no counterpart'
    assert 'mean nothing here' in reasons['upgrade_levels', 'compute']
    read(found, tmp_path / 'k.conf')
    assert '#   [libvirt]inject_password: no passwords' in (tmp_path / 'k.conf').read_text()
    assert (tmp_path / 'k.conf').read_text().count('s3cret') == 3


@pytest.mark.parametrize(
    ('more', 'own', 'problem'),
    [
        ({'libvirt': ['virt_typ = kvm']}, {}, r'\[libvirt\]virt_typ in .*nova.conf .*did you mean .*virt_type\?'),
        ({'DEFAULT': ['virt_type = kvm']}, {}, r'\[DEFAULT\]virt_type .*the name exists as \[libvirt\]virt_type'),
        ({'acme': ['colour = x']}, {}, r"\[acme\]colour .*--leave-out '\[acme\]colour'"),
        ({}, {'libvirt': ['virt_typ = kvm']}, r'\[libvirt\]virt_typ in .*own.conf'),
        ({'libvirt': ['rbd_connect_timeout = 5000']}, {}, r'rbd_connect_timeout.*5000'),
        ({'libvirt': ['images_type = lvm']}, {}, r'images_type is lvm: computes start with default, qcow2'),
        ({'cinder': ['cross_az_attach = False']}, {}, r'cross_az_attach is False: only True'),
        ({'DEFAULT': ['compute_driver = ironic.IronicDriver']}, {}, r'compute_driver .*the drivers .*libvirt'),
        ({'DEFAULT': ['my_block_storage_ip = $my_ipp']}, {}, r'my_block_storage_ip .*\$my_ipp'),
        ({'filter_scheduler': ['enabled_filters = AcmeFilter']}, {}, r'AcmeFilter could not be found'),
        ({'filter_scheduler': ['weight_classes = acme.weigh.Mine']}, {}, r'acme.weigh.Mine .*cannot be loaded'),
        ({}, {'database': ['connection = mysql+pymysql://kn:x@db/nova']}, r'\[database\]connection .*database of Nova'),
        ({}, {'database': ['connection = mysql+pymysql://kn:x@db/nova_api']}, r'connection .*database of Nova'),
        ({}, {'database': ['connection = mysql+pymysql://kn:x@db:3306/nova']}, r'connection .*database of Nova'),
        ({}, {'database': ['connection = mysql+pymysql://kn:x@db:port/kn']}, r'\[database\]connection is not the URL'),
        ({}, {'DEFAULT': ['transport_url = rabbit://kn:x@ctl:5672/']}, r'transport_url .*broker of Nova.*virtual host'),
        ({}, {'database': ['connection = nonsense']}, r'\[database\]connection is not the URL of a database'),
    ],
)  # fmt: skip
def test_a_mistake_is_a_problem_that_names_it(translate, more, own, problem):
    (found,) = translate(more, own).problems
    assert re.search(problem, found), found
    assert 's3cret' not in found


def test_a_password_that_is_a_problem_is_not_shown(translate):
    (found,) = translate({'keystone_authtoken': ['auth_type = password', 'password = s3cret$x']}).problems
    assert found.startswith('[keystone_authtoken]password is a value that is not shown here: there is no option x')
    assert 's3cret' not in found


def test_an_option_that_is_given_up_is_no_problem(translate, tmp_path):
    found = translate({'acme': ['colour = x']}, left_out=frozenset({('acme', 'colour')}))
    read(found, tmp_path / 'k.conf')
    assert found.without_effect == [(('acme', 'colour'), 'left out as asked for')]


def test_an_option_that_is_not_there_cannot_be_given_up(translate):
    found = translate({}, left_out=frozenset({('acme', 'colour')}))
    assert found.problems == ['[acme]colour cannot be left out: none of the files of Nova sets it']


def test_databases_broker_and_state_path_are_needed(tmp_path):
    (tmp_path / 'nova.conf').write_text('[DEFAULT]\nmy_ip = 10.0.0.1\n')
    found = config.translate(config.ConfigRequest([tmp_path / 'nova.conf']), options.new).problems
    assert [text for text in found if text.startswith('Set ')] == [
        "Set [DEFAULT]transport_url in the file of --own: Kilonova needs a broker beside Nova's",
        "Set [database]connection in the file of --own: Kilonova needs a database beside Nova's",
        "Set [api_database]connection in the file of --own: Kilonova needs a database beside Nova's",
    ]
    assert '[DEFAULT]state_path' in found[3] and 'nova-dist.conf' in found[3] and len(found) == 4


def test_notifications_go_where_their_readers_listen(translate, tmp_path):
    found = translate({'oslo_messaging_notifications': ['driver = messagingv2']})
    read(found, tmp_path / 'k.conf')
    assert known.in_file(tmp_path / 'k.conf')['oslo_messaging_notifications', 'transport_url'] == [
        'rabbit://nova:s3cret@ctl:5672/'
    ]
    silent = translate({'oslo_messaging_notifications': ['driver = noop']})
    assert not [one for one in silent.written if one.name == config.NOTIFICATION_BROKER]


def test_later_files_override_and_lists_add_up(tmp_path):
    (tmp_path / 'd').mkdir()
    (tmp_path / 'd' / '1.conf').write_text(
        text_of(NOVA, {'DEFAULT': ['my_ip = 10.0.0.1'], 'pci': ['alias = {"name": "a"}']})
    )
    (tmp_path / 'd' / '2.conf').write_text('[DEFAULT]\nmy_ip = 10.0.0.2\n[pci]\nalias = {"name": "b"}\n')
    (tmp_path / 'own.conf').write_text(text_of(OWN))
    found = config.translate(config.ConfigRequest([tmp_path / 'd'], tmp_path / 'own.conf'), options.new)
    values = {one.name: one.values for one in found.written}
    assert values['DEFAULT', 'my_ip'] == ('10.0.0.2',)
    assert values['pci', 'alias'] == ('{"name": "a"}', '{"name": "b"}')


def test_other_defaults_are_listed_unless_the_option_is_set(translate):
    found = translate({'glance': ['timeout = 5']}).defaults
    names = [name for name, _, _ in found]
    assert ('neutron', 'timeout') in names and ('glance', 'timeout') not in names
    assert (('filter_scheduler', 'enabled_filters')) in names
    assert not [name for name in names if name in config.OWN_DEFAULTS]


def test_losses_are_of_options_that_kilonova_does_not_read():
    """An option that Kilonova has by now is not listed as lost."""
    conf = options.parse([], 'kilonova-test')
    read_here = {*known.options(conf), *known.former_names(conf)}
    assert not read_here & set(nova_options.LOSSES)
    assert set(nova_options.LOSSES) <= set(nova_options.known())
    sections = {section for section, _ in nova_options.known()}
    assert set(nova_options.SECTIONS) <= {*sections, *nova_options.PRIVILEGED}


@pytest.mark.parametrize('section', ['privsep', 'nova_sys_admin', 'privsep_osbrick', 'vif_plug_ovs_privileged'])
def test_helpers_that_run_as_root_are_known(translate, section):
    assert translate({section: ['helper_command = sudo nova-rootwrap', 'user = nova']}).problems == []
    assert 'neither Nova nor Kilonova' in translate({section: ['helper_comand = x']}).problems[0]


def test_the_helper_of_nova_has_no_counterpart(translate):
    found = dict(translate({'nova_sys_admin': ['helper_command = sudo nova-rootwrap']}).without_effect)
    assert found['nova_sys_admin', 'helper_command'] == (
        'commands run with the rights of the daemon, without a helper process'
    )
