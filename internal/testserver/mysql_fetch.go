package testserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// Kind is a server that supports MySQL's protocol.
type Kind string

// The servers that tests can use.
const (
	MySQL97     Kind = "MySQL 9.7"     // from Debian sid, which can contain a newer version
	MariaDB1011 Kind = "MariaDB 10.11" // represents 10.6 and later, which can skip locked rows
	MariaDB105  Kind = "MariaDB 10.5"  // represents versions that can't skip locked rows
)

// EnvMySQL, EnvMariaDB and EnvMariaDBOld name existing servers for the three kinds
// (mysql://user:password@host:port/, a user with all privileges). If one of them is set, the tests
// use only the kinds whose variables are set.
const (
	EnvMySQL      = "QSIDECAR_TEST_MYSQL"
	EnvMariaDB    = "QSIDECAR_TEST_MARIADB"
	EnvMariaDBOld = "QSIDECAR_TEST_MARIADB_OLD"
)

// ErrUnavailable means that MySQL is unavailable now. Only Debian's unstable suite has it, and that is
// sometimes broken. Tests report it and continue without MySQL. Every other failure fails the test.
var ErrUnavailable = errors.New("testserver: MySQL is unavailable")

// origin is the source of a kind.
type origin struct {
	env           string
	suite         string
	names         []string // Debian packages
	maria         bool
	versionPrefix string // prefix of its version
}

var origins = map[Kind]origin{
	MySQL97:     {env: EnvMySQL, suite: "sid", names: []string{"mysql-server-core"}},
	MariaDB1011: {env: EnvMariaDB, suite: "bookworm", names: []string{"mariadb-server-core"}, maria: true, versionPrefix: "10.11."},
	MariaDB105:  {env: EnvMariaDBOld, suite: "bullseye", names: []string{"mariadb-server-core-10.5"}, maria: true, versionPrefix: "10.5."},
}

// EnvEngine names the only engine to test: postgres, mysql or mariadb. Package backends/adopted
// tests PostgreSQL together with either of the other two.
const EnvEngine = "QSIDECAR_TEST_ENGINE"

// MySQLKinds returns the kinds to test: one MySQL and one MariaDB with -short.
func MySQLKinds() []Kind {
	all := []Kind{MySQL97, MariaDB1011, MariaDB105}
	var named []Kind
	for _, k := range all {
		if os.Getenv(origins[k].env) != "" {
			named = append(named, k)
		}
	}
	switch {
	case named != nil:
		return named
	case shortRun():
		all = all[:2]
	}
	return slices.DeleteFunc(all, func(k Kind) bool {
		engine := os.Getenv(EnvEngine)
		return engine == "postgres" || engine == "mysql" && origins[k].maria || engine == "mariadb" && !origins[k].maria
	})
}

// installMySQL returns the directory of the kind's unpacked packages.
func installMySQL(ctx context.Context, cache string, kind Kind) (string, error) {
	from := origins[kind]
	home := homeOf(cache, kind)
	if exists(home) {
		return home, nil
	}
	if from.maria {
		return home, debian(ctx, cache, from.suite, home, from.names...)
	}
	// Remember a failure, because each attempt takes long and many test processes can ask for it.
	note := filepath.Join(cache, "sid.failed")
	if info, err := os.Stat(note); err == nil && time.Since(info.ModTime()) < 10*time.Minute {
		why, err := os.ReadFile(note)
		return "", mysqlUnavailable(errors.Join(errors.New(string(why)), err))
	}
	if err := debian(ctx, cache, from.suite, home, from.names...); err != nil {
		return "", mysqlUnavailable(errors.Join(err, os.WriteFile(note, []byte(err.Error()), 0o644)))
	}
	return home, nil
}

// NotTested marks the output lines about servers that could not be downloaded. The suite then
// fails.
const NotTested = "WAS NOT TESTED"

// mysqlUnavailable reports that MySQL was not tested.
func mysqlUnavailable(why error) error {
	line := fmt.Sprintf("MySQL "+NotTested+" by %s: it can't be downloaded from Debian's sid now\n", filepath.Base(os.Args[0]))
	fmt.Fprintf(os.Stderr, "%s%v\n", line, why)
	return errors.Join(fmt.Errorf("%w: %w", ErrUnavailable, why), record(line))
}

// program returns a server's command line. It uses the loader of the server's own suite, so that
// the server uses the libraries it was built with.
func program(home string, args ...string) (*exec.Cmd, error) {
	loader, libraries, err := loaderOf(home)
	if err != nil {
		return nil, err
	}
	server := filepath.Join(home, "usr/sbin/mariadbd")
	if !exists(server) {
		server = filepath.Join(home, "usr/sbin/mysqld")
	}
	return exec.Command(loader, append([]string{"--library-path", libraries, server, "--no-defaults",
		"--basedir=" + filepath.Join(home, "usr"), "--lc-messages-dir=" + filepath.Join(home, "usr/share/mysql"),
		"--plugin-dir=" + filepath.Join(home, "usr/lib/mysql/plugin")}, args...)...), nil
}

// loaderOf returns the dynamic loader of the unpacked packages in home, and the path of their
// libraries.
func loaderOf(home string) (loader, libraries string, err error) {
	var found []string
	for _, pattern := range []string{"usr/lib/*/ld-linux-*.so.*", "lib/*/ld-linux-*.so.*"} {
		match, err := filepath.Glob(filepath.Join(home, pattern))
		if err != nil {
			return "", "", err
		}
		found = append(found, match...)
	}
	if len(found) == 0 {
		return "", "", fmt.Errorf("%s has no loader: remove the folder, and it is fetched again", home)
	}
	arch := filepath.Base(filepath.Dir(found[0]))
	return found[0], filepath.Join(home, "usr/lib", arch) + ":" + filepath.Join(home, "lib", arch), nil
}

// templateMySQL returns a data directory that the server created once, to be copied. It is below
// home, so a new download creates a new one.
func templateMySQL(home string, kind Kind, who account) (string, error) {
	dir := filepath.Join(home, fmt.Sprintf("data-%d", who.uid))
	err := locked(dir+".lock", func() error {
		if exists(filepath.Join(dir, "complete")) {
			return nil
		}
		if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700), os.Chown(dir, who.uid, who.gid)); err != nil {
			return err
		}
		if err := initialize(home, dir, kind, who); err != nil {
			return errors.Join(fmt.Errorf("making the data directory of %s: %w", kind, err), os.RemoveAll(dir))
		}
		return os.WriteFile(filepath.Join(dir, "complete"), nil, 0o644)
	})
	return dir, err
}

func initialize(home, dir string, kind Kind, who account) error {
	args := []string{"--datadir=" + dir, "--initialize-insecure"}
	var sql []byte
	if origins[kind].maria {
		// This replaces mariadb-install-db, which needs a shell and the client package.
		args = []string{"--datadir=" + dir, "--bootstrap", "--enforce-storage-engine=", "--max-allowed-packet=8M"}
		sql = []byte("CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket = NULL;\n")
		for _, name := range []string{"system_tables", "performance_tables", "system_tables_data", "sys_schema"} {
			script, err := os.ReadFile(filepath.Join(home, "usr/share/mysql", "mysql_"+name+".sql"))
			if errors.Is(err, os.ErrNotExist) && name == "sys_schema" {
				continue // older versions do not have it
			}
			if err != nil {
				return err
			}
			sql = append(append(sql, script...), '\n')
		}
	}
	cmd, err := program(home, args...)
	if err != nil {
		return err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if who.drop {
		cmd.SysProcAttr = who.attributes(0)
	}
	cmd.Dir = dir
	cmd.Stdin = bytes.NewReader(sql)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}
