-- Locks claims whose timed lease ended or whose run is over its deadline, and shows
-- them.
-- @due_limit bigint
-- sets 1
SELECT TOP (@due_limit) CASE WHEN j.deadline <= j.due_at THEN 'timed_out' ELSE 'lease_ended' END AS cause, {claim}
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_due), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE j.due_at IS NOT NULL AND j.due_at <= @now
ORDER BY j.due_at
OPTION (KEEPFIXED PLAN);
