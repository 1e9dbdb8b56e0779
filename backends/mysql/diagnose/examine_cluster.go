package diagnose

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/checks"
	"github.com/qsidecar/qsidecar/backends/mysql"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/cluster"
)

// checkCluster reports the kind of the cluster and what a failover can lose.
func (e *examination) checkCluster(ctx context.Context) error {
	f, err := e.readCluster(ctx, e.session)
	if err != nil {
		return err
	}
	e.AddInfo("cluster", "this server: "+f.Role())
	switch f.Kind() {
	case cluster.Galera:
		e.checkGalera(&f)
	case cluster.Group:
		e.checkGroup(&f)
	default:
		e.checkReplication(&f)
	}
	for _, product := range f.Products() {
		e.AddInfo("cluster", "the server is one of "+product+": its provider decides what a failover loses. The sidecar was not run there")
	}
	return nil
}

func (e *examination) readCluster(ctx context.Context, s mysql.Session) (cluster.Facts, error) {
	return readCluster(ctx, s, e.Setup)
}

func readCluster(ctx context.Context, s mysql.Session, x mysql.Setup) (cluster.Facts, error) {
	return cluster.Read(ctx, s.Rows, x.MariaDB, x.VersionNumber, func(err error) bool { return fromServer(err) && !mysql.EndsSession(err) })
}

// Replication implements backends.Replicator. A node of a Galera cluster and a member of a group follow the others.
func (x *Engine) Replication(ctx context.Context) (r backends.Replication, err error) {
	err = x.Session(ctx, func(ctx context.Context, s mysql.Session) error {
		f, err := readCluster(ctx, s, x.Setup())
		r = backends.Replication{Server: f.Server(), Running: true}
		if len(f.Sources) > 0 {
			source := f.Sources[0]
			r.Source, r.Running = source.Server, source.Running
			if lag, failed := time.ParseDuration(source.Behind + "s"); failed == nil {
				r.Lag = &lag
			}
		} else if id := f.ID(); id != "" {
			r.Server, r.Source = id, id
		}
		return err
	})
	return r, err
}

func (e *examination) checkGalera(f *cluster.Facts) {
	if status := f.Vars["wsrep_cluster_status"]; status != "Primary" || f.Vars["wsrep_ready"] != "ON" {
		e.AddError("cluster", fmt.Sprintf("this node is outside its cluster (wsrep_cluster_status is %s, wsrep_ready is %s): it refuses queries", status, f.Vars["wsrep_ready"]),
			"see its log, and name all nodes in the url")
		return
	}
	e.checkSize("nodes", f.Vars["wsrep_cluster_size"])
	e.AddInfo("cluster", "a commit is on all nodes before it is answered: the failure of a node loses nothing")
	e.AddInfo("cluster", fmt.Sprintf("wsrep_sync_wait is %s; the sidecar's sessions set 1", f.Vars["wsrep_sync_wait"]))
	if mode := f.Vars["pxc_strict_mode"]; mode != "" {
		e.AddInfo("cluster", "pxc_strict_mode is "+mode)
	}
}

// checkSize warns of a cluster that stops if one of its servers fails.
func (e *examination) checkSize(what, n string) {
	if n == "1" || n == "2" {
		e.AddWarning("cluster", fmt.Sprintf("the cluster has %s %s: if one fails, the rest lacks a majority and stops", n, what), "use three")
	}
}

func (e *examination) checkGroup(f *cluster.Facts) {
	var members []string
	for _, m := range f.Members {
		members = append(members, fmt.Sprintf("%s (%s, %s)", m.Address, strings.ToLower(m.Role), m.State))
		if m.State != "ONLINE" {
			e.AddWarning("cluster", fmt.Sprintf("the member %s is %s", m.Address, m.State), "see its log")
		}
	}
	if len(members) == 0 {
		e.AddInfo("cluster", fmt.Sprintf("user %s does not see the members: it would need SELECT ON performance_schema.replication_group_members", e.user))
	} else {
		e.AddInfo("cluster", "members: "+strings.Join(members, "; "))
		e.checkSize("members", fmt.Sprint(len(members)))
	}
	e.AddInfo("cluster", "a majority has a commit before it is answered: the failure of a member loses nothing")
	consistency := f.Vars["group_replication_consistency"]
	switch text := "group_replication_consistency is " + consistency; {
	case f.SinglePrimary() && consistency == "EVENTUAL":
		e.AddWarning("cluster", text+": after a failover the new primary can answer before it has applied what the old one committed",
			"SET PERSIST group_replication_consistency = 'BEFORE_ON_PRIMARY_FAILOVER', on all members")
	case !f.SinglePrimary():
		e.AddInfo("cluster", "several members accept writes; "+text+", and the sidecar's sessions set BEFORE")
	default:
		e.AddInfo("cluster", text)
	}
}

// checkReplication checks a server with sources or replicas, or with neither.
func (e *examination) checkReplication(f *cluster.Facts) {
	for _, s := range f.Sources {
		lag := "its lag is unknown"
		if s.Behind != "" {
			lag = s.Behind + " s behind"
		}
		switch {
		case f.Writable() && s.Running:
			e.AddError("cluster", fmt.Sprintf("this server accepts writes and is a replica of %s: writes to both don't see each other, so two workers can get one job", s.Address),
				"SET GLOBAL read_only = ON on all but one of them, or stop the replication here")
		case !s.Running:
			e.AddWarning("cluster", fmt.Sprintf("the replication from %s doesn't run", s.Address), "see SHOW REPLICA STATUS; if this server replaced it, RESET REPLICA ALL")
		default:
			e.AddInfo("cluster", fmt.Sprintf("it replicates from %s, %s", s.Address, lag))
		}
	}
	switch {
	case f.Kind() == cluster.Semi && !f.SemiSynchronous():
		e.AddWarning("cluster", "semi-synchronous replication has fallen back to asynchronous: a failover loses the last enqueues, and the jobs of the last acks are delivered again",
			"see whether a replica with semi-synchronous replication is connected")
	case f.Kind() == cluster.Semi:
		e.AddInfo("cluster", fmt.Sprintf("commits wait for a replica: a failover loses nothing, unless no replica answered for %s ms before it",
			f.Value("rpl_semi_sync_source_timeout", "rpl_semi_sync_master_timeout")))
	case f.Replicas > 0:
		e.AddWarning("cluster", "no commit waits for a replica: a failover loses the last enqueues, and the jobs of the last acks are delivered again",
			"use Galera, group replication or semi-synchronous replication if a failover must not lose answered jobs")
	}
}

// checkHosts asks each host of an address with several. It compares them with each other.
func (e *examination) checkHosts(ctx context.Context) error {
	var found []checks.Host
	var writers []string
	e.engine.EachHost(ctx, func(ctx context.Context, host string, s mysql.Session, err error) {
		h := checks.Host{Address: host, Err: err}
		var f cluster.Facts
		if h.Err == nil {
			f, h.Err = e.readCluster(ctx, s)
		}
		for range 3 { // the fastest one is the most exact
			if h.Err != nil {
				break
			}
			var ahead, margin time.Duration
			if ahead, margin, h.Err = e.measureClock(ctx, s); h.Margin == 0 || margin < h.Margin {
				h.Ahead, h.Margin = ahead, margin
			}
		}
		if h.Cluster = f.ID(); h.Err == nil {
			e.AddInfo("cluster", fmt.Sprintf("host %s: %s", host, f.Role()))
			if h.Cluster == "" && f.Writable() {
				writers = append(writers, host)
			}
		}
		found = append(found, h)
	})
	if len(writers) > 1 {
		e.AddError("cluster", fmt.Sprintf("the hosts %s accept writes without Galera or a multi-primary group: the sidecars of different hosts can use different ones, and a job then gets two workers",
			strings.Join(writers, " and ")), "SET GLOBAL read_only = ON on all but one of them")
	}
	e.CompareHosts(found, e.engine.HostClocks)
	return nil
}
