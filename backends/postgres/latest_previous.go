//go:build qsidecar_previous_schema

package postgres

// This file stands in the place of latest.go in a program that is built for one
// test: that sidecars of neighbouring schema versions run together (e2e,
// TestPostgresRollingUpgrade). It is this program with all that it does by the
// last migration taken out: whoever adds a migration moves here what latest.go
// had before. It is no older release, because a test cannot rely on getting one:
// CI clones without history. What it proves is what a migration may break: a
// program's statements beside tables and rows of the next version.

const latest = 1

const joinSQL = `
WITH b AS (
  INSERT INTO {s}.qsidecar_hosts AS h (host, name, beats, expires_at)
  VALUES ($1, $2, 1, {s}.qsidecar_now() + $3::bigint * interval '1 ms')
  ON CONFLICT (host) DO UPDATE SET beats = h.beats + 1, expires_at = excluded.expires_at WHERE NOT h.dead AND NOT h.has_left
  RETURNING 1
)`

const renewSQL = `
WITH b AS (
  UPDATE {s}.qsidecar_hosts SET name = $2, beats = beats + 1, expires_at = {s}.qsidecar_now() + $3::bigint * interval '1 ms'
  WHERE host = $1 AND NOT dead AND NOT has_left
  RETURNING pg_catalog.set_config('synchronous_commit', 'off', true)
)`

const endedSQL = "h.expires_at <= {s}.qsidecar_now()"
