"""Servers' files: the image cache, disks, config drives, and their moves to another host."""
