package testserver

import (
	"path/filepath"
	"strings"
)

// ToFetch returns the servers that the tests will download on this machine, for `go test -short` or
// for all tests.
func ToFetch(short bool) (missing []string, err error) {
	who, err := unprivileged()
	if err != nil {
		return nil, err
	}
	cache, err := cacheDir(who)
	if err != nil {
		return nil, err
	}
	for _, version := range Versions() {
		if version != "" && (version == NewestPostgres || !short) && !exists(filepath.Join(cache, "postgres-"+packages[version])) {
			missing = append(missing, "PostgreSQL "+version+" (npm)")
		}
	}
	for _, kind := range MySQLKinds() {
		if (kind != MariaDB105 || !short) && !exists(homeOf(cache, kind)) {
			missing = append(missing, string(kind)+" (Debian "+origins[kind].suite+")")
		}
	}
	if !short && !exists(galeraHome(cache)) {
		missing = append(missing, "Galera (Debian "+origins[MariaDB1011].suite+")")
	}
	if !short && !exists(patroniHome(cache)) {
		missing = append(missing, "Patroni, etcd and PostgreSQL 15 (Debian "+patroniSuite+")")
	}
	return missing, nil
}

// homeOf returns the directory of a kind's unpacked packages.
func homeOf(cache string, kind Kind) string {
	return filepath.Join(cache, strings.ReplaceAll(strings.ToLower(string(kind)), " ", "-"))
}
