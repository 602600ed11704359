"""The one-machine cloud: RabbitMQ, Keystone, Glance, Placement and the four daemons under ``var/``.

``python3 -m tools.cloud up`` starts it, ``python3 -m tools.cloud down`` ends it; ``make help`` lists the rest.
Nothing here needs more than the standard library, so that it runs before any virtual environment is there.
"""
