from tests.fixtures.placement import placement

__all__ = ['placement']
