-- Videos with only one frame
-- severity: note
-- means: These may be cover pictures, incomplete downloads, or images in a video container.
-- remedy: leave these videos out, with filter: "frame_count > 1" in a policy
SELECT media_id, uri, codec, container, size_bytes FROM videos
WHERE status = 'ok' AND kind = 'video' AND frame_count = 1 ORDER BY uri
