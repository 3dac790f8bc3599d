-- Media whose index rows lack values that checks need
-- severity: note
-- means: These media were indexed with an older version of framedex. The checks about headers, slow access and same
--   streams ignore these media.
-- remedy: index the media again, into a new folder
SELECT media_id, uri, probed_by FROM videos WHERE status = 'ok'
    AND (packet_bytes IS NULL OR seek_packets IS NULL) ORDER BY uri
