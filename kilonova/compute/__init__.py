"""The compute service: what one host does when a conductor asks (``manager``), and its ledger (``tracker``)."""
