-- Media whose pictures differ in size or format
-- severity: warning
-- means: Frames of one clip may have different shapes; the loader scales them where it is told a size, and
--   refuses where not.
-- remedy: size= in the loader; look whether files were joined that do not belong together
SELECT media_id, uri, kind, codec, width, height, error_message FROM videos
WHERE status = 'ok' AND varying_shape ORDER BY uri
