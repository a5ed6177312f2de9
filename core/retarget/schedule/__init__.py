"""From graph to kernels: which nodes are stored (`fusion`), and each as loops over loads (`lower`)."""
