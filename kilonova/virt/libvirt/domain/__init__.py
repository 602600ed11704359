"""The definition of a guest: the data it is made from, and the classes that write it as libvirt's domain XML."""
