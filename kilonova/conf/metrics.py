"""The [metrics] options of MetricsFilter and MetricsWeigher, which use measurements of monitors on the hosts."""
from __future__ import annotations

from oslo_config import cfg

GROUP = 'metrics'

OPTS: list[cfg.Opt] = [
    cfg.FloatOpt('weight_multiplier', default=1.0,
                 help='Weight of the metrics among the hosts that passed: the sum of weight_setting is scaled to 0..1, '
                      'times this. A host aggregate may override it with metadata metrics_weight_multiplier.'),
    cfg.ListOpt('weight_setting', default=[],
                help='Which metrics count, and how much: name=ratio, such as cpu.frequency=1.0, cpu.percent=-0.5. '
                     'Empty: none. An entry of another form is left out, and the log says so.'),
    cfg.BoolOpt('required', default=True,
                help='Whether a host that lacks one of these metrics is left out. MetricsFilter, before, leaves it out '
                     'without an error in the log. Off: it weighs weight_of_unavailable.'),
    cfg.FloatOpt('weight_of_unavailable', default=-10000.0,
                 help='What a host that lacks a metric weighs instead of its sum, with required off.'),
]
