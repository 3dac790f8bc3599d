-- Videos with pixels that are not square
-- severity: note
-- means: Frames are delivered as stored, without scaling to the display aspect ratio. A circle becomes an ellipse.
-- remedy: scale frames to the display aspect ratio
SELECT media_id, uri, round(sample_aspect_ratio, 4) AS sample_aspect_ratio, width, height FROM videos
WHERE status = 'ok' AND abs(sample_aspect_ratio - 1) > 0.01 ORDER BY uri
