-- Notes in the keys of deleted jobs that they were deleted. Retention leaves the keys as they are.
UPDATE k SET state = 'deleted'
FROM @pruned AS d INNER JOIN {s}.qsidecar_keys AS k WITH (INDEX (qsidecar_keys_job), ROWLOCK, FORCESEEK, NOWAIT) ON k.job = d.id
WHERE d.[key] IS NOT NULL
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
