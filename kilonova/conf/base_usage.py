"""The [DEFAULT] options of usage reports."""
from __future__ import annotations

from oslo_config import cfg

GROUP = None

_PERIODS = (r'^(hour(@[0-5]?[0-9])?|day(@([01]?[0-9]|2[0-3]))?|month(@(0?[0-9]|1[0-9]|2[0-8]))?'
            r'|year(@(0?[0-9]|1[0-2]))?)$')

OPTS = [
    cfg.BoolOpt('instance_usage_audit', default=False,
                help='Computes tell the usage of each of their servers (instance.exists) once after each period, and '
                     'keep a line of it in task_log, which os-instance_usage_audit_log shows. Switch it on where a '
                     'billing program wants that; without notifications only the line is written.'),
    cfg.StrOpt('instance_usage_audit_period', default='month', regex=_PERIODS,
               help='Period of the audits that os-instance_usage_audit_log shows: hour, day, month or year, each with '
                    'an offset where it begins elsewhere: hour@30 (minute), day@6 (hour), month@15 (day, 28 at most), '
                    'year@4 (month). It must be the same in all services of a cloud.'),
    cfg.IntOpt('volume_usage_poll_interval', default=0, min=0,
               help='Seconds between two looks of a compute at what its guests have read and written of their volumes: '
                    'kept in volume_usage_cache, and told as volume.usage. 0: nobody looks. What a guest does between '
                    'the last look and its stop, or until it gives the volume up, is not counted.'),
]
