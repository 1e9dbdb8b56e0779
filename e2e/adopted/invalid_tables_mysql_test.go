package adopted

// mysqlTables are the tables for MySQL and MariaDB. There, column names ignore case, a schema is a
// database, an engine can lack transactions, a time can be invalid, and a text has a character set.
var mysqlTables = engineTables{
	both:    "CREATE DATABASE IF NOT EXISTS `Else.where`",
	never:   []string{"no_key", "nullable_key", "part_key", "above", "Missing", "things", "isam"},
	reports: "has the triggers or rules noted",
	wrong: []wrongTable{
		{
			"no-key", `CREATE TABLE no_key (id int, state varchar(9))`,
			`{table: no_key, columns: {id: id, state: state}, states: {ready: a, claimed: b, done: c}}`,
			"columns.id", "the column id alone is no primary key and no unique key: each job must be one row",
		},
		{
			"nullable-key", `CREATE TABLE nullable_key (id int UNIQUE, state varchar(9))`,
			`{table: nullable_key, columns: {id: id, state: state}, states: {ready: a, claimed: b, done: c}}`,
			"columns.id", "no primary key and no unique key",
		},
		{
			"part-key", `CREATE TABLE part_key (id varchar(99) NOT NULL, state varchar(9), UNIQUE (id(5)))`,
			`{table: part_key, columns: {id: id, state: state}, states: {ready: a, claimed: b, done: c}}`,
			"columns.id", "no primary key and no unique key",
		},
		{
			"view", `CREATE TABLE below (id int PRIMARY KEY, state varchar(9))
			CREATE VIEW above AS SELECT * FROM below`,
			`{table: above, columns: {id: id, state: state}, states: {ready: a, claimed: b, done: c}}`,
			"table", "above is a view: only a table's rows can be locked",
		},
		{
			"missing", `CREATE TABLE missing (id int PRIMARY KEY, state varchar(9), parameters json)`,
			`{table: missing, columns: {id: id, state: state, payload: paramters}, states: {ready: a, claimed: b, done: c}}`,
			"columns.payload", "the table has no column paramters: did you mean parameters? It has id, state, parameters",
		},
		{
			"no-table", ``,
			`{table: Missing, columns: {id: id, state: state}, states: {ready: a, claimed: b, done: c}}`,
			"table", "there is no table Missing: there is missing",
		},
		{
			"type", `CREATE TABLE type (id int PRIMARY KEY, state smallint NOT NULL)`,
			`{table: type, columns: {id: id, state: state}, states: {ready: waiting, claimed: 2, done: 3}}`,
			"states.ready", `the column state is of the type smallint`,
		},
		{
			"range", `CREATE TABLE ranges (id int PRIMARY KEY, state tinyint unsigned NOT NULL)`,
			`{table: ranges, columns: {id: id, state: state}, states: {ready: 0, claimed: 256, done: 3}}`,
			"states.claimed", `which holds 0 to 255, and 256 is outside`,
		},
		{
			"token", `CREATE TABLE tokens (id int PRIMARY KEY, token mediumint unsigned)`,
			`{table: tokens, columns: {id: id}, token: {column: token, range: [16777000, 16777216]}, on_ack: delete}`,
			"token.range", `which holds 0 to 16777215, and 16777216 is outside`,
		},
		{
			"long", `CREATE TABLE longs (id int PRIMARY KEY, state char(1) NOT NULL)`,
			`{table: longs, columns: {id: id, state: state}, states: {ready: N, claimed: A, done: Done}}`,
			"states.done", `"Done" is longer than the column state holds (char(1))`,
		},
		{
			"listed", `CREATE TABLE listed (id int PRIMARY KEY, state enum('new', 'it''s') NOT NULL)`,
			`{table: listed, columns: {id: id, state: state}, states: {ready: new, claimed: "it's", done: gone}}`,
			"states.done", `which has no "gone": it has new, it's`,
		},
		{
			"null", `CREATE TABLE nulls (id int PRIMARY KEY, state varchar(9) NOT NULL)`,
			`{table: nulls, columns: {id: id, state: state}, states: {ready: null, claimed: b, done: c}}`,
			"states.ready", "the column state cannot be NULL",
		},
		{
			"letters", "CREATE TABLE letters (`Id` int PRIMARY KEY, `State` varchar(9))",
			`{table: letters, columns: {id: id, state: State}, states: {ready: a, claimed: b, done: c}}`,
			"columns.id", "the table has no column id: it is called Id there",
		},
		{
			"schema", "CREATE TABLE IF NOT EXISTS `Else.where`.astray (id int PRIMARY KEY, state varchar(9))",
			`{table: astray, columns: {id: id, state: state}, states: {ready: a, claimed: b, done: c}}`,
			"table", "there is no table astray: there is Else.where.astray",
		},
		{
			"engine", "CREATE TABLE isam (id int PRIMARY KEY, state varchar(9)) ENGINE = MyISAM",
			`{table: isam, columns: {id: id, state: state}, states: {ready: a, claimed: b, done: c}}`,
			"table", "its storage engine MyISAM has no transactions: ALTER TABLE",
		},
		{
			"archive", "CREATE TABLE live (id int PRIMARY KEY, state varchar(9))\nCREATE TABLE gone (id int PRIMARY KEY, state varchar(9)) ENGINE = MyISAM",
			`{table: live, columns: {id: id, state: state}, states: {ready: a, claimed: b}, on_ack: {archive: gone}}`,
			"on_ack.archive", "the table gone can't be changed in a transaction",
		},
		{
			"charset", `CREATE TABLE charsets (id int PRIMARY KEY, state varchar(9) CHARACTER SET latin1 NOT NULL)`,
			`{table: charsets, columns: {id: id, state: state}, states: {ready: wärten, claimed: →, done: c}}`,
			"states.claimed", `"→" has "→", which the column state cannot hold: its character set is latin1`,
		},
		{
			"generated", `CREATE TABLE made (id int PRIMARY KEY, at int, state int GENERATED ALWAYS AS (at + 1) STORED)`,
			`{table: made, columns: {id: id, state: state}, states: {ready: 1, claimed: 2, done: 3}}`,
			"columns.state", "the column state is generated, so nothing can be stored in it",
		},
	},
	odd: []unusualTable{
		{
			"reserved", "CREATE TABLE `select` (`order` int PRIMARY KEY, `from` varchar(9), `it``s; DROP TABLE ``select`` --` text, `a,b` int)\n" +
				"INSERT INTO `select` VALUES (1, 'a', 'p', 5)",
			"{table: select, columns: {id: order, state: from, payload: \"it`s; DROP TABLE `select` --\"}, where: {\"a,b\": 5}, order: [\"a,b desc\", order], states: {ready: a, claimed: \"b'; --\", done: \"c\\\\\"}}",
			"SELECT concat_ws('|', `order`, `from`, `it``s; DROP TABLE ``select`` --`) FROM `select`", `1|c\|p`,
		},
		{
			"elsewhere", "CREATE TABLE IF NOT EXISTS `Else.where`.`Que.ue` (`ID` int PRIMARY KEY, `State` varchar(9))\nREPLACE INTO `Else.where`.`Que.ue` VALUES (1, 'a')",
			`{table: '"Else.where"."Que.ue"', columns: {id: ID, state: State}, states: {ready: a, claimed: b, done: c}}`,
			"SELECT `State` FROM `Else.where`.`Que.ue`", "c",
		},
		{
			"truth", "CREATE TABLE truth (id char(36) PRIMARY KEY, done boolean, pid int)\nINSERT INTO truth VALUES ('0b9d7c50-7f3e-4b07-8d2c-0d8c6a1b2c3d', false, NULL)",
			`{table: truth, columns: {id: id, state: done}, states: {ready: no, done: yes}, token: {column: pid, range: [5, 9]}}`,
			`SELECT concat_ws('|', done, pid BETWEEN 5 AND 9) FROM truth`, "1|1",
		},
		{
			"numbers", "CREATE TABLE numbers (id int PRIMARY KEY, status tinyint(1) NOT NULL DEFAULT 1)\nINSERT INTO numbers VALUES (1, 1)\n" +
				"CREATE TRIGGER noted BEFORE UPDATE ON numbers FOR EACH ROW SET NEW.id = NEW.id",
			`{table: numbers, columns: {id: id, state: status}, states: {ready: 1, claimed: 2, done: 3}}`,
			`SELECT concat(status) FROM numbers`, "3",
		},
		{
			"latin", "CREATE TABLE latin (id varchar(20) PRIMARY KEY, state varchar(9) NOT NULL, body text, note text, worker varchar(3), problem text) CHARACTER SET latin1\n" +
				"INSERT INTO latin (id, state, body) VALUES ('ñandú', 'wärten', 'Größe')",
			`{table: latin, columns: {id: id, payload: body, state: state, worker: worker, error: problem}, states: {ready: wärten, claimed: läuft, done: fertig}}`,
			`SELECT concat_ws('|', id, state, body, worker) FROM latin`, "ñandú|fertig|Größe|w?1",
		},
		{
			"zero", "CREATE TABLE zero (id int PRIMARY KEY, state char(1) NOT NULL, made datetime NOT NULL, changed timestamp NULL, due datetime NOT NULL)\n" +
				"INSERT IGNORE INTO zero VALUES (1, 'N', '0000-00-00', '0000-00-00', '0000-00-00')",
			`{table: zero, columns: {id: id, state: state, created_at: made, claimed_at: changed, finished_at: changed, run_at: due}, states: {ready: N, claimed: A, done: C}, order: [made]}`,
			`SELECT concat_ws('|', state, made = 0, due = 0, changed > now() - INTERVAL 1 DAY) FROM zero`, "C|1|1|1",
		},
	},
}
