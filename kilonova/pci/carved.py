"""Virtual functions of NVIDIA cards that are each a vGPU of the type that an operator assigned to them. Pure data.

    withheld([(found, spec), …], reported=True)      # {'0000:3b:00.6': 'its nvidia/current_vgpu_type is 0: …'}

The kernel shows the type as ``nvidia/current_vgpu_type`` of the function (``sysfs.vgpu_type``). A function without a
type can't be given to a guest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from kilonova.pci.device import VGPU_TYPE, DiscoveredDevice
from kilonova.pci.spec import DeviceSpec

FILE = 'nvidia/current_vgpu_type'


def problem(now: int | None, wanted: str | None = None) -> str | None:
    """Return why a function whose vGPU type is ``now`` can't be given to a guest, or None if it can.

    ``now`` is None for functions that are not of this kind. ``wanted`` is the type that the server has, if it is known.
    """
    if now == 0:
        return f'its {FILE} is 0: it has no vGPU type'
    if now is not None and wanted is not None and str(now) != wanted:
        return f'its {FILE} is {now}, not {wanted}'
    return None


def withheld(named: Collection[tuple[DiscoveredDevice, DeviceSpec]], reported: bool) -> dict[str, str]:
    """Return a dict from address to reason, for functions of a host that servers can't get now.

    ``named`` has the devices with the spec that matches each. ``reported`` means that devices are reported to
    Placement. There all functions of a card are one provider with one resource class, so servers get only the type that
    most functions of the card have (if there are several, the lowest). If devices are not reported, each type is a
    pool.
    """
    found = {one['address']: text for one, _spec in named if (text := problem(one.get(VGPU_TYPE))) is not None}
    if not reported:
        return found
    cards: dict[str, list[DiscoveredDevice]] = {}
    for one, _spec in named:
        if one.get(VGPU_TYPE) and one.get('parent_addr'):
            cards.setdefault(str(one['parent_addr']), []).append(one)
    for card, functions in cards.items():
        counted = Counter(one[VGPU_TYPE] for one in functions)
        main = min(counted, key=lambda vgpu_type: (-counted[vgpu_type], vgpu_type))
        found.update(
            (one['address'], _other(card, one[VGPU_TYPE], main)) for one in functions if one[VGPU_TYPE] != main
        )
    return found


def _other(card: str, vgpu_type: int, main: int) -> str:
    return (
        f'its {FILE} is {vgpu_type}, but the Placement provider of card {card} is for type {main}: '
        'set the same type on all functions of the card'
    )
