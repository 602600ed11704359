from __future__ import annotations

import pytest

from kilonova.cmd import options
from kilonova.conf import known


def test_bad_configuration_is_told_and_ends_the_program(write_conf):
    with pytest.raises(SystemExit, match=r'kilonova-x: .*report_interval'):
        options.parse(['--config-file', write_conf('report_interval = soon')], 'kilonova-x')
    with pytest.raises(SystemExit, match='kilonova-x: '):
        options.parse(['--config-file', '/nowhere/k.conf'], 'kilonova-x')


def test_options_that_nobody_reads(parse, caplog):
    conf = parse(
        'scheduler_driver = x',
        'compute-driver = fake.FakeDriver',
        'rpc_response_timeout = 3',
        'debug = true',
        'pci_alias = {}',
        sections='[neutron]\nurl = x\n[pci]\npassthrough_whitelist = {}\nalais = {}\n'
        '[keystone_authtoken]\nauth_type = password\nusername = u\nwww_authenticate_uri = x\nwww = x\n'
        '[oslo_messaging_rabbit]\nrpc_conn_pool_size = 3\n[oslo_policy]\npolicy_file = x\n',
    )
    options.warn_unread(conf)
    warnings = [record.getMessage() for record in caplog.records if record.name == options.__name__]
    (warning,) = warnings
    assert warning == (
        'The configuration files set options that Kilonova does not read: [DEFAULT]scheduler_driver, '
        '[keystone_authtoken]www, [neutron]url, [pci]alais'
    )


def test_options_of_directories_count(write_conf, tmp_path):
    """Files of --config-dir are read, and options in them that nobody reads are reported."""
    folder = tmp_path / 'd'
    folder.mkdir()
    (folder / 'more.conf').write_text('[libvirt]\nvirt_typ = kvm\n')
    conf = options.parse(['--config-file', write_conf(), '--config-dir', str(folder)], 'kilonova-test')
    assert known.unread(conf) == [('libvirt', 'virt_typ')]


@pytest.mark.parametrize(
    ('program', 'file', 'setting', 'named'),
    [
        ('api', 'api-paste.ini', '', '{beside}/api-paste.ini'),
        ('api', 'own.ini', '[wsgi]\napi_paste_config = own.ini\n', '{beside}/own.ini'),
        ('api', 'own.ini', '[wsgi]\napi_paste_config = {beside}/own.ini\n', '{beside}/own.ini'),
        ('api', 'own.ini', '[DEFAULT]\napi_paste_config = /nowhere/p.ini\n', '/nowhere/p.ini'),
        ('api', 'own.ini', '', None),
        ('compute', 'api-paste.ini', '', None),
    ],
)
def test_a_paste_file_is_named_as_it_is_passed_over(write_conf, tmp_path, caplog, program, file, setting, named):
    """An api-paste.ini is not read. The API alone logs one WARNING about it."""
    beside = tmp_path / 'beside'
    beside.mkdir()
    (beside / file).write_text('[composite:osapi_compute]\n')
    more = beside / 'nova.conf'
    more.write_text(setting.format(beside=beside))
    conf = options.parse(['--config-file', write_conf(), '--config-file', str(more)], f'kilonova-{program}')
    options.warn_unread(conf)
    told = [record.getMessage() for record in caplog.records if record.name == options.__name__]
    assert [line.partition(' is ignored')[0] for line in told] == ([named.format(beside=beside)] if named else [])


def test_nothing_to_warn_of(parse, caplog):
    options.warn_unread(parse())
    assert 'Kilonova does not read' not in caplog.text


def test_service_down_time_that_no_service_would_keep(parse, caplog):
    conf = parse('report_interval = 10', 'service_down_time = 25')
    options.check_intervals(conf)
    assert conf.service_down_time == 26
    assert 'must be less than service down time. Current config: <service_down_time: 25, ' in caplog.text
    conf = parse('report_interval = 10', 'service_down_time = 26')
    options.check_intervals(conf)
    assert conf.service_down_time == 26


@pytest.mark.parametrize(('value', 'cap'), [('', None), ('auto', None), ('6.12', '6.12')])
def test_version_caps(parse, value, cap):
    assert options.cap(parse(sections=f'[upgrade_levels]\ncompute = {value}'), 'compute') == cap


def test_version_cap_that_is_no_version(parse):
    with pytest.raises(options.cfg.Error, match=r"\[upgrade_levels\]compute is 'soon'"):
        options.cap(parse(sections='[upgrade_levels]\ncompute = soon'), 'compute')


def test_sections_of_enabled_mdev_types(parse):
    """Under their older names, too; those of types that aren't enabled are read by nobody."""
    conf = parse(
        sections='[devices]\nenabled_vgpu_types = nvidia-35,nvidia-36\n'
        '[mdev_nvidia-35]\nmax_instances = 2\nmax_instance = 3\n'
        '[vgpu_nvidia-36]\ndevice_addresses = 0000:84:00.0\n[mdev_nvidia-37]\nmdev_class = VGPU\n'
    )
    assert (conf['mdev_nvidia-35'].max_instances, conf['mdev_nvidia-36'].device_addresses) == (2, ['0000:84:00.0'])
    assert known.unread(conf) == [('mdev_nvidia-35', 'max_instance'), ('mdev_nvidia-37', 'mdev_class')]


@pytest.mark.parametrize(
    ('option', 'value'),
    [('mdev_class', 'GPU'), ('mdev_class', 'CUSTOM_a'), ('mdev_class', f'CUSTOM_{"A" * 256}'), ('max_instances', '0')],
)
def test_bad_values_of_an_mdev_type_end_the_program(parse, option, value):
    with pytest.raises(SystemExit, match=rf'option {option} from .*(not valid)'):
        parse(sections=f'[devices]\nenabled_mdev_types = a\n[mdev_a]\n{option} = {value}\n')


def test_every_option_has_help():
    bare = [f'[{group}]{opt.name}' for group, opts in options.kilonova.conf.list_opts() for opt in opts if not opt.help]
    assert bare == []


def test_no_option_is_registered_twice():
    names = [(group, opt.dest) for group, opts in options.kilonova.conf.list_opts() for opt in opts]
    assert sorted(names) == sorted(set(names))


def test_what_schedulers_weigh_by_may_change_while_they_run(write_conf):
    """What is read at each choice is marked mutable; what is read once is not taken over, and the log says so."""
    from kilonova.scheduler.weighers.amounts import RAMWeigher

    path = write_conf()
    conf = options.parse(['--config-file', path], 'kilonova-test')
    weigher = RAMWeigher()
    weigher.conf = conf
    assert (weigher.configured_multiplier(), conf.scheduler.max_attempts) == (1.0, 3)
    write_conf(
        sections='[filter_scheduler]\nram_weight_multiplier = -2.5\nhost_subset_size = 4\n'
        '[scheduler]\nmax_attempts = 7\n'
    )
    assert options.reload(conf)
    assert (weigher.configured_multiplier(), conf.filter_scheduler.host_subset_size) == (-2.5, 4)
    assert conf.scheduler.max_attempts == 3
    write_conf(sections='[filter_scheduler]\nram_weight_multiplier = much\n')
    assert not options.reload(conf)
    assert weigher.configured_multiplier() == -2.5
