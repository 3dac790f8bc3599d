-- More than 8 bits per sample
-- severity: note
-- means: Frames are given as uint8, so the lower bits are lost. Depth maps and other measurements lose most of what they say.
-- remedy: split such samples into two videos of 8 bits, or read these files with another library
SELECT media_id, uri, bits, pixel_format FROM videos WHERE status = 'ok' AND bits > 8 ORDER BY bits DESC, uri
