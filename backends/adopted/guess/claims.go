package guess

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// attempts guesses what their column counts, and the limit.
func (g *guesser) attempts(s *sample) {
	c, has := g.column(mapping.Attempts)
	if !has {
		return
	}
	name := plain(c.Name)
	if why := g.countsDown(c, s); why != "" {
		delete(g.Table.Columns, mapping.Attempts)
		delete(g.Notes, "columns.attempts")
		g.hint("columns.attempts", "", "%s: %s. No role fits such a counter, and sidecars count attempts themselves", c.Name, why)
		return
	}
	g.Table.Deliveries = !strings.Contains(name, "fail") && !strings.Contains(name, "err") && !strings.Contains(name, "retr")
	other := "set failures if its own consumers add 1 only when a job fails"
	if !g.Table.Deliveries {
		other = "set deliveries if its own consumers add 1 when they claim a job"
	}
	g.note("counts", true, fromName+"; %s", other)
	most := int64(0)
	for _, v := range s.values(c.Name) {
		if n, err := strconv.ParseInt(v.text, 10, 64); err == nil && v.rows > 0 {
			most = max(most, n)
		}
	}
	if most >= 2 && most <= 100 {
		g.Table.MaxAttempts = int(most)
		g.note("max_attempts", true, "the highest count in the sampled rows; set the count at which its own consumers give up")
		return
	}
	g.hint("max_attempts", "20", "after how many attempts do its own consumers give up on a job?")
}

// remaining matches the names of columns that count the attempts that remain.
var remaining = regexp.MustCompile(`left|remain|budget|available|allowed`)

// countsDown returns why the column seems to count the attempts that remain. Empty: it doesn't seem so.
func (g *guesser) countsDown(c backends.Column, s *sample) string {
	if remaining.MatchString(plain(c.Name)) {
		return "by its name it counts the attempts that remain"
	}
	if n, err := strconv.Atoi(defaultOf(c)); err == nil && n >= 2 {
		return fmt.Sprintf("a new row has %d there, so it seems to count the attempts that remain", n)
	}
	values := s.values(c.Name)
	most, least := int64(0), int64(math.MaxInt64)
	for _, v := range values {
		n, err := strconv.ParseInt(v.text, 10, 64)
		if err != nil || v.rows == 0 {
			continue
		}
		most, least = max(most, n), min(least, n)
	}
	w := g.waiting.of[c.Name]
	fresh := 0
	for text, v := range w {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil && n == most {
			fresh = v.rows
		}
	}
	if most >= 2 && 2*fresh > g.waiting.rows && w["0"] == nil && g.waiting.null[c.Name] == 0 && (least < most || g.waiting.rows >= 3) {
		return fmt.Sprintf("most rows that wait have the highest number, %d, and none has 0, so it seems to count the attempts that remain", most)
	}
	return ""
}

// ownLimit explains the limit of each row.
func (g *guesser) ownLimit() {
	c, has := g.column(mapping.OwnLimit)
	if has && strings.Contains(plain(c.Name), "retr") {
		g.note("columns.max_attempts", true, fromName+". A row with this many attempts is dead. Consumers that count only retries make one more attempt")
	}
	if has && g.Table.MaxAttempts == 0 {
		g.dropHints("max_attempts")
		if c.Nullable {
			g.hint("max_attempts", "20", "the limit of rows where %s is NULL", c.Name)
		}
	}
}

// claims guesses how a row shows that it is claimed, done or dead.
func (g *guesser) claims() {
	_, claimed := g.Table.States[backends.StateClaimed]
	switch {
	case g.token.Name != "" && (g.state.Name == "" || claimed):
		g.reserveToken()
	case g.token.Name != "":
		g.hint("token", fmt.Sprintf("{column: %s, value: …}", g.token.Name), "do its own consumers find their claimed rows by %s? If so, set a value that none of them uses", g.token.Name)
	}
	marked := !claimed && g.Table.Token == nil && g.marksClaims()
	shown := claimed || marked || g.Table.Token != nil
	if tables := mapping.ClaimTables(g.Info); !shown && len(tables) > 0 {
		g.elsewhere = tables[0]
	}
	if !shown {
		g.hold()
	}
	g.ack(shown)
	if g.has(mapping.ClaimedAt) && (claimed || marked) {
		g.hint("stuck_after", "1h", "set this if rows that its own consumers claimed longer ago than this should become ready again")
	}
	for _, c := range g.Info.Columns {
		if name := plain(c.Name); strings.HasPrefix(name, "deleted") || strings.HasPrefix(name, "isdeleted") {
			value := "null"
			if !c.Nullable {
				value = "false"
			}
			g.hint("where."+c.Name, value, "do its own consumers skip rows with another value?")
		}
	}
	g.failedAt()
}

// ack guesses what becomes of a row whose job is done, if no state shows it. shown: a row shows that
// it is claimed.
func (g *guesser) ack(shown bool) {
	if _, done := g.Table.States[backends.StateDone]; done || g.state.Name != "" || !shown {
		return
	}
	if g.has(mapping.FinishedAt) {
		g.hint("on_ack", "delete", "no state marks a row as done: do its own consumers delete it? If they move it, set {archive: TABLE}")
		return
	}
	if c, found := g.possibleState(); found {
		g.hint("on_ack", "delete", "does %s mark a row as done? Then it is the state. If its own consumers delete rows that are done, set this", c.Name)
		return
	}
	g.Table.OnAck = mapping.Delete
	g.note("on_ack", true, "nothing in a row marks it as done, so an ack deletes it; set {archive: TABLE} to move it instead")
}

// possibleState returns a column that can be a state with an unusual name: a number or a truth value
// with a default or an index, and without another role than that of the payload.
func (g *guesser) possibleState() (backends.Column, bool) {
	at := slices.IndexFunc(g.Info.Columns, func(c backends.Column) bool {
		free := !g.used[c.Name] || slices.Contains(g.Table.Columns[mapping.Payload], c.Name)
		indexed := slices.ContainsFunc(g.Info.Indexes, func(x backends.Index) bool {
			return slices.ContainsFunc(x.Columns, func(i backends.IndexColumn) bool { return i.Name == c.Name })
		})
		return free && !c.Generated && (c.Kind == backends.NumberColumn || c.Kind == backends.BoolColumn) && (c.Given != "" || indexed) && g.times[c.Name] == notTime
	})
	if at < 0 {
		return backends.Column{}, false
	}
	return g.Info.Columns[at], true
}

// claimName matches the names of columns that hold a time only while a worker has the row.
var claimName = regexp.MustCompile(`claim|taken|lock|reserv|pick|leas`)

// marksClaims reports whether the time of the claim distinguishes claimed rows from waiting ones.
// A time of another name can stay in a row that waits again, and then a person has to decide.
func (g *guesser) marksClaims() bool {
	c, has := g.column(mapping.ClaimedAt)
	if !has || g.state.Name != "" && g.state.Kind != backends.BoolColumn {
		return false
	}
	if c.Nullable && claimName.MatchString(plain(c.Name)) {
		g.note("columns.claimed_at", true, "a row with this time is claimed. Its own consumers must skip it, and set NULL when the row is ready again")
		return true
	}
	delete(g.Table.Columns, mapping.ClaimedAt)
	delete(g.Notes, "columns.claimed_at")
	if c.Nullable {
		g.hint("columns.claimed_at", c.Name, "is it NULL in every ready row, and do its own consumers skip rows with a value?")
	}
	return false
}

// failedAt takes rows with that time for dead ones, if no state shows these.
func (g *guesser) failedAt() {
	c, has := g.column(mapping.FailedAt)
	_, dead := g.Table.States[backends.StateDead]
	switch {
	case !has || dead:
	case c.Nullable:
		g.note("columns.failed_at", true, "a row with this time is dead")
	default:
		delete(g.Table.Columns, mapping.FailedAt)
	}
}

// hold asks whether the table's own consumers keep claimed rows locked. It is never guessed: if they
// don't, claim_mode: transaction would have both work a job.
func (g *guesser) hold() {
	const none = "no column was found that shows whether a row is claimed"
	cannot := fmt.Errorf("%s doesn't support claim_mode: transaction", g.engine.Info().Engine)
	if c, ok := g.engine.(backends.TxClaimer); ok {
		cannot = c.NoOpenTx()
	}
	if cannot != nil {
		g.hint("claim_mode", "", none+". If there is one, set states.claimed or columns.claimed_at. If its own consumers only lock the row, sidecars can't share this table: %v", cannot)
		return
	}
	g.hint("claim_mode", "transaction", none+". Use this if its own consumers keep a claimed row locked. Otherwise set states.claimed or columns.claimed_at")
}

// archive finds a table beside this one that rows can move to.
func (g *guesser) archive(ctx context.Context) error {
	for _, suffix := range []string{"_archive", "_archived", "_done", "_history"} {
		to, err := g.engine.Describe(ctx, g.Table.Schema, g.Table.Name+suffix)
		if err != nil {
			return err
		}
		common := 0
		for _, c := range to.Columns {
			if g.hasAll(c.Name) {
				common++
			}
		}
		if 2*common < len(g.Info.Columns) || to.Kind != "table" {
			continue
		}
		if g.Table.OnAck == mapping.Delete {
			g.Table.OnAck, g.Table.ArchiveSchema, g.Table.Archive = mapping.Archive, g.Table.Schema, to.Name
			g.note("on_ack.archive", true, "it has %d of this table's columns; set on_ack: delete if its own consumers delete rows that are done", common)
		} else {
			g.hint("on_ack", "{archive: "+to.Name+"}", "%s has %d of this table's columns: do its own consumers move rows there when they are done?", to.Name, common)
		}
		return nil
	}
	return nil
}

// channel guesses the channel on which the table's own producers announce new jobs.
func (g *guesser) channel() {
	if _, listens := g.engine.(backends.ChannelListener); !listens {
		return
	}
	switch all := g.Info.Channels; len(all) {
	case 0:
		g.hint("notify", "", "if its own producers NOTIFY a channel of new jobs, set the channel; sidecars query for jobs about once a second without it")
	case 1:
		g.Table.Notify = all[0]
		g.note("notify", true, "a trigger or rule of the table notifies this channel")
	default:
		g.hint("notify", all[0], "the table's triggers or rules notify the channels %s: which one is for new jobs?", strings.Join(all, ", "))
	}
}

// reserveToken gives the sidecars numbers of the token's column: beyond the ids of processes on
// Linux, but within 24 bits.
func (g *guesser) reserveToken() {
	from, to := int64(8_000_001), int64(8_388_607)
	if most := g.token.Most; most > 0 && most < to {
		from, to = most-most/32, most
	} else if most == 1<<24-1 {
		from, to = 16_500_001, most
	}
	g.Table.Token = &mapping.Token{Column: g.token.Name, From: from, To: to}
	g.note("token.column", true, fromName)
	g.note("token.range", true, "sidecars write these numbers: make sure that its own consumers use others")
}
