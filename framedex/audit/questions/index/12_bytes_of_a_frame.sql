-- Where in its file lie the bytes of frame 100 of a video, and where must decoding start?
WITH wanted AS (SELECT media_id, packet FROM frames WHERE frame = 100
    AND uri = (SELECT min(uri) FROM videos WHERE frame_count > 100))
SELECT uri, p.packet, byte_offset, size_bytes, is_start
FROM packets p JOIN wanted w USING (media_id)
WHERE p.packet = w.packet OR (is_start AND p.packet = (
    SELECT max(packet) FROM packets WHERE media_id = w.media_id AND is_start AND packet <= w.packet))
ORDER BY p.packet
