package sqlite_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/sqlite"
	"github.com/qsidecar/qsidecar/backends/sqlite/diagnose"
	"github.com/qsidecar/qsidecar/backends/sqlite/internal/disk"
)

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func examine(t *testing.T, s *sqlite.Store, queues []backends.Policy, th diagnose.Thresholds) ([]backends.Finding, error) {
	x := diagnose.New(s)
	x.Thresholds = th
	return x.Examine(t.Context(), queues)
}

// want is a finding whose text and fix contain these words.
type want struct {
	grade    backends.Severity
	topic    string
	text, do string
}

func (w want) is(f backends.Finding) bool {
	return f.Severity == w.grade && f.Topic == w.topic && strings.Contains(f.Text, w.text) && strings.Contains(f.Fix, w.do)
}

// folder returns the modes, times and contents of all files in a folder. Another program
// reads the contents, because closing a file would drop all locks of this process on it.
func folder(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		all[path] = fmt.Sprint(info.Mode())
		if d.Type().IsRegular() && !strings.HasSuffix(path, "-shm") { // the -shm file shows readers
			sum, err := osexec.Command("sha256sum", path).Output()
			if err != nil {
				return err
			}
			all[path] += fmt.Sprint(info.ModTime(), info.Size()) + string(sum)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// examined checks a file. It fails if the check changes anything in the file's folder.
func examined(t *testing.T, path string, th diagnose.Thresholds, wanted ...want) []backends.Finding {
	t.Helper()
	dir := filepath.Dir(path)
	for !exists(dir) {
		dir = filepath.Dir(dir)
	}
	before := folder(t, dir)
	s, err := sqlite.Open(t.Context(), sqlite.Options{Path: path, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	found, err := examine(t, s, []backends.Policy{{Queue: "a"}, {Queue: "b", LIFO: true}}, th)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	after := folder(t, dir)
	for name := range before {
		if before[name] != after[name] {
			t.Errorf("Examine changed %s", name)
		}
	}
	if len(before) != len(after) {
		t.Errorf("Examine made or removed a file: %d, and now %d", len(before), len(after))
	}
	used := make([]bool, len(found))
	for _, w := range wanted {
		ok := false
		for i, f := range found {
			if w.is(f) {
				ok, used[i] = true, true
			}
		}
		if !ok {
			t.Errorf("not found: %v %s %q, do %q, in %+v", w.grade, w.topic, w.text, w.do, found)
		}
	}
	for i, f := range found {
		if f.Severity != backends.SeverityInfo && (!used[i] || f.Fix == "") || f.Text == "" || strings.Contains(f.Text+f.Fix, "%!") {
			t.Errorf("not expected, or not to be read: %+v", f)
		}
	}
	return found
}

var healthy = []want{
	{backends.SeverityInfo, "server", "SQLite 3.", ""},
	{backends.SeverityInfo, "disk", "are free", ""},
	{backends.SeverityInfo, "rights", "may write", ""},
	{backends.SeverityInfo, "journal", "WAL", ""},
	{backends.SeverityInfo, "durability", "FULL", ""},
	{backends.SeverityInfo, "schema", "of version 1", ""},
	{backends.SeverityInfo, "claim", "BEGIN IMMEDIATE", ""},
	{backends.SeverityInfo, "plan", "qsidecar_ready", ""},
	{backends.SeverityInfo, "integrity", "finds no damage", ""},
}

func TestExamineHealthy(t *testing.T) {
	t.Parallel()
	s := sqlite.Fresh(t)
	if _, err := s.Commit(t.Context(), sqlite.OneJob); err != nil {
		t.Fatal(err)
	}
	th := diagnose.DefaultThresholds()
	examined(t, s.Info().Address, th, append(healthy, want{backends.SeverityInfo, "wal", "the WAL has", ""})...)
	found, err := examine(t, s, nil, th) // a database in use can be examined too
	if err != nil || len(found) < len(healthy) {
		t.Errorf("%+v, %v", found, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	examined(t, s.Info().Address, th, healthy...)
	th.MaxRead = 1000
	examined(t, s.Info().Address, th, want{backends.SeverityInfo, "integrity", "was not checked for damage", ""})
}

func TestExamineNothingThere(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new", "folder", "jobs.db")
	examined(t, path, diagnose.DefaultThresholds(), want{backends.SeverityInfo, "schema", "there is no file yet", ""})
	th := diagnose.DefaultThresholds()
	th.Access = func(string, uint32) error { return unix.EACCES }
	examined(t, path, th, want{backends.SeverityError, "file", "this user may not create it in", "create the folder for this user"})
	empty := filepath.Join(t.TempDir(), "empty.db")
	if err := os.WriteFile(empty, nil, 0o660); err != nil {
		t.Fatal(err)
	}
	examined(t, empty, diagnose.DefaultThresholds(), want{backends.SeverityInfo, "schema", "the tables are missing", ""}, want{backends.SeverityInfo, "journal", "is delete: serve will set it to WAL", ""})
}

func TestExaminePlaces(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, fifo := filepath.Join(dir, "file"), filepath.Join(dir, "fifo")
	if err := os.WriteFile(file, []byte(strings.Repeat("no database ", 100)), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	examined(t, dir, diagnose.DefaultThresholds(), want{backends.SeverityError, "file", "it is a folder", filepath.Join(dir, "qsidecar.db")})
	examined(t, fifo, diagnose.DefaultThresholds(), want{backends.SeverityError, "file", "not a regular file", ""})
	examined(t, filepath.Join(file, "jobs.db"), diagnose.DefaultThresholds(), want{backends.SeverityError, "file", "not a directory", ""})
	th := diagnose.DefaultThresholds()
	th.Access = func(path string, _ uint32) error {
		if path == file {
			return unix.EROFS
		}
		return nil
	}
	th.FreeSpace = 1 << 60
	examined(t, file, th,
		want{backends.SeverityError, "file", "isn't an SQLite database", "another file"},
		want{backends.SeverityError, "rights", "may not write " + file + " (read-only file system)", ""},
		want{backends.SeverityWarning, "rights", "every user of this host can write the file (mode 0666)", "chmod o-w"},
		want{backends.SeverityWarning, "disk", "are free on the disk of the database, and writes that do not fit are rejected", "free some space"})
}

// Not parallel: it replaces disk.Statfs for all tests.
func TestExamineNetworkFileSystem(t *testing.T) {
	s := sqlite.Fresh(t)
	genuine := disk.Statfs
	defer func() { disk.Statfs = genuine }()
	disk.Statfs = func(_ string, s *unix.Statfs_t) error {
		*s = unix.Statfs_t{Type: unix.NFS_SUPER_MAGIC, Bavail: 1 << 30, Bsize: 4096}
		return nil
	}
	examined(t, s.Info().Address, diagnose.DefaultThresholds(), want{backends.SeverityError, "disk", "network file system (NFS)", "local disk"}, want{backends.SeverityInfo, "disk", "4.0 TiB are free", ""})
}

// Not parallel: it replaces disk.Statfs for all tests.
func TestExamineFullDisk(t *testing.T) {
	s := sqlite.Fresh(t)
	genuine := disk.Statfs
	defer func() { disk.Statfs = genuine }()
	for free, c := range map[uint64]struct {
		text  string
		grade backends.Severity
	}{0: {"0 bytes", backends.SeverityError}, 1<<20 - 4096: {"1020 KiB", backends.SeverityError}, 1 << 20: {"1.0 MiB", backends.SeverityWarning}} {
		disk.Statfs = func(_ string, s *unix.Statfs_t) error {
			*s = unix.Statfs_t{Type: unix.EXT4_SUPER_MAGIC, Bavail: free / 4096, Bsize: 4096}
			return nil
		}
		examined(t, s.Info().Address, diagnose.DefaultThresholds(), want{c.grade, "disk", c.text + " are free", "free some space"})
	}
}

// TestExamineTables removes tables and indexes, and adds a trigger.
func TestExamineTables(t *testing.T) {
	t.Parallel()
	s := sqlite.Fresh(t)
	must := func(sql string) { t.Helper(); sqlite.Shell(t, s.Info().Address, sql) }
	must(`DROP INDEX qsidecar_ready; DROP TRIGGER qsidecar_row_deleted; DROP TABLE qsidecar_commits;
		CREATE TRIGGER watch AFTER INSERT ON qsidecar_jobs BEGIN SELECT 1; END`)
	found := examined(t, s.Info().Address, diagnose.DefaultThresholds(),
		want{backends.SeverityError, "schema", "the index qsidecar_ready is missing", "CREATE INDEX qsidecar_ready ON qsidecar_jobs (queue, priority DESC, position) WHERE state = 'ready' AND group_name IS NULL;"},
		want{backends.SeverityError, "schema", "the trigger qsidecar_row_deleted is missing", "END;"},
		want{backends.SeverityError, "schema", "the table qsidecar_commits is missing", "at INTEGER NOT NULL );"},
		want{backends.SeverityError, "plan", "no such index: qsidecar_ready", "qsidecar migrate --print"},
		want{backends.SeverityWarning, "triggers", "the trigger watch on qsidecar_jobs is not the sidecar's", ""})
	for _, f := range found { // the proposed fix works
		if _, sql, ok := strings.Cut(f.Fix, "restore the file: "); ok {
			must(sql)
		}
	}
	must(`DROP TRIGGER watch`)
	examined(t, s.Info().Address, diagnose.DefaultThresholds(), healthy...)
	must(`DROP INDEX qsidecar_ready; CREATE INDEX qsidecar_ready ON qsidecar_jobs (queue) WHERE state = 'ready'`)
	examined(t, s.Info().Address, diagnose.DefaultThresholds(), want{backends.SeverityError, "plan", "the claim's plan has USE TEMP B-TREE FOR", "qsidecar migrate --print"})
	must(`DROP INDEX qsidecar_ready; CREATE INDEX qsidecar_ready ON qsidecar_jobs (queue, priority DESC, position) WHERE state = 'ready'`)
	must(`UPDATE qsidecar_meta SET min_program = 99`)
	examined(t, s.Info().Address, diagnose.DefaultThresholds(), want{backends.SeverityError, "schema", "created by a newer qsidecar", "upgrade this program"})
	must(`DELETE FROM qsidecar_meta`)
	examined(t, s.Info().Address, diagnose.DefaultThresholds(), want{backends.SeverityInfo, "schema", "created by hand", ""})
	must(`DROP TABLE qsidecar_meta`)
	examined(t, s.Info().Address, diagnose.DefaultThresholds(), want{backends.SeverityError, "schema", "not created by qsidecar, or only in part", ""})
	utf16 := filepath.Join(t.TempDir(), "utf16.db")
	sqlite.Shell(t, utf16, `PRAGMA encoding = 'UTF-16'; CREATE TABLE other (x)`)
	examined(t, utf16, diagnose.DefaultThresholds(), want{backends.SeverityError, "file", "keeps texts as utf-16", "another file"})
}

// TestExamineDamage overwrites a page.
func TestExamineDamage(t *testing.T) {
	t.Parallel()
	s := sqlite.Fresh(t)
	for range 20 {
		if _, err := s.Commit(t.Context(), sqlite.OneJob); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(s.Info().Address)
	if err != nil {
		t.Fatal(err)
	}
	copy(file[len(file)-4096*2:], bytes.Repeat([]byte{0xff}, 4096))
	if err := os.WriteFile(s.Info().Address, file, 0o600); err != nil {
		t.Fatal(err)
	}
	examined(t, s.Info().Address, diagnose.DefaultThresholds(), append(healthy[:3:3], want{backends.SeverityError, "integrity", "the file is damaged: ", "backup"})...)
}

// stranger starts another program that opens the database and runs SQL.
func stranger(t *testing.T, path, sql string) (pid int, leave func()) {
	t.Helper()
	cmd := osexec.Command("python3", "-c", `
import sqlite3, sys
c = sqlite3.connect(sys.argv[1], isolation_level=None)
for s in sys.argv[2].split(";"): c.execute(s).fetchall()
print("ready", flush=True)
sys.stdin.read()
c.close()`, path, sql)
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	left := false
	leave = func() {
		if left {
			return
		}
		left = true
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(leave)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("python3 printed %q, %v", line, err)
	}
	return cmd.Process.Pid, leave
}

// TestExamineLocks: one program holds the write lock, one only reads, and one left a
// journal.
func TestExamineLocks(t *testing.T) {
	t.Parallel()
	s := sqlite.Fresh(t)
	th := diagnose.DefaultThresholds()
	th.Lock = 100 * time.Millisecond
	pid, leave := stranger(t, s.Info().Address, "BEGIN IMMEDIATE")
	who := fmt.Sprintf("process %d (python3)", pid)
	examined(t, s.Info().Address, th, append(healthy, want{backends.SeverityWarning, "locks", "the write lock was held for 100ms by " + who, "commit or roll back"})...)
	leave()
	pid, leave = stranger(t, s.Info().Address, "BEGIN; SELECT count(*) FROM qsidecar_jobs")
	who = fmt.Sprintf("process %d (python3)", pid)
	if _, err := s.Commit(t.Context(), sqlite.OneJob); err != nil {
		t.Fatal(err)
	}
	examined(t, s.Info().Address, th, append(healthy, want{backends.SeverityInfo, "locks", "in use by " + who, ""})...)
	th.WAL = 1000
	examined(t, s.Info().Address, th, append(healthy, want{backends.SeverityWarning, "wal", "the WAL has", "(the file is in use by " + who})...)
	leave()

	other := filepath.Join(t.TempDir(), "other.db")
	sqlite.Shell(t, other, "CREATE TABLE other (x)")
	pid, _ = stranger(t, other, "BEGIN IMMEDIATE; INSERT INTO other VALUES (1)")
	examined(t, other, th, want{backends.SeverityWarning, "locks", "there is a rollback journal", "Do not delete"},
		want{backends.SeverityWarning, "locks", fmt.Sprintf("by process %d (python3)", pid), ""}, want{backends.SeverityInfo, "journal", "is delete", ""})
}

// TestExamineAfterACrash: the check reads the files that a killed program left, and does not
// change them.
func TestExamineAfterACrash(t *testing.T) {
	t.Parallel()
	s := sqlite.Fresh(t)
	if _, err := s.Commit(t.Context(), sqlite.OneJob); err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(t.TempDir(), "jobs.db") // as a crash leaves it
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if out, err := osexec.Command("cp", s.Info().Address+suffix, left+suffix).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	found := examined(t, left, diagnose.DefaultThresholds(), healthy...)
	if i := slices.IndexFunc(found, func(f backends.Finding) bool { return f.Topic == "wal" }); i < 0 {
		t.Errorf("the WAL is not reported: %+v", found)
	}
}
