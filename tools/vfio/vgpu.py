"""A kernel module whose mediated devices are vGPUs of a PCI card, as vendors' drivers make them.

    text = source(mtty)      # mtty: samples/vfio-mdev/mtty.c of Linux 6.1

The kernel's own sample, a serial card, has no PCI function above its mediated devices, so that libvirt lists no types
of it. This changes it: the types are those of any PCI function that is bound to the module (``driver_override``), each
function has room of its own, and a guest sees a 3D controller 1234:fa4e. The result is GPL-2 as the sample is; it is
built beside the nested machine's image and is no part of this tree.
"""

from __future__ import annotations

from tools.cloud.layout import CloudError

NAME = 'kilonova_vgpu'
# What libvirt calls the types (driver and type), and how many of each one card has room for.
TYPES = {f'{NAME}-1Q': 8, f'{NAME}-2Q': 4}
# Vendor and product that a guest sees.
SEEN = '1234:fa4e'

_OF_TYPE = """struct mtty_type {
	struct mdev_type type;
	int nr_ports;
};

/* A bound PCI function. */
struct card {
	struct mdev_parent parent;
	struct mtty_type types[2];
	struct mdev_type *listed[2];
	atomic_t avail;
};

static struct card *card_of(struct mdev_type *type)
{
	return container_of(type->parent, struct card, parent);
}

"""
_MODULE = """static int card_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	static const char * const names[2] = { "1Q", "2Q" };
	struct card *card;
	int i, ret;

	card = kzalloc(sizeof(*card), GFP_KERNEL);
	if (!card)
		return -ENOMEM;
	atomic_set(&card->avail, MAX_MTTYS);
	for (i = 0; i < 2; i++) {
		card->types[i].nr_ports = i + 1;
		card->types[i].type.sysfs_name = names[i];
		card->types[i].type.pretty_name = names[i];
		card->listed[i] = &card->types[i].type;
	}
	ret = mdev_register_parent(&card->parent, &pdev->dev, &mtty_driver, card->listed, 2);
	if (ret) {
		kfree(card);
		return ret;
	}
	pci_set_drvdata(pdev, card);
	return 0;
}

static void card_remove(struct pci_dev *pdev)
{
	struct card *card = pci_get_drvdata(pdev);

	mdev_unregister_parent(&card->parent);
	kfree(card);
}

/* Bound by driver_override alone. */
static const struct pci_device_id card_ids[] = { {} };

static struct pci_driver card_driver = {
	.name = "kilonova_vgpu",
	.id_table = card_ids,
	.probe = card_probe,
	.remove = card_remove,
};

static int __init card_init(void)
{
	int ret = mdev_register_driver(&mtty_driver);

	if (ret)
		return ret;
	ret = pci_register_driver(&card_driver);
	if (ret)
		mdev_unregister_driver(&mtty_driver);
	return ret;
}

static void __exit card_exit(void)
{
	pci_unregister_driver(&card_driver);
	mdev_unregister_driver(&mtty_driver);
}

module_init(card_init)
module_exit(card_exit)

MODULE_LICENSE("GPL v2");
"""
_CHANGES = (
    ('#define MTTY_NAME       "mtty"', f'#define MTTY_NAME       "{NAME}"'),
    ('#define MAX_MTTYS\t24', '#define MAX_MTTYS\t8'),
    # Room is counted by card.
    (
        'int avail_ports = atomic_read(&mdev_avail_ports);',
        'struct card *card = card_of(mdev->type);\n\tint avail_ports = atomic_read(&card->avail);',
    ),
    ('atomic_try_cmpxchg(&mdev_avail_ports,', 'atomic_try_cmpxchg(&card->avail,'),
    ('atomic_add(type->nr_ports, &mdev_avail_ports);', 'atomic_add(type->nr_ports, &card->avail);'),
    (
        'atomic_add(mdev_state->nr_ports, &mdev_avail_ports);',
        'atomic_add(mdev_state->nr_ports, &card_of(mdev_state->mdev->type)->avail);',
    ),
    (
        'return atomic_read(&mdev_avail_ports) / type->nr_ports;',
        'return atomic_read(&card_of(mtype)->avail) / type->nr_ports;',
    ),
    # What a guest sees: vendor and product, class 0302.
    (
        'STORE_LE32((u32 *) &mdev_state->vconfig[0x0], 0x32534348);',
        'STORE_LE32((u32 *) &mdev_state->vconfig[0x0], 0xfa4e1234);',
    ),
    ('mdev_state->vconfig[0x9] =  0x02;', 'mdev_state->vconfig[0x9] =  0x00;'),
    ('mdev_state->vconfig[0xa] =  0x00;', 'mdev_state->vconfig[0xa] =  0x02;'),
    ('mdev_state->vconfig[0xb] =  0x07;', 'mdev_state->vconfig[0xb] =  0x03;'),
    ('.name = "mtty",', f'.name = "{NAME}_mdev",'),
    ('.name = "vfio-mtty"', f'.name = "vfio-{NAME}"'),
)


def source(mtty: str) -> str:
    """Return the module's C source. Raises CloudError if the sample is that of another kernel."""
    text = _between(mtty, 'static struct mtty_type {', 'static const struct file_operations vd_fops', _OF_TYPE)
    text = _between(text, 'static struct mtty_dev {', 'struct mdev_region_info {')
    text = _between(
        text, 'static const struct file_operations vd_fops', 'static const struct vfio_device_ops mtty_dev_ops;'
    )
    for old, new in _CHANGES:
        if old not in text:
            raise _other(old)
        text = text.replace(old, new)
    before, found, _ = text.partition('static void mtty_device_release(struct device *dev)')
    if not found:
        raise _other(found)
    return before + _MODULE


def _between(text: str, begin: str, end: str, new: str = '') -> str:
    """Return a text with ``new`` in place of the part from ``begin`` to before ``end``."""
    first = text.find(begin)
    last = text.find(end, first)
    if min(first, last) < 0:
        raise _other(begin)
    return text[:first] + new + text[last:]


def _other(lacks: str) -> CloudError:
    return CloudError(f"the kernel's samples/vfio-mdev/mtty.c is not that of Linux 6.1: it lacks {lacks!r}")
