// Package adminapi is the HTTP API of a sidecar's admin listener, and the access rules for the API and the web page.
//
// It reaches the databases only through protocol sessions to the running sidecar, so a client of the API can do nothing
// that a client of the socket can't do. Do carries out one operation. Everything that an HTTP client can't be trusted
// with is decided here and in Do: the operations, the clients that can change something, and whether payloads are shown.
//
// # The page
//
// Options.Page gets every request that the API doesn't serve. Before that the Server has done this:
//
//   - A request without a valid token or cookie only gets to the page if its path is /login or below /assets/, and its
//     method is GET or HEAD. Others are redirected to /login, or answered 401 if they don't accept HTML.
//   - A request with another method than GET and HEAD only gets to the page if it can change something: the access is
//     write, it has the token or the cookie, comes from this origin, and has the CSRF token of Access, as the header
//     X-CSRF-Token or the form field csrf_token.
//
// The page draws a form at GET /login that posts the field token, and optionally next (a path), to /login. POST /login
// sets the cookie and redirects to next or /, or to /login?failed=1. POST /logout (with the CSRF token) deletes the cookie.
//
// Pass the request's context to Do, because it contains the client. A context of no request can only read. End a stream when
// the channel of Stopping is closed. The listener limits the time of a GET's response: a stream extends it with a
// http.ResponseController.
package adminapi
