// Package kit has what every end-to-end test starts with. A Site (site.go) is a database and its sidecars (sidecar.go).
// conn.go has connections to them, commands.go runs commands of the program, and wait.go waits. main.go finds the binary under
// test. The folders have what some tests use in addition:
//
//   - admin: reads the admin listener.
//   - adopt: runs a table's own consumers beside workers on sidecars, and checks the rows.
//   - child: runs functions of a test binary as processes that a test can kill.
//   - clientlib: the client libraries, and workers that use them.
//   - crash: runs in which workers and servers are killed, and the checker of their histories.
//   - databases: servers that a test can harm, and connections to them as other programs have.
//   - proxy: cuts and delays connections to a database.
package kit
