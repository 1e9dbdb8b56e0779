package mapping

import (
	"regexp"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

const leaveIt = ": leave this table to its own workers, and enqueue jobs for sidecars into a queue of their own"

// Unshareable returns why sidecars can't share the table of a library: its rows don't show which jobs its own workers
// have. Both would run the same jobs. Empty: it is another table. Libraries are recognized by their columns, since the
// table's name can be another one.
func Unshareable(info backends.TableInfo) string {
	name := strings.ToLower(info.Name)
	has := func(names ...string) bool {
		for _, name := range names {
			if !hasFolded(info, name) {
				return false
			}
		}
		return true
	}
	advisory := func(library, table string) string {
		return "it is " + library + "'s table. Its workers keep an advisory lock while they run a job, and " + table +
			" doesn't show that. Neither side sees the jobs of the other one, so both would run them" + leaveIt
	}
	switch {
	case has("job_class", "error_count", "run_at", "args") && (has("expired_at", "finished_at") || has("job_id", "last_error")):
		return advisory("Que", "the row")
	case has("active_job_id", "serialized_params", "performed_at", "finished_at"):
		return advisory("GoodJob", "the row's locked_at, if there is one,")
	case has("term", "enqueued_at", "due_at", "fail_reason"):
		return advisory("Rihanna", "the row")
	case strings.Contains(name, "solid_queue_") && (has("class_name", "active_job_id") || has("job_id")):
		return "it is one of Solid Queue's tables. Solid Queue shows a job's state by rows in several tables " +
			"(solid_queue_ready_executions, solid_queue_claimed_executions, solid_queue_failed_executions and others), and a sidecar changes rows of one table" + leaveIt
	case has("class_name", "active_job_id", "concurrency_key", "arguments"):
		return "it has the columns of Solid Queue's table of jobs. Solid Queue shows a job's state by rows in several tables, and a sidecar changes rows of one table" + leaveIt
	case strings.HasSuffix(name, "django_q_ormq") && has("key", "payload", "lock"):
		return "it is Django-Q's table. Its column lock has a time in every row, and a row is ready if that time is older than the cluster's setting `retry`: " +
			"the row itself doesn't show whether it is claimed. Its payload is signed, and only Django-Q can read it" + leaveIt
	case has("jobid", "queue", "fetchedat"), has("stateid", "statename", "invocationdata", "arguments"):
		return "it is one of Hangfire's tables. Hangfire shows a job's state by rows in several tables (Job, JobQueue, State), and a sidecar changes rows of one table" + leaveIt
	case has("sched_name", "trigger_name", "trigger_state"), has("sched_name", "entry_id", "fired_time"):
		return "it is one of Quartz's tables. Quartz locks rows of its table of locks, and shows what runs in its table of fired triggers" + leaveIt
	}
	return ""
}

// hasFolded reports whether the table has a column of that name, in upper or lower case.
func hasFolded(info backends.TableInfo, name string) bool {
	for _, c := range info.Columns {
		if strings.EqualFold(c.Name, name) {
			return true
		}
	}
	return false
}

// claimTable matches the names of tables that show which rows of another table are claimed.
var claimTable = regexp.MustCompile(`(?i)claim|lock|lease|reserv|execution|in_?progress|running`)

// ClaimTables are tables that refer to this one and, by their names, show which of its rows are claimed.
func ClaimTables(info backends.TableInfo) (all []string) {
	for _, k := range info.Constraints {
		if k.Kind == backends.ReferencedBy && claimTable.MatchString(k.Table[strings.LastIndex(k.Table, ".")+1:]) {
			all = append(all, k.Table)
		}
	}
	return all
}
