package databases

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/config"
)

// ExamineReplica examines the replica of a database for `qsidecar check`, if the config names one. primary must have been examined.
func ExamineReplica(ctx context.Context, c *config.Config, name string, primary backends.Engine, log *slog.Logger) (found backends.Findings) {
	d := c.Databases[name]
	if d.ReplicaURL == "" {
		return nil
	}
	r, err := openReplica(ctx, d, log)
	if err == nil {
		err = examineReplica(ctx, primary, r, &found)
		err = errors.Join(err, r.Close())
	}
	if err != nil {
		found.AddWarning("cluster", "the replica of replica_url isn't usable, so the primary answers: "+err.Error(), "see that it runs and lets this host in, and that replica_url is right")
	}
	return found
}

func examineReplica(ctx context.Context, primary, replica backends.Engine, found *backends.Findings) error {
	database := primary.Info().Database
	atPrimary := follows(ctx, primary, database)
	if atPrimary == nil || errors.Is(atPrimary, errLate) { // otherwise the tables are missing or old, which is another finding
		switch err := follows(ctx, replica, database); {
		case errors.Is(err, errOther):
			found.AddError("cluster", err.Error(), "name a replica of the database in replica_url")
			return nil
		case errors.Is(err, errLate) && atPrimary != nil: // no sidecar runs
		case errors.Is(err, errLate):
			found.AddWarning("cluster", "the primary answers instead of the replica of replica_url: "+err.Error(), "see the replica's log")
		case err != nil:
			return err
		}
	}
	p, err := replicationOf(ctx, primary)
	if err != nil {
		return err
	}
	r, err := replicationOf(ctx, replica)
	if err != nil {
		return err
	}
	lag := "its lag is unknown"
	if r.Lag != nil {
		lag = fmt.Sprintf("%v behind", r.Lag.Round(time.Millisecond))
	}
	switch {
	case r.Source == "":
		found.AddWarning("cluster", "the server of replica_url isn't a replica, as far as this login sees",
			"make it one; on MySQL and MariaDB check needs the privilege REPLICATION CLIENT, or REPLICA MONITOR, to see it")
	case !r.Running:
		found.AddWarning("cluster", "the replica of replica_url receives or applies no changes, "+lag, "see its log, and start its replication")
	case p.Server == "" || r.Source != p.Server:
		found.AddInfo("cluster", "the replica of replica_url replicates from another server than this primary, "+lag)
	default:
		found.AddInfo("cluster", "the server of replica_url is a replica of this primary, "+lag)
	}
	return nil
}

func replicationOf(ctx context.Context, e backends.Engine) (backends.Replication, error) {
	r, ok := e.(backends.Replicator)
	if !ok {
		return backends.Replication{}, nil // the config accepts a replica_url only for engines that have it
	}
	return r.Replication(ctx)
}
