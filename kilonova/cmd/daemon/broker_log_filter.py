"""Log only a few lines of oslo.messaging about an outage of the broker, not thousands.

    outages.quieten()     # after logging is set up; a second call does nothing

During an outage each connection and each waiting thread logs each attempt: 4,700 lines in ten minutes (measured). With
this filter, the log has the first message about an outage, and one message when the broker is back. In between, it has
one message every ten minutes, with the number of messages that were left out. If ``[DEFAULT]default_log_levels``
contains oslo.messaging=DEBUG, all messages are logged.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

# The names of oslo.messaging's loggers. Those of oslo.log begin with 'oslo.messaging', others with 'oslo_messaging'.
LOGGERS = tuple(
    f'{package}._drivers.{module}'
    for package in ('oslo.messaging', 'oslo_messaging')
    for module in ('impl_rabbit', 'amqpdriver')
)
# Kinds of events about the broker: it can't be reached, it refused the login, or a connection is back.
AWAY, REFUSED, BACK = 'away', 'refused', 'back'
KINDS = {
    'Connection failed: %s (retrying in': AWAY,
    '[%(connection_id)s] AMQP server on %(hostname)s:%(port)s is unreachable': AWAY,
    'Unable to connect to AMQP server on': AWAY,
    'A recoverable connection/channel error occurred': AWAY,
    'Unexpected error during heartbeat thread processing': AWAY,
    "Failed to declare consumer for topic '%(topic)s'": AWAY,
    'Failed to consume message from queue': AWAY,
    "Failed to publish message to topic '%(topic)s'": AWAY,
    'Failed to process incoming message': AWAY,
    'The reply %(msg_id)s failed to send after': AWAY,
    'Failed to acknowledge received message': AWAY,
    'Failed to requeue received message': AWAY,
    'Discarding RPC request due to failed acknowledge': AWAY,
    '[%(connection_id)s] AMQP server %(hostname)s:%(port)s closed the connection. Check login': REFUSED,
    '[%(connection_id)s] Reconnected to AMQP server': BACK,
}
# During one outage, a line about it is logged at most once in AGAIN seconds.
# If the broker comes back and fails again, AT_LEAST is the minimum number of seconds between two lines.
AGAIN, AT_LEAST = 600.0, 30.0


class Outages(logging.Filter):
    """The filter that leaves out repeated messages about an outage of the broker.

    All loggers of oslo.messaging share one filter object, because they log about the same broker.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock, self._lock = clock, threading.Lock()
        # A dict from the kind of event (AWAY or REFUSED) to the time of its last log line.
        self._logged: dict[str, float] = {}
        # Kinds of events (AWAY or REFUSED) that were not logged again since the last line that the broker is back.
        self._over: set[str] = set()
        # A dict from the kind of event to the number of messages that were left out since its last log line.
        self._left_out: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is logged. If so, add the number of messages that were left out to its text."""
        text = str(record.msg)
        kind = next((kind for prefix, kind in KINDS.items() if text.startswith(prefix)), None)
        if kind is None or logging.getLogger(record.name).isEnabledFor(logging.DEBUG):
            return True
        with self._lock:
            note = self._back() if kind == BACK else self._away(kind)
        if note is None:
            return False
        record.msg, record.args = f'{record.getMessage()}{note}', None
        return True

    def _away(self, kind: str) -> str | None:
        now, last = self._clock(), self._logged.get(kind)
        if last is not None and now - last < (AT_LEAST if kind in self._over else AGAIN):
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return None
        self._logged[kind] = now
        self._over.discard(kind)
        return (
            f' ({self._counted([kind])}further messages about it are suppressed for {AGAIN:.0f} s, or '
            'until the broker is back)'
        )

    def _back(self) -> str | None:
        """Return the text to append to the log line that a connection is back, or None to drop the line.

        The text is the number of messages that were left out, or '' if there were none. The line is dropped if such a
        line was already logged since the last outage.
        """
        began = [kind for kind in self._logged if kind not in self._over]
        if not began:
            return None
        self._over.update(began)
        left_out = self._counted(began)
        return f' ({left_out.removesuffix("; ")})' if left_out else ''

    def _counted(self, kinds: list[str]) -> str:
        number = sum(self._left_out.pop(kind, 0) for kind in kinds)
        return f'{number} messages were suppressed; ' if number else ''


_OUTAGES = Outages()


def quieten() -> None:
    """Limit the log lines of oslo.messaging about an outage of the broker, by a filter on its loggers."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_OUTAGES)
