"""A compute that dies at any act on a file or program, and is asked again, or asked to undo."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kilonova.states import PowerState
from kilonova.virt import command
from kilonova.virt.libvirt.storage import ssh
from tests.unit.virt.builders import GPU, GPU2, devices, image_meta, new_flavor, new_instance


class Died(BaseException):
    """Not an Exception: no handler may mistake it for an error that it can deal with."""


class Fuse:
    """Counts acts, and raises Died in place of the one that it is set to."""

    def __init__(self) -> None:
        self.left: int | None = None

    def wrap(self, func: Callable[..., Any]) -> Callable[..., Any]:
        def act(*args: Any, **kwargs: Any) -> Any:
            if self.left is not None:
                if self.left == 0:
                    self.left = None
                    raise Died
                self.left -= 1
            return func(*args, **kwargs)

        return act


@pytest.fixture
def fuse(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fuse]:
    fuse = Fuse()
    for module, names in (
        (os, ('rename', 'replace', 'makedirs', 'symlink')),
        (shutil, ('rmtree',)),
        (command, ('run', 'watched')),
        (ssh.Remote, ('_once', '_block')),
    ):
        for name in names:
            monkeypatch.setattr(module, name, fuse.wrap(getattr(module, name)))
    yield fuse
    fuse.left = None


def crash_everywhere(fuse: Fuse, work: Callable[[int], tuple[Callable[[], Any], Callable[[], None]]]) -> int:
    """For each act of ``work``'s call in turn: die there, then let its check look; how many acts there are."""
    for number in itertools.count():
        call, check = work(number)
        fuse.left = number
        try:
            call()
        except Died:
            check()
            continue
        fuse.left = None
        return number
    raise AssertionError('unreachable')


def built(rig: Any, number: int) -> Any:
    instance = new_instance(id=number + 1)
    rig.here.guests.spawn(instance, image_meta(), pci_devices=devices(GPU))
    rig.write('gpu1', instance.uuid)
    return instance


def only(host: Any, uuid: str) -> list[str]:
    return [name for name in host.disks.list_directories() if name.startswith(uuid)]


def running(host: Any, instance: Any) -> list[str]:
    """Devices of the running guest."""
    assert host.guests.get_info(instance) == PowerState.RUNNING
    return next(domain['hostdevs'] for domain in host.guests.describe() if domain['uuid'] == instance.uuid)


def test_spawn_again_after_a_crash(libvirt_rig: Any, fuse: Fuse) -> None:
    here = libvirt_rig.here

    def work(number: int) -> Any:
        instance = new_instance(id=number + 1)

        def spawn() -> None:
            here.guests.spawn(instance, image_meta(), pci_devices=devices(GPU))

        def check() -> None:
            spawn()
            assert running(here, instance) == [GPU]
            assert libvirt_rig.file('gpu1', instance.uuid, 'libvirt.xml').exists()

        return spawn, check

    assert crash_everywhere(fuse, work) > 3


# To itself, to another host of the machine, to one that uses the same storage, to another machine.
NEAR = [('libvirt_rig', True), ('libvirt_rig', False), ('shared_rig', False)]
WHERE = pytest.mark.parametrize(('rig_name', 'same_host'), [*NEAR, ('remote_rig', False)])


@WHERE
def test_move_again_after_a_crash(request: pytest.FixtureRequest, fuse: Fuse, rig_name: str, same_host: bool) -> None:
    libvirt_rig = request.getfixturevalue(rig_name)
    here, target = libvirt_rig.here, libvirt_rig.here if same_host else libvirt_rig.there

    def work(number: int) -> Any:
        instance, dest, flavor = built(libvirt_rig, number), target.moves.prepare_move(), new_flavor(root_gb=2)

        def move() -> Any:
            return here.moves.migrate_disk_and_power_off(instance, dest, flavor)

        def check() -> None:
            disk_info = move()
            instance.flavor = flavor
            target.moves.finish_migration(instance, image_meta(), devices(GPU2), True, disk_info)
            assert running(target, instance) == [GPU2]
            assert libvirt_rig.kept('gpu1' if same_host else 'gpu2', instance.uuid)
            assert f'{instance.uuid}_resize' in here.disks.list_directories()

        return move, check

    assert crash_everywhere(fuse, work) > 5


@WHERE
def test_move_undone_after_a_crash(request: pytest.FixtureRequest, fuse: Fuse, rig_name: str, same_host: bool) -> None:
    libvirt_rig = request.getfixturevalue(rig_name)
    here, target = libvirt_rig.here, libvirt_rig.here if same_host else libvirt_rig.there

    def work(number: int) -> Any:
        instance, dest = built(libvirt_rig, number), target.moves.prepare_move()

        def check() -> None:
            target.moves.cleanup_move_dest(instance, same_host)
            here.moves.finish_revert_migration(instance, image_meta(), devices(GPU), True)
            assert running(here, instance) == [GPU]
            assert libvirt_rig.kept('gpu1', instance.uuid)
            assert only(here, instance.uuid) == [instance.uuid]
            assert same_host or only(target, instance.uuid) == []

        return lambda: here.moves.migrate_disk_and_power_off(instance, dest, new_flavor(root_gb=2)), check

    assert crash_everywhere(fuse, work) > 5


@pytest.mark.parametrize(('rig_name', 'same_host'), NEAR)
def test_finish_undone_after_a_crash(
    request: pytest.FixtureRequest, fuse: Fuse, rig_name: str, same_host: bool
) -> None:
    libvirt_rig = request.getfixturevalue(rig_name)
    here, target = libvirt_rig.here, libvirt_rig.here if same_host else libvirt_rig.there

    def work(number: int) -> Any:
        instance, flavor = built(libvirt_rig, number), new_flavor(root_gb=2)
        old = instance.flavor
        disk_info = here.moves.migrate_disk_and_power_off(instance, target.moves.prepare_move(), flavor)
        instance.flavor = flavor

        def check() -> None:
            target.moves.cleanup_move_dest(instance, same_host)
            instance.flavor = old
            here.moves.finish_revert_migration(instance, image_meta(), devices(GPU), True)
            assert running(here, instance) == [GPU]
            assert libvirt_rig.kept('gpu1', instance.uuid)
            assert only(here, instance.uuid) == [instance.uuid]

        return lambda: target.moves.finish_migration(instance, image_meta(), devices(GPU2), True, disk_info), check

    assert crash_everywhere(fuse, work) > 1


@pytest.mark.parametrize(('rig_name', 'same_host'), NEAR)
def test_revert_again_after_a_crash(request: pytest.FixtureRequest, fuse: Fuse, rig_name: str, same_host: bool) -> None:
    libvirt_rig = request.getfixturevalue(rig_name)
    here, target = libvirt_rig.here, libvirt_rig.here if same_host else libvirt_rig.there

    def work(number: int) -> Any:
        instance, flavor = built(libvirt_rig, number), new_flavor(root_gb=2)
        old = instance.flavor
        disk_info = here.moves.migrate_disk_and_power_off(instance, target.moves.prepare_move(), flavor)
        instance.flavor = flavor
        target.moves.finish_migration(instance, image_meta(), devices(GPU2), True, disk_info)

        def revert() -> None:
            target.moves.cleanup_move_dest(instance, same_host)
            instance.flavor = old
            here.moves.finish_revert_migration(instance, image_meta(), devices(GPU), True)

        def check() -> None:
            revert()
            assert running(here, instance) == [GPU]
            assert libvirt_rig.kept('gpu1', instance.uuid)
            assert [name for name in only(here, instance.uuid) if not name.endswith('_del')] == [instance.uuid]
            assert [name for name in only(target, instance.uuid) if name.endswith('_resize')] == []

        return revert, check

    assert crash_everywhere(fuse, work) > 3


@pytest.mark.parametrize(('rig_name', 'same_host'), NEAR)
def test_confirm_again_after_a_crash(
    request: pytest.FixtureRequest, fuse: Fuse, rig_name: str, same_host: bool
) -> None:
    libvirt_rig = request.getfixturevalue(rig_name)
    here, target = libvirt_rig.here, libvirt_rig.here if same_host else libvirt_rig.there

    def work(number: int) -> Any:
        instance, flavor = built(libvirt_rig, number), new_flavor(root_gb=2)
        disk_info = here.moves.migrate_disk_and_power_off(instance, target.moves.prepare_move(), flavor)
        instance.flavor = flavor
        target.moves.finish_migration(instance, image_meta(), devices(GPU2), True, disk_info)

        def check() -> None:
            here.moves.confirm_migration(instance, same_host)
            assert running(target, instance) == [GPU2]
            assert libvirt_rig.kept('gpu1' if same_host else 'gpu2', instance.uuid)
            assert only(here, instance.uuid) == ([instance.uuid] if same_host else [])

        return lambda: here.moves.confirm_migration(instance, same_host), check

    assert crash_everywhere(fuse, work) > 1


def test_destroy_again_after_a_crash(libvirt_rig: Any, fuse: Fuse) -> None:
    here = libvirt_rig.here

    def work(number: int) -> Any:
        instance = built(libvirt_rig, number)

        def check() -> None:
            here.guests.destroy(instance)
            assert here.guests.list_instance_uuids() == [] and here.disks.list_directories() == []

        return lambda: here.guests.destroy(instance), check

    assert crash_everywhere(fuse, work) > 1
