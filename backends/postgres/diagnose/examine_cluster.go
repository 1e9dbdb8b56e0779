package diagnose

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/checks"
	"github.com/qsidecar/qsidecar/backends/postgres/internal/cluster"
	"github.com/qsidecar/qsidecar/backends/postgres/internal/hosts"
	"github.com/qsidecar/qsidecar/backends/postgres/migrate"
)

// checkCluster reports the kind of the cluster and what a failover can lose.
func (e *examination) checkCluster(ctx context.Context, tx pgx.Tx) error {
	f, err := cluster.Read(ctx, tx)
	if err != nil {
		return err
	}
	kind := "streaming replication; this server: "
	if !f.IsStandby && len(f.Standbys) == 0 {
		kind = "no standby is connected; this server: "
	}
	e.AddInfo("cluster", kind+f.Role())
	if !f.IsStandby {
		e.checkStandbys(&f)
	}
	for _, product := range f.Products {
		switch product {
		case "Citus":
			e.AddInfo("cluster", "the extension Citus is installed: the sidecar's tables must be local tables, as they are if nothing distributes them")
		default:
			e.AddInfo("cluster", "the server is one of "+product+": its provider decides what a failover loses. The sidecar was not run there")
		}
	}
	return nil
}

// Replication implements backends.Replicator. A standby has the system identifier of its primary.
func (x *Engine) Replication(ctx context.Context) (r backends.Replication, err error) {
	err = x.Session(ctx, func(ctx context.Context, c *pgx.Conn) error {
		f, err := cluster.Read(ctx, c)
		if r = (backends.Replication{Server: f.ID, Running: f.Receives, Lag: f.Lag}); f.IsStandby {
			r.Source = f.ID
		}
		return err
	})
	return r, err
}

// checkStandbys reports the standbys of a primary.
func (e *examination) checkStandbys(f *cluster.Facts) {
	var names []string
	for _, s := range f.Standbys {
		kind := "asynchronous"
		if s.Sync {
			kind = "synchronous"
		}
		if s.State == "" {
			names = append(names, "one that this role can't see")
			continue
		}
		names = append(names, fmt.Sprintf("%s (%s, %s, %v behind)", s.Name, kind, s.State, s.Lag.Round(time.Millisecond)))
	}
	if len(names) > 0 {
		e.AddInfo("cluster", "standbys: "+strings.Join(names, "; "))
	}
	hidden := strings.Contains(strings.Join(names, ""), "can't see")
	switch {
	case hidden:
		e.AddInfo("cluster", fmt.Sprintf("to see them, role %s would need GRANT pg_read_all_stats TO %s", e.role, migrate.QuoteName(e.role)))
	case f.Names != "" && f.Synchronous() == 0:
		e.AddError("cluster", fmt.Sprintf("synchronous_standby_names is %s, and none of these standbys is connected: every commit waits", f.Names),
			"start a standby with that name, or change synchronous_standby_names")
	case f.Names != "":
		e.AddInfo("cluster", "commits wait for a synchronous standby: a failover to it loses nothing")
	case len(f.Standbys) > 0:
		e.AddWarning("cluster", "no commit waits for a standby: a failover loses the last enqueues, and the jobs of the last acks are delivered again",
			"set synchronous_standby_names if a failover must not lose answered jobs")
	}
}

// checkHosts asks each host of an address with several. It compares them with each other.
func (e *examination) checkHosts(ctx context.Context) error {
	var found []checks.Host
	primaries := map[string][]string{} // by timeline
	newest := ""
	for _, config := range e.Hosts {
		host, facts := e.askHost(ctx, config)
		found = append(found, host)
		switch {
		case host.Err != nil:
		case facts.IsStandby:
			e.AddInfo("cluster", fmt.Sprintf("host %s is a %s", host.Address, facts.Role()))
			if !facts.Receives {
				e.AddWarning("cluster", fmt.Sprintf("host %s is a standby that receives nothing from a primary", host.Address), "see its log, and its primary_conninfo")
			}
		default:
			e.AddInfo("cluster", fmt.Sprintf("host %s accepts writes: %s", host.Address, facts.Role()))
			primaries[facts.Timeline] = append(primaries[facts.Timeline], host.Address)
			newest = max(newest, facts.Timeline)
		}
	}
	for timeline, old := range primaries {
		if timeline < newest {
			e.AddError("cluster", fmt.Sprintf("host %s is an old primary, which still accepts writes: %s took over from it, and lacks what is written to it",
				strings.Join(old, " and "), strings.Join(primaries[newest], " and ")), "stop it, or make it a standby (pg_rewind)")
		}
	}
	if len(primaries[newest]) > 1 {
		e.AddError("cluster", fmt.Sprintf("the hosts %s all accept writes: the sidecars of different hosts can use different ones, and a job then gets two workers",
			strings.Join(primaries[newest], " and ")), "make one of them the primary, and the others its standbys")
	}
	e.CompareHosts(found, e.HostClocks)
	return nil
}

// askHost connects to one host of the address.
func (e *examination) askHost(ctx context.Context, config *pgx.ConnConfig) (h checks.Host, f cluster.Facts) {
	h.Address = hosts.Address(config)
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // as for a pooler
	c, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		h.Err = err
		return h, f
	}
	defer func() { _ = c.Close(ctx) }()
	if f, h.Err = cluster.Read(ctx, c); h.Err != nil {
		return h, f
	}
	for range 3 { // the fastest one is the most exact
		var server time.Time
		before := e.Now()
		if h.Err = c.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&server); h.Err != nil {
			return h, f
		}
		if trip := e.Now().Sub(before); h.Margin == 0 || trip/2 < h.Margin {
			h.Margin, h.Ahead = max(trip/2, 1), server.Sub(before.Add(trip/2))
		}
	}
	h.Cluster = f.ID
	return h, f
}
