-- What the database is set to.
SELECT CONVERT(int, d.is_read_committed_snapshot_on) AS rcsi, d.snapshot_isolation_state_desc AS snapshot, d.delayed_durability_desc AS durability,
  CONVERT(int, d.is_auto_close_on) AS auto_close, CONVERT(nvarchar(128), DATABASEPROPERTYEX(d.name, 'Updateability')) AS updateability,
  SUSER_SNAME() AS login, USER_NAME() AS who, SYSUTCDATETIME() AS now,
  CONVERT(int, d.is_parameterization_forced) AS forced
FROM sys.databases AS d
WHERE d.name = DB_NAME();
