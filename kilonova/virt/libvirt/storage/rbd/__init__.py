"""Disks in Ceph."""
