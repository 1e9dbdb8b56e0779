-- The rights that a sidecar needs and that this login has; where there are no tables,
-- whether it may make them.
SELECT x.name, x.need, COALESCE(HAS_PERMS_BY_NAME(x.name, x.class, x.need), 0) AS has
FROM (VALUES
{rights}
) AS x (name, class, need);
