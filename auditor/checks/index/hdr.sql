-- Videos with high dynamic range
-- severity: note
-- means: PQ or HLG values are delivered without tone mapping, so these videos have less contrast than SDR videos.
-- remedy: apply tone mapping in the transform, or do not mix these videos with SDR videos
SELECT media_id, uri, CASE color_transfer WHEN 16 THEN 'PQ' ELSE 'HLG' END AS transfer, pixel_format FROM videos
WHERE status = 'ok' AND color_transfer IN (16, 18) ORDER BY uri
