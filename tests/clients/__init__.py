"""The gateway as the MQTT libraries see it that people really use, each against a gateway process of its own."""
