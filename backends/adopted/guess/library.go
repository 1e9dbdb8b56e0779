package guess

import (
	"strings"

	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

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
