package maintenance

import (
	"log/slog"

	"github.com/qsidecar/qsidecar/backends"
)

// LogFailed logs how many jobs maintenance reaped, or found too large or expired. The sidecar of their workers logs the jobs
// themselves.
func LogFailed(log *slog.Logger, all backends.FailedCounts) {
	for _, f := range all {
		if f.Cause == backends.CauseTxLost {
			log.Warn("open transactions lost", "event", "transactions_lost", "queue", f.Queue, "jobs", f.Jobs, "probable_causes",
				"transaction_timeout, a time limit for transactions or idle connections of a pooler, proxy or firewall, an administrator who ended the session, a failover")
		}
		switch {
		case f.Cause == backends.CauseExpired && !f.Dead:
			log.Info("expired jobs deleted", "event", "jobs_expired", "queue", f.Queue, "jobs", f.Jobs)
		case f.Dead:
			log.Warn("jobs dead", "event", "jobs_dead", "queue", f.Queue, "cause", f.Cause, "jobs", f.Jobs)
		default:
			log.Info("jobs reaped", "event", "jobs_reaped", "queue", f.Queue, "cause", f.Cause, "jobs", f.Jobs)
		}
	}
}
