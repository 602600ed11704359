"""The compute service of one host. ``manager`` assembles it, ``ops`` carries out calls, ``tracker`` records claims."""
