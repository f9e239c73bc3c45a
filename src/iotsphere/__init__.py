"""IoTSphere: a gateway between devices, browsers, services and analysts over one durable log."""

__version__ = "0.1.0"
