// Package plan parses the plans that PostgreSQL returns as JSON, and finds the parts that
// make the cost of a statement grow with the tables. Package diagnose and the tests of package
// postgres use it. It contains the names of the sidecar's tables and indexes, and uses pgx.
package plan

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Node is a node of a plan that EXPLAIN returns.
type Node struct {
	Type     string `json:"Node Type"`
	Relation string `json:"Relation Name"`
	Index    string `json:"Index Name"`
	Cond     string `json:"Index Cond"`
	TID      string `json:"TID Cond"`
	Filter   string
	SortKey  []string `json:"Sort Key"`
	Join     string   `json:"Join Type"`
	Parent   string   `json:"Parent Relationship"`
	Plans    []*Node
}

// Generic returns the generic plan of a statement, which serves all arguments, in a session
// with the settings of a Store's sessions. It doesn't run the statement. It deallocates every
// statement that the session has prepared.
func Generic(ctx context.Context, c *pgx.Conn, sql string) (*Node, error) {
	sd, err := c.Prepare(ctx, "", sql)
	if err != nil {
		return nil, err
	}
	nulls := strings.TrimSuffix(strings.Repeat("NULL, ", len(sd.ParamOIDs)), ", ")
	if nulls != "" {
		nulls = "(" + nulls + ")"
	}
	_, err = c.Exec(ctx, "DEALLOCATE ALL; PREPARE p AS "+sql, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		return nil, err
	}
	return read(c.QueryRow(ctx, "EXPLAIN (FORMAT JSON, COSTS OFF) EXECUTE p"+nulls, pgx.QueryExecModeSimpleProtocol))
}

// With returns the plan of a statement for these arguments. It is for connections through a
// pooler, which have no session in which to prepare the statement.
func With(ctx context.Context, c interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, sql string, args ...any) (*Node, error) {
	return read(c.QueryRow(ctx, "EXPLAIN (FORMAT JSON, COSTS OFF) "+sql, args...))
}

func read(row pgx.Row) (*Node, error) {
	var text []byte
	if err := row.Scan(&text); err != nil {
		return nil, err
	}
	return Parse(text)
}

// Parse parses the result of EXPLAIN (FORMAT JSON, COSTS OFF).
func Parse(text []byte) (*Node, error) {
	var plans []struct{ Plan *Node }
	if err := json.Unmarshal(text, &plans); err != nil {
		return nil, err
	}
	if len(plans) != 1 || plans[0].Plan == nil {
		return nil, errors.New("EXPLAIN gave no plan")
	}
	return plans[0].Plan, nil
}

// small holds the tables with a row for each sidecar or queue, or for each queue and hour of 14 days.
var small = map[string]bool{"qsidecar_sidecars": true, "qsidecar_queues": true, "qsidecar_history": true, "qsidecar_meta": true, "qsidecar_cancelled": true}

// Faults returns the parts of a plan that make the cost of the statement grow with the tables.
// p is the root of the plan.
func (n *Node) Faults() []string { return n.faults(nil) }

// faults implements Faults for the node p. above holds the nodes from the root down to p.
func (n *Node) faults(above []*Node) (faults []string) {
	table := n.Relation != "" && !small[n.Relation] && strings.HasSuffix(n.Type, "Scan")
	if table {
		if f := n.scanFault(above); f != "" {
			faults = append(faults, f)
		}
	}
	if strings.HasSuffix(n.Type, "Join") {
		faults = append(faults, "a "+n.Type)
	}
	for _, child := range n.Plans {
		faults = append(faults, child.faults(append(above, n))...)
	}
	return faults
}

func (n *Node) scanFault(above []*Node) string {
	switch {
	case n.Type == "Tid Scan":
		return ""
	case n.Type != "Index Scan" && n.Type != "Index Only Scan":
		return fmt.Sprintf("a %s of %s", n.Type, n.Relation)
	}
	limited := false
	for _, a := range slices.Backward(above) {
		if a.Type == "Nested Loop" && n.Relation == "qsidecar_jobs" && !limited {
			return "a join with " + n.Index
		}
		// There are only as many claims as workers, and jobs with slots as the limits of groups allow, so a plan can sort and count them.
		if strings.HasSuffix(a.Type, "Sort") && n.Index != "qsidecar_owned" && n.Index != "qsidecar_admitted" && n.Index != "qsidecar_jobs_pkey" && !limited && n.Relation == "qsidecar_jobs" {
			return "a sort of what " + n.Index + " finds"
		}
		limited = limited || a.Type == "Limit"
		if a.Parent == "InitPlan" || a.Parent == "SubPlan" {
			break
		}
	}
	if n.Cond == "" && !limited && n.Index != "qsidecar_owned" {
		return "a walk through all of " + n.Index
	}
	return ""
}

// Uses reports whether a node of the plan reads the index.
func (n *Node) Uses(index string) bool {
	return n.Index == index || slices.ContainsFunc(n.Plans, func(c *Node) bool { return c.Uses(index) })
}

// Text returns the plan with one line for each node.
func (n *Node) Text(indent string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s%s %s %s cond %s filter %s\n", indent, n.Type, n.Relation, n.Index, n.Cond, n.Filter)
	for _, c := range n.Plans {
		b.WriteString(c.Text(indent + "  "))
	}
	return b.String()
}
