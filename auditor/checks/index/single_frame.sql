-- Videos of a single frame
-- severity: note
-- means: Cover pictures, broken downloads, or stills in a video's container.
-- remedy: leave them out (filter: "frame_count > 1" in a policy)
SELECT media_id, uri, codec, container, size_bytes FROM videos
WHERE status = 'ok' AND kind = 'video' AND frame_count = 1 ORDER BY uri
