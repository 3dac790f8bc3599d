-- Media on which framedex failed with an internal error
-- severity: error
-- means: This is a bug of framedex and does not mean that the media are damaged. The index contains no frames of these
--   media.
-- remedy: report the bug with the column error_traceback; the next run of framedex index tries these media again
SELECT media_id, uri, error_message FROM videos WHERE error_kind = 'internal_error' ORDER BY uri
