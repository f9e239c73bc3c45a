"""How fast the gateway is, measured from outside by programs that cost next to nothing themselves."""
