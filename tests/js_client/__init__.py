"""The JavaScript client against a real gateway, in Node.js and in Chromium."""
