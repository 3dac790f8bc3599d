-- Pixels that are not square
-- severity: note
-- means: Frames are given as stored: what is a circle in a player is an ellipse in the tensor.
-- remedy: scale to the shape that players show
SELECT media_id, uri, round(sample_aspect_ratio, 4) AS sample_aspect_ratio, width, height FROM videos
WHERE status = 'ok' AND abs(sample_aspect_ratio - 1) > 0.01 ORDER BY uri
