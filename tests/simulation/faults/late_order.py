"""Finding 1.1: an order that comes late frees the devices of a running guest.

``prep_resize`` undoes its claim before it made one, hosts ask nobody whether an order stands, an owner whose lease ran
out renews it. The simulator should see a device in a running guest whose row says that it is free.
"""
from __future__ import annotations

from typing import Any

from kilonova.compute import claims as compute_claims
from kilonova.compute.ops import move, prep_resize
from kilonova.compute.upcalls import Upcalls
from kilonova.conductor.work import Work
from kilonova.db import engine
from kilonova.db.queries import claims, operations


def install() -> None:
    """See the module."""
    migrations: dict[str, Any] = {}
    check_host, failed = prep_resize.check_host, prep_resize._failed

    def checks(host: Any, instance: Any, migration: Any) -> None:
        migrations[instance.uuid] = migration
        check_host(host, instance, migration)

    def frees(host: Any, work: Any, ctxt: Any, instance: Any, flavor: Any, event: Any, undo: Any) -> None:
        if instance.uuid in migrations:
            compute_claims.give_back(host, work, ctxt, instance.uuid, move.of_destination(migrations[instance.uuid]),
                                     unsided=False, undo=True)
        failed(host, work, ctxt, instance, flavor, event, undo)
    prep_resize.check_host, prep_resize._failed = checks, frees
    Upcalls.check_key = lambda self, *args, **kwargs: None  # type: ignore[method-assign]
    claims._check_attempt = lambda conn, key: None
    operations.renew_lease = _renew
    Work.compare = Work.check  # type: ignore[method-assign]
    Work.resumed = lambda self: None  # type: ignore[method-assign]


def _renew(db: Any, owner: str, seconds: float) -> bool:
    with db.write() as conn:
        leases = operations.leases
        return bool(conn.execute(leases.update().where(leases.c.owner == owner).values(
            expires=engine.db_now() + seconds)).rowcount)
