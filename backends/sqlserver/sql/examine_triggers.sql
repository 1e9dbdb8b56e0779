-- The triggers of other programs on the jobs.
SELECT t.name, CONVERT(int, t.is_instead_of_trigger) AS instead
FROM sys.triggers AS t
WHERE t.parent_id = OBJECT_ID(N'{s}.qsidecar_jobs') AND t.is_disabled = 0;
