"""A model in this process: any GGUF file, read by llama.cpp."""
