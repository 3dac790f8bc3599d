-- Media whose index rows lack what this audit asks
-- severity: note
-- means: They were indexed by an older framedex. The checks on what headers state, on slow access and on same
--   streams know nothing of them.
-- remedy: index them into a new folder
SELECT media_id, uri, probed_by FROM videos WHERE status = 'ok'
    AND (packet_bytes IS NULL OR seek_packets IS NULL) ORDER BY uri
