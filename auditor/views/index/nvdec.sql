-- The formats that the video decoders of NVIDIA GPUs support: one row per generation, codec, chroma format (0
-- monochrome, 1 4:2:0, 2 4:2:2, 3 4:4:4) and bits per sample. The sources are NVIDIA's NVDEC Application Note and
-- NVDECODE API Programming Guide, Video Codec SDK 13.0.
WITH generations(number, generation) AS (
    VALUES (1, 'Volta'), (2, 'Turing, A100, Hopper'), (3, 'Ampere (not A100), Ada'), (4, 'Blackwell')
),
support(codec, chroma, bits, first, last, most_width, most_height) AS (
    VALUES
        ('mpeg1video', 1, 8, 1, 4, 4080, 4080), ('mpeg2video', 1, 8, 1, 4, 4080, 4080),
        ('vc1', 1, 8, 1, 4, 2048, 1024), ('mpeg4', 1, 8, 1, 4, 2048, 1024),
        ('h264', 1, 8, 1, 3, 4096, 4096), ('h264', 1, 8, 4, 4, 8192, 8192), ('h264', 1, 10, 4, 4, 8192, 8192),
        ('h264', 2, 8, 4, 4, 8192, 8192), ('h264', 2, 10, 4, 4, 8192, 8192),
        ('hevc', 1, 8, 1, 4, 8192, 8192), ('hevc', 1, 10, 1, 4, 8192, 8192), ('hevc', 1, 12, 1, 4, 8192, 8192),
        ('hevc', 3, 8, 2, 4, 8192, 8192), ('hevc', 3, 10, 2, 4, 8192, 8192), ('hevc', 3, 12, 2, 4, 8192, 8192),
        ('hevc', 2, 8, 4, 4, 8192, 8192), ('hevc', 2, 10, 4, 4, 8192, 8192), ('hevc', 2, 12, 4, 4, 8192, 8192),
        ('vp8', 1, 8, 1, 4, 4096, 4096),
        ('vp9', 1, 8, 1, 4, 8192, 8192), ('vp9', 1, 10, 1, 4, 8192, 8192), ('vp9', 1, 12, 1, 4, 8192, 8192),
        ('av1', 1, 8, 3, 4, 8192, 8192), ('av1', 1, 10, 3, 4, 8192, 8192)
)
SELECT generation, codec, chroma, bits, most_width, most_height
FROM support JOIN generations ON number BETWEEN first AND last
