"""A scheduler with filters and a weigher of a package that was written for Nova (seed rows 3.18 to 3.21, 3.28)."""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.integration.beside import Beside
from tests.integration.site import Site
from tools.cloud.layout import ROOT

SETTINGS = """
[filter_scheduler]
enabled_filters = ComputeFilter,ComputeCapabilitiesFilter,ImagePropertiesFilter,PciPassthroughFilter,DumpFilter
"""


def install(directory: Path) -> Path:
    """tests/plugins, in a directory of its own; without a network."""
    shutil.copytree(ROOT / 'tests' / 'plugins', directory / 'source')
    subprocess.run([sys.executable, '-m', 'pip', 'install', '-q', '--no-deps', '--no-build-isolation', '--no-index',
                    '--disable-pip-version-check', '--target', directory / 'site', directory / 'source'], check=True)
    return directory / 'site'


def test_a_boot_prints_every_field_and_passes(site: Site, tmp_path: Path) -> None:
    """The package is on the scheduler's path; all else is configuration."""
    path = os.pathsep.join(filter(None, (str(install(tmp_path)), os.environ.get('PYTHONPATH'))))
    site.stop('scheduler')
    try:
        with Beside(site, 'kilonova-scheduler', directory=tmp_path, settings=SETTINGS,
                    env={'PYTHONPATH': path}) as scheduler:
            scheduler.await_log('Filters: ')
            server, = site.boot(1, site.flavor('dumped', gpus=1))
            log = scheduler.log()
            scheduler.terminate()
    finally:
        site.start('scheduler')
    assert 'DumpFilter' in log and 'EmptyRackWeigher' in log
    for line in ('host_state: (gpu1, gpu1) ram: ', 'host_state.free_ram_mb: ', 'host_state.limits: {}',
                 'host_state.service: ', 'host_state.metrics: ', 'host_state.pci_stats: ', 'spec_obj.memory_mb: 512',
                 'spec_obj.vcpus: 1', f'spec_obj.instance_uuid: {server}'):
        assert line in log, line
    assert 'raised' not in log and 'Traceback' not in log
