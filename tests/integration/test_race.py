"""Fifty creates at once against eight GPUs."""

from __future__ import annotations

from collections import Counter

from tests.integration.site import GPUS, Site


def test_fifty_creates_race_for_eight_gpus(site: Site) -> None:
    """Exactly eight win, each with a device of its own; the others say why; everything is given back."""
    flavor = site.flavor('race', gpus=1)
    servers = site.at_once(lambda number: site.create(f'race-{number}', flavor), range(50), threads=50)
    shown = site.settle(servers, within=120)
    print(Counter(row['status'] for row in shown.values()))
    assert Counter(row['status'] for row in shown.values()) == {'ACTIVE': GPUS, 'ERROR': 50 - GPUS}
    for row in shown.values():
        if row['status'] == 'ERROR':
            assert row['fault']['code'] == 500
            assert row['fault']['message'].startswith('No valid host was found.')
    winners = {name: row['OS-EXT-SRV-ATTR:host'] for name, row in shown.items() if row['status'] == 'ACTIVE'}
    used = [(host, address) for name, host in winners.items() for address in site.hostdevs(host, name)]
    assert len(used) == len(set(used)) == GPUS
    owned = {
        (row['host'], row['address']): row['instance_uuid'] for row in site.devices() if row['status'] == 'allocated'
    }
    assert owned == {(host, address): name for name, host in winners.items() for address in site.hostdevs(host, name)}
    site.audit()
    site.clean()
    site.assert_nothing_held()


def test_four_resizes_race_for_four_gpus(site: Site) -> None:
    """All servers of gpu1 move to gpu2 at once: each finds a device, whoever was quicker at the first choice."""
    servers = site.boot(4, site.flavor('race', gpus=1), user='admin', host='gpu1')
    larger = site.flavor('race-large', gpus=1, vcpus=2, ram=1024)
    site.at_once(lambda name: site.act(name, 'resize', {'flavorRef': larger}), servers)
    shown = site.settle(servers)
    assert {(row['status'], row['OS-EXT-SRV-ATTR:host']) for row in shown.values()} == {('VERIFY_RESIZE', 'gpu2')}, (
        site.tell(shown)
    )
    assert len({site.hostdevs('gpu2', name) for name in servers}) == 4
    site.audit()


def test_the_last_free_gpu_is_disabled(site: Site) -> None:
    """By the command, over the broker: all fifty fail but those for whom there is a device that may be given out."""
    (address, *_) = [row['address'] for row in site.devices() if row['host'] == 'gpu1' and row['product_id'] == '13f1']
    done = site.manage('device', 'disable', 'gpu1', address, '--reason', 'ECC errors')
    assert (done.returncode, done.stdout) == (0, f'gpu1 {address} is disabled, status unavailable\n')
    flavor = site.flavor('race', gpus=1)
    shown = site.settle(site.at_once(lambda number: site.create(f'race-{number}', flavor), range(GPUS), threads=GPUS))
    assert Counter(row['status'] for row in shown.values()) == {'ACTIVE': GPUS - 1, 'ERROR': 1}
    assert {row['address']: row['instance_uuid'] for row in site.devices() if row['host'] == 'gpu1'}[address] is None
    site.audit()
    site.clean()
    done = site.manage('device', 'enable', 'gpu1', address)
    assert (done.returncode, done.stdout) == (0, f'gpu1 {address} is enabled, status available\n')
    site.assert_nothing_held()
