//go:build !qsidecar_previous_schema

package postgres

// latest is the version of the tables that this program makes and needs.
const latest = 2

// joinSQL begins a host's row, and says who writes it.
const joinSQL = `
WITH b AS (
  INSERT INTO {s}.qsidecar_hosts AS h (host, name, beats, expires_at, knows, joined_at)
  VALUES ($1, $2, 1, {s}.qsidecar_now() + $3::bigint * interval '1 ms', 2, {s}.qsidecar_now())
  ON CONFLICT (host) DO UPDATE SET beats = h.beats + 1, expires_at = excluded.expires_at WHERE NOT h.dead AND NOT h.has_left
  RETURNING 1
)`
