"""What the product does: publish, subscribe, control the flow, keep, prove. No I/O; ports/ says what it needs."""
