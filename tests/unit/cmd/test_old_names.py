"""Options work under the names of older guides, and oslo.config logs the current name."""

from __future__ import annotations

from pathlib import Path

import pytest

from kilonova.cmd import options
from kilonova.conf import known
from kilonova.scheduler.plugins import loading as plugins
from kilonova.scheduler.plugins.loading import SchedulerHostFilterNotFound


def test_names_of_older_guides(parse, caplog):
    conf = parse(
        'scheduler_default_filters = ComputeFilter,PciPassthroughFilter',
        'scheduler_max_attempts = 5',
        'scheduler_available_filters = nova.scheduler.filters.all_filters',
        'scheduler_host_subset_size = 2',
        'scheduler_weight_classes = RAMWeigher',
        'ram_weight_multiplier = 2.5',
        'max_io_ops_per_host = 3',
        'quota_cores = 7',
        'quota_server_groups = 8',
        'osapi_max_limit = 9',
        'libvirt_type = qemu',
        'default_notification_level = WARN',
        'glance_num_retries = 4',
        'wsgi_default_pool_size = 6',
        'image_cache_subdirectory_name = cache',
        sections='[libvirt]\ncpu_model = EPYC\n',
    )
    chosen = conf.filter_scheduler
    assert (chosen.enabled_filters, chosen.host_subset_size, chosen.weight_classes, chosen.ram_weight_multiplier) == (
        ['ComputeFilter', 'PciPassthroughFilter'],
        2,
        ['RAMWeigher'],
        2.5,
    )
    assert chosen.available_filters == ['nova.scheduler.filters.all_filters'] and chosen.max_io_ops_per_host == 3
    assert (conf.scheduler.max_attempts, conf.quota.cores, conf.quota.server_groups, conf.api.max_limit) == (5, 7, 8, 9)
    assert (conf.libvirt.virt_type, conf.libvirt.cpu_models) == ('qemu', ['EPYC'])
    assert (conf.notifications.default_level, conf.glance.num_retries, conf.wsgi.default_pool_size) == ('WARN', 4, 6)
    assert conf.image_cache.subdirectory_name == 'cache'
    assert known.unread(conf) == []
    # Each once a process, so one that no other test has.
    assert '"scheduler_max_attempts" from group "DEFAULT"' in caplog.text and '"max_attempts"' in caplog.text


def test_the_name_of_today_wins(parse):
    conf = parse('quota_cores = 7', sections='[quota]\ncores = 3\n')
    assert conf.quota.cores == 3


def test_the_main_database_alone_had_its_name(write_conf):
    """The API's own has come later: a guide's [DEFAULT]sql_connection must not become both."""
    path = write_conf('sql_connection = sqlite:///x')
    text = Path(path).read_text().replace('[api_database]\nconnection', '[api_database]\n#')
    Path(path).write_text(text)
    conf = options.parse(['--config-file', path], 'kilonova-test')
    assert conf.api_database.connection is None


def test_filters_of_older_lists(parse):
    """A list is read under its old name like any other: a filter that isn't there any more stops the start by name."""
    conf = parse('scheduler_default_filters = ComputeFilter,RamFilter')
    with pytest.raises(SchedulerHostFilterNotFound, match='RamFilter'):
        plugins.load_filters(conf)
