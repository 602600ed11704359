"""Features of CPUs and their traits."""

from __future__ import annotations

import os_traits

from kilonova.virt.hardware import cpu_features


def test_there_and_back() -> None:
    assert cpu_features.traits({'avx2', 'sse4.1', 'hypervisor', 'pcid'}) == {
        'HW_CPU_X86_AVX2',
        'HW_CPU_X86_SSE41',
        'HW_CPU_X86_INTEL_PCID',
    }
    assert cpu_features.wanted(['HW_CPU_X86_AVX2', 'HW_CPU_X86_SHA', 'CUSTOM_X', 'HW_CPU_HYPERTHREADING']) == {
        'avx2',
        'sha-ni',
    }


def test_placement_knows_all_of_them() -> None:
    assert set(cpu_features.FEATURES) <= set(os_traits.get_traits())
