"""MQTT 5 and 3.1.1 as bytes and as a protocol session, without any socket."""
