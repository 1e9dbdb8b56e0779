package mapping

import (
	"fmt"
	"maps"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
)

const archiveKey = "on_ack.archive"

// CheckArchive checks the table that rows move to against the one that they come from, and
// fills in m.ArchiveTo.
func CheckArchive(p *Problems, m *Mapping, archive backends.TableInfo) {
	c := &checker{m, p}
	archive = spellArchive(archive, m.Info)
	to := ArchiveTable{SQLName: m.Dialect.Table(archive.Schema, archive.Name)}
	switch {
	case len(archive.Columns) == 0:
		c.Add(archiveKey, "there is no table %s to move rows to: %s", m.Archive, SimilarOr(archive, "check its spelling"))
		return
	case archive.Lacks != "":
		c.AddFix(archiveKey, archive.Grant(archive.Lacks), "this login lacks %s, which each statement about the table %s needs", archive.Lacks, archive.Name)
	case slices.Contains(archive.Denied, "INSERT"):
		c.AddFix(archiveKey, archive.Grant("INSERT ON "+to.SQLName), "this login lacks INSERT on the table %s", archive.Name)
	case archive.Unsafe != "":
		c.Add(archiveKey, "the table %s can't be changed in a transaction, so a job could be lost: %s", archive.Name, archive.Unsafe)
	}
	for _, column := range archive.Columns {
		from, both := m.Info.Column(column.Name)
		switch {
		case both && !column.Generated:
			to.Common = append(to.Common, column.Name)
			c.archiveColumn(from, column, &archive)
		case len(Stamped([]backends.Column{column})) > 0:
			to.Stamps = append(to.Stamps, column)
		case !column.Nullable && !column.Default && !column.Generated:
			c.AddFix(archiveKey, "give it a default there", "the column %s of the table %s needs a value, and the table %s has no such column", column.Name, archive.Name, m.Info.Name)
		}
	}
	m.ArchiveTo = to
	if m.RetainDone > 0 {
		c.archiveRetention(archive)
	}
	if len(to.Common) == 0 {
		c.Add(archiveKey, "the tables %s and %s have no column in common", m.Info.Name, archive.Name)
	}
}

// archiveColumn checks that a column of the archive holds what the table's column holds. What
// only some rows break is a warning.
func (c *checker) archiveColumn(from, to backends.Column, info *backends.TableInfo) {
	table, archive := c.Info.Name, info.Name
	if from.Kind != to.Kind && to.Kind != backends.TextColumn {
		c.Add(archiveKey, "the column %s is of the type %s in %s, but of %s in %s, which can't hold it", from.Name, DeclaredType(from), table, DeclaredType(to), archive)
		return
	}
	if done, has := c.States[backends.StateDone]; has && c.IsIn(State, from.Name) {
		if why := unfit(to, done); why != "" {
			c.Add(archiveKey, "in %s, which rows in the state done move to, %s", archive, why)
		}
	}
	if slices.Contains(to.Denied, "INSERT") {
		c.AddFix(archiveKey, info.Grant(fmt.Sprintf("INSERT (%s) ON %s", c.Quote(to), c.Dialect.Table(info.Schema, info.Name))), "this login lacks INSERT on the column %s of %s", to.Name, archive)
	}
	key := "queues." + c.Mapping.Queue + "." + archiveKey
	switch {
	case from.Nullable && !to.Nullable:
		c.Warnings.AddWarning("archive", fmt.Sprintf("%s: the column %s can be NULL in %s but not in %s, so the ack of such a row is refused", key, from.Name, table, archive),
			"allow NULL there too")
	case to.Chars > 0 && (from.Chars == 0 || from.Chars > to.Chars), to.Most > 0 && (from.Most == 0 || from.Most > to.Most):
		c.Warnings.AddWarning("archive", fmt.Sprintf("%s: the column %s holds less in %s (%s) than in %s (%s), so the ack of a longer or larger value is refused",
			key, from.Name, archive, DeclaredType(to), table, DeclaredType(from)), "give it the same type there")
	}
}

// retentions finds the rows of the table itself that RetainDone and RetainDead ask to delete.
func (c *checker) retentions() {
	finished, has := c.columns[FinishedAt]
	if c.RetainDone > 0 && c.OnAck != Archive {
		c.retention(Retention{c.Mapping, backends.StateDone, finished, c.RetainDone}, has)
	}
	if failed, also := c.columns[FailedAt]; also {
		finished, has = failed, true
	}
	if c.RetainDead > 0 {
		c.retention(Retention{c.Mapping, backends.StateDead, finished, c.RetainDead}, has)
	}
}

func (c *checker) retention(r Retention, timed bool) {
	if !timed {
		c.Add(r.ConfigKey(), "columns.finished_at is missing: no column shows since when a row is %s", r.State)
	}
	if !c.HasState(r.State) {
		c.Add(r.ConfigKey(), "states.%s is missing: no value shows which rows are %s", r.State, r.State)
	}
	c.deleteRights(r)
	c.Retained = append(c.Retained, r)
}

// archiveRetention finds the rows of the archive that RetainDone asks to delete.
func (c *checker) archiveRetention(archive backends.TableInfo) {
	m := &Mapping{Table: c.Table, Queue: c.Mapping.Queue, Dialect: c.Dialect, Info: archive, SQLName: c.ArchiveTo.SQLName}
	for i, name := range append(slices.Clone(c.Columns[ID]), slices.Sorted(maps.Keys(c.Where))...) {
		column, has := archive.Column(name)
		if !has {
			c.Add("retention.done", "the table %s has no column %s, which identifies the rows of this queue: add it there, or remove retention.done", archive.Name, name)
			continue
		}
		if i < len(c.Columns[ID]) {
			m.Key = append(m.Key, column)
		}
	}
	since, has := archive.Column(c.columns[FinishedAt].Name)
	if !has && len(c.ArchiveTo.Stamps) > 0 {
		since, has = c.ArchiveTo.Stamps[0], true
	}
	if why, _ := c.unfitTime(since); !has || why != "" {
		c.Add("retention.done", "no column shows since when a row is in %s: both tables need the column in the role finished_at", archive.Name)
	}
	r := Retention{m, "", since, c.RetainDone}
	c.deleteRights(r)
	c.Retained = append(c.Retained, r)
}

// deleteRights checks that the login can find and delete the rows.
func (c *checker) deleteRights(r Retention) {
	if lacking := r.lacking([]string{"SELECT", "DELETE"}); lacking != "" {
		c.AddFix(r.ConfigKey(), r.Info.Grant(lacking+" ON "+r.SQLName), "this login lacks %s on the table %s", lacking, r.Info.Name)
	}
}
