package testserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/qsidecar/qsidecar/internal/testserver/debian"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
)

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

// installMySQL returns the directory of the kind's unpacked packages.
func installMySQL(ctx context.Context, cache string, kind Kind) (string, error) {
	from := origins[kind]
	home := homeOf(cache, kind)
	if local.Exists(home) {
		return home, nil
	}
	if from.maria {
		return home, debian.Install(ctx, cache, from.suite, home, from.names...)
	}
	// Remember a failure, because each attempt takes long and many test processes can ask for it.
	note := filepath.Join(cache, "sid.failed")
	if info, err := os.Stat(note); err == nil && time.Since(info.ModTime()) < 10*time.Minute {
		why, err := os.ReadFile(note)
		return "", mysqlUnavailable(errors.Join(errors.New(string(why)), err))
	}
	if err := debian.Install(ctx, cache, from.suite, home, from.names...); err != nil {
		return "", mysqlUnavailable(errors.Join(err, os.WriteFile(note, []byte(err.Error()), 0o644)))
	}
	return home, nil
}

// mysqlUnavailable reports that MySQL was not tested.
func mysqlUnavailable(why error) error {
	line := fmt.Sprintf("MySQL "+NotTested+" by %s: it can't be downloaded from Debian's sid now\n", filepath.Base(os.Args[0]))
	fmt.Fprintf(os.Stderr, "%s%v\n", line, why)
	return errors.Join(fmt.Errorf("%w: %w", ErrUnavailable, why), local.Record(line))
}

// program returns a server's command line. It uses the loader of the server's own suite, so that
// the server uses the libraries it was built with.
func program(home string, args ...string) (*exec.Cmd, error) {
	loader, libraries, err := debian.Loader(home)
	if err != nil {
		return nil, err
	}
	server := filepath.Join(home, "usr/sbin/mariadbd")
	if !local.Exists(server) {
		server = filepath.Join(home, "usr/sbin/mysqld")
	}
	return exec.Command(loader, append([]string{"--library-path", libraries, server, "--no-defaults",
		"--basedir=" + filepath.Join(home, "usr"), "--lc-messages-dir=" + filepath.Join(home, "usr/share/mysql"),
		"--plugin-dir=" + filepath.Join(home, "usr/lib/mysql/plugin")}, args...)...), nil
}

// templateMySQL returns a data directory that the server created once, to be copied. It is below
// home, so a new download creates a new one.
func templateMySQL(home string, kind Kind, who local.Account) (string, error) {
	dir := filepath.Join(home, fmt.Sprintf("data-%d", who.UID))
	err := local.Locked(dir+".lock", func() error {
		if local.Exists(filepath.Join(dir, "complete")) {
			return nil
		}
		if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700), os.Chown(dir, who.UID, who.GID)); err != nil {
			return err
		}
		if err := initialize(home, dir, kind, who); err != nil {
			return errors.Join(fmt.Errorf("making the data directory of %s: %w", kind, err), os.RemoveAll(dir))
		}
		return os.WriteFile(filepath.Join(dir, "complete"), nil, 0o644)
	})
	return dir, err
}

func initialize(home, dir string, kind Kind, who local.Account) error {
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
	if who.Drop {
		cmd.SysProcAttr = who.Attributes(0)
	}
	cmd.Dir = dir
	cmd.Stdin = bytes.NewReader(sql)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// homeOf returns the directory of a kind's unpacked packages.
func homeOf(cache string, kind Kind) string {
	return filepath.Join(cache, strings.ReplaceAll(strings.ToLower(string(kind)), " ", "-"))
}
