"""The record: an encoding as pure functions of positions, the dims it is made for, its parameters and its spec."""
