"""Prefilters for single features of a flavor or image. Each requires the trait of hosts that support the feature."""

from __future__ import annotations

from oslo_utils import strutils

from kilonova.accel import profile as device_profile
from kilonova.objects import RequestSpec
from kilonova.scheduler.placement.query import CandidateQuery, PrefilterFacts, RequestFilterFailed, tpm, wanted, wants

SECRET_SECURITY = ('user', 'host', 'deployment')


def accelerators(query: CandidateQuery, spec: RequestSpec, facts: PrefilterFacts) -> None:
    """Require hosts with accelerators if the flavor (accel:device_profile) or a port has a device profile."""
    networks = spec.requested_networks if 'requested_networks' in spec else None
    if device_profile.name_of(spec.flavor.extra_specs) or any(one.device_profile for one in networks or ()):
        query.root_required.add('COMPUTE_ACCELERATORS')


def packed_virtqueue(query: CandidateQuery, spec: RequestSpec, facts: PrefilterFacts) -> None:
    """Require hosts with packed virtqueues for hw:virtio_packed_ring or hw_virtio_packed_ring."""
    if wants(spec, 'hw:virtio_packed_ring', 'hw_virtio_packed_ring'):
        query.root_required.add('COMPUTE_NET_VIRTIO_PACKED')


def remote_managed_ports(query: CandidateQuery, spec: RequestSpec, facts: PrefilterFacts) -> None:
    """Require hosts that support ports on a SmartNIC if the server has such a port.

    The PCI requests of these ports have the tag remote_managed.
    """
    requests = spec.pci_requests if 'pci_requests' in spec else None
    if any(
        strutils.bool_from_string(one.get('remote_managed'))
        for request in (requests.requests if requests else ())
        for one in request.spec
    ):
        query.root_required.add('COMPUTE_REMOTE_MANAGED_PORTS')


def ephemeral_encryption(query: CandidateQuery, spec: RequestSpec, facts: PrefilterFacts) -> None:
    """Require hosts that encrypt ephemeral disks, in the requested format if the request names one.

    The prefilter reads hw:ephemeral_encryption and hw:ephemeral_encryption_format of the flavor, and the image
    properties hw_ephemeral_encryption and hw_ephemeral_encryption_format.
    """
    if not wants(spec, 'hw:ephemeral_encryption', 'hw_ephemeral_encryption'):
        return
    query.root_required.add('COMPUTE_EPHEMERAL_ENCRYPTION')
    form = wanted(spec, 'hw:ephemeral_encryption_format', 'hw_ephemeral_encryption_format')
    if form:
        query.root_required.add(f'COMPUTE_EPHEMERAL_ENCRYPTION_{form.upper()}')


def virtio_sound(query: CandidateQuery, spec: RequestSpec, facts: PrefilterFacts) -> None:
    """Require hosts with virtio sound if hw:sound_model or hw_sound_model is virtio; other models need no trait."""
    if wanted(spec, 'hw:sound_model', 'hw_sound_model') == 'virtio':
        query.root_required.add('COMPUTE_SOUND_MODEL_VIRTIO')


def tpm_secret_security(query: CandidateQuery, spec: RequestSpec, facts: PrefilterFacts) -> None:
    """Require hosts that support the TPM secret security of hw:tpm_secret_security (default "user").

    This extra spec says who may read the secret of an emulated TPM. Requests without TPM are not changed. Raises
    RequestFilterFailed for an unknown value.
    """
    if tpm(spec) is None:
        return
    who = spec.flavor.extra_specs.get('hw:tpm_secret_security', 'user')
    if who not in SECRET_SECURITY:
        raise RequestFilterFailed(reason=f"hw:tpm_secret_security cannot be '{who}'")
    query.root_required.add(f'COMPUTE_SECURITY_TPM_SECRET_SECURITY_{who.upper()}')
