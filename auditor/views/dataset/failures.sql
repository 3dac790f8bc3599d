-- A row a clip that could not be had, and why; `counts` is false for what the policy's own rules leave out.
SELECT * FROM failures_file
