-- Media with more than 8 bits per sample
-- severity: note
-- means: Frames are delivered as uint8 by default, so the lower bits are lost. This can make depth maps and other
--   measurements useless.
-- remedy: load with ClipDataset(dtype='uint16'), or with dtype='raw' for measurements
SELECT media_id, uri, bits, pixel_format FROM videos WHERE bits > 8 ORDER BY bits DESC, uri
