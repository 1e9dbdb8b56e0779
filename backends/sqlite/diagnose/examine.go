package diagnose

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	lib "modernc.org/sqlite/lib"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/checks"
	"github.com/qsidecar/qsidecar/backends/sqlite"
	"github.com/qsidecar/qsidecar/backends/sqlite/internal/disk"
	"github.com/qsidecar/qsidecar/backends/sqlite/migrate"
)

// examination is one call of Examine.
type examination struct {
	checks.Examination
	Thresholds
	engine *Engine
	path   string
	lifo   bool // whether a queue is in LIFO order

	info fs.FileInfo // nil if there is no file
	c    *sqlite.Conn
}

// Thresholds are the values from which a finding is a warning.
type Thresholds struct {
	FreeSpace uint64        // free bytes of the disk
	FullDisk  uint64        // free bytes of the disk below which writes fail
	WAL       int64         // bytes of the WAL
	MaxRead   int64         // the largest file, in bytes, that is read as a whole
	Lock      time.Duration // how long the write lock is held

	Access func(path string, mode uint32) error // replaces disk.Access
}

// DefaultThresholds returns the thresholds that New sets.
func DefaultThresholds() Thresholds {
	return Thresholds{FreeSpace: 256 << 20, FullDisk: 1 << 20, WAL: 128 << 20, MaxRead: 256 << 20, Lock: 2 * time.Second, Access: disk.Access}
}

// Examine implements backends.Examiner. It reads the file on a connection that can't
// write. It leaves a trace only in the volatile -shm file of a database in use.
func (x *Engine) Examine(ctx context.Context, queues []backends.Policy) ([]backends.Finding, error) {
	ctx, done := x.Bound(ctx)
	defer done()
	for {
		e := &examination{engine: x, path: x.Info().Address, Thresholds: x.Thresholds, lifo: slices.ContainsFunc(queues, func(p backends.Policy) bool { return p.LIFO })}
		calm, err := e.run(ctx)
		if err != nil || calm {
			return e.Findings, err
		}
		if ctx.Err() != nil {
			return nil, sqlite.EndedError(ctx, "looking at "+e.path)
		}
	}
}

// run runs all checks. calm is false if a process opened the database during the checks although
// they had treated it as unused.
func (e *examination) run(ctx context.Context) (calm bool, err error) {
	e.AddInfo("server", fmt.Sprintf("SQLite %s, a part of this program", lib.SQLITE_VERSION))
	if ok := e.checkPath(); !ok {
		return true, nil
	}
	e.checkLocks(ctx)
	// Without a WAL, no process has the database open, and it can be read without creating a WAL.
	parameters := "mode=ro"
	alone := !exists(e.path + "-wal")
	if alone {
		parameters += "&immutable=1"
	}
	if e.c, err = e.engine.Connect(parameters, "busy_timeout=2000", "query_only=1"); err == nil {
		err = e.checkContents(ctx)
		err = errors.Join(err, e.c.Close())
	}
	if alone && exists(e.path+"-wal") {
		return false, nil // the contents may have changed while they were read
	}
	switch {
	case err == nil || ctx.Err() != nil:
	case sqlite.ErrorCode(err) == lib.SQLITE_CORRUPT:
		e.AddError("integrity", fmt.Sprintf("the file is damaged: %v", err), repairFile)
		err = nil
	default:
		e.AddError("file", fmt.Sprintf("it cannot be read: %v", e.engine.Explained(err)), "name another file, or correct what the error names")
		err = nil
	}
	if err != nil {
		return false, sqlite.EndedError(ctx, "looking at "+e.path)
	}
	return true, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// checkPath checks the file from outside. It returns false if there is no database in it.
func (e *examination) checkPath() bool {
	info, err := os.Stat(e.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		e.AddError("file", fmt.Sprintf("it can't be read: %v", err), "name another file, or have its owner open the folder to this user")
		return false
	case info.IsDir():
		e.AddError("file", "it is a folder", fmt.Sprintf("name a database file in it, as %s", filepath.Join(e.path, "qsidecar.db")))
		return false
	case !info.Mode().IsRegular():
		e.AddError("file", "it is not a regular file: it can't hold a database", "name another file")
		return false
	}
	folder := filepath.Dir(e.path)
	for !exists(folder) {
		folder = filepath.Dir(folder)
	}
	if name, err := disk.NetworkFS(folder); err != nil {
		e.AddWarning("disk", fmt.Sprintf("its file system is unknown: %v", err), "check that the folder exists and is open to this user")
	} else if name != "" {
		e.AddError("disk", fmt.Sprintf("the file is on a network file system (%s), where SQLite's WAL mode loses data", name),
			"put the database on a local disk, or use a database server for several hosts")
	}
	e.checkSpace(folder)
	if info == nil {
		e.checkMissing(folder)
		return false
	}
	e.info = info
	e.checkAccess(folder)
	return true
}

// checkSpace checks the free space of the disk.
func (e *examination) checkSpace(folder string) {
	free, err := disk.FreeSpace(folder)
	text := fmt.Sprintf("%s are free on the disk of the database", bytesText(free))
	switch {
	case errors.Is(err, errors.ErrUnsupported): // not supported on this system
	case err != nil:
		e.AddWarning("disk", fmt.Sprintf("its free space is unknown: %v", err), "check that the folder exists and is open to this user")
	case free < e.FullDisk:
		e.AddError("disk", fmt.Sprintf("the disk of the database is full (%s are free): the sidecar rejects writes that do not fit, and soon all writes", bytesText(free)),
			"free some space, or put the database on another disk")
	case free < e.FreeSpace:
		e.AddWarning("disk", text+", and writes that do not fit are rejected", "free some space, or put the database on another disk")
	default:
		e.AddInfo("disk", text)
	}
}

// checkMissing checks whether serve can create the missing file.
func (e *examination) checkMissing(folder string) {
	if err := e.Access(folder, disk.WriteIn); err != nil {
		e.AddError("file", fmt.Sprintf("the file is missing, and this user may not create it in %s (%v)", folder, err),
			"have a user with that right create the folder for this user, or name another file")
		return
	}
	e.AddInfo("schema", "there is no file yet: serve or `qsidecar migrate` will create it, with its tables")
}

// checkAccess checks the rights on the file, its folder, and its -wal, -shm and -journal files.
func (e *examination) checkAccess(folder string) {
	before := len(e.Findings)
	if err := e.Access(folder, disk.WriteIn); err != nil {
		e.AddError("rights", fmt.Sprintf("this user may not write in the folder %s, where SQLite keeps the -wal file (%v); it belongs to %s", folder, err, disk.Owner(folder)),
			sqlite.ShareFiles(e.path))
	}
	for _, suffix := range []string{"", "-wal", "-shm", "-journal"} {
		if path := e.path + suffix; exists(path) {
			if err := e.Access(path, disk.ReadWrite); err != nil {
				e.AddError("rights", fmt.Sprintf("this user may not write %s (%v), which belongs to %s", path, err, disk.Owner(path)),
					sqlite.ShareFiles(e.path))
			}
		}
	}
	if len(e.Findings) == before {
		e.AddInfo("rights", "this user may write the file and its folder")
	}
	if mode := e.info.Mode().Perm(); mode&0o002 != 0 {
		e.AddWarning("rights", fmt.Sprintf("every user of this host can write the file (mode %#o)", mode),
			fmt.Sprintf("chmod o-w %s; programs that insert jobs share a group with it", e.path))
	}
}

// checkOverdue finds jobs that maintenance had to change long ago.
func (e *examination) checkOverdue(ctx context.Context) error {
	ago := time.Now().Add(-time.Minute).UnixMilli()
	return e.each(ctx, `SELECT queue, 'claimed', count(*), min(id) FROM (
			SELECT id, queue FROM qsidecar_jobs WHERE due_at IS NOT NULL AND due_at < ?1
			UNION SELECT id, queue FROM qsidecar_jobs AS j WHERE state = 'claimed' AND lease_ms IS NULL AND owner <> 0 AND claimed_at < ?1
				AND NOT EXISTS (SELECT 1 FROM qsidecar_sidecars AS h WHERE h.sidecar = j.owner AND NOT h.dead)
			LIMIT ?2) GROUP BY queue
		UNION ALL SELECT queue, 'scheduled', count(*), min(id) FROM (
			SELECT id, queue FROM qsidecar_jobs WHERE state = 'scheduled' AND run_at < ?1 LIMIT ?2) GROUP BY queue
		ORDER BY 1, 2`, func(r sqlite.Row) {
		e.Overdue(r.Text(0), r.Text(1), r.Int(2), strconv.FormatInt(r.Int(3), 10))
	}, ago, checks.MostOverdue)
}

// checkContents checks the contents of the database.
func (e *examination) checkContents(ctx context.Context) error {
	pragmas := map[string]string{}
	for _, name := range []string{"journal_mode", "encoding"} {
		if err := e.each(ctx, "PRAGMA "+name, func(r sqlite.Row) { pragmas[name] = strings.ToLower(r.Text(0)) }); err != nil {
			return err
		}
	}
	mode := pragmas["journal_mode"]
	if mode == "wal" {
		e.AddInfo("journal", "the journal mode is WAL")
	} else {
		e.AddInfo("journal", fmt.Sprintf("the journal mode is %s: serve will set it to WAL as soon as no other program has the file open", mode))
	}
	e.AddInfo("durability", "the sidecar commits with synchronous = FULL: what is answered is on disk, if the disk does what it reports")
	if pragmas["encoding"] != "utf-8" {
		e.AddError("file", fmt.Sprintf("it keeps texts as %s, and a job's bytes would change", pragmas["encoding"]), "name another file; the encoding of this one cannot be changed")
	}
	tables, err := e.checkSchema(ctx)
	if err != nil {
		return err
	}
	if tables {
		if err := e.checkClaim(ctx); err != nil {
			return err
		}
		if err := e.checkOverdue(ctx); err != nil {
			return err
		}
	}
	if err := e.checkWAL(); err != nil {
		return err
	}
	return e.checkDamage(ctx)
}

func (e *examination) each(ctx context.Context, sql string, f func(r sqlite.Row), args ...any) error {
	return e.c.Query(ctx, sql, f, args...)
}

// objects returns the SQL of each object that a schema creates, by kind and name.
func objects(schema string) map[[2]string]string {
	all := map[[2]string]string{}
	for _, kind := range []string{`(TABLE|INDEX) (?:IF NOT EXISTS )?(\w+).*?;$`, `(TRIGGER) (?:IF NOT EXISTS )?(\w+).*?^END;$`} {
		for _, m := range regexp.MustCompile(`(?ms)^CREATE `+kind).FindAllStringSubmatch(schema, -1) {
			all[[2]string{strings.ToLower(m[1]), m[2]}] = m[0]
		}
	}
	return all
}

// checkSchema checks that the tables exist, are complete, and are of this version.
func (e *examination) checkSchema(ctx context.Context) (exist bool, err error) {
	missing, ours := objects(migrate.SQL(0)), objects(migrate.SQL(0))
	var strange []string
	meta, jobs := false, false
	if err := e.each(ctx, "SELECT type, name, tbl_name FROM sqlite_master", func(r sqlite.Row) {
		kind, name, table := r.Text(0), r.Text(1), r.Text(2)
		meta, jobs = meta || name == "qsidecar_meta", jobs || name == "qsidecar_jobs"
		if _, own := ours[[2]string{kind, name}]; !own && kind == "trigger" && strings.HasPrefix(table, "qsidecar_") {
			strange = append(strange, name+" on "+table)
		}
		delete(missing, [2]string{kind, name})
	}); err != nil {
		return false, err
	}
	switch {
	case !meta && jobs:
		e.AddError("schema", "there is a table qsidecar_jobs but no qsidecar_meta: its tables were not created by qsidecar, or only in part", "name another file, or restore this one")
		return false, nil
	case !meta:
		e.AddInfo("schema", "the tables are missing: serve or `qsidecar migrate` will create them")
		return false, nil
	}
	if err := e.checkVersion(ctx); err != nil {
		return false, err
	}
	for _, object := range slices.SortedFunc(maps.Keys(missing), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		e.AddError("schema", fmt.Sprintf("the %s %s is missing", object[0], object[1]), "create it again, or restore the file: "+uncommented(missing[object]))
	}
	for _, name := range strange {
		e.ForeignTrigger("the trigger "+name, "raises an error that change is refused", "a program")
	}
	return jobs, nil
}

// uncommented returns SQL in one line, without its comments.
func uncommented(sql string) string {
	return strings.Join(strings.Fields(regexp.MustCompile(`--.*`).ReplaceAllString(sql, "")), " ")
}

// checkVersion checks the version of the tables.
func (e *examination) checkVersion(ctx context.Context) error {
	rows := 0
	err := e.each(ctx, "SELECT version, min_program, database FROM qsidecar_meta", func(r sqlite.Row) {
		rows++
		e.engine.database = r.Text(2)
		if r.Int(1) > migrate.Program {
			e.AddError("schema", fmt.Sprintf("the tables were created by a newer qsidecar (schema %d, for programs of generation %d on; this one is of generation %d)",
				r.Int(0), r.Int(1), migrate.Program), "upgrade this program")
			return
		}
		e.TablesFound(int(r.Int(0)), migrate.Latest, "", "")
	})
	if err == nil && rows == 0 {
		e.AddInfo("schema", "the tables were created by hand: serve will add their version")
	}
	return err
}
