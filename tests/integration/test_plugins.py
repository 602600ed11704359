"""A scheduler with filters and a weigher of a package that was written for Nova."""

from __future__ import annotations

from pathlib import Path

from kilonova import objects
from tests.fixtures import environment
from tests.integration.beside import Beside
from tests.integration.site import Site

SETTINGS = """
[filter_scheduler]
enabled_filters = ComputeFilter,ComputeCapabilitiesFilter,ImagePropertiesFilter,PciPassthroughFilter,DumpFilter
"""


def test_a_boot_prints_every_field_and_passes(site: Site, tmp_path: Path) -> None:
    """A filter package written for Nova is installed where the scheduler runs and enabled by configuration alone.
    It prints every field of the host and passes."""
    python = environment.with_plugins(tmp_path)
    site.stop('scheduler')
    try:
        with Beside(
            site, str(python), '-m', 'kilonova.cmd.scheduler', directory=tmp_path, settings=SETTINGS
        ) as scheduler:
            scheduler.await_log('Filters: ')
            (server,) = site.boot(1, site.flavor('dumped', gpus=1))
            log = scheduler.log()
            scheduler.terminate()
    finally:
        site.start('scheduler')
    assert 'DumpFilter' in log and 'EmptyRackWeigher' in log
    for line in (
        'host_state: (gpu1, gpu1) ram: ',
        'host_state.free_ram_mb: ',
        'host_state.limits: {}',
        'host_state.service: ',
        'host_state.metrics: ',
        'host_state.pci_stats: ',
        'spec_obj.memory_mb: 512',
        'spec_obj.vcpus: 1',
        f'spec_obj.instance_uuid: {server}',
    ):
        assert line in log, line
    for what, cls in (('spec_obj', objects.RequestSpec), ('flavor', objects.Flavor)):
        for name in cls.fields:
            assert f'{what}.{name}: ' in log, name
    assert 'raised' not in log and 'Traceback' not in log
