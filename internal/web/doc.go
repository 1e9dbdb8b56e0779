// Package web is the web page of a sidecar: what its queues, jobs, workers and databases do, and the operations with
// which an operator changes them.
//
// It depends on the protocol only. Each request to the sidecar goes through Options.Do, so the page can do nothing that a
// client of the socket can't do. Options.Access decides who can change something. Package adminapi checks the
// sender of each change before it gets here: the CSRF token, the origin and the token or cookie.
//
// # Parts
//
// The server renders HTML with html/template, which escapes every value. One script of its own (assets/app.js) updates
// the parts of a page that carry data-live, shows times in the viewer's zone and filters while the viewer types.
// Everything but the live updates works without the script. A library such as htmx would be ten times as large as the
// script that it replaces.
//
// # What it costs
//
// One poller reads for all browsers. While a browser is connected, it reads the sidecar's status once a second, which
// doesn't use the database, and the statistics of the queues at most once a second. It waits at least twenty times as
// long as the last reading took, so it uses at most a twentieth of one connection, however many queues and browsers
// there are.
//
// The plots show what the sidecar recorded, also before the first visit: see the op history. The poller reads it every
// 10 s, and the sidecar its hours at most once a minute.
//
// For an hour after the last visit it reads the statistics once a minute, so that the plots of ready jobs have no gap. The
// shared reader of queue depths reads up to four times as often for the metrics. A sidecar whose page was never opened
// reads nothing.
package web
