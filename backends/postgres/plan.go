package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// plan is a node of EXPLAIN's answer.
type plan struct {
	Type     string `json:"Node Type"`
	Relation string `json:"Relation Name"`
	Index    string `json:"Index Name"`
	Cond     string `json:"Index Cond"`
	TID      string `json:"TID Cond"`
	Filter   string
	SortKey  []string `json:"Sort Key"`
	Join     string   `json:"Join Type"`
	Parent   string   `json:"Parent Relationship"`
	Plans    []*plan
}

// planOf is the plan that a statement is given once for all arguments, in a
// session of the Store's own (prepareSession). Nothing is executed. It drops what
// the session has prepared.
func planOf(ctx context.Context, c *pgx.Conn, sql string) (*plan, error) {
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
	return readPlan(c.QueryRow(ctx, "EXPLAIN (FORMAT JSON) EXECUTE p"+nulls, pgx.QueryExecModeSimpleProtocol))
}

// planWith is the plan that a statement gets for its arguments, where a pooler
// leaves no session to prepare it in.
func planWith(ctx context.Context, c querier, sql string, args ...any) (*plan, error) {
	return readPlan(c.QueryRow(ctx, "EXPLAIN (FORMAT JSON) "+sql, args...))
}

func readPlan(row pgx.Row) (*plan, error) {
	var text []byte
	if err := row.Scan(&text); err != nil {
		return nil, err
	}
	var said []struct{ Plan *plan }
	if err := json.Unmarshal(text, &said); err != nil {
		return nil, err
	}
	if len(said) != 1 || said[0].Plan == nil {
		return nil, errors.New("EXPLAIN gave no plan")
	}
	return said[0].Plan, nil
}

// small are the tables with a row for each sidecar or queue.
var small = map[string]bool{"qsidecar_hosts": true, "qsidecar_queues": true, "qsidecar_meta": true}

// faults are what makes a statement's cost grow with the tables. above are the
// nodes from the root down to p.
func (p *plan) faults(above []*plan) (faults []string) {
	table := p.Relation != "" && !small[p.Relation] && strings.HasSuffix(p.Type, "Scan")
	if table {
		if f := p.scanFault(above); f != "" {
			faults = append(faults, f)
		}
	}
	if strings.HasSuffix(p.Type, "Join") {
		faults = append(faults, "a "+p.Type)
	}
	for _, child := range p.Plans {
		faults = append(faults, child.faults(append(above, p))...)
	}
	return faults
}

func (p *plan) scanFault(above []*plan) string {
	switch {
	case p.Type == "Tid Scan":
		return ""
	case p.Type != "Index Scan" && p.Type != "Index Only Scan":
		return fmt.Sprintf("a %s of %s", p.Type, p.Relation)
	}
	limited := false
	for _, a := range slices.Backward(above) {
		if a.Type == "Nested Loop" && p.Relation == "qsidecar_jobs" && !limited {
			return "a join with " + p.Index
		}
		// Claims are as many as workers: they may be sorted and counted.
		if strings.HasSuffix(a.Type, "Sort") && p.Index != "qsidecar_owned" && p.Index != "qsidecar_jobs_pkey" && !limited && p.Relation == "qsidecar_jobs" {
			return "a sort of what " + p.Index + " finds"
		}
		limited = limited || a.Type == "Limit"
		if a.Parent == "InitPlan" || a.Parent == "SubPlan" {
			break
		}
	}
	if p.Cond == "" && !limited && p.Index != "qsidecar_owned" {
		return "a walk through all of " + p.Index
	}
	return ""
}

// uses: a node of the plan reads the index.
func (p *plan) uses(index string) bool {
	return p.Index == index || slices.ContainsFunc(p.Plans, func(c *plan) bool { return c.uses(index) })
}

func (p *plan) text(indent string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s%s %s %s cond %s filter %s\n", indent, p.Type, p.Relation, p.Index, p.Cond, p.Filter)
	for _, c := range p.Plans {
		b.WriteString(c.text(indent + "  "))
	}
	return b.String()
}
