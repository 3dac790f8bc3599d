-- The header states more packets than there are
-- severity: warning
-- means: Whatever trusts the header (len() of most decoders) counts frames that do not exist.
-- remedy: go by the index; mux the file again to mend its header
SELECT media_id, uri, stated_frames, packet_count, container FROM videos
WHERE status = 'ok' AND kind = 'video' AND packet_count < stated_frames
ORDER BY (stated_frames - packet_count) / stated_frames DESC, uri
