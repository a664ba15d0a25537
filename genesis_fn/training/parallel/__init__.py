"""Runs on several devices: how the setting `parallel` lays a run out, and what its processes agree
on."""
