-- One row per clip that could not be made, with the reason; `counts` is false for what the policy's own rules leave out.
SELECT * FROM failures_file
