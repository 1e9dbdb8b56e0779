package engines

import "testing"

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
		"postgres://a:p@ss@db/app", "postgres://a:p%2F%23@db/app", "mysql://a@localhost/jobs?socket=/run/m.s", "sqlserver://a@db:1433/INST?database=x&app+name=y",
		"sqlserver://a@db?app%20name=y", "postgres://a@[::1]:5432/app", "postgres://a@[::1]/app", "postgres://a:b:c@db/app", "postgres://db", "postgres://db/app?user=me@corp",
	} {
		if err := CheckAddress(s); err != nil {
			t.Errorf("%s is refused: %v", s, err)
		}
	}
	for _, s := range []string{
		"postgres:app", "postgres://app:se/cret@db/app", "postgres://app:12/cret@db/app", "postgres://app:12#ret@db/app", "postgres://app:12?ret@db/app",
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
