-- Videos whose packets are not byte ranges of their file
-- severity: note
-- means: Clips cannot be read directly from the file, because the container splits packets or strips their headers.
--   framedex shard must copy the packets.
-- remedy: shard with --pack needed or --pack clips, or mux the streams into MP4 or Matroska
SELECT media_id, uri, container, codec FROM videos
WHERE status = 'ok' AND NOT byte_addressable ORDER BY container, uri
