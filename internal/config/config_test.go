package config

import (
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge"
	"github.com/qsidecar/qsidecar/protocol"
)

func noEnv(string) (string, bool) { return "", false }

const example = "../../deploy/qsidecar.example.yaml"

// TestExampleIsTheDefault checks that the example documents every key at its default.
func TestExampleIsTheDefault(t *testing.T) {
	got, err := load(example, readFile, noEnv)
	if err != nil {
		t.Fatal(err)
	}
	want := defaultConfig()
	want.fillIn(SystemSocket, "sqlite:"+systemState+"/"+databaseFile)
	if d := cmp.Diff(want.BridgeOptions(nil), got.BridgeOptions(nil)); d != "" {
		t.Errorf("the example is not the default (-default +example):\n%s", d)
	}
	if got.Log != want.Log {
		t.Errorf("log: %+v in the example, %+v by default", got.Log, want.Log)
	}
	if !reflect.DeepEqual(got.Admin, want.Admin) {
		t.Errorf("admin: %+v in the example, %+v by default", got.Admin, want.Admin)
	}
	if got.Traces != want.Traces {
		t.Errorf("traces: %+v in the example, %+v by default", got.Traces, want.Traces)
	}
	for name, d := range want.Databases {
		d.RestartGrace = &d.SidecarTimeout // its default
		want.Databases[name] = d
	}
	if d := cmp.Diff(want.Databases, got.Databases); d != "" {
		t.Errorf("databases (-default +example):\n%s", d)
	}
	src, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range allKeys(reflect.TypeFor[Config]()) {
		if !strings.Contains(string(src), key+":") {
			t.Errorf("the example does not have the key %q", key)
		}
	}
}

// TestExampleUncommented checks that the commented parts of the example are valid and
// contain the remaining keys.
func TestExampleUncommented(t *testing.T) {
	src, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	text := string(src)
	for _, begin := range []string{"    # allow:", "  # mail:", "  # thumbnails:"} {
		before, block, found := strings.Cut(text, begin)
		if !found {
			t.Fatalf("the example has no %q", begin)
		}
		block, after, _ := strings.Cut(begin+block, "\n\n")
		lines := strings.Split(block, "\n")
		for i, line := range lines {
			lines[i] = strings.Replace(line, "# ", "", 1)
		}
		text = before + strings.Join(lines, "\n") + "\n\n" + after
	}
	c, err := Parse("example", []byte(strings.NewReplacer("www-data", "root", "groups: [web]", "groups: [root]", "users: [worker]", "users: [root]", "[root, qsidecar]", "[root]").Replace(text)), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Listen[0].Allow) != 4 || len(c.Queues["thumbnails"].Columns) < 10 || *c.Queues["mail"].MaxAttempts != 5 {
		t.Errorf("of the comments it has %+v and %+v", c.Listen[0], c.Queues)
	}
}

func TestRulesOfTheConfig(t *testing.T) {
	c, err := Parse("c.yaml", []byte(`
listen:
  - socket: /a
    allow:
      - {users: [root, 7], groups: root, ops: [enqueue], queues: ["mail-*"]}
      - {users: 8}
  - socket: /b
`), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	c.fillIn("", "sqlite:x")
	want := []bridge.Rule{
		{Users: []uint32{0, 7}, Groups: []uint32{0}, Ops: []protocol.Op{protocol.OpEnqueue}, Queues: []string{"mail-*"}},
		{Users: []uint32{8}},
	}
	got := c.BridgeOptions(nil).Sockets
	if d := cmp.Diff(want, got[0].Allow); d != "" || got[1].Allow != nil {
		t.Errorf("rules (-want +got):\n%s\nof the second socket: %v", d, got[1].Allow)
	}
}

func allKeys(t reflect.Type) (keys []string) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return allKeys(t.Elem())
	case reflect.Struct:
		for field := range t.Fields() {
			keys = append(append(keys, field.Tag.Get("yaml")), allKeys(field.Type)...)
		}
	}
	return keys
}

func TestConfigValues(t *testing.T) {
	env := func(k string) (string, bool) {
		v, ok := map[string]string{"DIR": "/data", "N": "9", "EMPTY": ""}[k]
		return v, ok
	}
	c, err := Parse("c.yaml", []byte(`
listen:
  - {socket: /a, mode: 0600, group: root}
  - socket: ${DIR}//c/../b$$x
databases:
  one: {url: "sqlite:${DIR}/one.db", sidecar_timeout: 1m}
  two: {url: "sqlite:two.db${EMPTY}", restart_grace: 0s}
defaults: {database: one, max_attempts: "${N}", retention: {done: 1d12h, dead: forever}}
queues:
  mail: {timeout: 500ms, order: lifo, backoff: {max: 1d, jitter: 25%}, key_ttl: 1h}
  bulk: {database: two, max_attempts: 1, retention: {done: 0s, dead: 7d}}
  plain: {backoff: {jitter: 0}}
drain_timeout: 0s
max_frame: 8MiB
limits: {connections_per_user: 5, jobs_per_connection: 7}
log: {level: debug, format: json}
`), env)
	if err != nil {
		t.Fatal(err)
	}
	o := c.BridgeOptions(map[string]backends.Backend{})
	want := bridge.Options{
		Server: o.Server,
		Sockets: []bridge.Socket{
			{Path: "/a", Mode: 0o600, Group: "root"},
			{Path: "/data/b$x", Mode: 0o660},
		},
		Databases: map[string]bridge.Database{
			"one": {SidecarTimeout: time.Minute, RestartGrace: time.Minute},
			"two": {SidecarTimeout: 30 * time.Second, RestartGrace: time.Millisecond},
		},
		Queues: map[string]bridge.Queue{
			"mail": {Database: "one", MaxAttempts: 9, Timeout: 500 * time.Millisecond, Backoff: time.Second,
				BackoffMax: 24 * time.Hour, Jitter: 0.25, RetainDone: 36 * time.Hour, RetainDead: -1, RetainBatch: 30 * 24 * time.Hour, KeyTTL: time.Hour, LIFO: true},
			"bulk": {Database: "two", MaxAttempts: 1, Backoff: time.Second, BackoffMax: time.Hour, Jitter: 0.1,
				RetainDead: 7 * 24 * time.Hour, RetainBatch: 30 * 24 * time.Hour, KeyTTL: 10 * time.Minute},
			"plain": {Database: "one", MaxAttempts: 9, Backoff: time.Second, BackoffMax: time.Hour, Jitter: -1,
				RetainDone: 36 * time.Hour, RetainDead: -1, RetainBatch: 30 * 24 * time.Hour, KeyTTL: 10 * time.Minute},
		},
		MaxFrame: 8 << 20, DrainTimeout: -1,
		QueueLabels: bridge.DefaultQueueLabels, Limits: bridge.Limits{Connections: 10_000, PerUser: 5, JobsPerConnection: 7, BufferMemory: bridge.DefaultBufferMemory, QueueNames: 10_000},
	}
	if d := cmp.Diff(want, o); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if c.Databases["one"].URL != "sqlite:/data/one.db" || c.Databases["two"].URL != "sqlite:two.db" {
		t.Errorf("databases: %+v", c.Databases)
	}
	if c.Log != (Log{"debug", "json"}) {
		t.Errorf("log: %+v", c.Log)
	}
}

// TestConfigErrors checks each error with its position, as line:column: text.
func TestConfigErrors(t *testing.T) {
	for _, row := range []struct{ src, want string }{
		{"lisen: []", "1:1: unknown key \"lisen\": did you mean listen?"},
		{"queues: {q: {max_attempst: 3}}", "unknown key \"max_attempst\": did you mean max_attempts?"},
		{"log: {colour: 1}", "1:7: unknown key \"colour\"; known here: level, format"},
		{"listen: [{socket: /s, allow: []}]", "listen[0].allow: an empty list allows nothing"},
		{"listen: [{socket: /s, allow: [{users: []}]}]", "listen[0].allow[0].users: an empty list matches no client"},
		{"listen: [{socket: /s, allow: [{users: [nobody-of-that-name]}]}]", "listen[0].allow[0].users: this host's files have no user \"nobody-of-that-name\""},
		{"listen: [{socket: /s, allow: [{groups: no-such-group}]}]", "listen[0].allow[0].groups: this host's files have no group"},
		{"listen: [{socket: /s, allow: [{ops: [shout]}]}]", "listen[0].allow[0].ops: there is no op \"shout\""},
		{"listen: [{socket: /s, allow: [{ops: [reload], queues: [a]}]}]", "listen[0].allow[0].ops: reload concerns the sidecar, not a queue: put it in a rule without queues"},
		{"listen: [{socket: /s, allow: [{queues: [a b*]}]}]", "listen[0].allow[0].queues: \"a b*\" isn't a queue name"},
		{"listen: [{socket: /s}, {socket: /s}]", "listen[1].socket: /s is here twice"},
		{"listen: [{socket: /s/t}, {socket: /s//x/../t}]", "listen[1].socket: /s//x/../t is here twice (as /s/t)"},
		{"listen: [{socket: /s, group: no-such-group}]", "1:23: listen[0].group: this host's files have no group \"no-such-group\""},
		{"listen: [{socket: /s, group: -1}]", "listen[0].group: this host's files have no group \"-1\""},
		{"admin: {listen: /a/b, group: no-such-group}", "1:23: admin.group: this host's files have no group"},
		{"listen: [{socket: /a/b}]\nadmin: {listen: /a//b}", "admin.listen: /a//b is a socket that workers connect to"},
		{"listen: /s", "1:9: listen: this should be a list (- …)"},
		{"listen: [{mode: '0660'}]", "listen[0].socket: it is missing"},
		{"listen: [{socket: /s, mode: 0999}]", "1:29: listen[0].mode: \"0999\" is not a mode: write it in octal, as \"0660\""},
		{"databases: [a]", "1:12: databases: this should be a map (key: value), as in {NAME: {url: …}}, and is a list"},
		{"databases: {a: {}}", "databases.a.url: it is missing"},
		{"databases: {a: {url: 'sqlserver://h/d'}}", "databases.a.url: the address has no database"},
		{"databases: {a: {url: 'sqlite:x', sidecar_timeout: 10ms}}", "databases.a.sidecar_timeout: 10ms is outside 1s to 1h"},
		{"databases: {a: {url: 'sqlite:x'}, b: {url: 'sqlite:y'}}\nqueues: {q: {}}", "2:10: queues.q: which database? name one here, or in defaults.database"},
		{"databases: {a: {url: 'sqlite:x'}}\nqueues: {q: {database: b}}", "queues.q.database: no database \"b\" is configured"},
		{"queues: {.q: {}}", "1:10: queues..q: "},
		{"queues: {q: {max_attempts: 0}}", "1:14: queues.q.max_attempts: 0 is outside 1 to 32767"},
		{"queues: {q: {max_attempts: many}}", "1:28: queues.q.max_attempts: \"many\" is not a whole number"},
		{"queues: {q: {timeout: 10}}", "1:23: queues.q.timeout: \"10\" is not a duration: write a duration as 10s, 5m, 2h, 7d or 1h30m"},
		{"queues: {q: {order: random}}", "1:21: queues.q.order: \"random\" is not one of fifo, lifo"},
		{"queues: {q: {backoff: {initial: 2h}}}", "queues.q.backoff.max: 1h is shorter than backoff.initial (2h)"},
		{"queues: {q: {backoff: {jitter: 60%}}}", "queues.q.backoff.jitter: 60% is outside 0% to 50%"},
		{"queues: {q: {backoff: {jitter: 0.1}}}", "queues.q.backoff.jitter: \"0.1\" is not a percentage: write it as 10%"},
		{"queues: {q: {backoff: {jitter: -1%}}}", "queues.q.backoff.jitter: \"-1%\" is not a percentage"},
		{"defaults: {retention: {dead: 0s}}", "1:24: defaults.retention.dead: 0s is outside 1s to "},
		{"defaults: {retention: 30d}", "1:23: defaults.retention: this should be a map"},
		{"limits: {jobs_per_connection: 0}", "limits.jobs_per_connection: 0 is outside 1 to 1000000"},
		{"queues: {q: {start_within: -1s}}", "queues.q.start_within: "},
		{"queues: {q: {on_expiry: drop}}", "1:25: queues.q.on_expiry: \"drop\" is not one of dead, delete"},
		{"{databases: {m: {url: 'sqlserver://a@db?database=a'}}, queues: {q: {start_within: 1m}}}", "queues.q.start_within: jobs in a database on SQL Server don't expire: leave it out"},
		{"queues: {q: {table: t, start_within: 1m}}", "queues.q.start_within: jobs in an adopted table don't expire: leave it out"},
		{"queues: {q: {max_ready: -1}}", "queues.q.max_ready: -1 is negative"},
		{"max_frame: 1GiB", "1:1: max_frame: 1024MiB is outside 64KiB to 64MiB"},
		{"max_frame: 4M", "1:12: max_frame: \"4M\" is not a size: write it as 4MiB, 512KiB or a number of bytes"},
		{"queues: {q: {rate: 10/s}}", "1:14: unknown key \"rate\"; limits hold over all hosts, so they are in the database: set them with `qsidecar limit`, or `qsidecar limit apply FILE`"},
		{"queues: {q: {retries: 3}}", "unknown key \"retries\"; did you mean max_attempts? It counts the first attempt too"},
		{"queues: {q: {concurrency: 3}}", "unknown key \"concurrency\"; how many jobs run at once is set at the worker"},
		{"schedules: {}", "1:1: unknown key \"schedules\"; schedules are in the database: declare them with `qsidecar schedule apply FILE`"},
		{"databases: {a: {url: 'postgres://app@db/app', password: secret}}", "unknown key \"password\"; the password goes into a file: name that in password_file\n     1 | databases: {a: {url: 'postgres://app@db/app', password: …"},
		{"databases: {a: {url: $DB_URL}}", "databases.a.url: a variable isn't replaced in this form: write ${NAME} in a config"},
		{"databases: {a: {url: 'sqlite:~/x.db'}}", "databases.a.url: sqlite: ~ isn't replaced here: write the whole path"},
		{"databases: {a: {url: 'sqlite://tmp/x.db'}}", "databases.a.url: \"sqlite://tmp/x.db\" has two slashes: write sqlite:/tmp/x.db, or"},
		{"listen: [{socket: ~/q.sock}]", "listen[0].socket: \"~/q.sock\": ~ and variables aren't replaced here: write the whole path"},
		{"databases: {a: {url: 'sqlite:x'}, b: {url: 'sqlite:y'}}", "1:1: databases: which one do queues use? Name it in defaults.database"},
		{"databases: {a: {url: 'sqlite:x'}, b: {url: 'sqlite:y'}}\nqueues: {q: {database: c}}", "queues.q.database: no database \"c\" is configured: name one of a, b"},
		{"queues: {mail-*: {}}", "queues.mail-*: \"mail-*\" is not a queue name: use A-Z a-z 0-9 . _ : / - and do not start with . or -; only \"*\" alone is for other names"},
		{"queues:\n  q:{timeout: 10m}", "2:3: write a space after the colon of the key \"q\""},
		{"queues\n  q: {}", "1:1: a colon is missing: write KEY: VALUE"},
		{`{"queues": {"q": {"timeout": "10m"}`, "this { has no }: add it"},
		{"listen: [{socket: /s}", "this [ has no ]: add it"},
		{"databases:\n  a: {url: \"sqlite:x}", "2:12: this \" has no closing one: add it"},
		{"databases:\n  a: {url: 'sqlite:x}", "2:12: this ' has no closing one: add it"},
		{"\x7fELF\x00\x01", "c.yaml: the file isn't text: name a YAML file"},
		{"queues: {q: {order: created_at}}", "is not one of fifo, lifo; a queue with a table can also have a list of columns, such as [created_at desc, id]"},
		{"queues: {q: {table: t, on_ack: remove}}", "\"remove\" is not one of update, delete, {archive: TABLE}"},
		{"max_frame: 128MiB", "1:1: max_frame: 128MiB is outside 64KiB to 64MiB"},
		{"drain_timeout: [1s]", "1:16: drain_timeout: this should be a single value, and is a list"},
		{"log: {level: ${LEVEL}}", ": quote a ${NAME} between { and }, for example"},
		{"databases:\n\tmain:\n\t\turl: x", "2:1: a tab is in the indentation: indent with spaces"},
		{"databases:\n  # main: {url: 'sqlite:x'}\n", "1:1: databases has no value: write one, or remove the key"},
		{`{"databases": }`, "databases has no value"},
		{"listen:\n", "listen has no value"},
		{"listen: [{socket: /s, allow: }]", "listen[0].allow has no value"},
		{"admin: {token_file: }", "admin.token_file has no value"},
		{"max_frame:", "max_frame has no value"},
		{"queues: {q: {timeout: }}", "queues.q.timeout has no value"},
		{"log: {level: '${LEVEL}'}", "1:14: log.level: the environment variable LEVEL is not set: set it for the process that reads this file"},
		{"log: {level: '${LEVEL'}", "log.level: ${LEVEL is not ${NAME}"},
		{"log: &a {level: info}", "anchors, aliases and tags are not used in this file"},
		{"databases: {}", "1:1: databases is empty: write an entry, or remove the key"},
		{"listen: []", "1:1: listen is empty: write an entry, or remove the key"},
		{"queues: {}", "1:1: queues is empty: write an entry, or remove the key"},
		{"listen: [{socket: 'unix:///run/q.sock'}]", "1:11: listen[0].socket: \"unix:///run/q.sock\" is not a path: write /run/q.sock"},
		{"listen: [{socket: 'tcp://0.0.0.0:99'}]", "listen[0].socket: \"tcp://0.0.0.0:99\" is a URL, and this must be the path of a Unix socket, such as /run/qsidecar/qsidecar.sock"},
		{"databases: {url: 'sqlite:x'}", "1:13: databases.url: it is a key of an entry: indent it below a name, as in {NAME: {url: …}}"},
		{"databases: 'sqlite:x'", "databases: this should be a map (key: value), as in {NAME: {url: …}}, and is a single value"},
		{"listen: [/s]", "listen[0]: this should be a map (key: value), as in {socket: …}, and is a single value"},
		{"listen: /s", "listen: this should be a list (- …), as in [{socket: …}], and is a single value"},
		{"queues: {q: {database: b}}", "1:14: queues.q.database: no database \"b\" is configured"},
		{"queues: {q: {backoff: {max: 1ms}}}", "1:24: queues.q.backoff.max: 1ms is shorter than backoff.initial (1s)"},
		{"allow: []", "1:1: unknown key \"allow\" here: it is a key of listen[…]"},
		{"claim_mode: update", "1:1: unknown key \"claim_mode\" here: it is a key of queues.NAME"},
		{"defaults: {retention: {dead: never}}", "\"never\" is not a duration: write a duration as 10s, 5m, 2h, 7d or 1h30m, or forever"},
		{"log: {level: '${LEVEL:-info}'}", "log.level: ${LEVEL:-info} is not ${NAME}: a name has letters, digits and _, and there are no defaults"},
		{"\xff\xfel\x00o\x00g\x00:\x00", "c.yaml: the file is UTF-16: save it as UTF-8"},
		{"queues:\n    q:\n        timeout: 5m\n      max_ready: 3\n", "4:7: this line doesn't continue the ones above: indent it as much as its siblings, and write KEY: VALUE"},
		{"listen: [{socket: /s, allow: [{ops: [enque]}]}]", "there is no op \"enque\": did you mean enqueue?"},
		{"queues: {q: {table: t, order: [prio descending]}}", "queues.q.order: \"prio descending\": write \"prio desc\" for the largest first"},
		{"a: b: c", "c.yaml:1:"},
		{"log: {}\nlog: {}", "2:1: the key \"log\" is here twice, first in line 1"},
		{"queues: {a: {}, b: {}, a: {}}", "1:24: the key \"a\" is here twice, first in line 1"},
		{"log: {}\n---\nlog: {}", "a second document"},
		{"max_frame:4MiB", "1:1: write a space after the colon: KEY: VALUE"},
		{"listen: [{socket: /s}]\nmax_frame:4MiB", "2:1: write a space after the colon: KEY: VALUE"},
		{"queues:\n  *: {}", "2:"},
		{"queues:\n  *: {}", "what begins with * needs quotes, such as \"*\""},
		{"queues: {*: {}}", "what begins with * needs quotes, such as \"*\""},
		{"timeout: 5m", "1:1: unknown key \"timeout\" here: it is a key of defaults and queues.NAME"},
		{"databases:\n  main:\n  url: 'sqlite:x'", "c.yaml has 1 error\nc.yaml:3:3: databases.url: it is a key of an entry: indent it below a name, as in {NAME: {url: …}}"},
		{"queues:\n  mail:\n  timeout: 5m", "c.yaml has 1 error\nc.yaml:3:3: queues.timeout: it is a key of an entry: indent it below a name, as in {NAME: {timeout: …}}"},
		{"queues: [mail]", "queues: this should be a map (key: value), as in {NAME: {timeout: 5m}}, and is a list"},
		{"queues: {q: {table: t, where: \"kind = 'x'\"}}", "queues.q.where: this should be a map (key: value), as in {COLUMN: VALUE}, and"},
		{"queues: {q: {table: t, columns: [id]}}", "queues.q.columns: this should be a map (key: value), as in {ROLE: COLUMN}, and"},
		{"admin: {listen: 1, users: ada}", "admin.users: this should be a map (key: value), as in {NAME: FILE}, and"},
		{"admin: {port: 9464}", "unknown key \"port\": did you mean listen?"},
		{"listen: [{path: /s}]", "unknown key \"path\": did you mean socket?"},
		{"databases: {a: {url: 'sqlite:x', pool_size: 5}}", "unknown key \"pool_size\": did you mean max_connections?"},
		{"listen: [{socket: /s, allow: [{ops: [push]}]}]", "there is no op \"push\": did you mean enqueue?"},
		{"listen: [{socket: /s, allow: [{ops: ['*']}]}]", "there is no op \"*\": leave ops out to allow all of a queue"},
		{"queues: {q: {table: t, states: {waiting: ready}}}", "queues.q.states.waiting: there is no such state: a state comes first, as in ready: waiting"},
		{"queues: {q: {table: t, columns: {picture: payload}}}", "queues.q.columns.picture: there is no such role: a role comes first, as in payload: picture"},
		{"databases: {a: {url: 'postgres://app@localhost:54x/app'}}", "the port is not a number up to 65535. If it belongs to the password, the address cannot be read as a URL. In a user's name and a password / is written %2F"},
		{"just text", "the file: this should be a map"},
	} {
		_, err := Parse("c.yaml", []byte(row.src), noEnv)
		if err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s\ngives %v\nwant  %s", row.src, err, row.want)
		}
		if _, is := errors.AsType[*Error](err); err != nil && !is {
			t.Errorf("%s: %T is no Error", row.src, err)
		}
	}
}

// TestOneErrorForOneMistake checks that nothing else is reported for a section that couldn't be read.
func TestOneErrorForOneMistake(t *testing.T) {
	for _, src := range []string{
		"databases: {url: 'sqlite:x'}",
		"listen: [/s]",
		"queues: {q: {table: t, columns: {id: id}, token: 900001}}",
		"queues: {q: {table: a.b.c, columns: {id: id}, states: {ready: new}}}",
	} {
		if _, err := Parse("c.yaml", []byte(src), noEnv); len(Problems(err)) != 1 {
			t.Errorf("%s\ngives %v\nwant one error", src, err)
		}
	}
}

// TestEmptyVariable checks that a variable that is set and empty isn't taken for an unset one: then the sidecar
// would run on the embedded database.
func TestEmptyVariable(t *testing.T) {
	for _, name := range []string{"QSIDECAR_DATABASE", "QSIDECAR_CONFIG"} {
		in := Input{Env: func(n string) (string, bool) {
			return map[string]string{"HOME": "/nowhere"}[n], n == "HOME" || n == name
		}}
		in.FindFile("/nowhere/config.yaml")
		_, err := in.Load()
		if want := name + " is set and empty: give it a value, or unset it for the default"; err == nil || err.Error() != want {
			t.Errorf("an empty %s gives %v, want %s", name, err, want)
		}
	}
}

// TestSocketWrittenAsURL checks the sources of a socket's path other than the file.
func TestSocketWrittenAsURL(t *testing.T) {
	for want, in := range map[string]Input{
		`--socket: "localhost:9464" is a host and a port, and this must be the path of a Unix socket, such as /run/qsidecar/qsidecar.sock (the port of admin.listen is for people and metrics)`: {Socket: "localhost:9464", Env: noEnv},
		`--socket: "unix:///run/q" is not a path: write /run/q`:      {Socket: "unix:///run/q", Env: noEnv},
		`QSIDECAR_SOCKET: "unix:/run/q" is not a path: write /run/q`: {Env: func(n string) (string, bool) { return "unix:/run/q", n == "QSIDECAR_SOCKET" }},
	} {
		in.Database = "sqlite:x"
		if _, err := in.Load(); err == nil || err.Error() != want {
			t.Errorf("Load gives %v, want %s", err, want)
		}
		if err := in.CheckSocket(); err == nil || err.Error() != want {
			t.Errorf("CheckSocket gives %v, want %s", err, want)
		}
	}
}

func TestConfigReportsAllErrors(t *testing.T) {
	_, err := Parse("c.yaml", []byte("lisen: 1\nmax_frame: 1\nqueues:\n  q: {order: x, key_ttl: soon}\n"), noEnv)
	want := `c.yaml has 4 errors
c.yaml:1:1: unknown key "lisen": did you mean listen?
     1 | lisen: …
       | ^
c.yaml:2:1: max_frame: 1 bytes is outside 64KiB to 64MiB
     2 | max_frame: 1
       | ^
c.yaml:4:14: queues.q.order: "x" is not one of fifo, lifo; a queue with a table can also have a list of columns, such as [created_at desc, id]
     4 |   q: {order: x, key_ttl: soon}
       |              ^
c.yaml:4:26: queues.q.key_ttl: "soon" is not a duration: write a duration as 10s, 5m, 2h, 7d or 1h30m
     4 |   q: {order: x, key_ttl: soon}
       |                          ^`
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

// TestManyErrorsAreCut checks that a config with very many errors gets a short answer.
func TestManyErrorsAreCut(t *testing.T) {
	users := strings.Repeat("nosuchuser, ", 4000)
	_, err := Parse("c.yaml", []byte("listen:\n  - socket: /tmp/x\n    allow:\n      - users: ["+users+"]\n"), noEnv)
	if err == nil || !strings.Contains(err.Error(), "c.yaml has 4000 errors\n") || !strings.HasSuffix(err.Error(), "\nc.yaml: 3900 more errors: correct these first") {
		t.Fatalf("got %.200v … %s", err, err.Error()[max(len(err.Error())-200, 0):])
	}
	if n := len(err.Error()); n > maxProblems*(maxShown+300) {
		t.Errorf("the error has %d bytes", n)
	}
}

// TestKeysWithDots checks that a queue's name can look like the path of a key.
func TestKeysWithDots(t *testing.T) {
	if _, err := Parse("c.yaml", []byte("queues: {a.timeout: {}, a: {timeout: 1s}}\n"), noEnv); err != nil {
		t.Error(err)
	}
}

// TestConfigReportsEachErrorOnce checks that an error is reported once, and hides no other.
func TestConfigReportsEachErrorOnce(t *testing.T) {
	for src, want := range map[string][]string{
		"defaults: {retention: {dead: never}, database: none, max_attempts: 0}\ndatabases: {main: {url: 'sqlite:x'}}\nqueues: {a: {}, b: {max_attempts: 0, timeout: 1s}}\n": {
			"c.yaml:1:30: defaults.retention.dead: \"never\" is not a duration", "c.yaml:1:38: defaults.database: no database \"none\"",
			"c.yaml:1:54: defaults.max_attempts: 0 is outside", "c.yaml:3:21: queues.b.max_attempts: 0 is outside",
		},
		"drain_timeout: soon\nmax_frame: big\nlimits: {connections: many}\n": {
			"c.yaml:1:16: drain_timeout: \"soon\" is not", "c.yaml:2:12: max_frame: \"big\" is not", "c.yaml:3:23: limits.connections: \"many\" is not",
		},
		"defaults: {backoff: {initial: 2h}}\nqueues: {a: {}, b: {backoff: {initial: 3h}}}\n": {
			"defaults.backoff.max: 1h is shorter than backoff.initial (2h)", "queues.b.backoff.max: 1h is shorter than backoff.initial (3h)",
		},
		"log: {}\nlog: {level: loud}\ncolour: red\n": {
			"2:1: the key \"log\" is here twice", "2:14: log.level: \"loud\" is not one of", "3:1: unknown key \"colour\"",
		},
	} {
		_, err := Parse("c.yaml", []byte(src), noEnv)
		got := Problems(err)
		if len(got) != len(want) {
			t.Errorf("%s\ngives %d errors, want %d:\n%s", src, len(got), len(want), strings.Join(got, "\n"))
			continue
		}
		for i := range want {
			if !strings.Contains(got[i], want[i]) {
				t.Errorf("%s\ngives %s\nwant  %s", src, got[i], want[i])
			}
		}
	}
}

func TestConfigProblems(t *testing.T) {
	t.Parallel()
	_, err := Parse("f", []byte("x: 1\ny: 2\n"), os.LookupEnv)
	got := Problems(err)
	want := []string{`f:1:1: unknown key "x"; known here: `, `f:2:1: unknown key "y"; known here: `}
	for i := range got {
		got[i], _, _ = strings.Cut(got[i], "listen")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
