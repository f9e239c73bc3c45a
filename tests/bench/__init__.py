"""The measurer is measured: its programs find planted faults, and its arithmetic is checked by hand."""
