package guess

import (
	"slices"
	"strconv"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// form is what the columns in a role look like. Names are compared without case and without the
// separators in them.
type form struct {
	role  mapping.Role
	kinds []backends.ColumnKind
	exact []string // whole names, the best first
	parts []string // of names
}

var (
	texts    = []backends.ColumnKind{backends.TextColumn}
	numbers  = []backends.ColumnKind{backends.NumberColumn}
	times    = []backends.ColumnKind{backends.TimeColumn}
	messages = []backends.ColumnKind{backends.TextColumn, backends.JSONColumn}
	contents = []backends.ColumnKind{backends.TextColumn, backends.JSONColumn, backends.BytesColumn}
)

// forms go by weight: a column gets the first role that it looks like. Of several such columns the
// one with the best name gets it.
var forms = []form{
	{
		mapping.TokenRole, numbers,
		[]string{"pid", "token", "transactionunique", "lock", "lockid", "claimid", "consumerid", "workerid", "connectionid", "sessionid", "batchid", "reservationid", "ownerid", "threadid"},
		[]string{"token", "pid", "unique"},
	},
	{
		mapping.OwnLimit, numbers,
		[]string{"maxattempts", "maxretries", "maxtries", "attemptlimit", "attemptslimit", "retrylimit", "maxfailures", "maxdeliveries"},
		[]string{"maxattempt", "maxretr", "maxtries", "maxfail", "attemptlimit", "retrylimit"},
	},
	{
		mapping.Attempts, numbers,
		[]string{"attempts", "attempt", "tries", "retries", "failures", "failurecount", "failcount", "retrycount", "retrycnt", "attemptcnt", "deliveries", "errors"},
		[]string{"attempt", "failure", "failcount", "failed", "retries", "retrycount", "retrycnt", "tries", "trycount", "errorcount"},
	},
	{mapping.Priority, numbers, []string{"priority", "prio"}, []string{"priority"}},
	{mapping.FailedAt, times, []string{"failedat", "discardedat", "deadat", "buriedat"}, nil},
	{
		mapping.FinishedAt, times,
		[]string{"finishedat", "finalizedat", "finisheddt", "finished", "donetime", "doneat", "completedat", "processedat", "endedat", "endtime"},
		[]string{"finish", "finaliz", "complet", "done", "ended", "endtime", "processedat", "processedtime", "handled", "closed"},
	},
	{
		mapping.ClaimedAt, times,
		[]string{"claimedat", "takenat", "takentime", "lockedat", "startedat", "started", "startdt", "reservedat"},
		[]string{"claim", "taken", "locked", "started", "startat", "starttime", "startdt", "picked", "reserved", "processingat", "processingsince", "begin", "begun", "active"},
	},
	{
		mapping.RunAt, times,
		[]string{"runat", "runafter", "availableat", "scheduledat", "scheduledfor", "notbefore", "visibleat", "dueat", "due", "eta", "nextrun", "nextattempt", "activatedate"},
		[]string{"runat", "runafter", "available", "schedul", "notbefore", "visible", "dueat", "nextrun", "nextattempt", "nextretry", "delayuntil", "executeat", "execat", "activat", "effective"},
	},
	{
		mapping.CreatedAt, times,
		[]string{"createdat", "createddt", "created", "createtime", "creationtime", "insertedat", "enqueuedat", "addedat", "queuedat"},
		[]string{"creat", "insert", "enqueue", "added", "queued", "submit", "received"},
	},
	{
		mapping.Worker, texts,
		[]string{"workername", "worker", "lockedby", "claimedby", "takenby", "consumer", "readercode", "processedby", "owner", "hostname", "servername", "host"},
		[]string{"worker", "lockedby", "claimedby", "takenby", "startedby", "servername", "consumer", "reader", "processedby", "processor", "handledby"},
	},
	{
		mapping.Error, messages,
		[]string{"errormessage", "error", "lasterror", "errormsg", "errortext", "failurereason", "exception", "err", "errmsg", "lasterr", "lastmessage"},
		[]string{"error", "errmsg", "exception", "failreason", "failurereason", "failuremessage"},
	},
	{mapping.Result, contents, []string{"result", "output", "response", "outcome"}, []string{"result", "output", "response"}},
	{
		mapping.Payload, contents,
		[]string{"payload", "parameters", "params", "arguments", "args", "handler", "message", "msg", "body", "data", "command", "content", "job", "task", "input", "json", "event"},
		[]string{"payload", "param", "argument", "message", "body", "data", "command", "content"},
	},
}

// stateNames are the names of columns that show a job's state.
var stateNames = form{
	kinds: []backends.ColumnKind{backends.TextColumn, backends.NumberColumn, backends.BoolColumn},
	exact: []string{"state", "status", "stat", "jobstate", "jobstatus", "isdone", "done", "processed", "isprocessed", "completed", "finished", "handled", "ishandled", "stage", "phase"},
	parts: []string{"state", "status", "isdone", "isprocessed", "iscomplete", "isfinished", "ishandled", "issent"},
}

// truthNames are more names of those that are boolean.
var truthNames = form{exact: []string{"pending", "waiting", "todo", "sent", "complete"}, parts: []string{"pending", "waiting", "unprocessed"}}

// kindNames are the names of columns that hold what kind of job a row is.
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

// rank is the rank of a name among those of the form, with exact ones first, or -1 if it isn't
// one of them.
func (f form) rank(name string) (rank int, exact bool) {
	name = plain(name)
	if rank = slices.Index(f.exact, name); rank >= 0 {
		return rank, true
	}
	if rank = slices.IndexFunc(f.parts, func(part string) bool { return strings.Contains(name, part) }); rank >= 0 {
		rank += len(f.exact)
	}
	return rank, false
}

// find is the unused column with the best name of the form. exact: it is one of the whole names.
func (g *guesser) find(f form) (best backends.Column, exact, found bool) {
	least := len(f.exact) + len(f.parts)
	for _, c := range g.Info.Columns {
		if g.used[c.Name] || !slices.Contains(f.kinds, g.kindOf(c)) || c.Generated && f.role != mapping.CreatedAt {
			continue
		}
		if rank, _ := f.rank(c.Name); rank >= 0 && rank < least {
			best, least = c, rank
		}
	}
	return best, least < len(f.exact), best.Name != ""
}

// roles gives the columns their roles, by their names and types.
func (g *guesser) roles() {
	for _, f := range forms {
		c, exact, found := g.find(f)
		switch {
		case !found:
		case f.role != mapping.TokenRole:
			g.assign(f.role, c)
			if !exact {
				g.note("columns."+string(f.role), true, fromName)
			}
		case c.Nullable:
			g.token, g.used[c.Name] = c, true
		}
	}
	g.kindColumn()
	g.payload()
}

// kindColumn finds the column with the kind of job: it comes before the state in an index, or its
// name matches.
func (g *guesser) kindColumn() {
	for _, x := range g.Info.Indexes {
		if g.state.Name == "" || len(x.Columns) < 2 || x.Columns[1].Name != g.state.Name || g.used[x.Columns[0].Name] {
			continue
		}
		if c, _ := g.Info.Column(x.Columns[0].Name); slices.Contains(kindNames.kinds, c.Kind) {
			g.kind, g.used[c.Name] = c, true
			g.note("where."+c.Name, true, "the index %s has this column before the state", x.Name)
			return
		}
	}
	if c, exact, found := g.find(kindNames); found && exact {
		g.kind, g.used[c.Name] = c, true
		g.note("where."+c.Name, true, fromName)
	}
}

// kindValue gives the queue one kind of job.
func (g *guesser) kindValue(s *sample) {
	if g.kind.Name == "" {
		return
	}
	key := "where." + g.kind.Name
	values := s.values(g.kind.Name)
	if len(values) == 0 || len(values) > mostValues {
		delete(g.Notes, key)
		g.hint(key, "", "does the column %s show the queue of a row? If so, set this queue's value (the sampled rows have %d)", g.kind.Name, len(values))
		return
	}
	g.Table.Where[g.kind.Name] = mapping.Value{Text: values[0].text}
	var all []string
	for _, v := range values {
		all = append(all, strconv.Quote(v.text))
	}
	note := g.Notes[key]
	if note.Text += "; the values found are " + strings.Join(all, ", "); len(all) > 1 {
		note.Text += ". Add a queue like this one for each value that sidecars should serve"
	}
	g.Notes[key] = note
}

// payload gives the role to all columns without another one, if no column has its name.
func (g *guesser) payload() {
	if len(g.Table.Columns[mapping.Payload]) > 0 {
		return
	}
	var all []backends.Column
	for _, c := range g.Info.Columns {
		if !g.used[c.Name] && !isMetadata(c) {
			all = append(all, c)
		}
	}
	if i := slices.IndexFunc(all, func(c backends.Column) bool { return c.Kind == backends.JSONColumn }); i >= 0 {
		all = all[i : i+1]
	}
	for _, c := range all {
		g.assign(mapping.Payload, c)
	}
	switch len(all) {
	case 0:
		g.hint("columns.payload", "", "no column is left, so workers get only the job's id")
	case 1:
		g.note("columns.payload", true, "no column has a usual name for the payload, and this one has no other role")
	default:
		g.note("columns.payload", true, "no column has a usual name for the payload, so workers get a JSON map of all columns without another role")
	}
}

// isMetadata reports whether the column is about the row, and not about the job.
func isMetadata(c backends.Column) bool {
	name := plain(c.Name)
	for _, part := range []string{"updated", "modified", "changed", "deleted", "version"} {
		if strings.HasPrefix(name, part) || strings.HasPrefix(name, "is"+part) || strings.HasPrefix(name, "last"+part) {
			return true
		}
	}
	return false
}
