"""The compute REST API v2.1: routes → v2/<resource> → services/<verb> → db queries; views/<resource> render rows."""
