"""The machines of a cluster: nodes, how they are reached, their devices and BMCs, and which of them are meant."""
