"""Rescue a server: start it from another image, with its own disks beside it."""
from __future__ import annotations

from kilonova.api.services import accept, images, passwords
from kilonova.api.services.accept import Found
from kilonova.api.services.backend import Backend
from kilonova.context import RequestContext

EVENT = 'rescue.start'


def rescue(backend: Backend, ctxt: RequestContext, server: Found, image_ref: str | None,
           given: str | None) -> str | None:
    """The password that the rescue system's administrator has: the ``given`` one, or a new one; None: there are no keys
    to send one with.

    ``image_ref`` None: the host's default. Invalid (400): the image can't be had or doesn't fit; InstanceInvalidState,
    InstanceIsLocked, InstanceNotReady (409); NothingToSealWith.
    """
    accept.check(ctxt, server, EVENT)
    image = None
    if image_ref is not None:
        image = images.find(backend, ctxt, image_ref)
        images.check_fits(image, server.row, zero_disk_allowed=True)
        images.find_kernels(backend, ctxt, image, server.row['memory_mb'])
    keys = passwords.keys(backend, given)
    password = passwords.choose(backend, keys, given)
    accept.run(backend, ctxt, server, 'rescue', EVENT, {
        'image': image, 'sealed': passwords.seal(keys, password, (), server.uuid)})
    return password
