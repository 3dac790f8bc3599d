-- More than 8 bits per sample
-- severity: note
-- means: Frames are uint8 by default, so the lower bits are lost. Depth maps and other measurements lose most of what they say.
-- remedy: load with ClipDataset(dtype='uint16'), or 'raw' for measurements
SELECT media_id, uri, bits, pixel_format FROM videos WHERE status = 'ok' AND bits > 8 ORDER BY bits DESC, uri
