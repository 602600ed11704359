"""The [metrics] options of MetricsFilter and MetricsWeigher, which use measurements of monitors on the hosts."""

from __future__ import annotations

from oslo_config import cfg

GROUP = 'metrics'

OPTS: list[cfg.Opt] = [
    cfg.FloatOpt(
        'weight_multiplier',
        default=1.0,
        help='Weight of the metrics among the hosts that passed the filters: the sum of weight_setting is '
        'scaled to 0..1 and multiplied by this. A host aggregate may override it with metadata '
        'metrics_weight_multiplier.',
    ),
    cfg.ListOpt(
        'weight_setting',
        default=[],
        help='The metrics that count and the ratio of each, as name=ratio, such as cpu.frequency=1.0, '
        'cpu.percent=-0.5. Empty: none. An entry of another form is ignored and logged.',
    ),
    cfg.BoolOpt(
        'required',
        default=True,
        help='Whether a host that lacks one of these metrics is left out. If MetricsFilter is enabled, it '
        'leaves out such hosts first, without an error in the log. Off: the host gets '
        'weight_of_unavailable.',
    ),
    cfg.FloatOpt(
        'weight_of_unavailable',
        default=-10000.0,
        help='Value that replaces the sum of a host that lacks a metric, if required is off.',
    ),
]
