-- One row per clip that could not be made, with the reason. `counts` is false if a rule of the policy left the clip
-- out.
SELECT * FROM failures_file
