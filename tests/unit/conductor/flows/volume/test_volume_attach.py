"""A volume that a server does not have any more."""

from __future__ import annotations

import pytest

from kilonova.conductor.flows.volume import volume_attach
from tests.fixtures.cinder import FakeCinder
from tests.unit.conductor.flows.volume.test_volumes import DATA, ROOT, add
from tests.unit.conductor.site import SERVER, Site


def test_the_volume_is_found_by_its_id_and_named_if_it_is_gone(site: Site) -> None:
    site.put('active')
    cinder = FakeCinder()
    add(site, cinder, ROOT)
    wanted = add(site, cinder, DATA)
    site.accept('detach_volume', {'volume_id': wanted})
    assert volume_attach.volume_of(site.work()).device == DATA
    site.update(args='{"volume_id": "gone"}')
    with pytest.raises(volume_attach.VolumeGone, match='gone') as caught:
        volume_attach.volume_of(site.work())
    assert SERVER in str(caught.value)
