"""The compute REST API v2.1: routes → v2/<noun> → services/<verb> or db queries."""
