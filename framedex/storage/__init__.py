"""Object storage: names of objects, reads of byte ranges, and conditional writes. Contains no code about video."""
