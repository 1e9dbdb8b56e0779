package diagnose

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	lib "modernc.org/sqlite/lib"

	"github.com/qsidecar/qsidecar/backends/sqlite"
	"github.com/qsidecar/qsidecar/backends/sqlite/internal/disk"
)

const repairPlan = "check that the index qsidecar_ready exists, and that its definition is that of `qsidecar migrate --print`"

// checkClaim reports which statements claim jobs, and checks their plans.
func (e *examination) checkClaim(ctx context.Context) error {
	e.AddInfo("claim", "claims are a SELECT and UPDATEs by id under the one write lock (BEGIN IMMEDIATE), which is all that SQLite has and needs")
	var faults []string
	for _, sql := range e.engine.ClaimStatements(e.lifo) {
		used := false
		if err := e.each(ctx, "EXPLAIN QUERY PLAN "+sql, func(r sqlite.Row) {
			step := r.Text(3)
			used = used || strings.HasPrefix(step, "SEARCH") && strings.Contains(step, "INDEX qsidecar_ready (queue=?")
			if strings.HasPrefix(step, "SCAN") || strings.Contains(step, "TEMP B-TREE") || strings.Contains(step, "AUTOMATIC") {
				faults = append(faults, step)
			}
		}, make([]any, strings.Count(sql, "?"))...); sqlite.ErrorCode(err) == lib.SQLITE_ERROR {
			e.AddError("plan", fmt.Sprintf("the claim can't run: %v", errors.Unwrap(err)), repairPlan)
			return nil
		} else if err != nil {
			return err
		}
		if !used {
			faults = append(faults, "no use of the index qsidecar_ready")
		}
	}
	if len(faults) == 0 {
		e.AddInfo("plan", "the claim reads the index qsidecar_ready in the queue's order and stops at its LIMIT: no sort, no walk through the table")
		return nil
	}
	slices.Sort(faults)
	e.AddError("plan", "the claim's plan has "+strings.Join(slices.Compact(faults), ", ")+": each claim costs more the larger the table is",
		repairPlan)
	return nil
}

// checkWAL finds a WAL that only grows because a reader prevents it from restarting.
func (e *examination) checkWAL() error {
	info, err := os.Stat(e.path + "-wal")
	if err != nil {
		return nil // there is no WAL, or checkAccess reports the error
	}
	text := fmt.Sprintf("the WAL has %s", bytesText(uint64(info.Size())))
	if info.Size() <= e.WAL {
		e.AddInfo("wal", text)
		return nil
	}
	e.AddWarning("wal", text+": a program reads in one long transaction (a report, a backup), and while it does the WAL only grows",
		"end that transaction"+readersText(e.path)+"; the next commits then cut the WAL")
	return nil
}

const repairFile = "stop the sidecars, keep a copy, and restore a backup, or what `sqlite3 FILE .recover` can save"

// checkDamage reads the whole database, unless it is too large.
func (e *examination) checkDamage(ctx context.Context) error {
	size := e.info.Size()
	if size > e.MaxRead {
		e.AddInfo("integrity", fmt.Sprintf("the file has %s, and was not checked for damage: PRAGMA quick_check in the sqlite3 shell does that", bytesText(uint64(size))))
		return nil
	}
	var faults []string
	if err := e.each(ctx, "PRAGMA quick_check(3)", func(r sqlite.Row) { faults = append(faults, strings.Join(strings.Fields(r.Text(0)), " ")) }); err != nil {
		return err
	}
	if slices.Equal(faults, []string{"ok"}) {
		e.AddInfo("integrity", fmt.Sprintf("PRAGMA quick_check finds no damage in the file (%s)", bytesText(uint64(size))))
		return nil
	}
	e.AddError("integrity", "the file is damaged: "+strings.Join(faults, "; "),
		repairFile)
	return nil
}

// checkLocks finds a program that holds the write lock. A write transaction takes
// milliseconds, unless its program was stopped or didn't end it.
func (e *examination) checkLocks(ctx context.Context) {
	if info, err := os.Stat(e.path + "-journal"); err == nil && info.Size() > 0 {
		e.AddWarning("locks", "there is a rollback journal beside the file: a program writes without WAL, or ended during a transaction",
			"let that program finish; if there is none, serve rolls its transaction back. Do not delete the journal")
	}
	end := time.Now().Add(e.Lock)
	for {
		holder, err := disk.Writer(e.path)
		switch {
		case err != nil:
			e.AddInfo("locks", fmt.Sprintf("the processes with locks are unknown: %v", err))
			return
		case holder == 0:
			if users := disk.Users(e.path); len(users) > 0 {
				e.AddInfo("locks", "the file is in use by "+processNames(users))
			}
			return
		case !time.Now().Before(end):
			e.AddWarning("locks", fmt.Sprintf("the write lock was held for %v by %s: until it releases the lock, no sidecar can enqueue, claim or settle", e.Lock, processNames([]int{holder})),
				"have that program commit or roll back; if it is stopped or hangs, end it")
			return
		}
		timer := time.NewTimer(20 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return // the caller returns an error
		}
	}
}

// processNames lists processes for a message.
func processNames(pids []int) string {
	var all []string
	for _, pid := range pids {
		name := fmt.Sprintf("process %d", pid)
		if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil {
			name += " (" + strings.TrimSpace(string(comm)) + ")"
		}
		all = append(all, name)
	}
	return strings.Join(all, ", ")
}

func readersText(path string) string {
	if users := disk.Users(path); len(users) > 0 {
		return " (the file is in use by " + processNames(users) + ")"
	}
	return ""
}

// bytesText formats a size.
func bytesText(n uint64) string {
	units := []string{"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"}
	unit := 0
	x := float64(n)
	for ; x >= 1024 && unit < len(units)-1; unit++ {
		x /= 1024
	}
	if x < 10 && unit > 0 {
		return fmt.Sprintf("%.1f %s", x, units[unit])
	}
	return fmt.Sprintf("%.0f %s", math.Floor(x), units[unit])
}
