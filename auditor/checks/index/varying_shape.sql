-- Media whose pictures vary in size or format
-- severity: warning
-- means: Frames of one clip may have different shapes. The loader scales them if a size is set, and otherwise refuses
--   such clips.
-- remedy: set size= in the loader, and check whether unrelated files were joined
SELECT media_id, uri, kind, codec, width, height, error_message FROM videos
WHERE status = 'ok' AND varying_shape ORDER BY uri
