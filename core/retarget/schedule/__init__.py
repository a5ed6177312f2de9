"""From graph to kernels: which nodes are stored (`fusion`), and each stored node as loops over loads (`lower`)."""
