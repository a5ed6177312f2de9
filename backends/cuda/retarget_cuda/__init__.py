"""NVIDIA GPUs, through CUDA C: readable kernels, compiled by NVRTC or nvcc, started by the driver."""
