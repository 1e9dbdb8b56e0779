//go:build !qsidecar_previous_schema

package postgres

// latest is the version of the tables that this program makes and needs.
const latest = 2

// joinSQL begins a host's row, and says who writes it.
const joinSQL = `
WITH b AS (
  INSERT INTO {s}.qsidecar_hosts AS h (host, name, beats, expires_at, lease_ms, knows, joined_at)
  VALUES ($1, $2, 1, {s}.qsidecar_now() + $3::bigint * interval '1 ms', $3, 2, {s}.qsidecar_now())
  ON CONFLICT (host) DO UPDATE SET beats = h.beats + 1, expires_at = excluded.expires_at, lease_ms = excluded.lease_ms
    WHERE NOT h.dead AND NOT h.has_left
  RETURNING 1
)`

const renewSQL = `
WITH b AS (
  UPDATE {s}.qsidecar_hosts SET name = $2, beats = beats + 1, expires_at = {s}.qsidecar_now() + $3::bigint * interval '1 ms', lease_ms = $3
  WHERE host = $1 AND NOT dead AND NOT has_left
  RETURNING pg_catalog.set_config('synchronous_commit', 'off', true)
)`

// endedSQL: a beat's time is over, or it would last for longer than any beat does:
// the server's clock was set back since, and its end is of no use. Whoever lives
// beats by the new clock soon; the watching sidecars see to it that he has time to.
// The rows of those who left, with times of their own, wait for the clock.
const endedSQL = `h.expires_at <= {s}.qsidecar_now()
  OR NOT h.has_left AND h.expires_at > {s}.qsidecar_now() + h.lease_ms * interval '1 ms'`
