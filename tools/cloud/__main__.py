"""Read the command line of the one-machine cloud, ``python3 -m tools.cloud VERB``, and do what it says.

Verbs are up, demo, host, down, restart, start, stop, logs, audit and manage.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.cloud import control, host
from tools.cloud.layout import DEFAULT_HOSTS, CloudError, Layout


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    main = argparse.ArgumentParser(prog='python3 -m tools.cloud', description=__doc__)
    main.add_argument('--var', type=Path, help='where the cloud lives (default: var/)')
    verbs = main.add_subparsers(dest='verb', required=True)
    for verb in ('up', 'demo'):
        started = verbs.add_parser(verb)
        started.add_argument('--hosts', type=Path, default=DEFAULT_HOSTS, help='directory of host descriptions')
        started.add_argument('--conf', type=Path, help='a configuration file more for all daemons')
        started.add_argument('--network', action='store_true', help='with Neutron, the network service')
        started.add_argument('--volume', action='store_true', help='with Cinder, the volume service')
        if verb == 'up':
            started.add_argument(
                '--guests',
                choices=control.GUESTS,
                help="what servers are: those of libvirt's test "
                'driver (test), or QEMU guests on machines of their own, as root (qemu)',
            )
            started.add_argument('--cyborg', action='store_true', help='with Cyborg, the accelerator service')
            started.add_argument('--only-services', action='store_true', help='leave the four daemons out')
    for verb in ('restart', 'start', 'stop'):
        verbs.add_parser(verb).add_argument('service')
    described = verbs.add_parser('host', help='describe one more host')
    described.add_argument('name')
    described.add_argument('--gpus', type=int, default=4)
    described.add_argument('--vgpus', type=int, default=0, help='mediated devices of one card more')
    described.add_argument('--id', default='10de:13f1', help='vendor and product of its devices')
    described.add_argument('--hosts', type=Path, help='directory of host descriptions (default: VAR/described)')
    verbs.add_parser('down')
    verbs.add_parser('audit')
    verbs.add_parser('logs').add_argument('service', nargs='?')
    # The rest of the line is kilonova-manage's, --help included (see ``main``).
    verbs.add_parser('manage', help='kilonova-manage on this cloud, as bin/kn', add_help=False)
    return main


def main(argv: list[str]) -> int:
    """Run one verb; 0 when it did what it says."""
    known = parser()
    args, rest = known.parse_known_args(argv)
    if rest and args.verb != 'manage':
        known.error(f'unrecognized arguments: {" ".join(rest)}')
    args.rest = argv[argv.index('manage') + 1 :] if args.verb == 'manage' else []
    layout = Layout.at(args.var)
    try:
        return run(args, layout)
    except CloudError as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def run(args: argparse.Namespace, layout: Layout) -> int:
    """Do what the command line says; return the exit code."""
    match args.verb:
        case 'up':
            control.up(
                layout,
                hosts=args.hosts,
                extra=args.conf,
                only_services=args.only_services,
                kind=args.guests,
                accelerators=args.cyborg,
                network=args.network,
                volume=args.volume,
            )
        case 'down':
            control.down(layout)
        case 'restart' | 'start':
            control.start_again(layout, args.service, end_first=args.verb == 'restart')
        case 'stop':
            control.stop_one(layout, args.service)
        case 'logs':
            control.follow_logs(layout, args.service)
        case 'audit':
            return control.manage(layout, ['audit'])
        case 'manage':
            return control.manage(layout, args.rest)
        case 'host':
            directory = (args.hosts or layout.var / 'described').resolve()
            host.describe(directory, args.name, gpus=args.gpus, device=args.id, vgpus=args.vgpus)
            shown = layout.shown(directory)
            print(
                f'{shown}/{args.name}.xml and .conf describe {args.gpus} devices {args.id}. To have it:\n'
                f'  make up HOSTS={shown} CONF={shown}/{host.ALIAS_FILE}\n'
                f'A flavor gets one with --property pci_passthrough:alias={host.alias_name(args.id)}:1'
                + (', a vGPU with --property resources:VGPU=1' if args.vgpus else '')
            )
        case 'demo':
            from tools.cloud import demo

            return demo.run(layout, hosts=args.hosts, extra=args.conf, network=args.network, volume=args.volume)
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
