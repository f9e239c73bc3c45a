"""The HTTP API as data: what requests and answers look like, and how entities become them. No server here."""
