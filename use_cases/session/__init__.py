"""MQTT sessions as cursors: their state, exactly-once publishing, presence and wills."""
