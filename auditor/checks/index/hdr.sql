-- High dynamic range
-- severity: note
-- means: PQ or HLG values come out as they are, without tone mapping: they look flat beside SDR.
-- remedy: map the tones in the transform, or keep them apart
SELECT media_id, uri, CASE color_transfer WHEN 16 THEN 'PQ' ELSE 'HLG' END AS transfer, pixel_format FROM videos
WHERE status = 'ok' AND color_transfer IN (16, 18) ORDER BY uri
