package sqlite

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
	"strings"
	"time"

	lib "modernc.org/sqlite/lib"

	"github.com/qsidecar/qsidecar/backends"
)

var _ backends.Examiner = (*Store)(nil)

// examination is one Examine.
type examination struct {
	*Store
	backends.Findings
	thresholds
	lifo bool // a queue is read newest first

	info fs.FileInfo // nil: there is no file
	c    *conn
}

// thresholds are from where on something is worth advice.
type thresholds struct {
	free   uint64 // bytes of disk
	full   uint64 // bytes of disk, below which writes fail
	wal    int64  // bytes of the WAL
	quick  int64  // bytes of the file, up to which it is read through
	locked time.Duration
	may    func(path string, mode uint32) error // fails where this user may not use path so
}

func usual() thresholds {
	return thresholds{free: 256 << 20, full: 1 << 20, wal: 128 << 20, quick: 256 << 20, locked: 2 * time.Second, may: access}
}

// Examine implements backends.Examiner. It reads the file by a connection that
// cannot write. The volatile -shm file beside a database in use shows that
// somebody reads.
func (s *Store) Examine(ctx context.Context, queues []backends.Policy) ([]backends.Finding, error) {
	return s.examine(ctx, queues, usual())
}

func (s *Store) examine(ctx context.Context, queues []backends.Policy, t thresholds) ([]backends.Finding, error) {
	ctx, done := s.bound(ctx)
	defer done()
	for {
		e := &examination{Store: s, thresholds: t, lifo: slices.ContainsFunc(queues, func(p backends.Policy) bool { return p.LIFO })}
		calm, err := e.run(ctx)
		if err != nil || calm {
			return e.Findings, err
		}
		if ctx.Err() != nil {
			return nil, ended(ctx, "looking at "+s.path)
		}
	}
}

// run looks at everything. calm: nobody opened the database meanwhile, or it was
// looked at as one that is in use.
func (e *examination) run(ctx context.Context) (calm bool, err error) {
	e.AddInfo("server", fmt.Sprintf("SQLite %s, a part of this program", lib.SQLITE_VERSION))
	if ok := e.lookPlace(); !ok {
		return true, nil
	}
	e.lookLocks(ctx)
	// Without a WAL nobody has it open, and it can be read without making one.
	parameters := "mode=ro"
	alone := !exists(e.path + "-wal")
	if alone {
		parameters += "&immutable=1"
	}
	if e.c, err = connectAs(e.path, parameters, "busy_timeout=2000", "query_only=1"); err == nil {
		err = e.lookInside(ctx)
		err = errors.Join(err, e.c.close())
	}
	if alone && exists(e.path+"-wal") {
		return false, nil // what was read may have changed under it
	}
	switch {
	case err == nil || ctx.Err() != nil:
	case code(err) == lib.SQLITE_CORRUPT:
		e.AddError("integrity", fmt.Sprintf("the file is damaged: %v", err), mendFile)
		err = nil
	default:
		e.AddError("file", fmt.Sprintf("it cannot be read: %v", e.explain(err)), "name another file, or mend what that says")
		err = nil
	}
	if err != nil {
		return false, ended(ctx, "looking at "+e.path)
	}
	return true, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// lookPlace looks at the file from outside; false: there is nothing to look into.
func (e *examination) lookPlace() bool {
	info, err := os.Stat(e.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		e.AddError("file", fmt.Sprintf("it cannot be looked at: %v", err), "name another place, or have its owner open the folder to this user")
		return false
	case info.IsDir():
		e.AddError("file", "it is a folder", fmt.Sprintf("name a database file in it, as %s", filepath.Join(e.path, "qsidecar.db")))
		return false
	case !info.Mode().IsRegular():
		e.AddError("file", "it is no regular file: a database cannot be kept in it", "name another file")
		return false
	}
	folder := filepath.Dir(e.path)
	for !exists(folder) {
		folder = filepath.Dir(folder)
	}
	if name, err := networkFS(folder); err != nil {
		e.AddWarning("disk", fmt.Sprintf("it cannot be looked at: %v", err), "see that the folder is there and open to this user")
	} else if name != "" {
		e.AddError("disk", fmt.Sprintf("the file is on a network file system (%s), where SQLite's WAL mode loses data", name),
			"put the database on a local disk, or use a database server for several hosts")
	}
	e.lookSpace(folder)
	if info == nil {
		e.lookMissing(folder)
		return false
	}
	e.info = info
	e.lookAccess(folder)
	return true
}

func (e *examination) lookSpace(folder string) {
	free, err := freeSpace(folder)
	text := fmt.Sprintf("%s are free on the disk of the database", bytesText(free))
	switch {
	case errors.Is(err, errors.ErrUnsupported): // on this system
	case err != nil:
		e.AddWarning("disk", fmt.Sprintf("its free space cannot be found out: %v", err), "see that the folder is there and open to this user")
	case free < e.full:
		e.AddError("disk", fmt.Sprintf("the disk of the database is full (%s are free): what does not fit is refused, and soon all writes are", bytesText(free)),
			"make room, or put the database on another disk")
	case free < e.free:
		e.AddWarning("disk", text+", and what does not fit is refused", "make room, or put the database on another disk")
	default:
		e.AddInfo("disk", text)
	}
}

// lookMissing says what serve will do where there is no file, and whether it can.
func (e *examination) lookMissing(folder string) {
	if err := e.may(folder, writeIn); err != nil {
		e.AddError("file", fmt.Sprintf("there is none yet, and this user may make none in %s (%v)", folder, err),
			"have somebody with the right make the folder for this user, or name another place")
		return
	}
	e.AddInfo("schema", "there is no file yet: serve or `qsidecar migrate` will make it, with its tables")
}

// lookAccess: the file, its folder, and what SQLite keeps beside it.
func (e *examination) lookAccess(folder string) {
	before := len(e.Findings)
	if err := e.may(folder, writeIn); err != nil {
		e.AddError("rights", fmt.Sprintf("this user may not write in the folder %s, where SQLite keeps the -wal file (%v)", folder, err),
			"give the folder to the user that runs the sidecar, or run it as the folder's owner")
	}
	for _, suffix := range []string{"", "-wal", "-shm", "-journal"} {
		if path := e.path + suffix; exists(path) {
			if err := e.may(path, readWrite); err != nil {
				e.AddError("rights", fmt.Sprintf("this user may not write %s (%v)", path, err),
					"give the file to the user that runs the sidecar; see that nobody opens the database as another user")
			}
		}
	}
	if len(e.Findings) == before {
		e.AddInfo("rights", "this user may write the file and its folder")
	}
	if mode := e.info.Mode().Perm(); mode&0o002 != 0 {
		e.AddWarning("rights", fmt.Sprintf("every user of this host may write the file (mode %#o)", mode),
			fmt.Sprintf("chmod o-w %s; programs that insert jobs share a group with it", e.path))
	}
}

// lookInside reads the database.
func (e *examination) lookInside(ctx context.Context) error {
	pragmas := map[string]string{}
	for _, name := range []string{"journal_mode", "encoding"} {
		if err := e.each(ctx, "PRAGMA "+name, func(r row) { pragmas[name] = strings.ToLower(r.text(0)) }); err != nil {
			return err
		}
	}
	mode := pragmas["journal_mode"]
	if mode == "wal" {
		e.AddInfo("journal", "the journal mode is WAL")
	} else {
		e.AddInfo("journal", fmt.Sprintf("the journal mode is %s: serve will set it to WAL, while nobody else has the file open", mode))
	}
	e.AddInfo("durability", "the sidecar commits with synchronous = FULL: what is answered is on disk, if the disk keeps its word")
	if pragmas["encoding"] != "utf-8" {
		e.AddError("file", fmt.Sprintf("it keeps texts as %s, and a job's bytes would change", pragmas["encoding"]), "name another file; the encoding of this one cannot be changed")
	}
	tables, err := e.lookSchema(ctx)
	if err != nil {
		return err
	}
	if tables {
		if err := e.lookClaim(ctx); err != nil {
			return err
		}
	}
	if err := e.lookWAL(); err != nil {
		return err
	}
	return e.lookDamage(ctx)
}

func (e *examination) each(ctx context.Context, sql string, f func(r row), args ...any) error {
	return e.c.query(ctx, sql, func(r row) error { f(r); return nil }, args...)
}

// objects are what a schema makes, with its SQL, by kind and name.
func objects(schema string) map[[2]string]string {
	all := map[[2]string]string{}
	for _, kind := range []string{`(TABLE|INDEX) (?:IF NOT EXISTS )?(\w+).*?;$`, `(TRIGGER) (?:IF NOT EXISTS )?(\w+).*?^END;$`} {
		for _, m := range regexp.MustCompile(`(?ms)^CREATE `+kind).FindAllStringSubmatch(schema, -1) {
			all[[2]string{strings.ToLower(m[1]), m[2]}] = m[0]
		}
	}
	return all
}

// lookSchema: are the tables there, whole, and of this version?
func (e *examination) lookSchema(ctx context.Context) (there bool, err error) {
	missing, ours := objects(schema), objects(Schema())
	var strange []string
	meta, jobs := false, false
	if err := e.each(ctx, "SELECT type, name, tbl_name FROM sqlite_master", func(r row) {
		kind, name, table := r.text(0), r.text(1), r.text(2)
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
		e.AddError("schema", "there is a table qsidecar_jobs but no qsidecar_meta: its tables were not made by qsidecar, or only in part", "name another file, or restore this one")
		return false, nil
	case !meta:
		e.AddInfo("schema", "the tables are missing: serve or `qsidecar migrate` will make them")
		return false, nil
	}
	if err := e.lookVersion(ctx); err != nil {
		return false, err
	}
	for _, object := range slices.SortedFunc(maps.Keys(missing), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		e.AddError("schema", fmt.Sprintf("the %s %s is missing", object[0], object[1]), "make it again, or restore the file: "+uncommented(missing[object]))
	}
	for _, name := range strange {
		e.AddWarning("triggers", fmt.Sprintf("the trigger %s is not the sidecar's: it runs in the sidecar's transactions, and where it raises an error that change is refused", name),
			"keep it short, and have it refuse nothing but what nobody should do; plain INSERTs alone are better guarded by a program")
	}
	return jobs, nil
}

// uncommented is SQL in one line.
func uncommented(sql string) string {
	return strings.Join(strings.Fields(regexp.MustCompile(`--.*`).ReplaceAllString(sql, "")), " ")
}

func (e *examination) lookVersion(ctx context.Context) error {
	rows := 0
	err := e.each(ctx, "SELECT version, min_program, database FROM qsidecar_meta", func(r row) {
		rows++
		e.database = r.text(2)
		if r.int(1) > program {
			e.AddError("schema", fmt.Sprintf("the tables were made by a newer qsidecar (schema %d, for programs of generation %d on; this one is of generation %d)",
				r.int(0), r.int(1), program), "upgrade this program")
			return
		}
		e.AddInfo("schema", fmt.Sprintf("the tables are there, of version %d", r.int(0)))
	})
	if err == nil && rows == 0 {
		e.AddInfo("schema", "the tables are there, made by hand: serve will note their version")
	}
	return err
}
