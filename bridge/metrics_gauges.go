package bridge

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/qsidecar/qsidecar/bridge/internal/metrics"
)

// The gauges of a Bridge.
var (
	sessionsDesc  = metrics.Gauge("sessions", "Connections that are open, by socket; stdio: those without one.", "socket")
	leasesDesc    = metrics.Gauge("leases", "Session leases: jobs that this sidecar's connections have claimed and not settled yet.", metrics.LabelDatabase)
	waitingDesc   = metrics.Gauge("claims_waiting", "Claims that wait for jobs.", metrics.LabelDatabase)
	queuedDesc    = metrics.Gauge("writes_queued", "Writes that wait for the next commit.", metrics.LabelDatabase)
	reachableDesc = metrics.Gauge("database_reachable", "1: the last heartbeat reached the database and is not late; 0: no jobs are handed out.", metrics.LabelDatabase)
	heartbeatDesc = metrics.Gauge("heartbeat_age_seconds", "Time since the last heartbeat that reached the database; the sidecar's uptime if none did.", metrics.LabelDatabase)
	timeoutDesc   = metrics.Gauge("sidecar_timeout_seconds", "sidecar_timeout: after this time without a heartbeat other sidecars declare this one dead.", metrics.LabelDatabase)
	drainingDesc  = metrics.Gauge("draining", "1: the sidecar drains, and hands out no more jobs.")

	obstaclesDesc = metrics.Gauge("obstacles", "What the database refuses although it has to happen, such as giving back a job; see qsidecar status.", metrics.LabelDatabase, metrics.LabelQueue)

	poolDesc    = metrics.Gauge("pool_connections", "Connections of the pool, by what they do: idle or in_use. It does not include the connections of the heartbeat and of jobs claimed in transactions.", metrics.LabelDatabase, "state")
	poolMaxDesc = metrics.Gauge("pool_connections_max", "Maximum number of connections in the pool.", metrics.LabelDatabase)
)

var gauges = []*prometheus.Desc{sessionsDesc, leasesDesc, waitingDesc, queuedDesc, reachableDesc, heartbeatDesc, timeoutDesc, drainingDesc,
	depthDesc, oldestReadyDesc, oldestClaimedDesc, pausedDesc, leaderDesc,
	obstaclesDesc, poolDesc, poolMaxDesc}
