SELECT x.name, x.need, COALESCE(HAS_PERMS_BY_NAME(x.name, x.class, x.need), 0) AS has
FROM (VALUES
  (N'[qsidecar].qsidecar_jobs', 'OBJECT', 'SELECT')
) AS x (name, class, need);
