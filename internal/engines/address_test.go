package engines

import (
	"strings"
	"testing"
)

func TestPasswords(t *testing.T) {
	for s, want := range map[string]bool{
		"postgres://app@db/app": false, "postgres://app:x@db/app": true, "postgres://app:p%zz@db/app": true,
		"postgres://db/app?user=a&password=b": true, "sqlserver://db?Pwd=x": true, "mysql://:x@db/": true,
		"sqlite:/var/a:b@c": false, "sqlite:///var/a:b@c": false, "postgres://db:5432/app": false,
		"postgres://a@db1:5432,db2:5432/app?target_session_attrs=read-write": false,
		"postgres://app:x@db1:5432,db2:5432/app":                             true,
		"postgres://app:se/cret@db/app":                                      true, "postgres://app:12/cret@db/app": true, "postgres://app:12#ret@db/app": true,
		"postgres://app:12?ret@db/app": true, "postgres://db/app?pass%77ord=b": true, "postgres://app:secret/app": true,
		"postgres://a@[::1]:5432/app": false, "postgres://db/app?user=me@corp": false,
	} {
		if got := HasPassword(s); got != want {
			t.Errorf("%s: %v, want %v", s, got, want)
		}
	}
}

func TestCheckAddress(t *testing.T) {
	for _, s := range []string{
		"postgres://app@db/app", "postgres://app:x@db:5432/app", "postgres:///app?host=/run/postgresql", "postgres://a@db1:1,db2:2/app?target_session_attrs=read-write",
		"postgres://a:p%2F%23@db/app", "mysql://a@localhost/jobs?socket=/run/m.s", "sqlserver://a@db:1433/INST?database=x&app+name=y",
		"sqlserver://a@db?app%20name=y", "postgres://a@[::1]:5432/app", "postgres://a@[::1]/app", "postgres://a:b:c@db/app", "postgres://db", "postgres://db/app?user=me@corp",
	} {
		if err := CheckAddress(s); err != nil {
			t.Errorf("%s is refused: %v", s, err)
		}
	}
	for _, s := range []string{
		"postgres:app", "postgres://a:p@ss@db/app", "postgres://app:se/cret@db/app", "postgres://app:12/cret@db/app", "postgres://app:12#ret@db/app", "postgres://app:12?ret@db/app",
		"postgres://app:p%zz@db/app", "postgres://app:secret/app", "postgres://app:99999/app", "postgres://db/app?a%zz=1", "postgres://db/app%zz", "postgres://a@db/app#x",
	} {
		if err := CheckAddress(s); err == nil {
			t.Errorf("%s is taken", s)
		}
	}
}

// TestWithoutPassword checks that no form of a password stays in the URL.
func TestWithoutPassword(t *testing.T) {
	for at, want := range map[string]string{
		"postgres://app:s3cret@db/app?sslmode=require":       "postgres://app@db/app?sslmode=require",
		"postgres://db/app?user=app&password=s3cret":         "postgres://db/app?user=app",
		"mysql://app:s3cret@db:3306/app":                     "mysql://app@db:3306/app",
		"mysql://app:s3cret@a:3306,b:3307,c/app":             "mysql://app@a:3306,b:3307,c/app",
		"sqlserver://app:s3%40cret@db?database=x&Pwd=s3cret": "sqlserver://app@db?database=x",
		"postgres://app:s3cret%zz@db/app":                    "postgres://app@db/app",
		"postgres://app:s3cret@db1:5432,db2:5432/app?x=1":    "postgres://app@db1:5432,db2:5432/app?x=1",
	} {
		if got, had := WithoutPassword(at); got != want || !had {
			t.Errorf("%s becomes %s, %v, want %s", at, got, had, want)
		}
	}
	if got, had := WithoutPassword("postgres://app@db/app"); had || got != "postgres://app@db/app" {
		t.Errorf("%s, %v", got, had)
	}
}

// TestParseURLErrors checks that an error names what to write, and no part of a password.
func TestParseURLErrors(t *testing.T) {
	for at, want := range map[string]string{
		"sqlite:jobs.db?mode=ro":               "sqlite: the path has a ?: a path has no parameters, because the sidecar sets SQLite's options itself",
		"sqlite:///var/x.db?_journal=WAL":      "sqlite: the path has a ?: a path has no parameters, because the sidecar sets SQLite's options itself",
		"sqlite::memory:":                      "sqlite: a database in memory would be lost with the process: name a file, sqlite:PATH",
		"sqlite:file:/var/x.db":                "sqlite: leave file: out: write sqlite:PATH",
		"sqlite:~/x.db":                        "sqlite: ~ isn't replaced here: write the whole path",
		"sqlite://var/x.db":                    `"sqlite://var/x.db" has two slashes: write sqlite:/var/x.db, or sqlite:var/x.db for a path below the working folder`,
		"$DB_URL":                              "a variable isn't replaced in this form: write ${NAME} in a config",
		"mariadb://db/app":                     `"mariadb" is not a kind of database: did you mean mysql://USER@HOST/DATABASE?`,
		"mssql://db?database=x":                `"mssql" is not a kind of database: did you mean sqlserver://USER@HOST?database=NAME?`,
		"psql://db/app":                        `"psql" is not a kind of database: did you mean postgres://USER@HOST/DATABASE?`,
		"postgresql+psycopg2://db/app":         `"postgresql+psycopg2" is not a kind of database: did you mean postgres://USER@HOST/DATABASE?`,
		"mysql2://db/app":                      `"mysql2" is not a kind of database: did you mean mysql://USER@HOST/DATABASE?`,
		"sqlite3:/var/x.db":                    `"sqlite3" is not a kind of database: did you mean sqlite:PATH?`,
		"jdbc:postgresql://db/app":             "leave jdbc: out: write postgres://USER@HOST/DATABASE",
		"jdbc:mysql://db/app":                  "leave jdbc: out: write mysql://USER@HOST/DATABASE",
		"mysql://root:x@tcp(db:3306)/app":      "the host is written without tcp(…): mysql://USER@HOST:PORT/DATABASE",
		"postgres://app@db/app?pgbouncer=true": `the address of the PostgreSQL database has the parameter "pgbouncer": leave it out, because the sidecar detects a pooler`,
		"postgres://app@db/app?schema=jobs":    `the address of the PostgreSQL database has the parameter "schema": name it in the config (databases.NAME.schema)`,
		"sqlite3:///var/x.db":                  `"sqlite3" is not a kind of database: did you mean sqlite:PATH?`,
		`"postgres://db/app"`:                  "the quotes are part of the value: remove them",
		"postgres://db/app\n":                  "there is a space before or after the address: remove it",
		"postgres:/db/app":                     "postgres: is not followed by //: write postgres://USER@HOST/DATABASE",
		"mysql:app":                            "mysql: is not followed by //: write mysql://USER@HOST/DATABASE",
		"postgres://localhost:port/app":        "the port is not a number up to 65535. If it belongs to the password, " + errAddress.Error(),
		"mysql://localhost:70000/app":          "the port is not a number up to 65535. If it belongs to the password, " + errAddress.Error(),
		"postgres://a:s3c@ret@db/app":          errAddress.Error(),
		"postgres://db":                        "the address has no database: write postgres://USER@HOST/DATABASE",
		"postgres://db/app?sslmode=off":        "the address of the PostgreSQL database has sslmode=off: write disable, allow, prefer, require, verify-ca or verify-full",
		"postgres://db/app?connect_timeout=x":  "the address of the PostgreSQL database: invalid connect_timeout",
	} {
		if _, err := ParseURL(at); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s gives %v\nwant %s", at, err, want)
		}
	}
}
