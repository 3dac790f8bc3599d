-- The header states another number of packets than there are
-- severity: warning
-- means: Whatever trusts the header (len() of most decoders) counts frames that do not exist, or misses some.
-- remedy: go by the index; mux the file again to mend its header
SELECT media_id, uri, stated_frames, packet_count, container FROM videos
WHERE status = 'ok' AND kind = 'video' AND stated_frames <> packet_count
ORDER BY abs(stated_frames - packet_count) / packet_count DESC, uri
