-- The server's version and its database's settings. (The database is found by its name: on
-- Azure, DB_ID() can differ from the database_id of sys.databases.)
-- sets 1
SELECT CONVERT(nvarchar(128), SERVERPROPERTY('ProductVersion')) AS version, CONVERT(nvarchar(128), SERVERPROPERTY('Edition')) AS edition,
  CONVERT(int, SERVERPROPERTY('EngineEdition')) AS engine, CONVERT(int, d.compatibility_level) AS level,
  CASE WHEN SERVERPROPERTY('babelfish') IS NULL THEN 0 ELSE 1 END AS babelfish, d.name,
  CONVERT(int, d.is_read_committed_snapshot_on) AS versions
FROM sys.databases AS d
WHERE d.name = DB_NAME();
