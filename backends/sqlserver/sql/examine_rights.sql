-- The rights that a sidecar needs and that this login has; if there are no tables,
-- whether it has the right to create them.
SELECT x.name, x.need, COALESCE(HAS_PERMS_BY_NAME(x.name, x.class, x.need), 0) AS has
FROM (VALUES
{rights}
) AS x (name, class, need);
