package diagnose

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
)

const (
	// clusterSQL reads the edition, and whether the database is in an availability group.
	clusterSQL = `SELECT CONVERT(int, SERVERPROPERTY('EngineEdition')), CASE WHEN d.replica_id IS NULL THEN 0 ELSE 1 END FROM sys.databases AS d WHERE d.name = DB_NAME()`
	// replicasSQL has rows of the other replicas only on the primary. It needs VIEW SERVER STATE.
	replicasSQL = `SELECT r.replica_server_name, r.availability_mode_desc, COALESCE(s.synchronization_state_desc, ''), CONVERT(int, s.is_local), CONVERT(int, COALESCE(s.is_primary_replica, 0))
FROM sys.dm_hadr_database_replica_states AS s JOIN sys.availability_replicas AS r ON r.replica_id = s.replica_id WHERE s.database_id = DB_ID() ORDER BY r.replica_server_name`
	mirrorSQL = `SELECT mirroring_role_desc, mirroring_state_desc, mirroring_safety_level_desc FROM sys.database_mirroring WHERE database_id = DB_ID() AND mirroring_guid IS NOT NULL`
)

// products are the values of EngineEdition that name a managed product.
var products = map[int]string{5: "Azure SQL Database", 8: "Azure SQL Managed Instance", 12: "SQL database in Microsoft Fabric"}

// checkCluster reports the kind of the cluster and what a failover can lose.
func (e *examination) checkCluster(ctx context.Context) error {
	if e.Babelfish {
		return nil
	}
	var edition, grouped int
	if err := e.rows(ctx, clusterSQL, func(rows *sql.Rows) error { return rows.Scan(&edition, &grouped) }); err != nil {
		return err
	}
	if product := products[edition]; product != "" {
		e.AddInfo("cluster", "the server is one of "+product+": its provider decides what a failover loses. The sidecar was not run there")
		return nil
	}
	if grouped == 1 {
		return e.checkGroup(ctx)
	}
	mirrored := false
	var role, state, safety string
	err := e.rows(ctx, mirrorSQL, func(rows *sql.Rows) error { mirrored = true; return rows.Scan(&role, &state, &safety) })
	switch {
	case err != nil:
		return err
	case !mirrored:
		e.AddInfo("cluster", "the database is in no availability group, and isn't mirrored")
	default:
		e.AddInfo("cluster", fmt.Sprintf("the database is mirrored: %s, %s, safety %s", role, state, safety))
		e.checkLoss(safety == "FULL", state == "SYNCHRONIZED", "ALTER DATABASE … SET PARTNER SAFETY FULL")
	}
	return nil
}

// checkGroup reports the replicas of an availability group.
func (e *examination) checkGroup(ctx context.Context) error {
	var replicas []string
	var here, waits, inStep bool
	if err := e.rows(ctx, replicasSQL, func(rows *sql.Rows) error {
		var name, mode, state string
		var local, primary int
		if err := rows.Scan(&name, &mode, &state, &local, &primary); err != nil {
			return err
		}
		if local == 1 {
			here = primary == 1
			return nil
		}
		replicas = append(replicas, fmt.Sprintf("%s (%s, %s)", name, mode, state))
		if mode == "SYNCHRONOUS_COMMIT" {
			waits = true
			inStep = inStep || state == "SYNCHRONIZED"
		}
		return nil
	}); err != nil {
		return err
	}
	if !here { // checkSettings reports that it takes no writes
		e.AddInfo("cluster", "this server is a secondary of an availability group")
		return nil
	}
	e.AddInfo("cluster", "this server is the primary of an availability group; other replicas: "+strings.Join(replicas, "; "))
	e.checkLoss(waits, inStep, "ALTER AVAILABILITY GROUP … MODIFY REPLICA … WITH (AVAILABILITY_MODE = SYNCHRONOUS_COMMIT)")
	return nil
}

// checkLoss reports what a failover loses if commits wait for another server, and if that server is in step.
func (e *examination) checkLoss(waits, inStep bool, fix string) {
	switch {
	case waits && inStep:
		e.AddInfo("cluster", "commits wait for a synchronous replica: a failover to it loses nothing")
	case waits:
		e.AddWarning("cluster", "no synchronous replica is synchronized, so commits don't wait for one: a failover loses the last enqueues, and the jobs of the last acks are delivered again",
			"see the server's log, and that the replica is connected")
	default:
		e.AddWarning("cluster", "no commit waits for a replica: a failover loses the last enqueues, and the jobs of the last acks are delivered again", fix)
	}
}
