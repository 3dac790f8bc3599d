-- Media whose frames are not proven to be exact
-- severity: warning
-- means: These media are readable, but framedex leaves them out, because it could deliver wrong frames.
-- remedy: see the reason; often it helps to copy the streams into another container
SELECT media_id, uri, error_kind, error_message FROM videos WHERE status = 'refused' AND error_kind <> 'no_video' ORDER BY error_kind, uri
