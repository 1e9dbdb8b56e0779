package guess

import (
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
)

// form is what columns in a role are like.
type form struct {
	role  adopted.Role // tokenRole: no role of its own
	kinds []backends.ColumnKind
	exact []string // whole names
	parts []string // of names
}

// tokenRole stands for the config's token.
const tokenRole adopted.Role = "token"

var (
	texts   = []backends.ColumnKind{backends.TextColumn}
	numbers = []backends.ColumnKind{backends.NumberColumn}
	times   = []backends.ColumnKind{backends.TimeColumn}
	said    = []backends.ColumnKind{backends.TextColumn, backends.JSONColumn}
	given   = []backends.ColumnKind{backends.TextColumn, backends.JSONColumn, backends.BytesColumn}
)

// forms go by weight: a column gets the first role that it is like, and of several
// columns that are like one the first in the order of the words gets it. Names are
// compared without case, and without what stands between their words.
var forms = []form{
	{
		tokenRole, numbers,
		[]string{"pid", "token", "transactionunique", "lock", "lockid", "claimid", "consumerid", "workerid", "connectionid", "sessionid", "batchid", "reservationid", "ownerid", "threadid"},
		[]string{"token", "pid", "unique"},
	},
	{
		adopted.OwnLimit, numbers,
		[]string{"maxattempts", "maxretries", "maxtries", "attemptlimit", "attemptslimit", "retrylimit", "maxfailures", "maxdeliveries"},
		[]string{"maxattempt", "maxretr", "maxtries", "maxfail", "attemptlimit", "retrylimit"},
	},
	{
		adopted.Attempts, numbers,
		[]string{"attempts", "attempt", "tries", "retries", "failures", "failurecount", "failcount", "retrycount", "retrycnt", "attemptcnt", "deliveries", "errors"},
		[]string{"attempt", "failure", "failcount", "failed", "retries", "retrycount", "retrycnt", "tries", "trycount", "errorcount"},
	},
	{adopted.Priority, numbers, []string{"priority", "prio"}, []string{"priority"}},
	{adopted.FailedAt, times, []string{"failedat", "discardedat", "deadat", "buriedat"}, nil},
	{
		adopted.FinishedAt, times,
		[]string{"finishedat", "finisheddt", "finished", "donetime", "doneat", "completedat", "processedat", "endedat", "endtime"},
		[]string{"finish", "complet", "done", "ended", "endtime", "processedat", "processedtime", "handled", "closed"},
	},
	{
		adopted.ClaimedAt, times,
		[]string{"claimedat", "takenat", "takentime", "lockedat", "startedat", "started", "startdt", "reservedat"},
		[]string{"claim", "taken", "locked", "started", "startat", "starttime", "startdt", "picked", "reserved", "processingat", "processingsince", "begin", "begun", "active"},
	},
	{
		adopted.RunAt, times,
		[]string{"runat", "runafter", "availableat", "scheduledat", "scheduledfor", "notbefore", "visibleat", "dueat", "due", "eta", "nextrun", "nextattempt", "activatedate"},
		[]string{"runat", "runafter", "available", "schedul", "notbefore", "visible", "dueat", "nextrun", "nextattempt", "nextretry", "delayuntil", "executeat", "execat", "activat", "effective"},
	},
	{
		adopted.CreatedAt, times,
		[]string{"createdat", "createddt", "created", "createtime", "creationtime", "insertedat", "enqueuedat", "addedat", "queuedat"},
		[]string{"creat", "insert", "enqueue", "added", "queued", "submit", "received"},
	},
	{
		adopted.Worker, texts,
		[]string{"workername", "worker", "lockedby", "claimedby", "takenby", "consumer", "readercode", "processedby", "owner", "hostname", "servername", "host"},
		[]string{"worker", "lockedby", "claimedby", "takenby", "startedby", "servername", "consumer", "reader", "processedby", "processor", "handledby"},
	},
	{
		adopted.Error, said,
		[]string{"errormessage", "error", "lasterror", "errormsg", "errortext", "failurereason", "exception", "err", "errmsg", "lasterr", "lastmessage"},
		[]string{"error", "errmsg", "exception", "failreason", "failurereason", "failuremessage"},
	},
	{adopted.Result, given, []string{"result", "output", "response", "outcome"}, []string{"result", "output", "response"}},
	{
		adopted.Payload, given,
		[]string{"payload", "parameters", "params", "arguments", "args", "handler", "message", "msg", "body", "data", "command", "content", "job", "task", "input", "json", "event"},
		[]string{"payload", "param", "argument", "message", "body", "data", "command", "content"},
	},
}

// stateNames are what the column is called that says a job's state.
var stateNames = form{
	kinds: []backends.ColumnKind{backends.TextColumn, backends.NumberColumn, backends.BoolColumn},
	exact: []string{"state", "status", "stat", "jobstate", "jobstatus", "isdone", "done", "processed", "isprocessed", "completed", "finished", "handled", "ishandled", "stage", "phase"},
	parts: []string{"state", "status", "isdone", "isprocessed", "iscomplete", "isfinished", "ishandled", "issent"},
}

// truthNames are what it is called where it says but yes or no.
var truthNames = form{
	kinds: []backends.ColumnKind{backends.BoolColumn},
	exact: []string{"pending", "waiting", "todo", "sent", "complete"},
	parts: []string{"pending", "waiting", "unprocessed"},
}

// kindNames are what the column is called that says what kind of job a row is.
var kindNames = form{
	kinds: []backends.ColumnKind{backends.TextColumn, backends.NumberColumn},
	exact: []string{"queue", "queuename", "topic", "channel", "type", "kind", "jobtype", "msgtypecode", "messagetype", "tasktype", "category"},
	parts: []string{"queue", "topic", "type", "kind"},
}

// plain is a name as forms have it.
func plain(name string) string {
	return strings.Map(func(r rune) rune {
		if r == '_' || r == '-' || r == ' ' || r == '.' {
			return -1
		}
		return r
	}, strings.ToLower(name))
}

// find is the best column of that form that is not used. exact: its whole name is one
// that such columns have.
func (g *guessing) find(f form) (best backends.Column, exact, found bool) {
	least := len(f.exact) + len(f.parts)
	for _, c := range g.Info.Columns {
		if g.used[c.Name] || !slices.Contains(f.kinds, g.kindOf(c)) || c.Generated && f.role != adopted.CreatedAt {
			continue
		}
		name := plain(c.Name)
		rank := slices.Index(f.exact, name)
		if rank < 0 {
			if rank = slices.IndexFunc(f.parts, func(part string) bool { return strings.Contains(name, part) }); rank >= 0 {
				rank += len(f.exact)
			}
		}
		if rank >= 0 && rank < least {
			best, least = c, rank
		}
	}
	return best, least < len(f.exact), best.Name != ""
}

// roles gives the columns their roles, as far as names and types tell.
func (g *guessing) roles() {
	for _, f := range forms {
		c, exact, found := g.find(f)
		if !found || f.role == tokenRole && !c.Nullable {
			continue
		}
		if f.role == tokenRole {
			g.token, g.used[c.Name] = c, true
			continue
		}
		g.take(f.role, c)
		if !exact {
			g.note("columns."+string(f.role), true, "by its name")
		}
	}
	g.kindColumn()
	g.payload()
}

// kindColumn finds the column that says what kind of job a row is: it comes before
// the state in an index, or is called so.
func (g *guessing) kindColumn() {
	for _, x := range g.Info.Indexes {
		at := slices.IndexFunc(x.Columns, func(c backends.IndexColumn) bool { return c.Name == g.state.Name })
		if at != 1 || g.state.Name == "" || g.used[x.Columns[0].Name] {
			continue
		}
		if c, _ := g.Info.Column(x.Columns[0].Name); slices.Contains(kindNames.kinds, c.Kind) {
			g.kind, g.used[c.Name] = c, true
			g.note("where."+c.Name, true, "the index %s has it before the state", x.Name)
			return
		}
	}
	if c, exact, found := g.find(kindNames); found && exact {
		g.kind, g.used[c.Name] = c, true
		g.note("where."+c.Name, true, "by its name")
	}
}

// payload, where nothing is called so, is all that has no other role.
func (g *guessing) payload() {
	if len(g.Table.Columns[adopted.Payload]) > 0 {
		return
	}
	var all []backends.Column
	for _, c := range g.Info.Columns {
		if !g.used[c.Name] && !housekeeping(c) {
			all = append(all, c)
		}
	}
	for _, c := range all {
		if c.Kind == backends.JSONColumn {
			all = []backends.Column{c}
			break
		}
	}
	for _, c := range all {
		g.take(adopted.Payload, c)
	}
	switch len(all) {
	case 0:
		g.hint("columns.payload", "", "no column is left for it: workers get the id alone")
	case 1:
		g.note("columns.payload", true, "no column is called so, and this one has no other role")
	default:
		g.note("columns.payload", true, "no column is called so: all that have no other role, as a JSON map")
	}
}

// housekeeping: it is about the row, and not about the work.
func housekeeping(c backends.Column) bool {
	name := plain(c.Name)
	for _, part := range []string{"updated", "modified", "changed", "deleted", "version"} {
		if strings.HasPrefix(name, part) || strings.HasPrefix(name, "is"+part) || strings.HasPrefix(name, "last"+part) {
			return true
		}
	}
	return false
}
