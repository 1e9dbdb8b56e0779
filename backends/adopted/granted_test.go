package adopted_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/backends/adopted/guess"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
	"github.com/qsidecar/qsidecar/backends/mysql"
	mydiagnose "github.com/qsidecar/qsidecar/backends/mysql/diagnose"
	"github.com/qsidecar/qsidecar/backends/postgres"
	pgdiagnose "github.com/qsidecar/qsidecar/backends/postgres/diagnose"
)

// clerk is a login that has the rights of a sidecar on its own tables, and no others.
type clerk struct {
	*kit
	login string // as a GRANT names it
	open  func() backends.Engine
}

func (k *kit) clerk(on *product) *clerk {
	k.Helper()
	c := &clerk{kit: k}
	if on.name == "PostgreSQL" {
		var db string
		if err := k.c.QueryRow(k.Context(), "SELECT current_database()").Scan(&db); err != nil {
			k.Fatal(err)
		}
		role := "clerk_" + db
		c.login = fmt.Sprintf("%q", role)
		k.sql(fmt.Sprintf("CREATE ROLE %q LOGIN; GRANT USAGE ON SCHEMA qsidecar, public TO %[1]q; GRANT ALL ON ALL TABLES IN SCHEMA qsidecar TO %[1]q; GRANT ALL ON ALL SEQUENCES IN SCHEMA qsidecar TO %[1]q", role))
		k.Cleanup(func() { // another test gets the database
			if _, err := k.c.Exec(context.Background(), fmt.Sprintf("DROP OWNED BY %q; DROP ROLE %[1]q", role)); err != nil {
				k.Error(err)
			}
		})
		config := k.c.Config()
		c.open = func() backends.Engine {
			engine, err := postgres.Open(k.Context(), postgres.Options{URL: fmt.Sprintf("postgres://%s@/%s?host=%s&port=%d", role, db, config.Host, config.Port)})
			if err != nil {
				k.Fatal(err)
			}
			return pgdiagnose.New(engine)
		}
		return c
	}
	u, err := url.Parse(k.url)
	if err != nil {
		k.Fatal(err)
	}
	db := strings.TrimPrefix(u.Path, "/")
	c.login = fmt.Sprintf("'clerk_%s'@'%%'", db)
	k.sql("DROP USER IF EXISTS " + c.login)
	k.sql("CREATE USER " + c.login + " IDENTIFIED BY 'x'")
	k.Cleanup(func() {
		if _, err := k.db.Exec("DROP USER " + c.login); err != nil { // k.Context has ended
			k.Error(err)
		}
	})
	own, err := texts(k.Context(), k.conn, "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name LIKE 'qsidecar%'")
	if err != nil {
		k.Fatal(err)
	}
	for _, table := range own {
		k.sql(fmt.Sprintf("GRANT SELECT, INSERT, UPDATE, DELETE ON %s.%s TO %s", db, table, c.login))
	}
	u.User = url.UserPassword("clerk_"+db, "x")
	c.open = func() backends.Engine {
		engine, err := mysql.Open(k.Context(), mysql.Options{URL: u.String()})
		if err != nil {
			k.Fatal(err)
		}
		return mydiagnose.New(engine)
	}
	return c
}

// grant runs GRANT … TO the login, or REVOKE … FROM it.
func (c *clerk) grant(right string) { c.Helper(); c.sql("GRANT " + right + " TO " + c.login) }

func (c *clerk) revoke(right string) { c.Helper(); c.sql("REVOKE " + right + " FROM " + c.login) }

// adopt opens a Store of the login.
func (c *clerk) adopt(tables map[string]mapping.Table) {
	c.Helper()
	engine := c.open()
	engine.(interface{ NothingIsSlow() }).NothingIsSlow()
	s, err := adopted.New(c.Context(), engine, tables)
	if err != nil {
		c.Fatal(errors.Join(err, engine.Close()))
	}
	closed(c.T, s)
	c.Store = s
}

// enqueue stores a job as the bridge does, and returns its error.
func (k *kit) enqueue(queue string) error {
	k.Helper()
	res, err := k.as(backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: queue}}}}})
	if err != nil {
		return err
	}
	return res.Writes[0].Err
}

// pass makes the clock of the obstacles go on.
func (k *kit) pass(d time.Duration) {
	now := k.ObstacleSet().Time().Add(d)
	k.ObstacleSet().Now = func() time.Time { return now }
}

// wantUnsupported checks that an error is an UnsupportedError with all of the texts.
func (k *kit) wantUnsupported(what string, err error, texts ...string) {
	k.Helper()
	var u *backends.UnsupportedError
	if !errors.As(err, &u) || slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(err.Error(), text) }) {
		k.Errorf("%s: %v, want an UnsupportedError with %q", what, err, texts)
	}
}

// TestGrantedInsert shows that a table takes jobs after the login got the right to INSERT while the Store was open: an enqueue that is
// refused finds out, but not more often than every few seconds. A Recheck finds out at once.
func TestGrantedInsert(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		ddl, tables := twoTables(on.name)
		k := on.newKit(t, ddl, nil)
		c := k.clerk(on)
		c.grant("SELECT, UPDATE, DELETE ON a")
		c.grant("SELECT, INSERT, UPDATE, DELETE ON b")
		if on.name == "PostgreSQL" {
			c.grant("USAGE ON ALL SEQUENCES IN SCHEMA public")
		}
		c.adopt(tables)
		for _, found := range []struct {
			how  string
			find func()
		}{
			{"an enqueue", func() { k.pass(5 * time.Second) }},
			{"a Recheck", func() { k.Recheck(t.Context()) }},
		} {
			c.wantUnsupported("without the right", c.enqueue("a"), "lacks INSERT on", "a")
			c.grant("INSERT ON a")
			c.wantUnsupported("a moment later", c.enqueue("a"), "lacks INSERT on", "a")
			found.find()
			res, err := c.as(backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "a"}}}, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "b"}}}}})
			if err != nil || res.Writes[0].Err != nil || res.Writes[1].Err != nil {
				t.Errorf("%s: %v %+v", found.how, err, res.Writes)
			}
			c.revoke("INSERT ON a")
			if err := c.enqueue("a"); !backends.Retryable(err) || !strings.Contains(err.Error(), "lacks INSERT on") {
				t.Errorf("after the right was revoked: %v", err)
			}
			c.adopt(tables)
		}
	})
}

// TestColumnsThatGotDefaults shows that a table takes jobs after its owner gave a column a default, or dropped it, while the Store was
// open.
func TestColumnsThatGotDefaults(t *testing.T) {
	onEvery(t, func(t *testing.T, product string, start func(ddl string, tables map[string]mapping.Table) *kit) {
		ddl, tables := twoTables(product)
		must := "CREATE TABLE c (id int PRIMARY KEY, state varchar(9) NOT NULL DEFAULT 'new', must int NOT NULL);"
		m := tables["a"]
		m.Name, m.Columns = "c", map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"state"}, mapping.Payload: {"id"}}
		tables["c"] = m
		k := start(ddl+must, tables)
		job := func() error {
			res, err := k.as(backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "c", Payload: []byte("7")}}}}})
			if err != nil {
				return err
			}
			return res.Writes[0].Err
		}
		k.wantUnsupported("without a default", job(), "the column must needs a value")
		if product == "SQLite" {
			k.sql("ALTER TABLE c DROP COLUMN must")
		} else {
			k.sql("ALTER TABLE c ALTER COLUMN must SET DEFAULT 1")
		}
		k.wantUnsupported("a moment later", job(), "the column must needs a value")
		k.pass(5 * time.Second)
		if err := job(); err != nil {
			t.Error(err)
		}
	})
}

// TestGrantedSequence is TestGrantedInsert for the sequence that numbers the rows.
func TestGrantedSequence(t *testing.T) {
	t.Parallel()
	ddl, tables := twoTables("PostgreSQL")
	k := newKit(t, ddl, nil)
	c := k.clerk(products[0])
	c.grant("SELECT, INSERT, UPDATE, DELETE ON a, b")
	c.adopt(tables)
	c.wantUnsupported("without the right", c.enqueue("a"), "lacks USAGE ON SEQUENCE")
	c.grant("USAGE ON SEQUENCE a_id_seq")
	c.pass(5 * time.Second)
	if err := c.enqueue("a"); err != nil {
		t.Error(err)
	}
	c.revoke("USAGE ON SEQUENCE a_id_seq")
	if err := c.enqueue("a"); !backends.Retryable(err) || !strings.Contains(err.Error(), "lacks USAGE ON SEQUENCE") {
		t.Errorf("after the right was revoked: %v", err)
	}
}

// TestGrantedDelete shows that the commands that delete rows are unsupported without the right, with the GRANT for it, that a row stays as
// it is, and that they work after the GRANT.
func TestGrantedDelete(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		ddl, tables := twoTables(on.name)
		delete(tables, "b")
		m := tables["a"]
		m.OnAck, m.States[backends.StateDone] = mapping.Update, mapping.Value{Text: "done"}
		tables["a"] = m
		k := on.newKit(t, ddl, nil)
		c := k.clerk(on)
		c.grant("SELECT, UPDATE ON a")
		c.adopt(tables)
		next := "1"
		remove := func() error {
			_, _, err := c.Command(t.Context(), backends.Command{Kind: backends.Delete, Queue: "a", IDs: []string{next}})
			return err
		}
		purge := func() error {
			_, _, err := c.Command(t.Context(), backends.Command{Kind: backends.Purge, Queue: "a", State: backends.StateReady})
			return err
		}
		refused := func() {
			t.Helper()
			for what, run := range map[string]func() error{"delete": remove, "purge": purge} {
				c.wantUnsupported(what, run(), "lacks DELETE on", "GRANT DELETE ON", " TO "+c.login)
			}
		}
		refused()
		k.wantRows("SELECT concat_ws('', count(*)) FROM a", "6")
		c.grant("DELETE ON a")
		c.pass(5 * time.Second)
		if err := remove(); err != nil {
			t.Error(err)
		}
		next = "2"
		c.revoke("DELETE ON a")
		c.pass(5 * time.Second)
		refused()
		c.grant("DELETE ON a")
		c.Recheck(t.Context())
		if err := purge(); err != nil {
			t.Error(err)
		}
		k.wantRows("SELECT concat_ws('', count(*)) FROM a", "0")
	})
}

// TestSchemaWithoutUsage shows that a table in a schema that the login can't use is a misfit with the GRANT for the schema, and that adopt
// has the same text.
func TestSchemaWithoutUsage(t *testing.T) {
	t.Parallel()
	ddl, tables := twoTables("PostgreSQL")
	k := newKit(t, "CREATE SCHEMA shop; SET search_path = shop;"+ddl+"SET search_path = public", nil)
	k.Cleanup(func() {
		if _, err := k.c.Exec(context.Background(), "DROP SCHEMA shop CASCADE"); err != nil {
			t.Error(err)
		}
	})
	c := k.clerk(products[0])
	c.grant("SELECT, UPDATE, DELETE ON shop.a")
	m := tables["a"]
	m.Schema = "shop"
	want := "this login lacks USAGE ON SCHEMA shop"
	grant := "GRANT USAGE ON SCHEMA shop TO " + c.login
	engine := c.open()
	closed(t, engine)
	_, wrong, err := adopted.Check(t.Context(), engine, map[string]mapping.Table{"a": m})
	if text := fmt.Sprint(wrong); err != nil || !strings.Contains(text, want) || !strings.Contains(text, grant) {
		t.Errorf("%s, %v", text, err)
	}
	if _, err := guess.Table(t.Context(), engine, "shop", "a"); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), grant) {
		t.Errorf("a proposal: %v", err)
	}
	c.grant("USAGE ON SCHEMA shop")
	if _, wrong, err := adopted.Check(t.Context(), engine, map[string]mapping.Table{"a": m}); err != nil || len(wrong) > 0 {
		t.Errorf("%v, %v", wrong, err)
	}
}
