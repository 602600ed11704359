"""The console proxies, which connect a user's websocket with the console of a guest on its host."""
