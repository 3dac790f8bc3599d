-- Videos whose header states too many packets
-- severity: warning
-- means: Software that uses the header, such as len() of most video readers, counts frames that do not exist.
-- remedy: use the frame count of the index, or mux the file again to correct the header
SELECT media_id, uri, stated_frames, packet_count, container FROM videos
WHERE status = 'ok' AND kind = 'video' AND packet_count < stated_frames
ORDER BY (stated_frames - packet_count) / stated_frames DESC, uri
