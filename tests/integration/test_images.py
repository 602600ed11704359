"""An image of a server goes to the real image service and comes back as another server."""

from __future__ import annotations

from tests.integration.site import Site
from tools.cloud import http


def test_an_image_of_a_server_boots(site: Site) -> None:
    """Its user owns it; the daemons' own account sent the data."""
    gpu = site.flavor('image-gpu', gpus=1)
    (server,) = site.boot(1, gpu)
    reply = site.action(server, 'createImage', {'name': 'taken', 'metadata': {'purpose': 'test'}}, user='demo')
    assert reply.status == 202, reply.body
    image = reply.data['image_id']
    (shown,) = site.settle([server]).values()
    assert (shown['status'], shown['OS-EXT-STS:power_state']) == ('ACTIVE', 1)
    url, token = f'{site.url("glance")}/v2/images/{image}', site.token('demo')
    try:
        record = http.call('GET', url, token=token).data
        assert {
            name: record[name]
            for name in (
                'status',
                'name',
                'visibility',
                'disk_format',
                'image_type',
                'instance_uuid',
                'purpose',
                'min_disk',
            )
        } == {
            'status': 'active',
            'name': 'taken',
            'visibility': 'private',
            'disk_format': 'qcow2',
            'image_type': 'snapshot',
            'instance_uuid': server,
            'purpose': 'test',
            'min_disk': 1,
        }
        assert record['owner'] == shown['tenant_id'] and record['size'] > 0
        other = site.create('of-the-image', gpu, imageRef=image)
        (booted,) = site.settle([other]).values()
        assert booted['status'] == 'ACTIVE', site.tell({other: booted})
        site.audit()
    finally:
        http.send('DELETE', url, headers={'X-Auth-Token': token})
    site.clean()
    site.assert_nothing_held()
