"""Names of x86 CPU features in libvirt, and the traits for these features in Placement.

    traits({'avx2', 'aes', 'hypervisor'})          # {'HW_CPU_X86_AVX2', 'HW_CPU_X86_AESNI'}
    wanted(['HW_CPU_X86_AVX2', 'CUSTOM_X'])        # {'avx2'}

The libvirt driver uses this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# A dict from trait (without HW_CPU_X86_) to libvirt's name of the feature, if the two names differ.
_FEATURES = {
    'ABM': 'abm',
    'AESNI': 'aes',
    'AMD_IBPB': 'ibpb',
    'AMD_NO_SSB': 'amd-no-ssb',
    'AMD_SSBD': 'amd-ssbd',
    'AMD_SVM': 'svm',
    'AMD_VIRT_SSBD': 'virt-ssbd',
    'AMXBF16': 'amx-bf16',
    'AMXINT8': 'amx-int8',
    'AMXTILE': 'amx-tile',
    'AVX512GFNI': 'gfni',
    'AVX512VAES': 'vaes',
    'AVX512VPCLMULQDQ': 'vpclmulqdq',
    'AVX512VPOPCNTDQ': 'avx512-vpopcntdq',
    'BMI': 'bmi1',
    'CLMUL': 'pclmuldq',
    'FMA3': 'fma',
    'INTEL_MD_CLEAR': 'md-clear',
    'INTEL_PCID': 'pcid',
    'INTEL_SPEC_CTRL': 'spec-ctrl',
    'INTEL_SSBD': 'ssbd',
    'INTEL_VMX': 'vmx',
    'SHA': 'sha-ni',
    'SSE3': 'pni',
    'SSE41': 'sse4.1',
    'SSE42': 'sse4.2',
    'TSX': 'rtm',
}
_PLAIN = (
    '3DNOW',
    'AVX',
    'AVX2',
    'AVX512BITALG',
    'AVX512BW',
    'AVX512CD',
    'AVX512DQ',
    'AVX512ER',
    'AVX512F',
    'AVX512IFMA',
    'AVX512PF',
    'AVX512VBMI',
    'AVX512VBMI2',
    'AVX512VL',
    'AVX512VNNI',
    'BMI2',
    'F16C',
    'FMA4',
    'MMX',
    'MPX',
    'PDPE1GB',
    'SGX',
    'SSE',
    'SSE2',
    'SSE4A',
    'SSSE3',
    'STIBP',
    'SVM',
    'TBM',
    'VMX',
    'XOP',
)
FEATURES: Mapping[str, str] = {
    f'HW_CPU_X86_{name}': feature for name, feature in {**{name: name.lower() for name in _PLAIN}, **_FEATURES}.items()
}


def traits(features: Iterable[str]) -> set[str]:
    """Return the traits of a CPU that has these features."""
    found = frozenset(features)
    return {trait for trait, feature in FEATURES.items() if feature in found}


def wanted(names: Iterable[str]) -> frozenset[str]:
    """Return the CPU features that these traits stand for. Traits that stand for no CPU feature are ignored."""
    return frozenset(FEATURES[name] for name in names if name in FEATURES)
