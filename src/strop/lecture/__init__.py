"""The numbers of a lecture on reinforcement learning for agents, computed by the code that trains."""
