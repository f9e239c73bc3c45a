"""Answers to the ports: logs, queues, documents, clocks."""
