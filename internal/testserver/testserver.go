// Package testserver fetches and starts temporary database servers, clusters and PgBouncer for tests and benchmarks. If a server
// is unavailable, it returns an error instead of skipping: a check that did not run must not look like a passed one. The exception
// is ErrUnavailable.
//
// testserver.go has the kinds and versions of servers to test. Start with StartPostgres (postgres.go), StartMySQL (mysql.go), or a
// cluster: StartGalera, StartGroup, StartPatroni and StartReplication, each in its own file. Package debian fetches Debian
// packages, pythonenv makes environments of Python, and local has the processes and folders.
package testserver

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testserver/local"
)

// ToFetch returns the servers that the tests will download on this machine, for `go test -short` or
// for all tests.
func ToFetch(short bool) (missing []string, err error) {
	who, err := local.Unprivileged()
	if err != nil {
		return nil, err
	}
	cache, err := local.CacheDirOf(who)
	if err != nil {
		return nil, err
	}
	for _, version := range Versions() {
		if version != "" && (version == NewestPostgres || !short) && !local.Exists(filepath.Join(cache, "postgres-"+packages[version])) {
			missing = append(missing, "PostgreSQL "+version+" (npm)")
		}
	}
	for _, kind := range MySQLKinds() {
		if (kind != MariaDB105 || !short) && !local.Exists(homeOf(cache, kind)) {
			missing = append(missing, string(kind)+" (Debian "+origins[kind].suite+")")
		}
	}
	if !short && !local.Exists(galeraHome(cache)) {
		missing = append(missing, "Galera (Debian "+origins[MariaDB1011].suite+")")
	}
	if !short && !local.Exists(patroniHome(cache)) {
		missing = append(missing, "Patroni, etcd and PostgreSQL 15 (Debian "+patroniSuite+")")
	}
	return missing, nil
}

// EnvURL names an existing PostgreSQL server (a URL of a role that can create databases) to use
// instead of starting servers.
const EnvURL = "QSIDECAR_TEST_POSTGRES"

// EnvAge restricts a run of all tests to the servers of one age: Newest or Oldest. make check sets it, so that a
// server that make test or another step has tested isn't tested again.
const (
	EnvAge = "QSIDECAR_TEST_AGE"
	Newest = "newest" // the newest PostgreSQL, and MySQL
	Oldest = "oldest" // the oldest PostgreSQL, and MariaDB 10.5
)

// Versions returns the major versions to test: the oldest and the newest supported, only the newest
// with -short, those of EnvAge, or only "" if EnvURL names the server.
func Versions() []string {
	all := []string{OldestPostgres, NewestPostgres}
	switch {
	case os.Getenv(EnvURL) != "":
		return []string{""}
	case shortRun(), os.Getenv(EnvAge) == Newest:
		return all[1:]
	case os.Getenv(EnvAge) == Oldest:
		return all[:1]
	}
	return all
}

// The oldest and the newest supported major version.
const (
	OldestPostgres = "13"
	NewestPostgres = "18"
)

// shortRun is testing.Short that also works in TestMain, before the flags are parsed, and in
// programs that are not tests.
func shortRun() bool {
	if !testing.Testing() {
		return false
	}
	if !flag.Parsed() {
		flag.Parse()
	}
	return testing.Short()
}

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

// EnvEngine names the only engine to test: postgres, mysql or mariadb. Package backends/adopted
// tests PostgreSQL together with either of the other two.
const EnvEngine = "QSIDECAR_TEST_ENGINE"

// MySQLKinds returns the kinds to test: one MySQL and one MariaDB with -short, or those of EnvAge.
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
	case os.Getenv(EnvAge) == Newest:
		all = all[:1]
	case os.Getenv(EnvAge) == Oldest:
		all = all[2:]
	}
	return slices.DeleteFunc(all, func(k Kind) bool {
		engine := os.Getenv(EnvEngine)
		return engine == "postgres" || engine == "mysql" && origins[k].maria || engine == "mariadb" && !origins[k].maria
	})
}

// NotTested marks the output lines about servers that could not be downloaded. The suite then
// fails.
const NotTested = "WAS NOT TESTED"

// ErrUnavailable means that MySQL is unavailable now. Only Debian's unstable suite has it, and that is
// sometimes broken. Tests report it and continue without MySQL. Every other failure fails the test.
var ErrUnavailable = errors.New("testserver: MySQL is unavailable")

// Options change how a server runs.
type Options struct {
	Own      bool              // start a server for this test even if EnvURL is set
	Durable  bool              // fsync and full_page_writes as in production, for measurements and crash tests
	Settings map[string]string // further settings, as in postgresql.conf

	clock string // of a Galera node: the library with which SetClock works
}
