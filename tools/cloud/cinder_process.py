"""Cinder in one process, without a broker: its scheduler, a volume service and its API.

    python -m tools.cloud.cinder_process --config-file cinder.conf

With ``transport_url = fake:/`` the three talk within it. It runs in Cinder's virtual environment.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from cinder import monkey_patch


def main() -> None:
    """Serve until the process ends."""
    # Before the rest is imported.
    monkey_patch.patch()
    from cinder import coordination, objects, rpc, service, version
    from cinder.common import config, constants
    from oslo_config.cfg import CONF as conf  # noqa: N811, TID251
    from oslo_log import log

    objects.register_all()
    conf(sys.argv[1:], project='cinder', version=version.version_string())
    log.setup(conf, 'cinder')
    config.set_middleware_defaults()
    coordination.COORDINATOR.start()
    rpc.init(conf)
    # The last one reports: a process has one id. It must be the volume service's, as nobody asks whether a scheduler
    # is up.
    for one in (
        service.Service.create(binary=constants.SCHEDULER_BINARY),
        *(
            service.Service.create(
                host=f'{conf.host}@{name}', service_name=name, binary=constants.VOLUME_BINARY, coordination=True
            )
            for name in conf.enabled_backends
        ),
    ):
        one.start()
    api = service.WSGIService('osapi_volume')
    api.start()
    # At once: what is written is written, and its threads would be waited for.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    threading.Event().wait()


if __name__ == '__main__':
    main()
