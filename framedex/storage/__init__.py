"""Object storage: names of objects, reading ranges of them, writing them only where nothing stands. Knows nothing of video."""
