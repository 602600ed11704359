"""The console proxies, which connect the websocket of a user with the console of a guest on a host."""
