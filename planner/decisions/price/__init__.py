"""Devices that cost money: the cheapest plan in time, and the front of time and money."""
