-- Videos with pixels that are not square
-- severity: note
-- means: Framings that keep proportions scale frames to the display aspect ratio. In frames of the stored size, and in
--   frames that are stretched to a given size, circles look like ellipses.
-- remedy: load with a framing that keeps proportions, such as Framing(short_side=256, crop=(224, 224))
SELECT media_id, uri, round(sample_aspect_ratio, 4) AS sample_aspect_ratio, width, height FROM videos
WHERE status = 'ok' AND abs(sample_aspect_ratio - 1) > 0.01 ORDER BY uri
