package backendtest

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// Poor is a login that has the rights of a sidecar, and no others.
type Poor struct {
	backends.Backend

	// Revoke takes rights on a table away, and Grant gives them back. rights is a list for a GRANT, and the table has no prefix.
	Revoke, Grant func(rights, table string)
}

// rightTests hold what goes on while the login lacks a right on a table of the sidecar: jobs whose end could not be stored are not
// handed out, what needs the right names it and can be repeated, and all works again after the GRANT.
var rightTests = map[string]func(*kit){
	"AtOpen": func(k *kit) {
		p := k.poorLogin()
		if p == nil {
			return
		}
		k.enqueuePayloads("waits")
		p.Revoke("DELETE", "jobs")
		p.recheck()
		p.wantObstacle(k, "jobs", "DELETE")
		_, err := p.Commit(k.Context(), k.claimBatch(me, 1, 0, policy("q")))
		k.namesRight("a claim", err, "jobs", "DELETE")
		if err := p.write(k, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}); err != nil {
			k.Errorf("an enqueue, which needs another right: %v", err)
		}
		p.Grant("DELETE", "jobs")
		p.recheck()
		p.works(k)
	},
	"WhileItRuns": func(k *kit) {
		p := k.poorLogin()
		if p == nil {
			return
		}
		for _, c := range []struct {
			table, rights       string
			ack, enqueue, claim bool // whether they fail
		}{
			{"jobs", "DELETE", true, false, true},
			{"jobs", "UPDATE", true, true, true},
			{"jobs", "SELECT", true, true, true},
			{"jobs", "INSERT", false, true, false},
			{"failures", "INSERT", false, false, true},
			{"keys", "SELECT, INSERT, UPDATE, DELETE", false, false, true},
			{"queues", "SELECT", false, false, true},
			{"sidecars", "SELECT, UPDATE", false, false, true},
		} {
			p.pass()
			k.enqueuePayloads("held", "waits")
			held := p.claimOne(k)
			p.Revoke(c.rights, c.table)
			wants := func(what string, fails bool, err error) {
				k.Helper()
				if fails {
					k.namesRight(what, err, c.table, strings.Split(c.rights, ", ")[0])
				} else if err != nil {
					k.Errorf("%s without %s on %s: %v", what, c.rights, c.table, err)
				}
			}
			ack := backends.Ack{Leases: leasesOf(held)}
			if c.table == "keys" || c.table == "failures" || c.table == "sidecars" || c.table == "queues" {
				p.recheck() // nothing that it needs has failed yet
			}
			if c.rights == "DELETE" {
				wants("the first ack", true, p.write(k, ack))
			}
			for range 2 {
				res, err := p.Commit(k.Context(), k.claimBatch(me, 1, 0, policy("q")))
				if err == nil && len(res.Claims) > 0 {
					if err = res.Claims[0].Err; len(res.Claims[0].Jobs) > 0 {
						wants("an ack", false, p.write(k, backends.Ack{Leases: leasesOf(res.Claims[0].Jobs...)}))
					}
				}
				wants("a claim", c.claim, err)
				if c.table != "queues" { // MySQL needs it for a queue that is new to the connection
					wants("an enqueue", c.enqueue, p.write(k, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "others"}}}))
				}
				if c.ack {
					wants("an ack", true, p.write(k, ack))
				}
			}
			p.wantObstacle(k, c.table, strings.Split(c.rights, ", ")[0])
			if !c.ack {
				wants("an ack", false, p.write(k, ack))
			}
			p.Grant(c.rights, c.table)
			p.maintainLater(k)
			if c.ack {
				wants("an ack", false, p.write(k, ack))
			}
			p.works(k)
		}
	},
}

func (k *kit) poorLogin() *Poor {
	if k.Poor == nil {
		return nil
	}
	return k.Database.Poor()
}

func (p *Poor) recheck() { p.Backend.(backends.Rechecker).Recheck(context.Background()) }

// write commits a write as the bridge does, which tries it alone that is set aside.
func (p *Poor) write(k *kit, w backends.Write) error {
	k.Helper()
	b := backends.CommitContent{Writes: []backends.Write{w}}
	res, err := p.Commit(k.Context(), b)
	if err == nil {
		err = res.Writes[0].Err
	}
	if err == nil && len(res.Writes[0].Lost) > 0 {
		k.Errorf("%T: the lease was lost", w)
	}
	return err
}

func (p *Poor) claimOne(k *kit) backends.Job {
	k.Helper()
	res, err := p.Commit(k.Context(), k.claimBatch(me, 1, 0, policy("q")))
	if err != nil || len(res.Claims[0].Jobs) != 1 {
		k.Fatalf("a claim: %+v, %v", res.Claims, err)
	}
	return res.Claims[0].Jobs[0]
}

// pass makes the clock of the obstacles go on.
func (p *Poor) pass() {
	set := p.Backend.(interface{ ObstacleSet() *backends.ObstacleSet }).ObstacleSet()
	now := set.Time().Add(10 * time.Second)
	set.Now = func() time.Time { return now }
}

// maintainLater runs maintenance some seconds later.
func (p *Poor) maintainLater(k *kit) {
	k.Helper()
	p.pass()
	if _, err := p.Maintain(k.Context(), backends.Maintenance{Limit: 100}); err != nil {
		k.Errorf("maintenance: %v", err)
	}
}

func (p *Poor) wantObstacle(k *kit, table, right string) {
	k.Helper()
	all := p.Backend.(backends.Obstructed).Obstacles()
	if !slices.ContainsFunc(all, func(o backends.Obstacle) bool {
		return o.Table == "qsidecar_"+table && o.Doing == backends.DoingUse && strings.Contains(o.Err.Error(), "GRANT "+right)
	}) {
		k.Errorf("without %s on %s the obstacles are %+v", right, table, all)
	}
}

// namesRight checks the error of a call that needs a right.
func (k *kit) namesRight(what string, err error, table, right string) {
	k.Helper()
	if !backends.Retryable(err) || !strings.Contains(err.Error(), "qsidecar_"+table) || !strings.Contains(err.Error(), "GRANT "+right) {
		k.Errorf("%s without %s on qsidecar_%s: %v", what, right, table, err)
	}
}

// works checks that no right is missing any more, and that jobs are claimed and end.
func (p *Poor) works(k *kit) {
	k.Helper()
	if all := p.Backend.(backends.Obstructed).Obstacles(); len(all) > 0 {
		k.Errorf("after the GRANT: %+v", all)
	}
	if err := p.write(k, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}); err != nil {
		k.Errorf("an enqueue after the GRANT: %v", err)
	}
	for range 9 {
		res, err := p.Commit(k.Context(), k.claimBatch(me, 9, 0, policy("q")))
		if err != nil {
			k.Fatalf("a claim after the GRANT: %v", err)
		}
		if len(res.Claims[0].Jobs) == 0 {
			return
		}
		if err := p.write(k, backends.Ack{Leases: leasesOf(res.Claims[0].Jobs...)}); err != nil {
			k.Errorf("an ack after the GRANT: %v", err)
		}
	}
}

var _ backends.Rechecker = (*core.Store)(nil)
