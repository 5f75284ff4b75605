"""The llama.cpp engine: any GGUF file as it is, computed by llama.cpp's own kernels."""
