package bridge

import "github.com/prometheus/client_golang/prometheus"

// The gauges of a Bridge.
var (
	sessionsDesc  = Gauge("sessions", "Connections that are open, by socket; stdio: those without one.", "socket")
	heldDesc      = Gauge("jobs_held", "Jobs that this sidecar's connections hold.", LabelDatabase)
	waitingDesc   = Gauge("claims_waiting", "Claims that wait for jobs.", LabelDatabase)
	queuedDesc    = Gauge("writes_queued", "Writes that wait for the next commit.", LabelDatabase)
	reachableDesc = Gauge("database_reachable", "1: the last beat reached the database and is not late; 0: nothing is handed out.", LabelDatabase)
	beatDesc      = Gauge("beat_age_seconds", "Time since the last beat that reached the database; the sidecar's own life time where none did.", LabelDatabase)
	leaseDesc     = Gauge("host_lease_seconds", "host_lease: a sidecar that does not beat for so long is given up.", LabelDatabase)
	drainingDesc  = Gauge("draining", "1: the sidecar stops, and gives no more jobs out.")

	poolDesc    = Gauge("pool_connections", "Connections of the pool, by what they do: idle or in_use. The beat's own, and those of held jobs, are not among them.", LabelDatabase, "state")
	poolMaxDesc = Gauge("pool_connections_max", "How many connections the pool may have.", LabelDatabase)
)

var gauges = []*prometheus.Desc{sessionsDesc, heldDesc, waitingDesc, queuedDesc, reachableDesc, beatDesc, leaseDesc, drainingDesc,
	depthDesc, oldestReadyDesc, oldestClaimedDesc, pausedDesc, readerDesc,
	poolDesc, poolMaxDesc}
