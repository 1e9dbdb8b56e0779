-- Locks claims whose timed lease ended or whose run is over its deadline, as
-- look.sql does.
-- @due_limit bigint
-- sets 1
SELECT TOP (@due_limit) 0 AS n, CASE WHEN j.deadline <= j.due_at THEN 'timed_out' ELSE 'lease_ended' END AS cause, {standing}
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_due), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE j.due_at IS NOT NULL AND j.due_at <= @now
ORDER BY j.due_at;
