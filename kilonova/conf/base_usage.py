"""The [DEFAULT] options of usage reports."""

from __future__ import annotations

from oslo_config import cfg

GROUP = None

_PERIODS = (
    r'^(hour(@[0-5]?[0-9])?|day(@([01]?[0-9]|2[0-3]))?|month(@(0?[0-9]|1[0-9]|2[0-8]))?'
    r'|year(@(0?[0-9]|1[0-2]))?)$'
)

OPTS = [
    cfg.BoolOpt(
        'instance_usage_audit',
        default=False,
        help='Computes send a notification about the usage of each of their servers (instance.exists) once '
        'after each period, and write a row of task_log, which os-instance_usage_audit_log shows. Turn it '
        'on if a billing program needs it. If notifications are off, only the row is written.',
    ),
    cfg.StrOpt(
        'instance_usage_audit_period',
        default='month',
        regex=_PERIODS,
        help='Period of the audits that os-instance_usage_audit_log shows: hour, day, month or year, with an '
        'optional offset of its beginning: hour@30 (minute), day@6 (hour), month@15 (day, at most 28), '
        'year@4 (month). Set the same value for all services of a cloud.',
    ),
    cfg.IntOpt(
        'volume_usage_poll_interval',
        default=0,
        min=0,
        help='Seconds between two readings of how much the guests of a compute have read from and written to '
        'their volumes. Each reading is stored in volume_usage_cache and sent as the notification '
        'volume.usage. 0: never. What a guest reads and writes between the last reading and its stop, or '
        'the detach of the volume, is not counted.',
    ),
]
