"""The [notifications] options: the format of notifications to other programs.

Whether notifications are sent, through which broker and to which topics, is set in oslo.messaging's section
[oslo_messaging_notifications].
"""

from __future__ import annotations

from oslo_config import cfg

from kilonova.conf.renamed import was

GROUP = 'notifications'

OPTS = [
    cfg.StrOpt(
        'notification_format',
        default='unversioned',
        choices=['unversioned', 'versioned', 'both'],
        deprecated_opts=was('notification_format'),
        help='unversioned: plain dicts under the old names, for consumers such as ceilometer, on the topics of '
        '[oslo_messaging_notifications]. versioned: objects with a version, on the topics of '
        'versioned_notifications_topics. both: each event in both forms. Change it if your consumers '
        'require it. Set the same value for all daemons.',
    ),
    cfg.ListOpt(
        'versioned_notifications_topics',
        default=['versioned_notifications'],
        help='Topics of the versioned notifications; all notifications are sent to each topic. Add one topic '
        'for each consumer that must receive every message.',
    ),
    cfg.StrOpt(
        'notify_on_state_change',
        choices=['vm_state', 'vm_and_task_state'],
        deprecated_opts=was('notify_on_state_change'),
        help='Send instance.update (compute.instance.update) when the vm state of a server changes, or its vm '
        'state or task state. Empty: send it only when tags change. Read by the API and the conductors, '
        'which write the states. Each change costs one more SQL statement.',
    ),
    cfg.StrOpt(
        'default_level',
        default='INFO',
        choices=['DEBUG', 'INFO', 'WARN', 'ERROR', 'CRITICAL'],
        deprecated_opts=was('default_notification_level'),
        help="Priority of notifications that report no error. It is part of the topic's name on the broker "
        '(notifications.info). Change it only for consumers that listen to another one.',
    ),
    cfg.BoolOpt(
        'bdms_in_notifications',
        default=False,
        help='Include the volumes of a server in its versioned notifications (block_devices).',
    ),
]
