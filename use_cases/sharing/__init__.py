"""Shared subscriptions: each message to one member, in order per device."""
