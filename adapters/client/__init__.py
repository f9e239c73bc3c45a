"""Clients of the client protocol: their requests, subscriptions and answers, without a socket."""
