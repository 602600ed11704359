"""The nested machine of make test-vfio: what is said where it can't be had, and that make test has nothing of it."""

from __future__ import annotations

import re

import pytest

from tools import testrun
from tools.cloud.layout import CloudError
from tools.vfio import image, machine, vgpu


def test_what_is_not_installed_is_named_by_its_package(tmp_path, monkeypatch):
    lacking = {'debootstrap', 'cpio'}
    monkeypatch.setattr(image.shutil, 'which', lambda name, path: None if name in lacking else f'/usr/bin/{name}')
    monkeypatch.setattr(image, '_headers', list)
    monkeypatch.setattr(image, 'BUSYBOX', tmp_path / 'busybox')
    with pytest.raises(CloudError, match='lacks busybox-static, cpio, debootstrap, linux-headers-amd64; make'):
        image.build(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_it_needs_root_memory_and_an_iommu(monkeypatch):
    monkeypatch.setattr(image.shutil, 'which', lambda name, path: name)
    monkeypatch.setattr(image, '_headers', lambda: ['6.1.0-1-amd64'])
    monkeypatch.setattr(image, 'BUSYBOX', image.OURS)
    monkeypatch.setattr(image.os, 'geteuid', lambda: 1000)
    with pytest.raises(CloudError, match='by root'):
        image.check_programs()
    monkeypatch.setattr(machine, 'FREE', 1 << 40)
    with pytest.raises(CloudError, match=r'needs \d+ MiB of memory, \d+ MiB are free'):
        machine.check_memory()
    assert machine.lacking('NESTED-LACKS /dev/kvm\r\n[1.2] x\r\nNESTED-LACKS an IOMMU\r\nNESTED-READY 2\r\n') == [
        '/dev/kvm',
        'an IOMMU',
    ]


def test_the_module_is_made_of_one_kernels_sample_only():
    with pytest.raises(CloudError, match=re.escape("lacks 'static struct mtty_type {'")):
        vgpu.source('int main;')


def test_make_test_has_nothing_of_it():
    assert 'vfio' in testrun.EXTRA and 'vfio' not in testrun.PARTS
    assert not [run for runs in testrun.PARTS.values() for run in runs if 'tests/vfio' in run.paths]
