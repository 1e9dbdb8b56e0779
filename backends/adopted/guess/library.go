package guess

import (
	"strings"

	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// unadoptableLibrary returns why no queue can live in the table of a library, recognized by its name
// and columns. Empty: it is another table.
func (g *guesser) unadoptableLibrary() string {
	name := g.Info.Name
	switch {
	case strings.HasPrefix(name, "solid_queue_") && (g.hasAll("class_name", "active_job_id") || g.hasAll("job_id")):
		return "it is one of Solid Queue's tables. Solid Queue shows a job's state by rows in several tables " +
			"(solid_queue_ready_executions, solid_queue_claimed_executions, solid_queue_failed_executions and others), and a sidecar changes rows of one table: " +
			"leave these to Solid Queue's own workers, and enqueue jobs for sidecars into a queue of their own"
	case strings.HasSuffix(name, "django_q_ormq") && g.hasAll("key", "payload", "lock"):
		return "it is Django-Q's table. Its column lock has a time in every row, and a row is ready if that time is older than the cluster's setting `retry`: " +
			"the row itself doesn't show whether it is claimed. Its payload is signed, and only Django-Q can read it: " +
			"leave it to Django-Q's own cluster, and enqueue jobs for sidecars into a queue of their own"
	}
	return ""
}

// knownLibrary adds facts about a library's table that its documentation states and no row shows.
func (g *guesser) knownLibrary() {
	if strings.HasSuffix(g.Info.Name, "delayed_jobs") && g.hasAll("handler", "run_at", "locked_at", "locked_by", "failed_at", "attempts") {
		g.Table.Deliveries = false
		g.note("counts", false, "Delayed Job counts failed attempts")
		g.Table.MaxAttempts = 25
		g.note("max_attempts", true, "Delayed Job's default; set yours if you changed max_attempts")
		g.dropHints("max_attempts")
		if c, has := g.column(mapping.RunAt); has && !g.isSQLite() && !strings.Contains(c.Type, "with time zone") {
			g.Table.UTC = true
			g.note("times", true, "Rails writes UTC unless you changed its default_timezone")
			g.dropHints("times")
		}
	}
}
