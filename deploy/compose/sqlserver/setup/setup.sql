-- What the sidecar needs on a new server; nothing where it is there. $(db_password) is sqlcmd's.
IF DB_ID('app') IS NULL CREATE DATABASE app;
GO
IF SUSER_ID('app_sidecar') IS NULL CREATE LOGIN app_sidecar WITH PASSWORD = '$(db_password)', DEFAULT_DATABASE = app;
GO
USE app;
GO
IF USER_ID('app_sidecar') IS NULL
BEGIN
    CREATE USER app_sidecar FOR LOGIN app_sidecar;
    ALTER ROLE db_owner ADD MEMBER app_sidecar;
END;
GO
